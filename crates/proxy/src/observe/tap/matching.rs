//! Which requests a tap shows: the tree of `ObserveRequest.Match`, and what it is held against.

use std::net::SocketAddr;

use ipnet::IpNet;
use linkerd_api::proto::{http_types, tap::observe_request as wire};

use super::Labels;

/// How deep a tree may be.
const DEPTH: usize = 32;

/// What a request must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Everything of these.
    All(Vec<Match>),
    /// Anything of these.
    Any(Vec<Match>),
    /// Not this.
    Not(Box<Match>),
    /// Where it comes from.
    Source(Tcp),
    /// Where it goes.
    Destination(Tcp),
    /// A label of where it goes.
    DestinationLabel(String, String),
    /// A label of its route.
    RouteLabel(String, String),
    /// Its scheme, in lower case.
    Scheme(String),
    /// Its method.
    Method(String),
    /// Its authority.
    Authority(Text),
    /// Its path.
    Path(Text),
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// In this network.
    Net(IpNet),
    /// With a port in this range.
    Ports(u16, u16),
}

/// A text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// This one.
    Exact(String),
    /// One that begins so.
    Prefix(String),
}

/// A request, as matches see it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Where it comes from.
    pub source: SocketAddr,
    /// Where it goes.
    pub destination: SocketAddr,
    /// What is known about that.
    pub destination_labels: &'a Labels,
    /// Labels of its route.
    pub route_labels: &'a Labels,
    /// Its scheme.
    pub scheme: &'a str,
    /// Its method.
    pub method: &'a str,
    /// Its authority.
    pub authority: &'a str,
    /// Its path.
    pub path: &'a str,
}

/// Why a match cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMatch {
    /// A part says nothing.
    #[error("missing required field")]
    Empty,
    /// A network is none.
    #[error("invalid netmask")]
    Net,
    /// A port is none.
    #[error("invalid port range")]
    Ports,
    /// A scheme or method is none.
    #[error("invalid http match")]
    Http,
    /// It is nested too deeply.
    #[error("match is nested too deeply")]
    Depth,
}

impl Match {
    /// Reads a match off the wire.
    pub fn new(wire: &wire::Match) -> Result<Self, InvalidMatch> {
        Self::at(wire, DEPTH)
    }

    fn at(wire: &wire::Match, depth: usize) -> Result<Self, InvalidMatch> {
        use wire::r#match::Match as Kind;
        let depth = depth.checked_sub(1).ok_or(InvalidMatch::Depth)?;
        let all = |seq: &wire::r#match::Seq| -> Result<Vec<Self>, InvalidMatch> {
            seq.matches.iter().map(|m| Self::at(m, depth)).collect()
        };
        Ok(match wire.r#match.as_ref().ok_or(InvalidMatch::Empty)? {
            Kind::All(seq) => Self::All(all(seq)?),
            Kind::Any(seq) => Self::Any(all(seq)?),
            Kind::Not(inner) => Self::Not(Box::new(Self::at(inner, depth)?)),
            Kind::Source(tcp) => Self::Source(Tcp::new(tcp)?),
            Kind::Destination(tcp) => Self::Destination(Tcp::new(tcp)?),
            Kind::DestinationLabel(label) => {
                Self::DestinationLabel(label.key.clone(), label.value.clone())
            }
            Kind::RouteLabel(label) => Self::RouteLabel(label.key.clone(), label.value.clone()),
            Kind::Http(http) => Self::http(http)?,
        })
    }

    fn http(http: &wire::r#match::Http) -> Result<Self, InvalidMatch> {
        use wire::r#match::http::Match as Kind;
        Ok(match http.r#match.as_ref().ok_or(InvalidMatch::Empty)? {
            Kind::Scheme(scheme) => {
                use http_types::scheme::{Registered, Type};
                let name = match scheme.r#type.as_ref().ok_or(InvalidMatch::Empty)? {
                    Type::Registered(n) => Registered::try_from(*n)
                        .map_err(|_| InvalidMatch::Http)?
                        .as_str_name()
                        .to_ascii_lowercase(),
                    Type::Unregistered(name) => name.to_ascii_lowercase(),
                };
                Self::Scheme(name)
            }
            Kind::Method(method) => {
                use http_types::http_method::{Registered, Type};
                let name = match method.r#type.as_ref().ok_or(InvalidMatch::Empty)? {
                    Type::Registered(n) => Registered::try_from(*n)
                        .map_err(|_| InvalidMatch::Http)?
                        .as_str_name()
                        .to_owned(),
                    Type::Unregistered(name) => name.clone(),
                };
                Self::Method(name)
            }
            Kind::Authority(text) => Self::Authority(Text::new(text)?),
            Kind::Path(text) => Self::Path(Text::new(text)?),
        })
    }

    /// Whether a request is one of these.
    pub fn holds(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|m| m.holds(subject)),
            Self::Any(parts) => parts.iter().any(|m| m.holds(subject)),
            Self::Not(part) => !part.holds(subject),
            Self::Source(tcp) => tcp.holds(subject.source),
            Self::Destination(tcp) => tcp.holds(subject.destination),
            Self::DestinationLabel(key, value) => {
                subject.destination_labels.get(key) == Some(value)
            }
            Self::RouteLabel(key, value) => subject.route_labels.get(key) == Some(value),
            Self::Scheme(name) => subject.scheme.eq_ignore_ascii_case(name),
            Self::Method(name) => subject.method == name,
            Self::Authority(text) => text.holds(subject.authority),
            Self::Path(text) => text.holds(subject.path),
        }
    }
}

