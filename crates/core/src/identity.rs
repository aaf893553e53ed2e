//! Identity names of the mesh: who a certificate says a workload is.
//!
//! A name is either DNS-like (`<sa>.<ns>.serviceaccount.identity.<control-ns>.<trust-domain>`) or a
//! URI (`spiffe://…`). Parsing is strict and total; comparing two parsed names is exact.

use std::{fmt, str::FromStr, sync::Arc};

/// Longest DNS name without its trailing dot.
const MAX_DNS_LEN: usize = 253;
const MAX_LABEL_LEN: usize = 63;
/// Longest identity URI the SPIFFE standard allows.
const MAX_URI_LEN: usize = 2048;
const MAX_TRUST_DOMAIN_LEN: usize = 255;

/// An identity as certificates carry it: a DNS or a URI subject alternative name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    /// A DNS name, lower case, without a trailing dot.
    Dns(Arc<str>),
    /// An absolute URI, usually `spiffe://…`, compared byte by byte.
    Uri(Arc<str>),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    #[error("identity is empty")]
    Empty,
    #[error("identity {0:?} ends with a dot")]
    TrailingDot(String),
    #[error("identity is longer than {0} bytes")]
    TooLong(usize),
    #[error("identity {0:?} is neither a DNS name nor a URI")]
    Malformed(String),
    #[error("identity {0:?} is not a valid SPIFFE ID: {1}")]
    Spiffe(String, &'static str),
}

impl Id {
    /// Parses a DNS name if it is one, else a URI.
    pub fn parse(s: &str) -> Result<Self, InvalidId> {
        if s.is_empty() {
            return Err(InvalidId::Empty);
        }
        if s.contains(':') {
            Self::parse_uri(s)
        } else {
            Self::parse_dns(s)
        }
    }

    /// Parses a DNS name: at least one label, no trailing dot, no wildcard.
    pub fn parse_dns(s: &str) -> Result<Self, InvalidId> {
        if s.is_empty() {
            return Err(InvalidId::Empty);
        }
        if s.len() > MAX_DNS_LEN + 1 {
            return Err(InvalidId::TooLong(MAX_DNS_LEN));
        }
        if s.ends_with('.') {
            return Err(InvalidId::TrailingDot(s.to_owned()));
        }
        if s.len() > MAX_DNS_LEN {
            return Err(InvalidId::TooLong(MAX_DNS_LEN));
        }
        if !is_dns_name(s) {
            return Err(InvalidId::Malformed(s.to_owned()));
        }
        Ok(Self::Dns(s.to_ascii_lowercase().into()))
    }

    /// Parses an absolute URI; a `spiffe:` one must be a valid SPIFFE ID.
    pub fn parse_uri(s: &str) -> Result<Self, InvalidId> {
        if s.len() > MAX_URI_LEN {
            return Err(InvalidId::TooLong(MAX_URI_LEN));
        }
        let malformed = || InvalidId::Malformed(s.to_owned());
        let (scheme, rest) = s.split_once(':').ok_or_else(malformed)?;
        let scheme_ok = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        let authority = rest.strip_prefix("//").ok_or_else(malformed)?;
        if !scheme_ok || authority.is_empty() || !authority.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(malformed());
        }
        if scheme.eq_ignore_ascii_case("spiffe") {
            check_spiffe(scheme, authority).map_err(|why| InvalidId::Spiffe(s.to_owned(), why))?;
        }
        Ok(Self::Uri(s.into()))
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Dns(s) | Self::Uri(s) => s,
        }
    }

    pub fn is_dns(&self) -> bool {
        matches!(self, Self::Dns(_))
    }

    /// Whether this DNS-like name ends with the labels of `suffix`. The empty suffix matches every
    /// name of either form; otherwise URIs never match. A leading dot or a trailing dot is ignored.
    pub fn has_suffix(&self, suffix: &str) -> bool {
        let suffix = suffix.trim_start_matches('.').trim_end_matches('.');
        if suffix.is_empty() {
            return true;
        }
        let Self::Dns(name) = self else { return false };
        let Some(start) = name.len().checked_sub(suffix.len()) else {
            return false;
        };
        let bytes = name.as_bytes();
        bytes[start..].eq_ignore_ascii_case(suffix.as_bytes())
            && (start == 0 || bytes[start - 1] == b'.')
    }
}

