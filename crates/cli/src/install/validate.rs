//! What values may say. A wrong one is named with the flag that sets it, before anything is
//! rendered.

use crate::values::{get, text};
use anyhow::{Result, bail};
use linkerd_injector::settings::milli;
use linkerd_tls::{TrustAnchors, issuer::Issuer};
use serde_json::Value;
use std::time::SystemTime;

pub(crate) const CONTROLLER_LEVELS: [&str; 7] =
    ["panic", "fatal", "error", "warn", "info", "debug", "trace"];
const PROXY_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
pub(crate) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
pub(crate) const POLICIES: [&str; 6] = [
    "all-authenticated",
    "all-unauthenticated",
    "cluster-authenticated",
    "cluster-unauthenticated",
    "deny",
    "audit",
];

/// Checks everything that can be checked without a cluster.
pub fn values(values: &Value) -> Result<()> {
    // The injector reads the same values when it starts: what it refuses must not be applied.
    linkerd_injector::Values::from_value(values.clone())?;
    version(text(values, "linkerdVersion"), false)?;
    version(text(values, "proxy.image.version"), true)?;
    version(text(values, "proxyInit.image.version"), true)?;
    if !CONTROLLER_LEVELS.contains(&text(values, "controllerLogLevel")) {
        bail!(
            "--controller-log-level must be one of: {}",
            CONTROLLER_LEVELS.join(", ")
        );
    }
    proxy_log_level(text(values, "proxy.logLevel"))?;
    let domain = text(values, "identityTrustDomain");
    if !domain.is_empty()
        && let Err(reason) = dns_subdomain(domain)
    {
        bail!("invalid trust domain '{domain}': {reason}");
    }
    for network in text(values, "clusterNetworks")
        .split(',')
        .map(str::trim)
        .filter(|n| !n.is_empty())
    {
        if network.parse::<ipnet::IpNet>().is_err() {
            bail!("cannot parse destination get networks: invalid CIDR address: {network}");
        }
    }
    for path in [
        "imagePullPolicy",
        "proxy.image.pullPolicy",
        "proxyInit.image.pullPolicy",
    ] {
        let policy = text(values, path);
        if !policy.is_empty() && !PULL_POLICIES.contains(&policy) {
            bail!(
                "--image-pull-policy must be one of: {}",
                PULL_POLICIES.join(", ")
            );
        }
    }
    durations(values)?;
    resources(get(values, "proxy.resources"))?;
    for path in [
        "proxyInit.ignoreInboundPorts",
        "proxyInit.ignoreOutboundPorts",
    ] {
        for entry in text(values, path)
            .split(',')
            .map(str::trim)
            .filter(|e| !e.is_empty())
        {
            port_range(entry)?;
        }
    }
    let policy = text(values, "proxy.defaultInboundPolicy");
    if !POLICIES.contains(&policy) {
        bail!(
            "--default-inbound-policy must be one of: {} (got {policy})",
            POLICIES.join(", ")
        );
    }
    Ok(())
}

/// Go's syntax for the control plane; the proxy reads one whole number and a unit.
fn durations(values: &Value) -> Result<()> {
    let written = |path: &str| match get(values, path) {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for (path, flag, example) in [
        (
            "identity.issuer.issuanceLifetime",
            "--identity-issuance-lifetime",
            "24h0m0s",
        ),
        (
            "identity.issuer.clockSkewAllowance",
            "--identity-clock-skew-allowance",
            "20s",
        ),
    ] {
        let text = written(path);
        if let Err(error) = linkerd_core::duration::parse(&text) {
            bail!("{flag} must be a duration such as {example} (got '{text}'): {error}");
        }
    }
    let timeout = written("networkValidator.timeout");
    if let Err(error) = linkerd_core::duration::parse(&timeout) {
        bail!("networkValidator.timeout must be a duration such as 10s (got '{timeout}'): {error}");
    }
    for (path, example) in [
        ("proxy.outboundConnectTimeout", "1000ms"),
        ("proxy.inboundConnectTimeout", "100ms"),
        ("proxy.outboundDiscoveryCacheUnusedTimeout", "5s"),
        ("proxy.inboundDiscoveryCacheUnusedTimeout", "90s"),
        ("proxy.shutdownGracePeriod", "30s"),
        ("proxy.control.streams.initialTimeout", "3s"),
        ("proxy.control.streams.idleTimeout", "5m"),
        ("proxy.control.streams.lifetime", "1h"),
    ] {
        let text = written(path);
        if !text.is_empty() && linkerd_core::duration::parse_plain(&text).is_err() {
            bail!(
                "{path} must be a whole number with a unit (ms, s, m, h or d) such as {example} (got '{text}')"
            );
        }
    }
    Ok(())
}

pub(crate) fn version(version: &str, may_be_empty: bool) -> Result<()> {
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    if version.chars().all(valid) && (may_be_empty || !version.is_empty()) {
        return Ok(());
    }
    bail!("{version} is not a valid version")
}

fn proxy_log_level(level: &str) -> Result<()> {
    if level.is_empty() {
        bail!("--proxy-log-level must not be empty");
    }
    let module = |text: &str| {
        let mut parts = text.split("::");
        parts.all(|part| {
            !part.is_empty()
                && part.chars().all(|c| {
                    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '[' | ']' | '{' | '}')
                })
        })
    };
    let known = |text: &str| PROXY_LEVELS.contains(&text.to_ascii_lowercase().as_str());
    let valid = level
        .split(',')
        .map(str::trim)
        .all(|part| match part.split_once('=') {
            Some((name, level)) => module(name) && known(level),
            None => known(part) || module(part),
        });
    if !valid {
        bail!(
            "\"{level}\" is not a valid proxy log level - for allowed syntax check https://docs.rs/env_logger/0.6.0/env_logger/#enabling-logging"
        );
    }
    Ok(())
}

