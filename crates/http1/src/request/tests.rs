//! Tables of request heads: what is refused and why, and what the accepted ones mean.

use super::*;

fn parse(text: &str) -> Result<RequestHead, HeadError> {
    let mut head = RequestHead::new();
    match head.parse(text.as_bytes(), &Limits::default())? {
        Status::Complete => Ok(head),
        Status::Partial => panic!("{text:?} is incomplete"),
    }
}

#[test]
fn refused() {
    use HeadError as E;
    let cases: &[(&str, &str, HeadError)] = &[
        (
            "two equal lengths",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            E::ContentLength,
        ),
        (
            "two lengths",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            E::ContentLength,
        ),
        (
            "a list of lengths",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n",
            E::ContentLength,
        ),
        (
            "a signed length",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
            E::ContentLength,
        ),
        (
            "an empty length",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n",
            E::ContentLength,
        ),
        (
            "a length too large",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551617\r\n\r\n",
            E::ContentLength,
        ),
        (
            "length and chunked",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::LengthAndCoding,
        ),
        (
            "chunked and length",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            E::LengthAndCoding,
        ),
        (
            "chunked twice",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::TransferEncoding,
        ),
        (
            "chunked not last",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
            E::TransferEncoding,
        ),
        (
            "identity",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
            E::TransferEncoding,
        ),
        (
            "gzip in chunks",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            E::UnknownCoding,
        ),
        (
            "nearly chunked",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
            E::TransferEncoding,
        ),
        (
            "chunked in 1.0",
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::TransferEncoding,
        ),
        (
            "space before colon",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n",
            E::FieldName,
        ),
        (
            "folded line",
            "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
            E::FieldName,
        ),
        (
            "folded first line",
            "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
            E::FieldName,
        ),
        (
            "empty name",
            "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
            E::FieldName,
        ),
        (
            "no colon",
            "GET / HTTP/1.1\r\nHost: a\r\nfoo\r\n\r\n",
            E::FieldName,
        ),
        (
            "name with a blank",
            "GET / HTTP/1.1\r\nHost: a\r\nfoo bar: b\r\n\r\n",
            E::FieldName,
        ),
        (
            "non-ASCII name",
            "GET / HTTP/1.1\r\nHost: a\r\nf\u{f6}: b\r\n\r\n",
            E::FieldName,
        ),
        (
            "NUL in a value",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
            E::FieldValue,
        ),
        (
            "control byte in a value",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\u{1}b\r\n\r\n",
            E::FieldValue,
        ),
        (
            "DEL in a value",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\u{7f}b\r\n\r\n",
            E::FieldValue,
        ),
        (
            "CR in a value",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
            E::FieldValue,
        ),
        (
            "bare LF everywhere",
            "GET / HTTP/1.1\nHost: a\n\n",
            E::LineEnding,
        ),
        (
            "bare LF after the request line",
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            E::LineEnding,
        ),
        (
            "bare LF after a field",
            "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
            E::LineEnding,
        ),
        (
            "bare LF before the blank line",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            E::LineEnding,
        ),
        (
            "bare LF as the blank line",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            E::LineEnding,
        ),
        (
            "bare LF without fields",
            "GET / HTTP/1.1\r\n\n",
            E::LineEnding,
        ),
        (
            "bare LF in front",
            "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "two blank lines in front",
            "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "two hosts",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            E::Host,
        ),
        (
            "absolute form and an empty host",
            "GET http://a/ HTTP/1.1\r\nHost:\r\n\r\n",
            E::HostMismatch,
        ),
        (
            "host with a path",
            "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
            E::Host,
        ),
        (
            "host with user information",
            "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
            E::Host,
        ),
        ("host list", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", E::Host),
        (
            "host with a bad port",
            "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
            E::Host,
        ),
        (
            "absolute form and another host",
            "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
            E::HostMismatch,
        ),
        (
            "CONNECT and another host",
            "CONNECT a:1 HTTP/1.1\r\nHost: b:1\r\n\r\n",
            E::HostMismatch,
        ),
        (
            "CONNECT and another host without a port",
            "CONNECT a:1 HTTP/1.1\r\nHost: b\r\n\r\n",
            E::HostMismatch,
        ),
        (
            "CONNECT and another port",
            "CONNECT a:1 HTTP/1.1\r\nHost: a:2\r\n\r\n",
            E::HostMismatch,
        ),
        (
            "CONNECT and an empty host",
            "CONNECT a:1 HTTP/1.1\r\nHost:\r\n\r\n",
            E::HostMismatch,
        ),
        ("no method", " / HTTP/1.1\r\nHost: a\r\n\r\n", E::Method),
        (
            "method with a delimiter",
            "GE(T / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Method,
        ),
        (
            "two blanks",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "tab for a blank",
            "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Method,
        ),
        (
            "fragment",
            "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "non-ASCII target",
            "GET /\u{e4} HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "relative target",
            "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "other scheme",
            "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "asterisk for GET",
            "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        ("no version", "GET /\r\n\r\n", E::Target),
        ("version 2", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", E::Version),
        (
            "version 1.2",
            "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
            E::Version,
        ),
        (
            "version 0.9",
            "GET / HTTP/0.9\r\nHost: a\r\n\r\n",
            E::Version,
        ),
        (
            "lower-case version",
            "GET / http/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "version with more",
            "GET / HTTP/1.10\r\nHost: a\r\n\r\n",
            E::LineEnding,
        ),
        (
            "CONNECT without a port",
            "CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Connect,
        ),
        (
            "CONNECT in origin form",
            "CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Connect,
        ),
        (
            "CONNECT in absolute form",
            "CONNECT http://a:1/ HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Connect,
        ),
        (
            "CONNECT in 1.0",
            "CONNECT a:1 HTTP/1.0\r\nHost: a:1\r\n\r\n",
            E::Connect,
        ),
        (
            "CONNECT with a body",
            "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 5\r\n\r\n",
            E::Connect,
        ),
        (
            "CONNECT in chunks",
            "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::Connect,
        ),
    ];
    for (name, text, want) in cases {
        assert_eq!(parse(text).map(|head| head.framing()), Err(*want), "{name}");
    }
}

#[test]
fn accepted() {
    use Framing as F;
    struct Want {
        authority: Option<&'static str>,
        path: &'static str,
        framing: Framing,
        keep_alive: bool,
        upgrade: bool,
    }
    let want = |authority, path, framing, keep_alive, upgrade| Want {
        authority,
        path,
        framing,
        keep_alive,
        upgrade,
    };
    let cases = [
        (
            "plain",
            "GET /a?b HTTP/1.1\r\nHost: a.b:80\r\n\r\n",
            want(Some("a.b:80"), "/a?b", F::None, true, false),
        ),
        (
            "one blank line in front",
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            want(Some("a"), "/", F::None, true, false),
        ),
        (
            "no host",
            "GET / HTTP/1.1\r\n\r\n",
            want(None, "/", F::None, true, false),
        ),
        (
            "1.0",
            "GET / HTTP/1.0\r\n\r\n",
            want(None, "/", F::None, false, false),
        ),
        (
            "1.0 keep-alive",
            "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
            want(None, "/", F::None, true, false),
        ),
        (
            "1.0 both",
            "GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n",
            want(None, "/", F::None, false, false),
        ),
        (
            "close",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n",
            want(Some("a"), "/", F::None, false, false),
        ),
        (
            "second line closes",
            "GET / HTTP/1.1\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n",
            want(None, "/", F::None, false, false),
        ),
        (
            "length",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:5\r\n\r\n",
            want(Some("a"), "/", F::Length(5), true, false),
        ),
        (
            "no length",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            want(Some("a"), "/", F::None, true, false),
        ),
        (
            "chunks",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tChunked \r\n\r\n",
            want(Some("a"), "/", F::Chunked, true, false),
        ),
        (
            "absolute",
            "GET http://a/b HTTP/1.1\r\nHost: A:80\r\n\r\n",
            want(Some("a"), "/b", F::None, true, false),
        ),
        (
            "absolute without path",
            "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n",
            want(Some("a"), "/", F::None, true, false),
        ),
        (
            "absolute, https port",
            "GET https://a:443/ HTTP/1.1\r\nHost: a\r\n\r\n",
            want(Some("a:443"), "/", F::None, true, false),
        ),
        (
            "connect",
            "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
            want(Some("a:1"), "", F::None, true, false),
        ),
        (
            "asterisk",
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            want(Some("a"), "*", F::None, true, false),
        ),
        (
            "websocket",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
            want(Some("a"), "/", F::None, true, true),
        ),
        (
            "upgrade not announced",
            "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
            want(Some("a"), "/", F::None, true, false),
        ),
        (
            "upgrade in 1.0",
            "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            want(None, "/", F::None, false, false),
        ),
        (
            "h2c",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
            want(Some("a"), "/", F::None, true, false),
        ),
        (
            "obs-text value",
            "GET / HTTP/1.1\r\nHost: a\r\nX: \u{e4}\r\n\r\n",
            want(Some("a"), "/", F::None, true, false),
        ),
        (
            "empty host",
            "GET / HTTP/1.1\r\nHost:\r\n\r\n",
            want(None, "/", F::None, true, false),
        ),
        (
            "lower-case method",
            "purge / HTTP/1.1\r\nHost: a\r\n\r\n",
            want(Some("a"), "/", F::None, true, false),
        ),
        (
            "method of every kind of token byte",
            "a1!#$%&'*+-.^_`|~Z / HTTP/1.1\r\nHost: a\r\n\r\n",
            want(Some("a"), "/", F::None, true, false),
        ),
        (
            "CONNECT whose host has no port",
            "CONNECT a:443 HTTP/1.1\r\nHost: A\r\n\r\n",
            want(Some("a:443"), "", F::None, true, false),
        ),
        (
            "CONNECT to an address whose host has no port",
            "CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]\r\n\r\n",
            want(Some("[::1]:443"), "", F::None, true, false),
        ),
    ];
    for (name, text, want) in cases {
        let head = parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let view = head.view(text.as_bytes());
        assert_eq!(view.authority(), want.authority, "{name}");
        assert_eq!(view.path_and_query(), want.path, "{name}");
        assert_eq!(head.framing(), want.framing, "{name}");
        assert_eq!(head.keep_alive(), want.keep_alive, "{name}");
        assert_eq!(head.upgrade(), want.upgrade, "{name}");
        assert_eq!(head.len(), text.len(), "{name}");
    }
}

#[test]
fn limits() {
    let limits = Limits {
        head_bytes: 64,
        fields: 3,
        require_host: true,
    };
    let parse = |text: &str| RequestHead::new().parse(text.as_bytes(), &limits);
    let long = "x".repeat(80);
    let cases = [
        (
            "missing host",
            "GET / HTTP/1.1\r\n\r\n".to_owned(),
            Err(HeadError::MissingHost),
        ),
        (
            "1.0 needs none",
            "GET / HTTP/1.0\r\n\r\n".to_owned(),
            Ok(Status::Complete),
        ),
        (
            "too many",
            "GET / HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n".to_owned(),
            Err(HeadError::TooManyFields),
        ),
        (
            "as many as allowed",
            "GET / HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\n\r\n".to_owned(),
            Ok(Status::Complete),
        ),
        (
            "complete but too large",
            format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"),
            Err(HeadError::TooLarge),
        ),
        (
            "incomplete and too large",
            format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}"),
            Err(HeadError::TooLarge),
        ),
        (
            "target without end",
            format!("GET /{long}"),
            Err(HeadError::TargetTooLong),
        ),
        (
            "partial",
            "GET / HTTP/1.1\r\nHost".to_owned(),
            Ok(Status::Partial),
        ),
        (
            "partial, but the method is wrong already",
            "FOO( / HTTP/1.1\r\nHost".to_owned(),
            Err(HeadError::Method),
        ),
    ];
    for (name, text, want) in cases {
        assert_eq!(parse(&text), want, "{name}");
    }
}

#[test]
fn a_refused_head_still_tells_its_version() {
    for (name, text, want) in [
        (
            "bad field",
            "GET / HTTP/1.0\r\na b: c\r\n\r\n",
            Version::Http10,
        ),
        ("bad target", "GET /# HTTP/1.0\r\n\r\n", Version::Http10),
        (
            "bad host",
            "GET / HTTP/1.0\r\nHost: /\r\n\r\n",
            Version::Http10,
        ),
        (
            "bad field in 1.1",
            "GET / HTTP/1.1\r\na b: c\r\n\r\n",
            Version::Http11,
        ),
        (
            "no version at all",
            "G(T / HTTP/1.0\r\n\r\n",
            Version::Http11,
        ),
    ] {
        let mut head = RequestHead::new();
        let old = b"GET / HTTP/1.0\r\n\r\n";
        head.parse(old, &Limits::default()).expect("a good head");
        let refused = head.parse(text.as_bytes(), &Limits::default());
        assert!(refused.is_err(), "{name}");
        assert_eq!(head.version(), want, "{name}");
    }
}

#[test]
fn a_head_is_reused_and_pipelined_bytes_stay() {
    let text = b"POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhiGET /2 HTTP/1.1\r\nHost: b\r\n\r\n";
    let mut head = RequestHead::new();
    assert_eq!(head.parse(text, &Limits::default()), Ok(Status::Complete));
    assert!(head.expects_continue());
    assert_eq!(
        (head.view(text).path_and_query(), head.framing()),
        ("/1", Framing::Length(2))
    );
    let rest = &text[head.len() + 2..];
    assert_eq!(head.parse(rest, &Limits::default()), Ok(Status::Complete));
    let view = head.view(rest);
    assert_eq!(
        (view.path_and_query(), view.host(), head.framing()),
        ("/2", Some("b"), Framing::None)
    );
    assert!(!head.expects_continue());
    assert_eq!(view.fields().count(), 1);
}

#[test]
fn fields_are_found_by_name_and_in_order() {
    let text = b"GET / HTTP/1.1\r\nHOST: a\r\nX-One:  1 \r\nl5d-client-ID: me\r\nEmpty:\r\n\r\n";
    let mut head = RequestHead::new();
    head.parse(text, &Limits::default()).expect("a good head");
    let view = head.view(text);
    assert_eq!(view.get(Name::L5dClientId), Some(&b"me"[..]));
    assert_eq!(view.get_named("x-one"), Some(&b"1"[..]));
    assert_eq!(view.get_named("empty"), Some(&b""[..]));
    assert_eq!(view.get(Name::Expect), None);
    let names: Vec<&[u8]> = view.fields().map(|field| field.name).collect();
    assert_eq!(names, [&b"HOST"[..], b"X-One", b"l5d-client-ID", b"Empty"]);
}
