//! First bytes → protocol. Pure functions over what has been read so far; whoever reads decides how
//! long to wait for more. Nothing is consumed: the bytes stay with the connection.

/// The preface every HTTP/2 client sends first.
pub const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Most bytes looked at before a request line counts as one.
const LONGEST_LINE: usize = 8192;

/// What a plain stream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// A request line of HTTP/1.
    Http1,
    /// The preface of HTTP/2.
    Http2,
    /// Something else.
    NotHttp,
    /// Cannot be told yet.
    More,
}

/// Looks for HTTP. Reads on until the first line is whole, instead of guessing from one read.
pub fn http(bytes: &[u8]) -> Http {
    if bytes.len() >= 14 && bytes.starts_with(&H2_PREFACE[..14]) {
        return Http::Http2;
    }
    if bytes.len() < 14 && H2_PREFACE.starts_with(bytes) {
        return Http::More;
    }
    // One empty line in front of the request line is allowed.
    let line = match bytes {
        [b'\r', b'\n', rest @ ..] => rest,
        [b'\r'] => return Http::More,
        other => other,
    };
    request_line(line)
}

fn request_line(line: &[u8]) -> Http {
    let Some(space) = line.iter().position(|b| *b == b' ') else {
        let token = line.len() <= 32 && line.iter().all(|b| is_method_byte(*b));
        return if token { Http::More } else { Http::NotHttp };
    };
    if space == 0 || space > 32 || !line[..space].iter().all(|b| is_method_byte(*b)) {
        return Http::NotHttp;
    }
    let rest = &line[space + 1..];
    let Some(end) = rest.iter().position(|b| matches!(*b, b' ' | b'\r' | b'\n')) else {
        return if rest.iter().any(|b| *b < 0x21 || *b == 0x7f) {
            Http::NotHttp
        } else if line.len() >= LONGEST_LINE {
            Http::Http1
        } else {
            Http::More
        };
    };
    if end == 0 || rest[..end].iter().any(|b| *b < 0x21 || *b == 0x7f) || rest[end] != b' ' {
        return Http::NotHttp;
    }
    let version = &rest[end + 1..];
    // A version we do not speak is still HTTP: the engine answers it with an error.
    let want = b"HTTP/";
    if version.len() < want.len() {
        return if want.starts_with(version) {
            Http::More
        } else {
            Http::NotHttp
        };
    }
    if version.starts_with(want) {
        Http::Http1
    } else {
        Http::NotHttp
    }
}

/// Whether bytes that may become HTTP begin as a request does: a method, a blank, and a target that only
/// a request has. What does not is not worth a long wait for its line's end.
pub fn begins_request(bytes: &[u8]) -> bool {
    let line = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
    let Some(space) = line.iter().position(|b| *b == b' ') else {
        return false;
    };
    let (method, target) = (&line[..space], &line[space + 1..]);
    let connect = method == b"CONNECT" && !target.is_empty();
    connect || matches!(target.first(), Some(b'/' | b'*')) || target.starts_with(b"http")
}

fn is_method_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// What a stream that may be TLS begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls<'a> {
    /// A ClientHello, with the server name it asks for.
    Hello(Option<&'a str>),
    /// Something else.
    NotTls,
    /// Cannot be told yet.
    More,
}

/// Most bytes of a ClientHello.
const LONGEST_HELLO: usize = 8192;

/// Looks for a TLS ClientHello and its server name.
pub fn tls(bytes: &[u8]) -> Tls<'_> {
    const RECORD_HEAD: usize = 5;
    // The record head can be judged byte by byte.
    let plausible = bytes.first().is_none_or(|b| *b == 22)
        && bytes.get(1).is_none_or(|b| *b == 3)
        && bytes.get(2).is_none_or(|b| *b == 1 || *b == 3)
        && bytes.get(5).is_none_or(|b| *b == 1);
    if !plausible {
        return Tls::NotTls;
    }
    let Some(head) = bytes.get(..RECORD_HEAD) else {
        return Tls::More;
    };
    let record = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if !(4..=LONGEST_HELLO).contains(&record) {
        return Tls::NotTls;
    }
    let Some(message) = bytes.get(RECORD_HEAD..RECORD_HEAD + record) else {
        return Tls::More;
    };
    let mut reader = Reader(message);
    let hello = reader.u8().filter(|kind| *kind == 1).and_then(|_| {
        let length = reader.u24()?;
        reader.take(length).map(Reader)
    });
    // A hello spread over several records is not one we terminate.
    match hello.and_then(hello_sni) {
        Some(sni) => Tls::Hello(sni),
        None => Tls::NotTls,
    }
}

