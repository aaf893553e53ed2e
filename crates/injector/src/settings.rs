//! The values with the annotations of namespace and pod laid over them. A value that cannot be
//! understood is left out and reported; it never stops a pod.

use crate::{Annotations, Template, Values};
use linkerd_core::{duration, quantity};
use linkerd_k8s::{labels::*, ports::PortSet};
use serde_json::Value;
use std::time::Duration;

/// Every annotation that configures a proxy; of several names of one setting the newest first.
pub const ANNOTATIONS: [&str; 53] = [
    PROXY_IMAGE,
    PROXY_IMAGE_VERSION,
    IMAGE_PULL_POLICY,
    INIT_IMAGE,
    INIT_IMAGE_VERSION,
    DEBUG_IMAGE,
    DEBUG_IMAGE_VERSION,
    DEBUG_IMAGE_PULL_POLICY,
    CONTROL_PORT,
    INBOUND_PORT,
    OUTBOUND_PORT,
    ADMIN_PORT,
    POD_INBOUND_PORTS,
    SKIP_INBOUND_PORTS,
    SKIP_OUTBOUND_PORTS,
    SKIP_SUBNETS,
    SKIP_INBOUND_SUBNETS,
    SKIP_OUTBOUND_SUBNETS,
    OPAQUE_PORTS,
    PROXY_CPU_REQUEST,
    PROXY_CPU_LIMIT,
    PROXY_CPU_RATIO_LIMIT,
    PROXY_MEMORY_REQUEST,
    PROXY_MEMORY_LIMIT,
    PROXY_EPHEMERAL_STORAGE_REQUEST,
    PROXY_EPHEMERAL_STORAGE_LIMIT,
    PROXY_UID,
    PROXY_GID,
    PROXY_LOG_LEVEL,
    PROXY_LOG_FORMAT,
    PROXY_LOG_HTTP_HEADERS,
    ACCESS_LOG,
    PROXY_ADMIN_SHUTDOWN,
    ENABLE_EXTERNAL_PROFILES,
    REQUIRE_IDENTITY_ON_INBOUND_PORTS,
    PROXY_METRICS_HOSTNAME_LABELS,
    OUTBOUND_CONNECT_TIMEOUT,
    INBOUND_CONNECT_TIMEOUT,
    OUTBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT,
    INBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT,
    DISABLE_OUTBOUND_PROTOCOL_DETECT_TIMEOUT,
    DISABLE_INBOUND_PROTOCOL_DETECT_TIMEOUT,
    SHUTDOWN_GRACE_PERIOD,
    DEFAULT_INBOUND_POLICY,
    ENABLE_GATEWAY,
    ENABLE_DEBUG_SIDECAR,
    CLOSE_WAIT_TIMEOUT,
    PROXY_AWAIT,
    PROXY_WAIT_BEFORE_EXIT,
    NATIVE_SIDECAR,
    NATIVE_SIDECAR_BETA,
    NATIVE_SIDECAR_ALPHA,
    PROXY_ADDITIONAL_ENV,
];

/// Annotations a pod does not inherit from its namespace.
const POD_ONLY: [&str; 6] = [
    DEBUG_IMAGE,
    DEBUG_IMAGE_VERSION,
    DEBUG_IMAGE_PULL_POLICY,
    PROXY_CPU_RATIO_LIMIT,
    ENABLE_GATEWAY,
    CLOSE_WAIT_TIMEOUT,
];

const DEFAULT_POLICIES: [&str; 6] = [
    "all-unauthenticated",
    "all-authenticated",
    "cluster-unauthenticated",
    "cluster-authenticated",
    "deny",
    "audit",
];

/// What a pod's sidecar is built from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Values with overrides applied.
    pub values: Values,
    pub debug_sidecar: bool,
    /// Annotations that were not understood, as `key: why`.
    pub ignored: Vec<String>,
}

