//! Reads the variables of `env.rs` into `Config`, collecting every mistake on the way.

mod control;
mod identity;
mod traffic;

use std::time::Duration;

use super::{
    AccessLog, Admin, Backoff, Config, Env, Http2Windows, Identity, IdentitySource, Safe,
    SocketOptions, Tap, Workers, env,
    value::{self, Malformed},
};

/// Variables in, values out; mistakes are kept.
pub(super) struct Reader<'a> {
    env: &'a dyn Env,
    mistakes: Vec<String>,
    warnings: Vec<String>,
    complaints: Vec<String>,
}

const SECOND: Duration = Duration::from_secs(1);

impl<'a> Reader<'a> {
    pub(super) fn new(env: &'a dyn Env) -> Self {
        Self {
            env,
            mistakes: Vec::new(),
            warnings: Vec::new(),
            complaints: Vec::new(),
        }
    }

    pub(super) fn into_mistakes(self) -> Vec<String> {
        self.mistakes
    }

    fn get<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, Malformed>,
    ) -> Option<T> {
        let text = match self.env.get(name)? {
            Ok(text) => text,
            Err(error) => {
                self.mistakes.push(format!("{name} is not valid: {error}"));
                return None;
            }
        };
        match parse(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.mistakes
                    .push(format!("{name}={text:?} is not valid: {error}"));
                None
            }
        }
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.get(name, |s| Ok(s.to_owned()))
    }

    fn duration(&mut self, name: &str, default: Duration) -> Duration {
        self.get(name, value::duration).unwrap_or(default)
    }

    fn boolean(&mut self, name: &str) -> bool {
        self.get(name, value::boolean).unwrap_or(false)
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str, default: T) -> T {
        self.get(name, value::number).unwrap_or(default)
    }

    fn required(&mut self, name: &str) -> Option<String> {
        let value = self.text(name);
        if value.is_none() && self.env.get(name).is_none() {
            self.mistakes.push(format!("{name} is required"));
        }
        value
    }

    pub(super) fn config(&mut self) -> Option<Config> {
        let inbound_backoff = self.backoff(
            [
                env::INBOUND_CONNECT_EXP_BACKOFF_MIN,
                env::INBOUND_CONNECT_EXP_BACKOFF_MAX,
                env::INBOUND_CONNECT_EXP_BACKOFF_JITTER,
            ],
            10 * SECOND,
        );
        let outbound_backoff = self.backoff(
            [
                env::OUTBOUND_CONNECT_EXP_BACKOFF_MIN,
                env::OUTBOUND_CONNECT_EXP_BACKOFF_MAX,
                env::OUTBOUND_CONNECT_EXP_BACKOFF_JITTER,
            ],
            60 * SECOND,
        );
        let safe = Safe {
            unsent: self
                .get(env::HTTP_RESEND_UNSENT, value::boolean)
                .unwrap_or(true),
            idempotent: self
                .get(env::HTTP_RESEND_IDEMPOTENT, value::boolean)
                .unwrap_or(true),
        };
        let outbound = self.outbound(outbound_backoff, safe);
        let inbound = self.inbound(inbound_backoff, safe);
        let admin = Admin {
            listen: self
                .get(env::ADMIN_LISTEN_ADDR, value::socket_addr)
                .unwrap_or_else(|| ([127, 0, 0, 1], 4191).into()),
            shutdown_enabled: self.boolean(env::SHUTDOWN_ENDPOINT_ENABLED),
            metrics_retain_idle: self.duration(env::METRICS_RETAIN_IDLE, 600 * SECOND),
        };
        let http2_client = Http2Windows {
            stream: self
                .get(env::HTTP2_INITIAL_STREAM_WINDOW_SIZE, value::window)
                .unwrap_or(65_535),
            connection: self
                .get(env::HTTP2_INITIAL_CONNECTION_WINDOW_SIZE, value::window)
                .unwrap_or(1_048_576),
        };
        let tap_listen = self
            .get(env::CONTROL_LISTEN_ADDR, value::socket_addr)
            .unwrap_or_else(|| ([0, 0, 0, 0], 4190).into());
        let tap = self
            .get(env::TAP_SVC_NAME, value::identity)
            .map(|identity| Tap {
                listen: tap_listen,
                identity,
            });
        let memory_ceiling = match self.get(env::MEMORY_CEILING, value::number) {
            Some(0) => None,
            Some(bytes) => Some(bytes),
            None => crate::memory::of_container(),
        };
        let shutdown_grace = self.duration(env::SHUTDOWN_GRACE_PERIOD, 120 * SECOND);
        let workers = self.workers();
        let identity = self.identity();
        let spire = matches!(
            identity,
            Some(Identity {
                source: IdentitySource::Spire { .. },
                ..
            })
        );
        let control = self.control(spire);
        Some(Config {
            outbound,
            inbound,
            admin,
            control: control?,
            identity: identity?,
            http2_client,
            workers,
            head_timeout: self.duration(env::HTTP1_HEAD_TIMEOUT, 30 * SECOND),
            trace_resource: self.trace_resource(),
            access_log: self.access_log(),
            tap,
            memory_ceiling,
            shutdown_grace,
            warnings: std::mem::take(&mut self.warnings),
            complaints: std::mem::take(&mut self.complaints),
        })
    }

    /// Later sources win: host, service name, labels of the pod, extra attributes, OpenTelemetry's own.
    fn trace_resource(&mut self) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        let mut put = |name: &str, value: &str| {
            let (name, value) = (name.trim(), value.trim());
            if !name.is_empty() {
                found.retain(|(n, _)| n != name);
                found.push((name.to_owned(), value.to_owned()));
            }
        };
        if let Some(host) = self.text(env::HOSTNAME) {
            put("host.name", &host);
        }
        if let Some(name) = self.text(env::TRACE_SERVICE_NAME) {
            put("service.name", &name);
        }
        if let Some(path) = self.text(env::TRACE_ATTRIBUTES_PATH) {
            match std::fs::read_to_string(&path) {
                Ok(labels) => {
                    for (name, value) in labels.lines().filter_map(|l| l.split_once('=')) {
                        put(name, value.trim().trim_matches('"'));
                    }
                }
                Err(error) => self
                    .warnings
                    .push(format!("{path} cannot be read: {error}")),
            }
        }
        if let Some(extra) = self.text(env::TRACE_EXTRA_ATTRIBUTES) {
            for (name, value) in extra.lines().filter_map(|l| l.split_once('=')) {
                put(name, value);
            }
        }
        if let Some(theirs) = self.text(env::OTEL_RESOURCE_ATTRIBUTES) {
            for (name, value) in theirs.split(',').filter_map(|a| a.split_once('=')) {
                put(name, value);
            }
        }
        found
    }

    /// A form nobody knows only turns the access log off.
    fn access_log(&mut self) -> Option<AccessLog> {
        let name = self.get(env::ACCESS_LOG, |text| Ok(text.trim().to_owned()))?;
        match name.as_str() {
            "apache" => Some(AccessLog::Apache),
            "json" => Some(AccessLog::Json),
            "" => None,
            _ => {
                self.complaints.push(format!(
                    "{}={name:?} is neither apache nor json: there is no access log",
                    env::ACCESS_LOG
                ));
                None
            }
        }
    }

    fn socket_options(&mut self, keepalive: &str, user_timeout: &str) -> SocketOptions {
        SocketOptions {
            keepalive: self.get(keepalive, value::duration),
            user_timeout: self.get(user_timeout, value::duration),
        }
    }

    fn backoff(&mut self, names: [&str; 3], default_max: Duration) -> Backoff {
        let default = Backoff {
            min: Duration::from_millis(100),
            max: default_max,
            jitter: 0.1,
        };
        let [min_name, max_name, jitter_name] = names;
        let min = self.get(min_name, value::duration);
        let max = self.get(max_name, value::duration);
        let jitter = self.get(jitter_name, value::number::<f64>);
        match (min, max) {
            (None, None) => {
                match Backoff::new(default.min, default.max, jitter.unwrap_or(default.jitter)) {
                    Ok(backoff) => backoff,
                    Err(error) => {
                        self.mistakes
                            .push(format!("{jitter_name} is not valid: {error}"));
                        default
                    }
                }
            }
            (Some(min), Some(max)) => match Backoff::new(min, max, jitter.unwrap_or(0.0)) {
                Ok(backoff) => backoff,
                Err(error) => {
                    self.mistakes
                        .push(format!("{min_name} and {max_name} are not valid: {error}"));
                    default
                }
            },
            // A variable that is present but bad has been reported already.
            _ => {
                let both = self.env.get(min_name).is_some() && self.env.get(max_name).is_some();
                if !both {
                    self.mistakes
                        .push(format!("{min_name} and {max_name} must be set together"));
                }
                default
            }
        }
    }

    /// Bad values here are only warnings, as upstream.
    fn workers(&mut self) -> Workers {
        let before = self.mistakes.len();
        let at_least_one = |s: &str| match value::number::<usize>(s)? {
            0 => Err(Malformed::Other("must be at least 1")),
            n => Ok(n),
        };
        let min = match self.get(env::CORES_MIN, at_least_one) {
            Some(min) => min,
            None => self.get(env::CORES, at_least_one).unwrap_or(1),
        };
        let max = self.get(env::CORES_MAX, at_least_one);
        let max_ratio = self.get(env::CORES_MAX_RATIO, |s| {
            let ratio = value::number::<f64>(s)?;
            if ratio > 0.0 && ratio <= 1.0 {
                Ok(ratio)
            } else {
                Err(Malformed::Other("must be above 0 and at most 1"))
            }
        });
        self.warnings.extend(self.mistakes.drain(before..));
        Workers {
            min,
            max,
            max_ratio,
        }
    }
}
