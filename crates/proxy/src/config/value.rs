//! Text formats of environment values: durations, addresses, port sets, networks, suffixes, backoffs.
//! Pure parsers; what a value means is decided in `config.rs`.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;

/// Why a value could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not a duration with a unit.
    #[error("not a duration like 10s")]
    Duration,
    /// Not `true` or `false`.
    #[error("not true or false")]
    Bool,
    /// Not a number of the wanted width.
    #[error("not a number")]
    Number,
    /// Not `IP:PORT`.
    #[error("not an IP:PORT address")]
    SocketAddr,
    /// Not `HOST:PORT`.
    #[error("not a HOST:PORT address")]
    Addr,
    /// Not a list of ports and ranges.
    #[error("not a list of ports and port ranges")]
    Ports,
    /// Not a list of networks.
    #[error("not a list of networks in CIDR form")]
    Networks,
    /// Not a list of IP addresses.
    #[error("not a list of IP addresses")]
    Ips,
    /// Not a list of DNS suffixes.
    #[error("not a list of DNS suffixes")]
    Suffixes,
    /// Not an identity.
    #[error("not an identity name")]
    Identity,
    /// Outside the values the setting knows.
    #[error("{0}")]
    Other(&'static str),
}

/// Longer is no different: 30 years. Clocks can be moved on by so much.
pub const LONGEST: Duration = Duration::from_secs(86_400 * 365 * 30);

/// `10s`, `300ms`, `1h`, `365d` or `0`; at most [`LONGEST`].
pub fn duration(s: &str) -> Result<Duration, Malformed> {
    let s = s.trim();
    let split = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    let (digits, unit) = s.split_at(split);
    let n: u64 = digits.parse().map_err(|_| Malformed::Duration)?;
    let secs = |mul: u64| {
        n.checked_mul(mul)
            .map(Duration::from_secs)
            .ok_or(Malformed::Duration)
    };
    let duration = match unit {
        "" if n == 0 => Ok(Duration::ZERO),
        "ms" => Ok(Duration::from_millis(n)),
        "s" => secs(1),
        "m" => secs(60),
        "h" => secs(3600),
        "d" => secs(86_400),
        _ => Err(Malformed::Duration),
    };
    duration.map(|d| d.min(LONGEST))
}

/// `true` or `false`.
pub fn boolean(s: &str) -> Result<bool, Malformed> {
    match s {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Malformed::Bool),
    }
}

/// Any number.
pub fn number<T: FromStr>(s: &str) -> Result<T, Malformed> {
    s.parse().map_err(|_| Malformed::Number)
}

/// The largest window HTTP/2 knows.
pub const LARGEST_WINDOW: u32 = 0x7fff_ffff;

/// The size of an HTTP/2 window.
pub fn window(s: &str) -> Result<u32, Malformed> {
    match number(s)? {
        n if n > LARGEST_WINDOW => Err(Malformed::Other("must be at most 2147483647")),
        n => Ok(n),
    }
}

/// `IP:PORT`.
pub fn socket_addr(s: &str) -> Result<SocketAddr, Malformed> {
    s.parse().map_err(|_| Malformed::SocketAddr)
}

/// One or two `IP:PORT`, comma separated.
pub fn socket_addrs(s: &str) -> Result<Vec<SocketAddr>, Malformed> {
    let addrs = items(s).map(socket_addr).collect::<Result<Vec<_>, _>>()?;
    match addrs.len() {
        1 | 2 => Ok(addrs),
        _ => Err(Malformed::Other("must name one or two addresses")),
    }
}

/// Ports and inclusive ranges.
pub fn ports(s: &str) -> Result<PortSet, Malformed> {
    let mut set = PortSet::default();
    for item in items(s) {
        let port = |s: &str| {
            s.trim()
                .parse::<u16>()
                .ok()
                .filter(|p| *p != 0)
                .ok_or(Malformed::Ports)
        };
        let (low, high) = match item.split_once('-') {
            Some((low, high)) => (port(low)?, port(high)?),
            None => (port(item)?, port(item)?),
        };
        if low > high {
            return Err(Malformed::Ports);
        }
        set.0.insert((low, high));
    }
    Ok(set)
}