/// Whether an annotation of the namespace holds for its pods.
pub fn inheritable(key: &str) -> bool {
    let ours = [
        "config.linkerd.io/",
        "config.alpha.linkerd.io/",
        "config.beta.linkerd.io/",
    ];
    key == INJECT || ours.iter().any(|prefix| key.starts_with(prefix)) && !POD_ONLY.contains(&key)
}

struct Overrides<'a> {
    namespace: &'a Annotations,
    pod: &'a Template,
    ignored: Vec<String>,
}

impl<'a> Overrides<'a> {
    fn get(&self, key: &str) -> Option<&'a str> {
        let inherited = || {
            inheritable(key)
                .then(|| self.namespace.get(key).map(String::as_str))
                .flatten()
        };
        self.pod.annotation(key).or_else(inherited)
    }

    fn ignore(&mut self, key: &str, why: impl std::fmt::Display) {
        self.ignored.push(format!("{key}: {why}"));
    }

    fn text(&self, key: &str, into: &mut String) {
        if let Some(value) = self.get(key) {
            value.clone_into(into);
        }
    }

    fn parsed<T>(&mut self, key: &str, parse: impl Fn(&str) -> Result<T, String>, into: &mut T) {
        if let Some(value) = self.get(key) {
            match parse(value) {
                Ok(parsed) => *into = parsed,
                Err(why) => self.ignore(key, why),
            }
        }
    }

    fn number<T: std::str::FromStr>(&mut self, key: &str, into: &mut T) {
        self.parsed(
            key,
            |text| {
                text.parse()
                    .map_err(|_| format!("{text:?} is not a number in range"))
            },
            into,
        );
    }

    fn boolean(&mut self, key: &str, into: &mut bool) {
        // The forms Go's parser takes.
        let parse = |text: &str| match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        };
        self.parsed(key, parse, into);
    }

    fn switch(&mut self, key: &str, into: &mut bool) {
        let parse = |text: &str| match text {
            "enabled" => Ok(true),
            "disabled" => Ok(false),
            _ => Err(format!("{text:?} is neither enabled nor disabled")),
        };
        self.parsed(key, parse, into);
    }

    fn one_of(&mut self, key: &str, known: &[&str], into: &mut String) {
        let parse = |text: &str| {
            let found = known.contains(&text).then(|| text.to_owned());
            found.ok_or_else(|| format!("{text:?} is not one of {}", known.join(", ")))
        };
        self.parsed(key, parse, into);
    }

    fn duration(&mut self, key: &str, print: impl Fn(Duration) -> String, into: &mut String) {
        self.parsed(
            key,
            |text| {
                duration::parse(text)
                    .map(&print)
                    .map_err(|error| error.to_string())
            },
            into,
        );
    }

    fn quantity(&mut self, key: &str, into: &mut String) {
        self.parsed(key, |text| milli(text).map(|_| text.to_owned()), into);
    }

    fn ports(&mut self, key: &str, into: &mut String) {
        let Some(list) = self.get(key) else { return };
        let mut unknown = Vec::new();
        let pod = self.pod;
        let entries = list
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty());
        let mut kept = Vec::new();
        for entry in entries {
            let named = pod.ports_named(entry);
            if !named.is_empty() {
                kept.extend(named.iter().map(ToString::to_string));
            } else if PortSet::parse(entry).is_ok() {
                kept.push(entry.to_owned());
            } else {
                unknown.push(entry.to_owned());
            }
        }
        for entry in unknown {
            self.ignore(key, format!("{entry:?} is not a valid port nor port-range"));
        }
        *into = kept.join(",");
    }
}

fn millis(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}

/// Thousandths of a Kubernetes quantity.
pub fn milli(text: &str) -> Result<u64, String> {
    quantity::milli(text).ok_or_else(|| format!("{text:?} is not a quantity"))
}

/// Whole processors that cover a quantity of CPU.
pub fn processors(quantity: &str) -> Option<String> {
    milli(quantity)
        .ok()
        .map(|milli| milli.div_ceil(1000).max(1).to_string())
}