impl Tcp {
    fn new(tcp: &wire::r#match::Tcp) -> Result<Self, InvalidMatch> {
        use wire::r#match::tcp::Match as Kind;
        match tcp.r#match.as_ref().ok_or(InvalidMatch::Empty)? {
            Kind::Netmask(net) => {
                let ip = net.ip.ok_or(InvalidMatch::Empty)?;
                let ip = std::net::IpAddr::try_from(ip).map_err(|_| InvalidMatch::Net)?;
                let mask = u8::try_from(net.mask).map_err(|_| InvalidMatch::Net)?;
                // No mask is the address itself.
                let net = match mask {
                    0 => IpNet::from(ip),
                    mask => IpNet::new(ip, mask).map_err(|_| InvalidMatch::Net)?,
                };
                Ok(Self::Net(net))
            }
            Kind::Ports(range) => {
                let port = |n: u32| u16::try_from(n).map_err(|_| InvalidMatch::Ports);
                let (min, max) = (port(range.min)?, port(range.max)?);
                match (min, max) {
                    (0, 0) => Err(InvalidMatch::Ports),
                    (one, 0) | (0, one) => Ok(Self::Ports(one, one)),
                    (min, max) if min <= max => Ok(Self::Ports(min, max)),
                    _ => Err(InvalidMatch::Ports),
                }
            }
        }
    }

    fn holds(&self, addr: SocketAddr) -> bool {
        match self {
            Self::Net(net) => net.contains(&addr.ip()),
            Self::Ports(min, max) => (*min..=*max).contains(&addr.port()),
        }
    }
}

