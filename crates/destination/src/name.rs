//! What a proxy asks for: the authority it names and the token that says where it runs. Pure
//! parsing of foreign text; refusals carry the words clients know.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer};

/// A host and a port. No port means 80.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    pub host: String,
    pub port: u16,
}

/// A Service, or one instance of it, named the way cluster DNS does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName {
    pub hostname: Option<String>,
    pub service: String,
    pub namespace: String,
}

/// Where the asking proxy runs. Whatever it leaves out is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Token {
    #[serde(rename = "ns", deserialize_with = "text_or_null")]
    pub namespace: String,
    #[serde(rename = "nodeName", deserialize_with = "text_or_null")]
    pub node: String,
    #[serde(deserialize_with = "text_or_null")]
    pub pod: String,
}

/// A field may be spelt out as missing.
fn text_or_null<'de, D: Deserializer<'de>>(field: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

impl Authority {
    /// Reads `host`, `host:port` or `[v6]:port`.
    pub fn parse(path: &str) -> Option<Self> {
        let Some((host, port)) = path.rsplit_once(':') else {
            return Some(Self {
                host: path.to_owned(),
                port: 80,
            })
            .filter(|it| !it.host.is_empty());
        };
        let host = match host.strip_prefix('[') {
            Some(bracketed) => bracketed.strip_suffix(']')?,
            None if host.contains(':') => return None,
            None => host,
        };
        if host.is_empty() || host.contains(['[', ']']) || !port.bytes().all(|b| b.is_ascii_digit())
        {
            return None;
        }
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(Self {
            host: host.to_owned(),
            port,
        })
    }

    /// The address, when the host is one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    }
}

impl ServiceName {
    /// Reads `[hostname.]service.namespace.svc.<cluster domain>`.
    pub fn parse(host: &str, cluster_domain: &str) -> Option<Self> {
        let name = host.strip_suffix(cluster_domain)?.strip_suffix(".svc.")?;
        let mut labels = name.rsplit('.');
        let namespace = labels.next()?;
        let service = labels.next()?;
        let hostname = labels.next();
        if labels.next().is_some() || name.split('.').any(str::is_empty) {
            return None;
        }
        Some(Self {
            hostname: hostname.map(str::to_owned),
            service: service.to_owned(),
            namespace: namespace.to_owned(),
        })
    }
}

impl Token {
    /// Reads JSON or the older `ns:<namespace>`. Anything else is worth a line in the log, never
    /// an error: a proxy must not lose discovery over it.
    pub fn parse(token: &str) -> Self {
        if token.is_empty() {
            return Self::default();
        }
        match serde_json::from_str(token) {
            Ok(token) => token,
            Err(error) => match token.strip_prefix("ns:") {
                Some(namespace) => Self {
                    namespace: namespace.to_owned(),
                    ..Self::default()
                },
                None => {
                    tracing::warn!(%error, "Context token is neither JSON nor ns:<namespace>");
                    Self::default()
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        for (name, path, expected) in [
            (
                "no port is 80",
                "web.shop.svc.cluster.local",
                Some(("web.shop.svc.cluster.local", 80)),
            ),
            ("port", "web:8080", Some(("web", 8080))),
            ("highest port", "web:65535", Some(("web", 65535))),
            ("IPv4", "10.0.0.1:80", Some(("10.0.0.1", 80))),
            ("IPv6 in brackets", "[fd00::1]:80", Some(("fd00::1", 80))),
            ("IPv6 without brackets", "fd00::1:80", None),
            ("IPv6 without port", "[fd00::1]", None),
            ("port 0", "web:0", None),
            ("port too large", "web:65536", None),
            ("port with sign", "web:+80", None),
            ("port is a name", "web:http", None),
            ("no port after the colon", "web:", None),
            ("no host", ":80", None),
            ("nothing", "", None),
            ("two ports", "web:80:81", None),
        ] {
            let parsed = Authority::parse(path);
            let expected = expected.map(|(host, port)| Authority {
                host: host.to_owned(),
                port,
            });
            assert_eq!(parsed, expected, "{name}");
        }
    }

    #[test]
    fn service_names() {
        for (name, host, expected) in [
            (
                "service",
                "web.shop.svc.cluster.local",
                Some((None, "web", "shop")),
            ),
            (
                "instance",
                "web-0.web.shop.svc.cluster.local",
                Some((Some("web-0"), "web", "shop")),
            ),
            ("too many labels", "a.b.web.shop.svc.cluster.local", None),
            ("no namespace", "web.svc.cluster.local", None),
            ("other domain", "web.shop.svc.cluster.remote", None),
            ("not a service", "web.shop.pod.cluster.local", None),
            ("trailing dot", "web.shop.svc.cluster.local.", None),
            ("empty label", "web..svc.cluster.local", None),
            ("outside", "example.com", None),
            ("domain alone", "svc.cluster.local", None),
        ] {
            let parsed = ServiceName::parse(host, "cluster.local");
            let expected = expected.map(
                |(hostname, service, namespace): (Option<&str>, &str, &str)| ServiceName {
                    hostname: hostname.map(str::to_owned),
                    service: service.to_owned(),
                    namespace: namespace.to_owned(),
                },
            );
            assert_eq!(parsed, expected, "{name}");
        }
    }

    #[test]
    fn tokens() {
        let token = |namespace: &str, node: &str, pod: &str| Token {
            namespace: namespace.to_owned(),
            node: node.to_owned(),
            pod: pod.to_owned(),
        };
        for (name, text, expected) in [
            (
                "JSON",
                r#"{"ns":"shop","nodeName":"n1","pod":"web-0"}"#,
                token("shop", "n1", "web-0"),
            ),
            (
                "JSON with less and more",
                r#"{"ns":"shop","x":1}"#,
                token("shop", "", ""),
            ),
            (
                "a field that is null",
                r#"{"ns":"shop","nodeName":null,"pod":null}"#,
                token("shop", "", ""),
            ),
            (
                "a field of another shape",
                r#"{"ns":"shop","nodeName":1}"#,
                token("", "", ""),
            ),
            ("older form", "ns:shop", token("shop", "", "")),
            ("nothing", "", token("", "", "")),
            ("noise", "?!", token("", "", "")),
            ("JSON of another shape", "[1]", token("", "", "")),
        ] {
            assert_eq!(Token::parse(text), expected, "{name}");
        }
    }

    proptest::proptest! {
        /// Requests come from anywhere: whatever they hold is read or refused.
        #[test]
        fn any_text_is_read_or_refused(text in ".*", near in "[a-z0-9.:\\[\\]-]{0,40}(svc\\.cluster\\.local)?(:[0-9]{0,6})?") {
            for text in [text, near] {
                Token::parse(&text);
                if let Some(authority) = Authority::parse(&text) {
                    proptest::prop_assert!(authority.port > 0 && !authority.host.is_empty());
                    if let Some(name) = ServiceName::parse(&authority.host, "cluster.local") {
                        let instance = name.hostname.map(|it| it + ".").unwrap_or_default();
                        let printed = format!("{instance}{}.{}.svc.cluster.local", name.service, name.namespace);
                        proptest::prop_assert_eq!(printed, authority.host);
                    }
                }
            }
        }
    }
}