/// Comma list of CIDR networks.
pub fn networks(s: &str) -> Result<Vec<IpNet>, Malformed> {
    items(s)
        .map(|n| n.parse().map_err(|_| Malformed::Networks))
        .collect()
}

/// Comma list of addresses; blanks are not trimmed, as upstream.
pub fn ips(s: &str) -> Result<BTreeSet<IpAddr>, Malformed> {
    s.split(',')
        .map(|ip| ip.parse().map_err(|_| Malformed::Ips))
        .collect()
}

/// Comma list of DNS suffixes.
pub fn suffixes(s: &str) -> Result<Suffixes, Malformed> {
    items(s)
        .map(|item| {
            let name = item.strip_suffix('.').unwrap_or(item);
            if item == "." || is_dns_name(name) {
                Ok(name.to_ascii_lowercase())
            } else {
                Err(Malformed::Suffixes)
            }
        })
        .collect::<Result<Vec<_>, _>>()
        .map(Suffixes)
}

/// A DNS name without trailing dot, else a URI.
pub fn identity(s: &str) -> Result<String, Malformed> {
    let uri = s.contains("://") && s.parse::<http::Uri>().is_ok();
    if uri || is_dns_name(s) {
        Ok(s.to_owned())
    } else {
        Err(Malformed::Identity)
    }
}

fn items(s: &str) -> impl Iterator<Item = &str> {
    s.split(',').map(str::trim).filter(|i| !i.is_empty())
}

/// Whether `s` is a DNS name without trailing dot.
pub fn is_dns_name(s: &str) -> bool {
    !s.is_empty()
        && s.len() <= 253
        && s.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}

/// Ports and port ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSet(BTreeSet<(u16, u16)>);

impl PortSet {
    /// Whether the port is in the set.
    pub fn contains(&self, port: u16) -> bool {
        self.0
            .iter()
            .any(|(low, high)| (*low..=*high).contains(&port))
    }

    /// Every port of the set.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|(low, high)| *low..=*high)
    }
}

/// DNS suffixes; an empty suffix is every name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suffixes(Vec<String>);

impl Suffixes {
    /// Whether a name ends in one of the suffixes, on a label boundary.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        self.0.iter().any(|suffix| {
            suffix.is_empty()
                || (name.len() >= suffix.len()
                    && name.is_char_boundary(name.len() - suffix.len())
                    && name[name.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
                    && (name.len() == suffix.len()
                        || name.as_bytes()[name.len() - suffix.len() - 1] == b'.'))
        })
    }

    /// Whether no suffix is configured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `IP:PORT` or `name:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// A literal address.
    Socket(SocketAddr),
    /// A name; a trailing dot is kept.
    Name(String, u16),
}

impl Addr {
    /// Whether the address is loopback or `localhost`.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Socket(addr) => addr.ip().is_loopback(),
            Self::Name(name, _) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                name.eq_ignore_ascii_case("localhost")
            }
        }
    }
}

impl FromStr for Addr {
    type Err = Malformed;

    fn from_str(s: &str) -> Result<Self, Malformed> {
        if let Ok(addr) = s.parse() {
            return Ok(Self::Socket(addr));
        }
        let (name, port) = s.rsplit_once(':').ok_or(Malformed::Addr)?;
        let port = port.parse().map_err(|_| Malformed::Addr)?;
        if is_dns_name(name.strip_suffix('.').unwrap_or(name)) {
            Ok(Self::Name(name.to_owned(), port))
        } else {
            Err(Malformed::Addr)
        }
    }
}

impl std::fmt::Display for Addr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(addr) => addr.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// Exponential backoff: `min·2^i` up to `max`, plus jitter, never above `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// First delay.
    pub min: Duration,
    /// Longest delay.
    pub max: Duration,
    /// Share of the delay that random jitter may add.
    pub jitter: f64,
}

impl Backoff {
    /// Checks the bounds.
    pub fn new(min: Duration, max: Duration, jitter: f64) -> Result<Self, Malformed> {
        if min > max {
            return Err(Malformed::Other(
                "minimum backoff must not exceed the maximum",
            ));
        }
        if max.is_zero() {
            return Err(Malformed::Other("maximum backoff must be positive"));
        }
        if !jitter.is_finite() || !(0.0..=100.0).contains(&jitter) {
            return Err(Malformed::Other("jitter must be between 0 and 100"));
        }
        Ok(Self { min, max, jitter })
    }