/// The first ticket of a whole ClientHello that has some: its client wants to resume a session.
pub fn ticket(bytes: &[u8]) -> Option<&[u8]> {
    // Heads of the record and of the message.
    let mut extensions = extensions(Reader(bytes.get(9..)?))??;
    while let Some((kind, mut body)) = extensions.extension() {
        if kind == 41 {
            body.u16()?;
            let length = usize::from(body.u16()?);
            return body.take(length);
        }
    }
    None
}

/// `None` when malformed, `Some(None)` without a usable server name.
fn hello_sni(hello: Reader<'_>) -> Option<Option<&str>> {
    let Some(mut extensions) = extensions(hello)? else {
        return Some(None);
    };
    while !extensions.0.is_empty() {
        let (kind, body) = extensions.extension()?;
        if kind == 0 {
            return server_name(body).map(Some);
        }
    }
    Some(None)
}

/// `None` when malformed, `Some(None)` when there are none.
fn extensions(mut hello: Reader<'_>) -> Option<Option<Reader<'_>>> {
    if hello.u16()? != 0x0303 {
        return None;
    }
    hello.take(32)?; // random
    let session = usize::from(hello.u8()?);
    hello.take(session)?;
    let suites = usize::from(hello.u16()?);
    hello.take(suites)?;
    let compression = usize::from(hello.u8()?);
    hello.take(compression)?;
    if hello.0.is_empty() {
        return Some(None);
    }
    let length = usize::from(hello.u16()?);
    hello.take(length).map(|list| Some(Reader(list)))
}

/// Exactly one host name.
fn server_name(mut list: Reader<'_>) -> Option<&str> {
    let length = usize::from(list.u16()?);
    let mut entries = Reader(list.take(length)?);
    if entries.u8()? != 0 {
        return None;
    }
    let length = usize::from(entries.u16()?);
    let name = entries.take(length)?;
    if !entries.0.is_empty() || name.is_empty() {
        return None;
    }
    std::str::from_utf8(name).ok()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn extension(&mut self) -> Option<(u16, Reader<'a>)> {
        let kind = self.u16()?;
        let length = usize::from(self.u16()?);
        Some((kind, Reader(self.take(length)?)))
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    fn u24(&mut self) -> Option<usize> {
        self.take(3)
            .map(|b| usize::from(b[0]) << 16 | usize::from(b[1]) << 8 | usize::from(b[2]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_table() {
        let cases: &[(&str, &[u8], Http)] = &[
            ("nothing yet", b"", Http::More),
            ("h2 preface", H2_PREFACE, Http::Http2),
            ("h2 preface, first 14", b"PRI * HTTP/2.0", Http::Http2),
            ("h2 preface dribbled", b"PRI ", Http::More),
            (
                "h1 whole head",
                b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
                Http::Http1,
            ),
            ("h1 dribbled method", b"GE", Http::More),
            ("h1 dribbled target", b"GET /long", Http::More),
            ("h1 dribbled version", b"GET / HTT", Http::More),
            ("h1 line without end", b"GET / HTTP/1.1", Http::Http1),
            (
                "h1 behind an empty line",
                b"\r\nGET / HTTP/1.1\r\n",
                Http::Http1,
            ),
            ("lower-case method", b"get / HTTP/1.1\r\n", Http::Http1),
            ("connect", b"CONNECT a:1 HTTP/1.1\r\n", Http::Http1),
            (
                "bad version is still HTTP",
                b"GET / HTTP/9.9\r\n",
                Http::Http1,
            ),
            ("http/0.9", b"GET /\r\n", Http::NotHttp),
            ("redis", b"*1\r\n$4\r\nPING\r\n", Http::NotHttp),
            ("memcached", b"get key\r\n", Http::NotHttp),
            ("smtp", b"EHLO example.com\r\n", Http::NotHttp),
            ("binary", &[0, 0, 0, 8, 4, 210, 22, 47], Http::NotHttp),
            ("tls", &[22, 3, 1, 2, 0, 1, 0, 1, 252], Http::NotHttp),
            ("empty method", b" / HTTP/1.1\r\n", Http::NotHttp),
            ("text", b"hello world, this is text\r\n", Http::NotHttp),
        ];
        for (name, bytes, want) in cases {
            assert_eq!(http(bytes), *want, "{name}");
        }
    }

    #[test]
    fn beginnings_of_requests() {
        for (name, bytes, want) in [
            ("nothing", &b""[..], false),
            ("a word", b"ping", false),
            ("a method alone", b"GET", false),
            ("a method and a blank", b"GET ", false),
            ("two words", b"hello world", false),
            ("an address of its own", b"SELECT host", false),
            ("origin form", b"GET /", true),
            ("origin form behind an empty line", b"\r\nGET /a", true),
            ("absolute form", b"GET http://a", true),
            ("asterisk form", b"OPTIONS *", true),
            ("authority form", b"CONNECT a:1", true),
            ("the preface of HTTP/2", b"PRI *", true),
        ] {
            assert_eq!(begins_request(bytes), want, "{name}");
        }
    }

    #[test]
    fn a_verdict_never_changes_with_more_bytes() {
        let inputs: &[&[u8]] = &[
            b"GET /a HTTP/1.1\r\nhost: b\r\n\r\n",
            H2_PREFACE,
            b"EHLO example.com\r\n",
        ];
        for input in inputs {
            let mut verdict = Http::More;
            for n in 0..=input.len() {
                let now = http(&input[..n]);
                assert!(verdict == Http::More || now == verdict, "{n} of {input:?}");
                verdict = now;
            }
        }
    }

    #[test]
    fn endless_lines_are_decided() {
        let mut line = b"GET /".to_vec();
        line.resize(LONGEST_LINE, b'a');
        assert_eq!(http(&line), Http::Http1);
        assert_eq!(http(&[b'A'; 64]), Http::NotHttp);
    }

    pub(crate) fn hello(sni: Option<&str>) -> Vec<u8> {
        hello_with(sni, &[])
    }

    fn hello_with(sni: Option<&str>, last: &[u8]) -> Vec<u8> {
        let mut extensions = vec![0, 43, 0, 3, 2, 3, 4];
        if let Some(sni) = sni {
            let n = u16::try_from(sni.len()).expect("short");
            extensions.extend([0, 0]);
            extensions.extend((n + 5).to_be_bytes());
            extensions.extend((n + 3).to_be_bytes());
            extensions.push(0);
            extensions.extend(n.to_be_bytes());
            extensions.extend(sni.as_bytes());
        }
        extensions.extend(last);
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend([0, 2, 0x13, 1]);
        body.extend([1, 0]);
        body.extend(
            u16::try_from(extensions.len())
                .expect("short")
                .to_be_bytes(),
        );
        body.extend(extensions);
        let mut message = vec![1, 0];
        message.extend(u16::try_from(body.len()).expect("short").to_be_bytes());
        message.extend(body);
        let mut record = vec![22, 3, 1];
        record.extend(u16::try_from(message.len()).expect("short").to_be_bytes());
        record.extend(message);
        record
    }

    #[test]
    fn hellos() {
        let with = hello(Some("web.ns.serviceaccount.identity.linkerd.cluster.local"));
        assert_eq!(
            tls(&with),
            Tls::Hello(Some("web.ns.serviceaccount.identity.linkerd.cluster.local"))
        );
        assert_eq!(tls(&hello(None)), Tls::Hello(None));
        for n in 0..with.len() {
            assert_eq!(tls(&with[..n]), Tls::More, "{n}");
        }
        assert_eq!(tls(b"GET / HTTP/1.1\r\n"), Tls::NotTls);
        assert_eq!(tls(&[22, 3, 0, 0, 100]), Tls::NotTls);
        assert_eq!(tls(&[22, 3, 1, 0xff, 0xff]), Tls::NotTls);
    }

    #[test]
    fn tickets() {
        // Two identities with their ages, then a binder.
        let list = [
            0, 41, 0, 23, 0, 17, 0, 3, b'o', b'n', b'e', 0, 0, 0, 0, 0, 2, b'n', b'o', 0, 0, 0, 0,
            0, 2, 1, 7,
        ];
        for (name, sni, last, want) in [
            ("none", Some("a.b"), &[][..], None),
            ("the first one", Some("a.b"), &list, Some(&b"one"[..])),
            ("without a server name", None, &list, Some(b"one")),
            ("empty", None, &[0, 41, 0, 0], None),
            ("cut short", None, &[0, 41, 0, 5, 0, 3, 0, 9, 1], None),
        ] {
            assert_eq!(ticket(&hello_with(sni, last)), want, "{name}");
        }
        assert_eq!(ticket(b""), None);
    }

    #[test]
    fn damaged_hellos_do_not_panic() {
        let good = hello(Some("example.com"));
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = (tls(&bad), ticket(&bad));
            }
        }
    }
}
