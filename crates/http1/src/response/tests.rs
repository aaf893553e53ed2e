//! Tables of response heads: framing by status and method, and what is refused.

use super::*;

fn parse(text: &[u8], method: Method) -> Result<ResponseHead, HeadError> {
    let mut head = ResponseHead::new();
    match head.parse(text, &Limits::default(), method)? {
        Status::Complete => Ok(head),
        Status::Partial => panic!("{text:?} is incomplete"),
    }
}

#[test]
fn framing() {
    use Framing as F;
    let cases: &[(&str, Method, &str, Framing, bool)] = &[
        (
            "length",
            Method::Get,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
            F::Length(3),
            true,
        ),
        (
            "no length but zero",
            Method::Get,
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            F::None,
            true,
        ),
        (
            "the same length twice",
            Method::Get,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
            F::Length(3),
            true,
        ),
        (
            "chunks",
            Method::Get,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            F::Chunked,
            true,
        ),
        (
            "until close",
            Method::Get,
            "HTTP/1.1 200 OK\r\n\r\n",
            F::UntilClose,
            false,
        ),
        (
            "HEAD",
            Method::Head,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
            F::None,
            true,
        ),
        (
            "HEAD in chunks",
            Method::Head,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            F::None,
            true,
        ),
        (
            "204",
            Method::Get,
            "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n",
            F::None,
            true,
        ),
        (
            "304",
            Method::Get,
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n",
            F::None,
            true,
        ),
        (
            "100",
            Method::Post,
            "HTTP/1.1 100 Continue\r\n\r\n",
            F::None,
            true,
        ),
        (
            "101",
            Method::Get,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            F::Tunnel,
            false,
        ),
        (
            "CONNECT 200",
            Method::Connect,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
            F::Tunnel,
            false,
        ),
        (
            "CONNECT 500",
            Method::Connect,
            "HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\n",
            F::Length(3),
            true,
        ),
        (
            "a coding in chunks",
            Method::Get,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            F::Chunked,
            true,
        ),
        (
            "close",
            Method::Get,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
            F::Length(3),
            false,
        ),
        (
            "1.0",
            Method::Get,
            "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n",
            F::Length(3),
            false,
        ),
        (
            "1.0 keep-alive",
            Method::Get,
            "HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n",
            F::Length(3),
            true,
        ),
        (
            "no reason",
            Method::Get,
            "HTTP/1.1 200\r\nContent-Length: 3\r\n\r\n",
            F::Length(3),
            true,
        ),
        (
            "empty reason",
            Method::Get,
            "HTTP/1.1 200 \r\nContent-Length: 3\r\n\r\n",
            F::Length(3),
            true,
        ),
    ];
    for (name, method, text, want, reusable) in cases {
        let head =
            parse(text.as_bytes(), *method).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (head.framing(), head.reusable()),
            (*want, *reusable),
            "{name}"
        );
    }
    assert!(
        parse(b"HTTP/1.1 103 Early Hints\r\n\r\n", Method::Get)
            .expect("103")
            .interim()
    );
    assert!(
        !parse(b"HTTP/1.1 101 Up\r\n\r\n", Method::Get)
            .expect("101")
            .interim()
    );
}

#[test]
fn refused() {
    use HeadError as E;
    let cases: &[(&str, &str, HeadError)] = &[
        (
            "two lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
            E::ContentLength,
        ),
        (
            "length and chunks",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::LengthAndCoding,
        ),
        (
            "chunks within a coding",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
            E::TransferEncoding,
        ),
        (
            "a coding and a length",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            E::LengthAndCoding,
        ),
        (
            "chunks in 1.0",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::TransferEncoding,
        ),
        (
            "bare LF",
            "HTTP/1.1 200 OK\nContent-Length: 3\n\n",
            E::LineEnding,
        ),
        (
            "folded",
            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            E::FieldName,
        ),
        (
            "space before colon",
            "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
            E::FieldName,
        ),
        ("NUL", "HTTP/1.1 200 OK\r\nA: \0\r\n\r\n", E::FieldValue),
        ("status", "HTTP/1.1 20 OK\r\n\r\n", E::Status),
        ("status too small", "HTTP/1.1 099 OK\r\n\r\n", E::Status),
        ("version", "HTTP/2.0 200 OK\r\n\r\n", E::Version),
        (
            "blank line in front",
            "\r\nHTTP/1.1 200 OK\r\n\r\n",
            E::StartLine,
        ),
    ];
    for (name, text, want) in cases {
        assert_eq!(
            parse(text.as_bytes(), Method::Get).map(|head| head.framing()),
            Err(*want),
            "{name}"
        );
    }
}

#[test]
fn reasons_keep_their_bytes() {
    for (line, want) in [
        ("HTTP/1.1 200", ""),
        ("HTTP/1.1 200 ", ""),
        ("HTTP/1.1 404 Not Found", "Not Found"),
        ("HTTP/1.1 200 \u{e4}", "\u{e4}"),
    ] {
        let text = format!("{line}\r\nA: b\r\n\r\n");
        let head = parse(text.as_bytes(), Method::Get).expect("a good head");
        assert_eq!(
            head.view(text.as_bytes()).reason(),
            want.as_bytes(),
            "{line}"
        );
    }
}