impl FromStr for Id {
    type Err = InvalidId;

    fn from_str(s: &str) -> Result<Self, InvalidId> {
        Self::parse(s)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The parts of an identity the Linkerd issuer gives to a service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccountId {
    /// What the token belongs to; always `serviceaccount` today.
    pub kind: String,
    pub name: String,
    pub namespace: String,
    pub control_plane_namespace: String,
    pub trust_domain: String,
}

impl ServiceAccountId {
    pub const KIND: &'static str = "serviceaccount";

    pub fn new(name: &str, namespace: &str, control_plane_namespace: &str, domain: &str) -> Self {
        Self {
            kind: Self::KIND.to_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            control_plane_namespace: control_plane_namespace.to_owned(),
            trust_domain: domain.to_owned(),
        }
    }

    /// Takes a name apart; `None` when it does not have the issuer's shape.
    pub fn from_id(id: &Id) -> Option<Self> {
        let Id::Dns(name) = id else { return None };
        let mut parts = name.splitn(6, '.');
        let (sa, ns, kind, marker, control, domain) = (
            parts.next()?,
            parts.next()?,
            parts.next()?,
            parts.next()?,
            parts.next()?,
            parts.next()?,
        );
        (kind == Self::KIND && marker == "identity").then(|| Self::new(sa, ns, control, domain))
    }

    pub fn to_id(&self) -> Result<Id, InvalidId> {
        Id::parse_dns(&self.to_string())
    }
}

impl fmt::Display for ServiceAccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            name,
            namespace,
            control_plane_namespace,
            trust_domain,
        } = self;
        write!(
            f,
            "{name}.{namespace}.{kind}.identity.{control_plane_namespace}.{trust_domain}"
        )
    }
}

/// Whether `s` is a DNS-1123 label: lower-case letters, digits and inner dashes, 1 to 63 bytes.
pub fn is_dns_label(s: &str) -> bool {
    let b = s.as_bytes();
    !b.is_empty()
        && b.len() <= MAX_LABEL_LEN
        && b.iter()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'-')
        && b[0] != b'-'
        && b[b.len() - 1] != b'-'
}

/// Whether `s` is a DNS-1123 subdomain: labels joined by dots, at most 253 bytes.
pub fn is_dns_subdomain(s: &str) -> bool {
    s.len() <= MAX_DNS_LEN && s.split('.').all(is_dns_label)
}

/// DNS names of certificates: any case, and underscores as they occur in practice.
fn is_dns_name(s: &str) -> bool {
    let label_ok = |label: &str| {
        let b = label.as_bytes();
        !b.is_empty()
            && b.len() <= MAX_LABEL_LEN
            && b.iter()
                .all(|c| c.is_ascii_alphanumeric() || *c == b'-' || *c == b'_')
            && b[0] != b'-'
            && b[b.len() - 1] != b'-'
    };
    // A name whose last label is all digits would be read as an IPv4 address elsewhere.
    let last_is_number = s
        .rsplit('.')
        .next()
        .is_none_or(|l| l.bytes().all(|b| b.is_ascii_digit()));
    s.split('.').all(label_ok) && !last_is_number
}