/// Why a name is not a DNS-1123 subdomain.
pub fn dns_subdomain(name: &str) -> Result<(), String> {
    let valid = name.len() <= 253 && name.split('.').all(|label| dns_label(label).is_ok());
    if valid {
        return Ok(());
    }
    Err("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character".to_owned())
}

/// Why a name is not a DNS-1123 label.
pub fn dns_label(label: &str) -> Result<(), String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let edge = |c: char| inner(c) && c != '-';
    if !label.is_empty()
        && label.len() <= 63
        && label.chars().all(inner)
        && label.starts_with(edge)
        && label.ends_with(edge)
    {
        return Ok(());
    }
    Err("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character".to_owned())
}

fn resources(resources: &Value) -> Result<()> {
    for kind in ["cpu", "memory"] {
        let quantity = |side: &str| -> Result<Option<(String, u64)>> {
            let text = match &resources[kind][side] {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return Ok(None),
            };
            if text.is_empty() {
                return Ok(None);
            }
            match milli(&text) {
                Ok(milli) => Ok(Some((text, milli))),
                Err(_) => bail!("Invalid {kind} {side} '{text}' for --proxy-{kind}-{side} flag"),
            }
        };
        let (request, limit) = (quantity("request")?, quantity("limit")?);
        if let (Some((request, low)), Some((limit, high))) = (request, limit)
            && high < low
        {
            bail!("The {kind} limit '{limit}' cannot be lower than the {kind} request '{request}'");
        }
    }
    Ok(())
}

/// `8080`, `8000-9000`, or the name of a container's port.
pub fn opaque_port(entry: &str) -> Result<()> {
    let named = entry.len() <= 15
        && entry.bytes().any(|b| b.is_ascii_lowercase())
        && !entry.starts_with('-')
        && !entry.ends_with('-')
        && !entry.contains("--")
        && entry
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if named {
        return Ok(());
    }
    port_range(entry)
}

/// `8080` or `8000-9000`.
pub fn port_range(entry: &str) -> Result<()> {
    let parts: Vec<&str> = entry.split('-').collect();
    match parts[..] {
        [port] => {
            if port.parse::<u16>().is_err() {
                bail!("\"{port}\" is not a valid port nor port-range");
            }
        }
        [low, high] => {
            let Ok(lower) = low.parse::<u16>() else {
                bail!("\"{low}\" is not a valid lower-bound");
            };
            let Ok(upper) = high.parse::<u16>() else {
                bail!("\"{high}\" is not a valid upper-bound");
            };
            if upper < lower {
                bail!("\"{entry}\": upper-bound must be greater than or equal to lower-bound");
            }
        }
        _ => bail!("ranges expected as <lower>-<upper>"),
    }
    Ok(())
}

