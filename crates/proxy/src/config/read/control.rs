//! Where the services of the control plane are, and what the proxy tells them of itself.

use super::{
    super::{Addr, Control, ControlAddr, StreamLimits, env, value},
    Reader,
};

impl Reader<'_> {
    fn control_addr(&mut self, addr: &str, name: &str) -> Option<ControlAddr> {
        let addr_value: Option<Addr> = self.get(addr, str::parse);
        let identity = self.get(name, value::identity);
        let addr_value = addr_value?;
        if addr_value.is_loopback() {
            return Some(ControlAddr {
                addr: addr_value,
                identity: None,
            });
        }
        if identity.is_none() && self.env.get(name).is_none() {
            self.mistakes
                .push(format!("{name} is required when {addr} is not loopback"));
        }
        Some(ControlAddr {
            addr: addr_value,
            identity: Some(identity?),
        })
    }

    pub(super) fn control(&mut self, spire: bool) -> Option<Control> {
        let destination = self.control_addr(env::DESTINATION_SVC_ADDR, env::DESTINATION_SVC_NAME);
        if self.env.get(env::DESTINATION_SVC_ADDR).is_none() {
            self.mistakes
                .push("no destination service configured".into());
        }
        let policy = self.control_addr(env::POLICY_SVC_ADDR, env::POLICY_SVC_NAME);
        if self.env.get(env::POLICY_SVC_ADDR).is_none() {
            self.mistakes.push("no policy service configured".into());
        }
        let identity = if spire {
            None
        } else {
            let addr = self.control_addr(env::IDENTITY_SVC_ADDR, env::IDENTITY_SVC_NAME);
            if self.env.get(env::IDENTITY_SVC_ADDR).is_none() {
                self.mistakes.push("no identity service configured".into());
            }
            addr
        };
        let trace = self.control_addr(env::TRACE_COLLECTOR_SVC_ADDR, env::TRACE_COLLECTOR_SVC_NAME);
        let streams = self.stream_limits();
        let control = Control {
            destination: destination?,
            policy: policy?,
            identity,
            trace,
            context: self.text(env::DESTINATION_CONTEXT).unwrap_or_default(),
            profile_suffixes: self
                .get(env::DESTINATION_PROFILE_SUFFIXES, value::suffixes)
                .unwrap_or_else(|| {
                    value::suffixes("svc.cluster.local.").expect("constant is a suffix list")
                }),
            profile_networks: self
                .get(env::DESTINATION_PROFILE_NETWORKS, value::networks)
                .unwrap_or_default(),
            workload: self.required(env::POLICY_WORKLOAD)?,
            streams,
            dns_min_ttl: self.get(env::DNS_MIN_TTL, value::duration),
            dns_max_ttl: self.get(env::DNS_MAX_TTL, value::duration),
        };
        Some(control)
    }

    fn stream_limits(&mut self) -> StreamLimits {
        let limits = StreamLimits {
            initial: self.get(env::CONTROL_STREAM_INITIAL_TIMEOUT, value::duration),
            idle: self.get(env::CONTROL_STREAM_IDLE_TIMEOUT, value::duration),
            lifetime: self.get(env::CONTROL_STREAM_LIFETIME, value::duration),
        };
        let ordered = [limits.initial, limits.idle, limits.lifetime];
        if !ordered.iter().flatten().is_sorted() {
            self.mistakes.push(format!(
                "{}, {} and {} must not decrease",
                env::CONTROL_STREAM_INITIAL_TIMEOUT,
                env::CONTROL_STREAM_IDLE_TIMEOUT,
                env::CONTROL_STREAM_LIFETIME
            ));
        }
        limits
    }
}