    /// Delay before attempt `i` (0 is the first retry); `random` is uniform in 0..1.
    pub fn delay(&self, i: u32, random: f64) -> Duration {
        let base = self
            .min
            .saturating_mul(1u32.checked_shl(i.min(31)).unwrap_or(u32::MAX))
            .min(self.max);
        let jitter = base.mul_f64((self.jitter * random).clamp(0.0, 100.0));
        base.saturating_add(jitter).min(self.max)
    }

    /// Delay before attempt `i` with fresh randomness.
    pub fn random_delay(&self, i: u32) -> Duration {
        self.delay(i, rand::random::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let ok = |s: &str, ms: u64| assert_eq!(duration(s), Ok(Duration::from_millis(ms)), "{s}");
        ok("0", 0);
        ok("10ms", 10);
        ok(" 3s ", 3_000);
        ok("2m", 120_000);
        ok("1h", 3_600_000);
        ok("365d", 31_536_000_000);
        for long in ["18446744073709551615s", "18446744073709551615ms", "10951d"] {
            assert_eq!(duration(long), Ok(LONGEST), "{long}");
        }
        for bad in [
            "",
            "10",
            "1.5s",
            "1m30s",
            "s",
            "10 s",
            "-1s",
            "99999999999999999999s",
        ] {
            assert_eq!(duration(bad), Err(Malformed::Duration), "{bad}");
        }
    }

    #[test]
    fn port_sets() {
        let set = ports("25, 587,,4000-4003").expect("valid");
        for (port, want) in [
            (25, true),
            (587, true),
            (4002, true),
            (4004, false),
            (24, false),
        ] {
            assert_eq!(set.contains(port), want, "{port}");
        }
        for bad in ["x", "1-", "0", "70000", "5-4"] {
            assert_eq!(ports(bad), Err(Malformed::Ports), "{bad}");
        }
    }

    #[test]
    fn suffix_matching() {
        let set = suffixes("svc.cluster.local.").expect("valid");
        assert!(set.matches("web.emojivoto.svc.cluster.local"));
        assert!(set.matches("web.emojivoto.SVC.cluster.local."));
        assert!(!set.matches("web.emojivoto.xsvc.cluster.local"));
        assert!(!set.matches("example.com"));
        assert!(suffixes(".").expect("valid").matches("example.com"));
        assert!(!suffixes("").expect("valid").matches("example.com"));
    }

    #[test]
    fn addresses() {
        for good in [
            "127.0.0.1:80",
            "[::1]:80",
            "linkerd-dst.svc.:8086",
            "localhost.:8086",
        ] {
            assert_eq!(good.parse::<Addr>().expect(good).to_string(), good);
        }
        for bad in ["localhost", "a b:80", ":80", "foo:port"] {
            assert!(bad.parse::<Addr>().is_err(), "{bad}");
        }
        assert!("localhost.:1".parse::<Addr>().expect("valid").is_loopback());
    }

    #[test]
    fn ip_sets_are_not_trimmed() {
        assert!(ips("10.0.0.1,fd00::1").is_ok());
        assert!(ips("10.0.0.1, fd00::1").is_err());
        assert!(networks("10.0.0.1").is_err());
    }

    #[test]
    fn backoff_grows_to_its_maximum() {
        let backoff =
            Backoff::new(Duration::from_millis(100), Duration::from_secs(1), 0.5).expect("valid");
        assert_eq!(backoff.delay(0, 0.0), Duration::from_millis(100));
        assert_eq!(backoff.delay(1, 1.0), Duration::from_millis(300));
        assert_eq!(backoff.delay(9, 1.0), Duration::from_secs(1));
        assert!(Backoff::new(Duration::from_secs(2), Duration::from_secs(1), 0.0).is_err());
        assert!(Backoff::new(Duration::ZERO, Duration::ZERO, 0.0).is_err());
        assert!(Backoff::new(Duration::ZERO, Duration::from_secs(1), f64::NAN).is_err());
    }
}