/// The issuer must be a CA that chains to the anchors now.
pub fn issuer(values: &Value, namespace: &str) -> Result<()> {
    let anchors = text(values, "identityTrustAnchorsPEM");
    if text(values, "identity.issuer.scheme") != "linkerd.io/tls" || anchors.is_empty() {
        return Ok(());
    }
    let checked = || -> Result<()> {
        let issuer = Issuer::from_pem(
            (
                "identity.issuer.tls.crtPEM",
                text(values, "identity.issuer.tls.crtPEM").as_bytes(),
            ),
            (
                "identity.issuer.tls.keyPEM",
                text(values, "identity.issuer.tls.keyPEM").as_bytes(),
            ),
        )?;
        let anchors = TrustAnchors::from_pem("identityTrustAnchorsPEM", anchors.as_bytes())?;
        // A workload's name: one that the issuer itself may have would look like a loop.
        let domain = super::trust_domain(values);
        let name =
            format!("linkerd-identity.{namespace}.serviceaccount.identity.{namespace}.{domain}");
        issuer.verify(&anchors, &name, SystemTime::now())?;
        Ok(())
    };
    checked().map_err(|error| {
        let error = crate::failure::line(&error);
        anyhow::anyhow!("failed to validate issuer credentials: {error}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{chart::Chart, values::put};

    #[test]
    fn opaque_ports_may_be_named() {
        for entry in ["80", "8000-9000", "mysql", "redis-2", "h2"] {
            opaque_port(entry).expect(entry);
        }
        for entry in [
            "",
            "My",
            "-a",
            "a-",
            "a--b",
            "a_b",
            "70000",
            "sixteen-letters-",
            "9-1",
        ] {
            opaque_port(entry).expect_err(entry);
        }
    }

    #[test]
    fn each_wrong_value_has_its_message() {
        let chart = Chart::named("linkerd-control-plane").expect("a chart");
        let defaults = chart.values("values.yaml").expect("values");
        values(&defaults).expect("the defaults are right");
        for (path, value, expected) in [
            ("linkerdVersion", "a b", "a b is not a valid version"),
            (
                "controllerLogLevel",
                "loud",
                "--controller-log-level must be one of: panic, fatal, error, warn, info, debug, trace",
            ),
            ("proxy.logLevel", "", "--proxy-log-level must not be empty"),
            (
                "proxy.logLevel",
                "linkerd=loud",
                "\"linkerd=loud\" is not a valid proxy log level - for allowed syntax check https://docs.rs/env_logger/0.6.0/env_logger/#enabling-logging",
            ),
            (
                "clusterNetworks",
                "10.0.0.0/8,x",
                "cannot parse destination get networks: invalid CIDR address: x",
            ),
            (
                "imagePullPolicy",
                "Sometimes",
                "--image-pull-policy must be one of: Always, IfNotPresent, Never",
            ),
            (
                "proxy.resources.cpu.request",
                "much",
                "Invalid cpu request 'much' for --proxy-cpu-request flag",
            ),
            (
                "proxy.resources.memory.limit",
                "1Q",
                "Invalid memory limit '1Q' for --proxy-memory-limit flag",
            ),
            (
                "proxyInit.ignoreInboundPorts",
                "80,http",
                "\"http\" is not a valid port nor port-range",
            ),
            (
                "proxyInit.ignoreOutboundPorts",
                "x-2",
                "\"x\" is not a valid lower-bound",
            ),
            (
                "proxyInit.ignoreOutboundPorts",
                "1-70000",
                "\"70000\" is not a valid upper-bound",
            ),
            (
                "proxyInit.ignoreOutboundPorts",
                "9-1",
                "\"9-1\": upper-bound must be greater than or equal to lower-bound",
            ),
            (
                "proxyInit.ignoreOutboundPorts",
                "1-2-3",
                "ranges expected as <lower>-<upper>",
            ),
            (
                "identity.issuer.issuanceLifetime",
                "24x",
                "--identity-issuance-lifetime must be a duration such as 24h0m0s (got '24x'): time: unknown unit \"x\" in duration \"24x\"",
            ),
            (
                "identity.issuer.clockSkewAllowance",
                "20",
                "--identity-clock-skew-allowance must be a duration such as 20s (got '20'): time: missing unit in duration \"20\"",
            ),
            (
                "networkValidator.timeout",
                "soon",
                "networkValidator.timeout must be a duration such as 10s (got 'soon'): time: invalid duration \"soon\"",
            ),
            (
                "proxy.control.streams.lifetime",
                "1h30m",
                "proxy.control.streams.lifetime must be a whole number with a unit (ms, s, m, h or d) such as 1h (got '1h30m')",
            ),
            (
                "proxy.defaultInboundPolicy",
                "open",
                "--default-inbound-policy must be one of: all-authenticated, all-unauthenticated, cluster-authenticated, cluster-unauthenticated, deny, audit (got open)",
            ),
        ] {
            let mut wrong = defaults.clone();
            put(&mut wrong, path, value);
            assert_eq!(values(&wrong).expect_err(path).to_string(), expected);
        }
        let mut wrong = defaults.clone();
        put(&mut wrong, "proxy.resources.cpu.request", "2");
        put(&mut wrong, "proxy.resources.cpu.limit", "1500m");
        assert_eq!(
            values(&wrong).expect_err("limit").to_string(),
            "The cpu limit '1500m' cannot be lower than the cpu request '2'"
        );
        let mut wrong = defaults;
        put(&mut wrong, "identityTrustDomain", "No_Domain");
        assert!(
            values(&wrong)
                .expect_err("domain")
                .to_string()
                .starts_with("invalid trust domain 'No_Domain': ")
        );
    }
}
