//! The header names a proxy looks at, recognised while the head is parsed, and sets of them as one word.

/// A header name the engine or the proxy treats specially; everything else is `Other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Name {
    Other,
    Host,
    Connection,
    ContentLength,
    TransferEncoding,
    Upgrade,
    Expect,
    Te,
    Trailer,
    KeepAlive,
    ProxyConnection,
    Http2Settings,
    ContentType,
    Forwarded,
    Traceparent,
    L5dClientId,
    L5dDstOverride,
    L5dDstCanonical,
    L5dRequireId,
    L5dOrigProto,
    L5dProxyError,
    L5dProxyConnection,
    L5dRetryHttp,
    L5dRetryGrpc,
    L5dRetryLimit,
    L5dRetryTimeout,
    L5dTimeout,
    L5dRequestTimeout,
    L5dResponseTimeout,
}

/// Names with their spelling, grouped by length so that a look-up compares at most a handful.
const BY_LENGTH: &[(Name, &str)] = &[
    (Name::Te, "te"),
    (Name::Host, "host"),
    (Name::Expect, "expect"),
    (Name::Upgrade, "upgrade"),
    (Name::Trailer, "trailer"),
    (Name::Forwarded, "forwarded"),
    (Name::Connection, "connection"),
    (Name::KeepAlive, "keep-alive"),
    (Name::Traceparent, "traceparent"),
    (Name::L5dTimeout, "l5d-timeout"),
    (Name::ContentType, "content-type"),
    (Name::L5dClientId, "l5d-client-id"),
    (Name::ContentLength, "content-length"),
    (Name::Http2Settings, "http2-settings"),
    (Name::L5dRequireId, "l5d-require-id"),
    (Name::L5dOrigProto, "l5d-orig-proto"),
    (Name::L5dRetryHttp, "l5d-retry-http"),
    (Name::L5dRetryGrpc, "l5d-retry-grpc"),
    (Name::L5dRetryLimit, "l5d-retry-limit"),
    (Name::L5dProxyError, "l5d-proxy-error"),
    (Name::ProxyConnection, "proxy-connection"),
    (Name::L5dDstOverride, "l5d-dst-override"),
    (Name::TransferEncoding, "transfer-encoding"),
    (Name::L5dDstCanonical, "l5d-dst-canonical"),
    (Name::L5dRetryTimeout, "l5d-retry-timeout"),
    (Name::L5dRequestTimeout, "l5d-request-timeout"),
    (Name::L5dProxyConnection, "l5d-proxy-connection"),
    (Name::L5dResponseTimeout, "l5d-response-timeout"),
];

const LONGEST: usize = 20;

/// For each length, the first row of `BY_LENGTH` with at least that length.
const FIRST_ROW: [usize; LONGEST + 2] = {
    let mut first = [BY_LENGTH.len(); LONGEST + 2];
    let mut length = 0;
    while length <= LONGEST {
        let mut row = 0;
        while row < BY_LENGTH.len() && BY_LENGTH[row].1.len() < length {
            row += 1;
        }
        first[length] = row;
        length += 1;
    }
    first
};

impl Name {
    /// Recognises a name in any case.
    #[inline]
    pub fn of(name: &[u8]) -> Self {
        let length = name.len();
        if length > LONGEST {
            return Self::Other;
        }
        for (known, spelling) in &BY_LENGTH[FIRST_ROW[length]..FIRST_ROW[length + 1]] {
            if name.eq_ignore_ascii_case(spelling.as_bytes()) {
                return *known;
            }
        }
        Self::Other
    }

    /// The lower-case spelling; empty for `Other`.
    pub fn spelling(self) -> &'static str {
        BY_LENGTH
            .iter()
            .find(|(name, _)| *name == self)
            .map_or("", |(_, spelling)| spelling)
    }
}

/// A set of known names. `Other` can be in a set but is never dropped by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameSet(u64);

impl NameSet {
    pub const EMPTY: Self = Self(0);

    /// What belongs to one connection only and is never passed on. `Upgrade` is here too: a real upgrade keeps it.
    pub const HOP_BY_HOP: Self = Self::EMPTY
        .with(Name::Connection)
        .with(Name::KeepAlive)
        .with(Name::ProxyConnection)
        .with(Name::Upgrade)
        .with(Name::Http2Settings);

    /// What a `Connection` header cannot make us drop, because the message would change its meaning.
    pub(crate) const NEVER_NOMINATED: Self = Self::EMPTY
        .with(Name::Host)
        .with(Name::ContentLength)
        .with(Name::TransferEncoding)
        .with(Name::Trailer);

    #[must_use]
    pub const fn with(self, name: Name) -> Self {
        Self(self.0 | (1 << name as u8))
    }

    #[must_use]
    pub const fn without(self, name: Name) -> Self {
        Self(self.0 & !(1 << name as u8))
    }

    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline]
    pub const fn contains(self, name: Name) -> bool {
        self.0 & (1 << name as u8) != 0
    }

    /// Whether the two have a name in common.
    #[inline]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case() {
        for (name, spelling) in BY_LENGTH {
            assert_eq!(Name::of(spelling.as_bytes()), *name, "{spelling}");
            assert_eq!(
                Name::of(spelling.to_uppercase().as_bytes()),
                *name,
                "{spelling}"
            );
            assert_eq!(name.spelling(), *spelling);
        }
        for other in [
            "",
            "hos",
            "hosts",
            "x-forwarded-for",
            "l5d-client-ix",
            "content_length",
        ] {
            assert_eq!(Name::of(other.as_bytes()), Name::Other, "{other}");
        }
    }

    #[test]
    fn the_table_is_sorted_by_length() {
        assert!(
            BY_LENGTH
                .windows(2)
                .all(|pair| pair[0].1.len() <= pair[1].1.len())
        );
        assert_eq!(BY_LENGTH.last().map(|row| row.1.len()), Some(LONGEST));
    }
}
