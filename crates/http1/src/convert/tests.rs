//! Tables of conversions between HTTP/1 text and `http` types.

use super::*;
use crate::{Limits, RequestHead, ResponseHead};

fn to_http(text: &str) -> http::Request<()> {
    let mut head = RequestHead::new();
    head.parse(text.as_bytes(), &Limits::default())
        .expect("a good head");
    head.view(text.as_bytes())
        .to_http(NameSet::EMPTY)
        .expect("convertible")
}

fn names(map: &HeaderMap) -> Vec<String> {
    map.iter()
        .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value.as_bytes())))
        .collect()
}

#[test]
fn requests_to_http() {
    let cases: &[(&str, &str, &str, &[&str])] = &[
        (
            "plain",
            "GET /a?b HTTP/1.1\r\nHost: a:1\r\nX: y\r\n\r\n",
            "http://a:1/a?b",
            &["x=y"],
        ),
        (
            "absolute",
            "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
            "http://a/b",
            &[],
        ),
        (
            "absolute without path",
            "GET http://a?b HTTP/1.1\r\nHost: a\r\n\r\n",
            "http://a/?b",
            &[],
        ),
        ("no host", "GET /a HTTP/1.0\r\n\r\n", "/a", &[]),
        (
            "empty host",
            "GET /a HTTP/1.1\r\nHost:\r\n\r\n",
            "/a",
            &["host="],
        ),
        (
            "connect",
            "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
            "a:1",
            &[],
        ),
        (
            "hop by hop",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: X, TE\r\nX: 1\r\nTE: gzip, trailers\r\nKeep-Alive: 1\r\nUpgrade: h2c\r\n\r\n",
            "http://a/",
            &["te=trailers"],
        ),
        (
            "te without trailers",
            "GET / HTTP/1.1\r\nHost: a\r\nTE: gzip\r\n\r\n",
            "http://a/",
            &[],
        ),
        (
            "chunks",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            "http://a/",
            &[],
        ),
        (
            "length",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
            "http://a/",
            &["content-length=5"],
        ),
    ];
    for (name, text, uri, fields) in cases {
        let request = to_http(text);
        assert_eq!(request.uri().to_string(), *uri, "{name}");
        assert_eq!(names(request.headers()), *fields, "{name}");
    }
    assert_eq!(
        to_http("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
            .uri()
            .path(),
        "*"
    );
}

#[test]
fn requests_from_http() {
    let request = |uri: &str, fields: &[(&'static str, &str)]| {
        let mut builder = http::Request::builder().method("POST").uri(uri);
        for (name, value) in fields {
            builder = builder.header(*name, *value);
        }
        builder.body(()).expect("a request").into_parts().0
    };
    let write = |parts: &http::request::Parts, how: OutboundRequest<'_>| {
        let mut out = BytesMut::new();
        let encoding = write_request(parts, &how, &mut out)?;
        Ok::<_, HeadError>((String::from_utf8(out.to_vec()).expect("text"), encoding))
    };
    let plain = OutboundRequest::default();
    let parts = request(
        "http://a:1/b?c",
        &[("cookie", "x=1"), ("x", "y"), ("cookie", "z=2")],
    );
    assert_eq!(
        write(&parts, plain),
        Ok(("POST /b?c HTTP/1.1\r\nhost: a:1\r\ncookie: x=1; z=2\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n".into(), BodyEncoding::Chunked))
    );
    let parts = request("http://a/b", &[("content-length", "5")]);
    assert_eq!(
        write(
            &parts,
            OutboundRequest {
                absolute: true,
                version: Version::Http10,
                ..plain
            }
        ),
        Ok((
            "POST http://a/b HTTP/1.0\r\nhost: a\r\ncontent-length: 5\r\n\r\n".into(),
            BodyEncoding::Length(5)
        ))
    );
    let parts = request("http://a/b", &[]);
    assert_eq!(
        write(
            &parts,
            OutboundRequest {
                end_stream: true,
                add: &[("l5d-client-id", b"me")],
                ..plain
            }
        ),
        Ok((
            "POST /b HTTP/1.1\r\nhost: a\r\nl5d-client-id: me\r\n\r\n".into(),
            BodyEncoding::None
        ))
    );
    let parts = request(
        "http://a/b",
        &[("x", "1"), ("y", "2"), ("x", "3"), ("content-length", "5")],
    );
    assert_eq!(
        write(
            &parts,
            OutboundRequest {
                authority: Some("other:1"),
                drop_named: &["x", "content-length"],
                add: &[("x", b"4")],
                ..plain
            }
        ),
        Ok((
            "POST /b HTTP/1.1\r\nhost: other:1\r\ny: 2\r\ncontent-length: 5\r\nx: 4\r\n\r\n".into(),
            BodyEncoding::Length(5)
        )),
        "names are left out before lines are added, but never the framing"
    );
    let parts = request(
        "http://a/b",
        &[("content-length", "5"), ("content-length", "6")],
    );
    assert_eq!(write(&parts, plain), Err(HeadError::ContentLength));
}

#[test]
fn responses_from_http() {
    let plain = OutboundResponse {
        keep_alive: true,
        ..OutboundResponse::default()
    };
    type Case = (
        &'static str,
        u16,
        Option<&'static str>,
        OutboundResponse<'static>,
        &'static str,
        BodyEncoding,
    );
    let cases: &[Case] = &[
        (
            "length",
            200,
            Some("5"),
            plain,
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
            BodyEncoding::Length(5),
        ),
        (
            "stream",
            200,
            None,
            plain,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            BodyEncoding::Chunked,
        ),
        (
            "end",
            200,
            None,
            OutboundResponse {
                end_stream: true,
                ..plain
            },
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            BodyEncoding::None,
        ),
        (
            "no content",
            204,
            None,
            OutboundResponse {
                end_stream: true,
                ..plain
            },
            "HTTP/1.1 204 No Content\r\n\r\n",
            BodyEncoding::None,
        ),
        (
            "head",
            200,
            Some("5"),
            OutboundResponse {
                method: Method::Head,
                end_stream: true,
                ..plain
            },
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
            BodyEncoding::None,
        ),
        (
            "1.0 stream",
            200,
            None,
            OutboundResponse {
                version: Version::Http10,
                ..plain
            },
            "HTTP/1.0 200 OK\r\nconnection: close\r\n\r\n",
            BodyEncoding::UntilClose,
        ),
        (
            "closing",
            503,
            Some("0"),
            OutboundResponse {
                closing: true,
                ..plain
            },
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            BodyEncoding::None,
        ),
    ];
    for (name, status, length, how, text, encoding) in cases {
        let mut builder = http::Response::builder().status(*status);
        if let Some(length) = length {
            builder = builder.header("content-length", *length);
        }
        let parts = builder.body(()).expect("a response").into_parts().0;
        let mut out = BytesMut::new();
        let (got, _) = write_response(&parts, how, &mut out).expect("writable");
        assert_eq!(
            (String::from_utf8_lossy(&out).as_ref(), got),
            (*text, *encoding),
            "{name}"
        );
    }
}

#[test]
fn responses_to_http() {
    let text = b"HTTP/1.1 200 OK\r\nConnection: close, X\r\nX: 1\r\nContent-Length: 1\r\nContent-Length: 1\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n";
    let mut head = ResponseHead::new();
    head.parse(text, &Limits::default(), Method::Get)
        .expect("a good head");
    let response = head
        .view(text)
        .to_http(NameSet::EMPTY)
        .expect("convertible");
    assert_eq!(
        names(response.headers()),
        ["content-length=1", "set-cookie=a", "set-cookie=b"]
    );
}