impl Text {
    fn new(text: &wire::r#match::http::StringMatch) -> Result<Self, InvalidMatch> {
        use wire::r#match::http::string_match::Match as Kind;
        Ok(match text.r#match.as_ref().ok_or(InvalidMatch::Empty)? {
            Kind::Exact(text) => Self::Exact(text.clone()),
            Kind::Prefix(text) => Self::Prefix(text.clone()),
        })
    }

    fn holds(&self, text: &str) -> bool {
        match self {
            Self::Exact(wanted) => text == wanted,
            Self::Prefix(wanted) => text.starts_with(wanted.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use linkerd_api::proto::{
        http_types::{HttpMethod, Scheme, http_method, scheme},
        net::IpAddress,
        tap::observe_request::r#match::{
            Http, Label, Match as Kind, Seq, Tcp as WireTcp, http, tcp,
        },
    };

    use super::*;

    fn wire(kind: Kind) -> wire::Match {
        wire::Match {
            r#match: Some(kind),
        }
    }

    fn on_http(kind: http::Match) -> Kind {
        Kind::Http(Http {
            r#match: Some(kind),
        })
    }

    fn prefix(text: &str) -> http::StringMatch {
        http::StringMatch {
            r#match: Some(http::string_match::Match::Prefix(text.into())),
        }
    }

    fn net(ip: [u8; 4], mask: u32) -> WireTcp {
        WireTcp {
            r#match: Some(tcp::Match::Netmask(tcp::Netmask {
                ip: Some(IpAddress::from(std::net::IpAddr::from(ip))),
                mask,
            })),
        }
    }

    fn ports(min: u32, max: u32) -> WireTcp {
        WireTcp {
            r#match: Some(tcp::Match::Ports(tcp::PortRange { min, max })),
        }
    }

    #[test]
    fn matches() {
        let labels = Labels::from([("deployment".to_owned(), "web".to_owned())]);
        let route = Labels::from([("route".to_owned(), "GET /".to_owned())]);
        let subject = Subject {
            source: ([10, 1, 2, 3], 4000).into(),
            destination: ([10, 9, 0, 1], 8080).into(),
            destination_labels: &labels,
            route_labels: &route,
            scheme: "http",
            method: "GET",
            authority: "web.ns:80",
            path: "/a/b",
        };
        let label = |value: &str| Label {
            key: "deployment".into(),
            value: value.into(),
        };
        let method = |n| {
            on_http(http::Match::Method(HttpMethod {
                r#type: Some(http_method::Type::Registered(n)),
            }))
        };
        let scheme = |n| {
            on_http(http::Match::Scheme(Scheme {
                r#type: Some(scheme::Type::Registered(n)),
            }))
        };
        let seq = |kinds: Vec<Kind>| Seq {
            matches: kinds.into_iter().map(wire).collect(),
        };
        for (name, kind, want) in [
            ("all of nothing", Kind::All(seq(vec![])), true),
            ("any of nothing", Kind::Any(seq(vec![])), false),
            ("source net", Kind::Source(net([10, 1, 0, 0], 16)), true),
            ("other net", Kind::Source(net([10, 2, 0, 0], 16)), false),
            ("address", Kind::Source(net([10, 1, 2, 3], 0)), true),
            ("ports", Kind::Destination(ports(8000, 9000)), true),
            ("one port", Kind::Destination(ports(8080, 0)), true),
            ("other port", Kind::Destination(ports(80, 0)), false),
            ("label", Kind::DestinationLabel(label("web")), true),
            ("other label", Kind::DestinationLabel(label("api")), false),
            ("route label", Kind::RouteLabel(label("web")), false),
            ("method", method(0), true),
            ("other method", method(1), false),
            ("scheme", scheme(0), true),
            ("https", scheme(1), false),
            ("path", on_http(http::Match::Path(prefix("/a"))), true),
            (
                "authority",
                on_http(http::Match::Authority(prefix("api"))),
                false,
            ),
            ("not", Kind::Not(Box::new(wire(method(1)))), true),
            ("both", Kind::All(seq(vec![method(0), scheme(1)])), false),
            ("either", Kind::Any(seq(vec![method(0), scheme(1)])), true),
        ] {
            let found = Match::new(&wire(kind)).expect(name);
            assert_eq!(found.holds(&subject), want, "{name}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut deep = wire(Kind::All(Seq::default()));
        for _ in 0..100 {
            deep = wire(Kind::Not(Box::new(deep)));
        }
        for (name, found, want) in [
            ("nothing", wire::Match::default(), InvalidMatch::Empty),
            (
                "an empty part",
                wire(Kind::Http(Http::default())),
                InvalidMatch::Empty,
            ),
            (
                "no ports",
                wire(Kind::Source(ports(0, 0))),
                InvalidMatch::Ports,
            ),
            (
                "reversed",
                wire(Kind::Source(ports(9, 8))),
                InvalidMatch::Ports,
            ),
            (
                "too large",
                wire(Kind::Source(ports(70_000, 0))),
                InvalidMatch::Ports,
            ),
            (
                "mask",
                wire(Kind::Source(net([10, 0, 0, 0], 33))),
                InvalidMatch::Net,
            ),
            ("depth", deep, InvalidMatch::Depth),
        ] {
            assert_eq!(Match::new(&found), Err(want), "{name}");
        }
    }
}
