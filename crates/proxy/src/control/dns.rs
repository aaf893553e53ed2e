//! A small DNS client: SRV, A and AAAA over UDP with TCP fallback, reading /etc/resolv.conf. The
//! binary is static, so the system resolver is not available. Messages are parsed without allocation
//! beyond the answers; every count and length is bounded.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

/// Kinds of records asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// IPv4 addresses.
    A = 1,
    /// IPv6 addresses.
    Aaaa = 28,
    /// Service targets.
    Srv = 33,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An address.
    Ip(IpAddr),
    /// A service target.
    Srv {
        /// Its port.
        port: u16,
        /// Its name, without trailing dot.
        target: String,
    },
}

/// Answers and how long they hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The records of the kind asked for.
    pub records: Vec<Record>,
    /// Time to live.
    pub ttl: Duration,
}

/// Why a name did not resolve.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The name or the record does not exist.
    #[error("no such record")]
    NotFound {
        /// How long that holds.
        ttl: Option<Duration>,
    },
    /// The server refused.
    #[error("the DNS server answered with code {0}")]
    Refused(u8),
    /// The answer does not parse.
    #[error("malformed DNS message")]
    Malformed,
    /// Nobody answered.
    #[error("no DNS server answered")]
    Timeout,
    /// The network failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

const MAX_RECORDS: usize = 256;
const MAX_UDP: usize = 4096;
const TRY_TIMEOUT: Duration = Duration::from_secs(2);
const TRIES: usize = 2;

/// Asks the configured servers.
#[derive(Clone, Debug)]
pub struct Resolver {
    resolv_conf: PathBuf,
}

impl Default for Resolver {
    fn default() -> Self {
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
        }
    }
}

impl Resolver {
    /// Reads another file than /etc/resolv.conf.
    pub fn with_file(resolv_conf: PathBuf) -> Self {
        Self { resolv_conf }
    }

    /// Looks up one kind of record of an absolute name.
    pub async fn lookup(&self, name: &str, kind: Kind) -> Result<Answer, DnsError> {
        let text = tokio::fs::read_to_string(&self.resolv_conf)
            .await
            .unwrap_or_default();
        let servers = name_servers(&text);
        let mut last = DnsError::Timeout;
        for _ in 0..TRIES {
            for server in &servers {
                match timeout(TRY_TIMEOUT, ask(*server, name, kind)).await {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error @ DnsError::NotFound { .. })) => return Err(error),
                    Ok(Err(error)) => last = error,
                    Err(_) => last = DnsError::Timeout,
                }
            }
        }
        Err(last)
    }

    /// Addresses of a name: A and AAAA, either may be missing.
    pub async fn addresses(&self, name: &str) -> Result<(Vec<IpAddr>, Duration), DnsError> {
        let (v4, v6) = tokio::join!(self.lookup(name, Kind::A), self.lookup(name, Kind::Aaaa));
        let mut ips = Vec::new();
        let mut ttl = Duration::MAX;
        let mut error = None;
        for answer in [v4, v6] {
            match answer {
                Ok(answer) => {
                    ttl = ttl.min(answer.ttl);
                    ips.extend(answer.records.iter().filter_map(|r| match r {
                        Record::Ip(ip) => Some(*ip),
                        Record::Srv { .. } => None,
                    }));
                }
                Err(e) => error = error.or(Some(e)),
            }
        }
        match error {
            Some(error) if ips.is_empty() => Err(error),
            _ => Ok((ips, ttl)),
        }
    }
}

/// `nameserver` lines, at most three; the local host without any.
pub fn name_servers(resolv_conf: &str) -> Vec<SocketAddr> {
    let mut servers: Vec<SocketAddr> = resolv_conf
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            if words.next()? != "nameserver" {
                return None;
            }
            let text = words.next()?;
            // A port is our own addition, for tests.
            text.parse()
                .ok()
                .or_else(|| text.parse::<IpAddr>().ok().map(|ip| (ip, 53).into()))
        })
        .take(3)
        .collect();
    if servers.is_empty() {
        servers.push((Ipv4Addr::LOCALHOST, 53).into());
    }
    servers
}