fn check_spiffe(scheme: &str, rest: &str) -> Result<(), &'static str> {
    if scheme != "spiffe" {
        return Err("the scheme must be lower case");
    }
    let (domain, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let domain_char = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    if domain.is_empty() || domain.len() > MAX_TRUST_DOMAIN_LEN || !domain.bytes().all(domain_char)
    {
        return Err("bad trust domain");
    }
    for segment in path.split('/').skip(1) {
        let segment_char = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        if segment.is_empty() || segment == "." || segment == ".." {
            return Err("empty or relative path segment");
        }
        if !segment.bytes().all(segment_char) {
            return Err("bad character in the path");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses() {
        let long_label = "a".repeat(64);
        let long_name = format!("{}com", "abcdefg.".repeat(32));
        let long_uri = format!("spiffe://td/{}", "a".repeat(2048));
        let cases: &[(&str, &str, Option<Id>)] = &[
            (
                "dns",
                "web.emojivoto.serviceaccount.identity.linkerd.cluster.local",
                Some(Id::Dns(
                    "web.emojivoto.serviceaccount.identity.linkerd.cluster.local".into(),
                )),
            ),
            (
                "case is folded",
                "Web.NS.example",
                Some(Id::Dns("web.ns.example".into())),
            ),
            (
                "single label",
                "localhost",
                Some(Id::Dns("localhost".into())),
            ),
            (
                "underscore",
                "my_sa.ns.example",
                Some(Id::Dns("my_sa.ns.example".into())),
            ),
            (
                "spiffe",
                "spiffe://td.example/ns/a/sa/b",
                Some(Id::Uri("spiffe://td.example/ns/a/sa/b".into())),
            ),
            (
                "spiffe without path",
                "spiffe://td.example",
                Some(Id::Uri("spiffe://td.example".into())),
            ),
            (
                "other uri",
                "https://host/a?b#c",
                Some(Id::Uri("https://host/a?b#c".into())),
            ),
            ("empty", "", None),
            ("trailing dot", "web.ns.example.", None),
            ("wildcard", "*.ns.example", None),
            ("empty label", "web..example", None),
            ("leading dash", "-web.example", None),
            ("trailing dash", "web-.example", None),
            ("long label", &long_label, None),
            ("long name", &long_name, None),
            ("ipv4", "10.0.0.1", None),
            ("ipv6", "::1", None),
            ("space", "web ns", None),
            ("nul", "web\0.ns", None),
            ("no scheme", "://x", None),
            ("opaque uri", "urn:x:y", None),
            ("spiffe port", "spiffe://td:80/a", None),
            ("spiffe user", "spiffe://u@td/a", None),
            ("spiffe query", "spiffe://td/a?b", None),
            ("spiffe dots", "spiffe://td/a/../b", None),
            ("spiffe slash at end", "spiffe://td/a/", None),
            ("spiffe upper domain", "spiffe://TD/a", None),
            ("spiffe upper scheme", "SPIFFE://td/a", None),
            ("long uri", &long_uri, None),
        ];
        for (name, text, want) in cases {
            assert_eq!(Id::parse(text).ok(), *want, "{name}");
        }
    }

    #[test]
    fn suffixes() {
        let id = Id::parse("web.ns.serviceaccount.identity.linkerd.cluster.local").expect("valid");
        for (suffix, want) in [
            ("", true),
            (".", true),
            ("cluster.local", true),
            ("Cluster.LOCAL", true),
            (".identity.linkerd.cluster.local.", true),
            ("luster.local", false),
            ("web.ns.serviceaccount.identity.linkerd.cluster.local", true),
            (
                "x.web.ns.serviceaccount.identity.linkerd.cluster.local",
                false,
            ),
        ] {
            assert_eq!(id.has_suffix(suffix), want, "{suffix:?}");
        }
        let uri = Id::parse("spiffe://td/a").expect("valid");
        assert!(uri.has_suffix(""));
        assert!(!uri.has_suffix("a"));
    }

    #[test]
    fn service_account_round_trip() {
        let sa = ServiceAccountId::new("web", "emojivoto", "linkerd", "cluster.local");
        let id = sa.to_id().expect("valid");
        assert_eq!(
            id.as_str(),
            "web.emojivoto.serviceaccount.identity.linkerd.cluster.local"
        );
        assert_eq!(ServiceAccountId::from_id(&id), Some(sa));
        for other in ["a.b.c", "a.b.user.identity.l.d", "spiffe://td/a"] {
            let id = Id::parse(other).expect("valid");
            assert_eq!(ServiceAccountId::from_id(&id), None, "{other}");
        }
    }

    #[test]
    fn labels() {
        for (s, label, subdomain) in [
            ("a", true, true),
            ("a-1", true, true),
            ("a.b", false, true),
            ("A", false, false),
            ("a_b", false, false),
            ("-a", false, false),
            ("", false, false),
            ("a..b", false, false),
        ] {
            assert_eq!(
                (is_dns_label(s), is_dns_subdomain(s)),
                (label, subdomain),
                "{s:?}"
            );
        }
    }
}
