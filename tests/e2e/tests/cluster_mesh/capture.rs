//! Reads what the container `capture` of a pod printed: its TCP, packet by packet.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use linkerd_e2e::Namespace;
use linkerd_testkit::wait_for_some;

const PATIENCE: Duration = Duration::from_secs(60);
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// One packet.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) from: String,
    pub(crate) to: String,
    flags: u8,
    sequence: u32,
    payload: Vec<u8>,
}

impl Segment {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut word = || words.next();
        Some(Self {
            from: word()?.to_owned(),
            to: word()?.to_owned(),
            flags: u8::from_str_radix(word()?, 16).ok()?,
            sequence: u32::from_str_radix(word()?, 16).ok()?,
            payload: unhex(word()?)?,
        })
    }

    /// Whether it left the pod or came from outside of it.
    pub(crate) fn is_between_hosts(&self) -> bool {
        let ip = |text: &str| text.parse().map(|a: SocketAddr| a.ip());
        match (ip(&self.from), ip(&self.to)) {
            (Ok(from), Ok(to)) => from != to && !from.is_loopback() && !to.is_loopback(),
            _ => true,
        }
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok())
        .collect()
}

/// All packets of a pod so far.
#[derive(Debug)]
pub(crate) struct Capture(Vec<Segment>);

impl Capture {
    /// What was seen in the pod of `app`, once it is enough.
    pub(crate) fn of(namespace: &Namespace, app: &str, enough: impl Fn(&Self) -> bool) -> Self {
        let deployment = format!("deploy/{app}");
        wait_for_some(PATIENCE, "the request on the pod's network", || {
            let log = namespace.run(&["logs", &deployment, "-c", "capture"]);
            let all = Self(log.lines().filter_map(Segment::parse).collect());
            enough(&all).then_some(all)
        })
    }

    /// Whether a packet has this text.
    pub(crate) fn says(&self, text: &str) -> bool {
        self.stream(|_| true).text().contains(text)
    }

    /// The packets of one direction.
    pub(crate) fn stream(&self, belongs: impl Fn(&Segment) -> bool) -> Stream<'_> {
        Stream(self.0.iter().filter(|segment| belongs(segment)).collect())
    }
}

/// Packets of one or more connections in one direction.
#[derive(Debug)]
pub(crate) struct Stream<'a>(Vec<&'a Segment>);

impl Stream<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the first packet of a connection is among them.
    pub(crate) fn begins(&self) -> bool {
        self.0.iter().any(|s| s.flags & (SYN | ACK) == SYN)
    }

    /// The bytes of each connection in their order; loopback shows each packet twice.
    fn connections(&self) -> Vec<Vec<u8>> {
        /// Where the count of bytes begins, and the bytes by their place.
        #[derive(Default)]
        struct Bytes<'a>(Option<u32>, BTreeMap<u32, &'a [u8]>);
        let mut connections: BTreeMap<(&str, &str), Bytes<'_>> = BTreeMap::new();
        for segment in &self.0 {
            let key = (segment.from.as_str(), segment.to.as_str());
            let Bytes(first, bytes) = connections.entry(key).or_default();
            let first = *first.get_or_insert(segment.sequence);
            if !segment.payload.is_empty() {
                let at = segment.sequence.wrapping_sub(first);
                let known = bytes.entry(at).or_default();
                if known.len() < segment.payload.len() {
                    *known = &segment.payload;
                }
            }
        }
        let joined = connections.into_values().map(|Bytes(_, bytes)| {
            let parts: Vec<&[u8]> = bytes.into_values().collect();
            parts.concat()
        });
        joined.collect()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.connections().concat()).into_owned()
    }

    /// Every byte is part of a TLS record: a handshake in the clear, then nothing but what is
    /// encrypted.
    #[track_caller]
    pub(crate) fn assert_tls(&self, place: &str) {
        let connections = self.connections();
        assert!(!connections.is_empty(), "{place}: nothing was said");
        for bytes in connections {
            let mut rest = bytes.as_slice();
            let mut kinds = Vec::new();
            while let [kind, 3, 1 | 3, high, low, after @ ..] = rest {
                kinds.push(*kind);
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                // The last record may still be under way.
                rest = after.get(length..).unwrap_or_default();
            }
            assert!(
                rest.is_empty(),
                "{place}: not TLS: {rest:02x?} after {kinds:?}"
            );
            let hello = kinds.first() == Some(&22);
            let encrypted = kinds.iter().skip(1).all(|kind| matches!(kind, 20 | 23));
            assert!(hello && encrypted, "{place}: records {kinds:?}");
            assert!(
                kinds.contains(&23),
                "{place}: nothing encrypted in {kinds:?}"
            );
        }
    }

    /// The version a ServerHello chose: its extension 43.
    pub(crate) fn tls_version(&self) -> Option<u16> {
        let bytes = self.connections().into_iter().next()?;
        // Record and handshake header, version, random; then the session's id.
        let id = usize::from(*bytes.get(43)?);
        let mut extensions = bytes.get(44 + id + 3 + 2..)?;
        while let [a, b, c, d, rest @ ..] = extensions {
            let length = usize::from(u16::from_be_bytes([*c, *d]));
            let value = rest.get(..length)?;
            if [*a, *b] == [0, 43] {
                return Some(u16::from_be_bytes(value.try_into().ok()?));
            }
            extensions = rest.get(length..)?;
        }
        None
    }
}