async fn ask(server: SocketAddr, name: &str, kind: Kind) -> Result<Answer, DnsError> {
    let id: u16 = rand::random();
    let query = encode_query(id, name, kind).ok_or(DnsError::Malformed)?;
    let local: SocketAddr = if server.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut buf = vec![0; MAX_UDP];
    loop {
        let n = socket.recv(&mut buf).await?;
        match decode_answer(&buf[..n], id, name, kind) {
            Ok(Decoded::Answer(answer)) => return Ok(answer),
            Ok(Decoded::Truncated) => break,
            // Somebody else's datagram.
            Ok(Decoded::NotOurs) => {}
            Err(error) => return Err(error),
        }
    }
    let mut stream = TcpStream::connect(server).await?;
    let len = u16::try_from(query.len()).map_err(|_| DnsError::Malformed)?;
    let mut framed = len.to_be_bytes().to_vec();
    framed.extend(&query);
    stream.write_all(&framed).await?;
    let len = usize::from(stream.read_u16().await?);
    let mut buf = vec![0; len];
    stream.read_exact(&mut buf).await?;
    match decode_answer(&buf, id, name, kind)? {
        Decoded::Answer(answer) => Ok(answer),
        Decoded::Truncated | Decoded::NotOurs => Err(DnsError::Malformed),
    }
}