/// Lays the annotations over the values.
pub fn resolve(values: &Values, namespace: &Annotations, pod: &Template) -> Settings {
    let mut v = values.clone();
    let mut o = Overrides {
        namespace,
        pod,
        ignored: Vec::new(),
    };
    let p = &mut v.proxy;

    if o.get(INJECT) == Some(INJECT_INGRESS) {
        p.is_ingress = true;
    }
    o.text(PROXY_IMAGE, &mut p.image.name);
    o.text(PROXY_IMAGE_VERSION, &mut p.image.version);
    o.text(IMAGE_PULL_POLICY, &mut p.image.pull_policy);
    o.number(CONTROL_PORT, &mut p.ports.control);
    o.number(INBOUND_PORT, &mut p.ports.inbound);
    o.number(OUTBOUND_PORT, &mut p.ports.outbound);
    o.number(ADMIN_PORT, &mut p.ports.admin);
    o.ports(POD_INBOUND_PORTS, &mut p.pod_inbound_ports);
    o.ports(OPAQUE_PORTS, &mut p.opaque_ports);
    o.quantity(PROXY_CPU_REQUEST, &mut p.resources.cpu.request);
    o.quantity(PROXY_CPU_LIMIT, &mut p.resources.cpu.limit);
    if let Some(minimum) = o.get(PROXY_CPU_REQUEST).and_then(processors) {
        p.cores.clear();
        p.runtime.workers.minimum = minimum;
    }
    if let Some(maximum) = o.get(PROXY_CPU_LIMIT).and_then(processors) {
        p.runtime.workers.maximum = maximum;
    }
    let ratio = |text: &str| match text.parse::<f64>() {
        Ok(ratio) if ratio > 0.0 && ratio < 1.0 => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not a number between 0 and 1")),
    };
    o.parsed(
        PROXY_CPU_RATIO_LIMIT,
        ratio,
        &mut p.runtime.workers.maximum_cpu_ratio,
    );
    o.quantity(PROXY_MEMORY_REQUEST, &mut p.resources.memory.request);
    o.quantity(PROXY_MEMORY_LIMIT, &mut p.resources.memory.limit);
    o.quantity(
        PROXY_EPHEMERAL_STORAGE_REQUEST,
        &mut p.resources.ephemeral_storage.request,
    );
    o.quantity(
        PROXY_EPHEMERAL_STORAGE_LIMIT,
        &mut p.resources.ephemeral_storage.limit,
    );
    o.number(PROXY_UID, &mut p.uid);
    o.number(PROXY_GID, &mut p.gid);
    o.text(PROXY_LOG_LEVEL, &mut p.log_level);
    o.text(PROXY_LOG_FORMAT, &mut p.log_format);
    o.one_of(
        PROXY_LOG_HTTP_HEADERS,
        &["off", "insecure"],
        &mut p.log_http_headers,
    );
    o.one_of(ACCESS_LOG, &["apache", "json"], &mut p.access_log);
    o.switch(PROXY_ADMIN_SHUTDOWN, &mut p.enable_shutdown_endpoint);
    o.boolean(ENABLE_EXTERNAL_PROFILES, &mut p.enable_external_profiles);
    o.text(
        REQUIRE_IDENTITY_ON_INBOUND_PORTS,
        &mut p.require_identity_on_inbound_ports,
    );
    o.boolean(
        PROXY_METRICS_HOSTNAME_LABELS,
        &mut p.metrics.hostname_labels,
    );
    o.duration(
        OUTBOUND_CONNECT_TIMEOUT,
        millis,
        &mut p.outbound_connect_timeout,
    );
    o.duration(
        INBOUND_CONNECT_TIMEOUT,
        millis,
        &mut p.inbound_connect_timeout,
    );
    o.duration(
        OUTBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT,
        seconds,
        &mut p.outbound_discovery_cache_unused_timeout,
    );
    o.duration(
        INBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT,
        seconds,
        &mut p.inbound_discovery_cache_unused_timeout,
    );
    o.boolean(
        DISABLE_OUTBOUND_PROTOCOL_DETECT_TIMEOUT,
        &mut p.disable_outbound_protocol_detect_timeout,
    );
    o.boolean(
        DISABLE_INBOUND_PROTOCOL_DETECT_TIMEOUT,
        &mut p.disable_inbound_protocol_detect_timeout,
    );
    o.duration(SHUTDOWN_GRACE_PERIOD, millis, &mut p.shutdown_grace_period);
    o.one_of(
        DEFAULT_INBOUND_POLICY,
        &DEFAULT_POLICIES,
        &mut p.default_inbound_policy,
    );
    o.boolean(ENABLE_GATEWAY, &mut p.is_gateway);
    o.switch(PROXY_AWAIT, &mut p.await_ready);
    o.number(PROXY_WAIT_BEFORE_EXIT, &mut p.wait_before_exit_seconds);
    for key in [NATIVE_SIDECAR_ALPHA, NATIVE_SIDECAR_BETA, NATIVE_SIDECAR] {
        o.boolean(key, &mut p.native_sidecar);
    }
    additional_env(&mut o, &mut p.additional_env);

    let i = &mut v.proxy_init;
    o.text(INIT_IMAGE, &mut i.image.name);
    o.text(INIT_IMAGE_VERSION, &mut i.image.version);
    o.text(IMAGE_PULL_POLICY, &mut i.image.pull_policy);
    o.ports(SKIP_INBOUND_PORTS, &mut i.ignore_inbound_ports);
    o.ports(SKIP_OUTBOUND_PORTS, &mut i.ignore_outbound_ports);
    o.text(SKIP_SUBNETS, &mut i.skip_subnets);
    o.text(SKIP_INBOUND_SUBNETS, &mut i.skip_inbound_subnets);
    o.text(SKIP_OUTBOUND_SUBNETS, &mut i.skip_outbound_subnets);
    let close_wait = |text: &str| {
        let parsed = duration::parse(text).map_err(|error| error.to_string())?;
        i64::try_from(parsed.as_secs()).map_err(|_| format!("{text:?} is too long"))
    };
    o.parsed(
        CLOSE_WAIT_TIMEOUT,
        close_wait,
        &mut i.close_wait_timeout_secs,
    );

    let d = &mut v.debug_container;
    o.text(DEBUG_IMAGE, &mut d.image.name);
    o.text(DEBUG_IMAGE_VERSION, &mut d.image.version);
    o.text(DEBUG_IMAGE_PULL_POLICY, &mut d.image.pull_policy);
    let mut debug_sidecar = false;
    o.boolean(ENABLE_DEBUG_SIDECAR, &mut debug_sidecar);

    Settings {
        values: v,
        debug_sidecar,
        ignored: o.ignored,
    }
}

/// Variables by name: those of the pod beat the namespace's, those beat the values'.
fn additional_env(o: &mut Overrides<'_>, into: &mut Option<Vec<Value>>) {
    let layers = [
        o.namespace.get(PROXY_ADDITIONAL_ENV).map(String::as_str),
        o.pod.annotation(PROXY_ADDITIONAL_ENV),
    ];
    for text in layers.into_iter().flatten() {
        let named = |vars: &[Value]| {
            vars.iter()
                .all(|var| var.get("name").is_some_and(Value::is_string))
        };
        match serde_json::from_str::<Vec<Value>>(text) {
            Ok(vars) if named(&vars) => {
                let merged = into.get_or_insert_default();
                for var in vars {
                    merged.retain(|existing| existing.get("name") != var.get("name"));
                    merged.push(var);
                }
            }
            Ok(_) => o.ignore(PROXY_ADDITIONAL_ENV, "every variable needs a name"),
            Err(error) => o.ignore(PROXY_ADDITIONAL_ENV, error),
        }
    }
}

#[cfg(test)]
mod tests;