/// A query message; `None` when the name is no DNS name.
pub fn encode_query(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend([1, 0]); // recursion desired
    out.extend([0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.trim_end_matches('.').split('.') {
        if label.is_empty() || label.len() > 63 {
            return None;
        }
        out.push(u8::try_from(label.len()).ok()?);
        out.extend(label.as_bytes());
    }
    out.push(0);
    if out.len() > 12 + 255 {
        return None;
    }
    out.extend((kind as u16).to_be_bytes());
    out.extend([0, 1]);
    Some(out)
}

/// What a datagram turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The answer.
    Answer(Answer),
    /// To be asked again over TCP.
    Truncated,
    /// Not an answer to our query.
    NotOurs,
}

/// Reads an answer to the query `id` for `name`.
pub fn decode_answer(message: &[u8], id: u16, name: &str, kind: Kind) -> Result<Decoded, DnsError> {
    let mut r = Cursor { message, at: 0 };
    let mut head = [0u16; 6];
    for word in &mut head {
        *word = r.u16()?;
    }
    let [got_id, flags, questions, answers, authorities, _] = head;
    if got_id != id || flags & 0x8000 == 0 || questions != 1 {
        return Ok(Decoded::NotOurs);
    }
    let question = r.name()?;
    let (question_kind, _class) = (r.u16()?, r.u16()?);
    if !question.eq_ignore_ascii_case(name.trim_end_matches('.')) || question_kind != kind as u16 {
        return Ok(Decoded::NotOurs);
    }
    if flags & 0x0200 != 0 {
        return Ok(Decoded::Truncated);
    }
    let code = u8::try_from(flags & 0x000f).unwrap_or(u8::MAX);
    if code != 0 && code != 3 {
        return Err(DnsError::Refused(code));
    }
    let mut answer = Answer {
        records: Vec::new(),
        ttl: Duration::MAX,
    };
    for _ in 0..usize::from(answers).min(MAX_RECORDS) {
        let (record_kind, ttl, data) = r.record()?;
        if record_kind == 5 {
            // A CNAME: the server sends what it leads to behind it.
            answer.ttl = answer.ttl.min(ttl);
        }
        if record_kind != kind as u16 {
            continue;
        }
        answer.ttl = answer.ttl.min(ttl);
        answer.records.push(r.data(kind, data)?);
    }
    if answer.records.is_empty() {
        let mut ttl = None;
        for _ in 0..usize::from(authorities).min(MAX_RECORDS) {
            let Ok((record_kind, record_ttl, data)) = r.record() else {
                break;
            };
            // The last word of an SOA bounds the life of "no".
            if record_kind == 6
                && let Some(minimum) = message.get(data.end.saturating_sub(4)..data.end)
                && let Ok(minimum) = <[u8; 4]>::try_from(minimum)
            {
                let minimum = Duration::from_secs(u32::from_be_bytes(minimum).into());
                ttl = Some(record_ttl.min(minimum));
            }
        }
        return Err(DnsError::NotFound { ttl });
    }
    Ok(Decoded::Answer(answer))
}

struct Cursor<'a> {
    message: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, n: usize) -> Result<&[u8], DnsError> {
        let end = self.at.checked_add(n).ok_or(DnsError::Malformed)?;
        let bytes = self.message.get(self.at..end).ok_or(DnsError::Malformed)?;
        self.at = end;
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u16, DnsError> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    fn u32(&mut self) -> Result<u32, DnsError> {
        self.take(4)
            .map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// A possibly compressed name. Pointers must point backwards, so it always ends.
    fn name(&mut self) -> Result<String, DnsError> {
        let mut name = String::new();
        let mut at = self.at;
        let mut end = None;
        let mut lowest = self.at;
        loop {
            let len = *self.message.get(at).ok_or(DnsError::Malformed)?;
            match len {
                0 => {
                    self.at = end.unwrap_or(at + 1);
                    return Ok(name);
                }
                1..=63 => {
                    let label = self
                        .message
                        .get(at + 1..at + 1 + usize::from(len))
                        .ok_or(DnsError::Malformed)?;
                    if !name.is_empty() {
                        name.push('.');
                    }
                    for byte in label {
                        if !byte.is_ascii_graphic() || *byte == b'.' {
                            return Err(DnsError::Malformed);
                        }
                        name.push(char::from(*byte));
                    }
                    if name.len() > 254 {
                        return Err(DnsError::Malformed);
                    }
                    at += 1 + usize::from(len);
                }
                0xc0..=0xff => {
                    let low = *self.message.get(at + 1).ok_or(DnsError::Malformed)?;
                    let target = usize::from(len & 0x3f) << 8 | usize::from(low);
                    if target >= lowest {
                        return Err(DnsError::Malformed);
                    }
                    lowest = target;
                    end = end.or(Some(at + 2));
                    at = target;
                }
                _ => return Err(DnsError::Malformed),
            }
        }
    }

    /// Kind, time to live and where the data is.
    fn record(&mut self) -> Result<(u16, Duration, std::ops::Range<usize>), DnsError> {
        self.name()?;
        let kind = self.u16()?;
        let _class = self.u16()?;
        let ttl = Duration::from_secs(self.u32()?.into());
        let len = usize::from(self.u16()?);
        let start = self.at;
        self.take(len)?;
        Ok((kind, ttl, start..start + len))
    }

    fn data(&self, kind: Kind, range: std::ops::Range<usize>) -> Result<Record, DnsError> {
        let data = self.message.get(range.clone()).ok_or(DnsError::Malformed)?;
        match kind {
            Kind::A => <[u8; 4]>::try_from(data)
                .map(|b| Record::Ip(b.into()))
                .map_err(|_| DnsError::Malformed),
            Kind::Aaaa => <[u8; 16]>::try_from(data)
                .map(|b| Record::Ip(b.into()))
                .map_err(|_| DnsError::Malformed),
            Kind::Srv => {
                let mut r = Cursor {
                    message: self.message,
                    at: range.start,
                };
                let (_priority, _weight) = (r.u16()?, r.u16()?);
                let port = r.u16()?;
                let target = r.name()?;
                Ok(Record::Srv { port, target })
            }
        }
    }
}

/// The pod address in the first label of an SRV target: `10-42-0-7.…` or `fd00--1.…`.
pub fn pod_ip(target: &str) -> Option<IpAddr> {
    let label = target.split('.').next()?;
    label
        .replace('-', ".")
        .parse::<Ipv4Addr>()
        .map(IpAddr::V4)
        .or_else(|_| label.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::V6))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, datas: &[&[u8]]) -> Vec<u8> {
        let mut m = encode_query(7, "web.ns.svc", Kind::Srv).expect("a name");
        let question_kind = m.len() - 4;
        m[question_kind..question_kind + 2].copy_from_slice(&kind.to_be_bytes());
        m[2] = 0x81;
        m[7] = u8::try_from(datas.len()).expect("few");
        for data in datas {
            m.extend([0xc0, 12]);
            m.extend(kind.to_be_bytes());
            m.extend([0, 1, 0, 0, 0, 30]);
            m.extend(u16::try_from(data.len()).expect("short").to_be_bytes());
            m.extend(*data);
        }
        m
    }

    #[test]
    fn srv_answers() {
        let mut data = vec![0, 0, 0, 100, 0x1f, 0x96];
        data.extend(b"\x0910-42-0-7\xc0\x0c");
        let m = answer(33, &[&data]);
        let got = decode_answer(&m, 7, "web.ns.svc.", Kind::Srv).expect("parses");
        let target = "10-42-0-7.web.ns.svc".to_owned();
        assert_eq!(
            got,
            Decoded::Answer(Answer {
                records: vec![Record::Srv { port: 8086, target }],
                ttl: Duration::from_secs(30),
            })
        );
    }

    #[test]
    fn address_answers() {
        let m = answer(1, &[&[10, 0, 0, 1], &[10, 0, 0, 2]]);
        let Ok(Decoded::Answer(got)) = decode_answer(&m, 7, "web.ns.svc", Kind::A) else {
            panic!("parses");
        };
        assert_eq!(got.records.len(), 2);
        assert_eq!(
            decode_answer(&m, 8, "web.ns.svc", Kind::A).expect("parses"),
            Decoded::NotOurs,
            "another id"
        );
        assert_eq!(
            decode_answer(&m, 7, "other.ns.svc", Kind::A).expect("parses"),
            Decoded::NotOurs,
            "another question"
        );
    }

    #[test]
    fn damage_never_panics_or_hangs() {
        let mut data = vec![0, 0, 0, 100, 0x1f, 0x96];
        data.extend(b"\x0910-42-0-7\xc0\x0c");
        let good = answer(33, &[&data]);
        for at in 0..good.len() {
            for value in [0, 0x3f, 0xc0, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = decode_answer(&bad, 7, "web.ns.svc", Kind::Srv);
                let _ = decode_answer(&good[..at], 7, "web.ns.svc", Kind::Srv);
            }
        }
    }

    #[test]
    fn missing_names() {
        let mut m = encode_query(7, "a.b", Kind::A).expect("a name");
        m[2] = 0x81;
        m[3] = 3;
        assert!(matches!(
            decode_answer(&m, 7, "a.b", Kind::A),
            Err(DnsError::NotFound { ttl: None })
        ));
        m[3] = 2;
        assert!(matches!(
            decode_answer(&m, 7, "a.b", Kind::A),
            Err(DnsError::Refused(2))
        ));
    }

    #[test]
    fn pod_addresses() {
        for (target, want) in [
            (
                "10-42-0-7.linkerd-dst-headless.linkerd.svc",
                Some("10.42.0.7"),
            ),
            ("fd00--1.linkerd-dst-headless.linkerd.svc", Some("fd00::1")),
            ("linkerd-dst.linkerd.svc", None),
        ] {
            assert_eq!(
                pod_ip(target),
                want.map(|w| w.parse().expect("address")),
                "{target}"
            );
        }
    }

    #[test]
    fn resolv_conf() {
        let text = "search a b\nnameserver 10.43.0.10\n# nameserver 1.1.1.1\nnameserver ::1\n";
        let want: Vec<SocketAddr> = ["10.43.0.10:53", "[::1]:53"]
            .map(|s| s.parse().expect("addr"))
            .into();
        assert_eq!(name_servers(text), want);
        assert_eq!(name_servers(""), vec![(Ipv4Addr::LOCALHOST, 53).into()]);
    }

    /// Answers one query: truncated over UDP, whole over TCP.
    #[tokio::test]
    async fn lookups_over_the_network() {
        let udp = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
        let addr = udp.local_addr().expect("bound");
        let tcp = tokio::net::TcpListener::bind(addr).await.expect("binds");
        let server = async {
            let mut buf = [0; 512];
            let (n, peer) = udp.recv_from(&mut buf).await.expect("a query");
            let mut short = buf[..n].to_vec();
            short[2] = 0x83;
            udp.send_to(&short, peer).await.expect("answers");
            let (mut stream, _) = tcp.accept().await.expect("a connection");
            let n = usize::from(stream.read_u16().await.expect("a length"));
            let mut query = vec![0; n];
            stream.read_exact(&mut query).await.expect("a query");
            query[2] = 0x81;
            query[7] = 1;
            query.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 0, 0, 9]);
            let n = u16::try_from(query.len()).expect("short");
            stream.write_u16(n).await.expect("writes");
            stream.write_all(&query).await.expect("writes");
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), format!("nameserver {addr}\n")).expect("writes");
        let resolver = Resolver::with_file(file.path().to_owned());
        let (answer, ()) = tokio::join!(resolver.lookup("web.ns.svc.", Kind::A), server);
        let answer = answer.expect("resolves");
        assert_eq!(answer.records, [Record::Ip([10, 0, 0, 9].into())]);
        assert_eq!(answer.ttl, Duration::from_secs(5));
    }
}
