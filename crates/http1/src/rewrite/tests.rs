//! Tables of heads before and after, compared byte by byte.

use super::*;
use crate::{Framing, Limits, Method, RequestHead, ResponseHead};

fn request(text: &str, edit: &RequestEdit<'_>) -> String {
    let mut head = RequestHead::new();
    head.parse(text.as_bytes(), &Limits::default())
        .expect("a good head");
    let mut out = BytesMut::new();
    head.view(text.as_bytes()).write(edit, &mut out);
    String::from_utf8(out.to_vec()).expect("text")
}

fn response(text: &str, edit: &ResponseEdit<'_>) -> String {
    let mut head = ResponseHead::new();
    head.parse(text.as_bytes(), &Limits::default(), Method::Get)
        .expect("a good head");
    let mut out = BytesMut::new();
    head.view(text.as_bytes()).write(edit, &mut out);
    String::from_utf8(out.to_vec()).expect("text")
}

#[test]
fn requests() {
    let plain = RequestEdit::default();
    let cases: &[(&str, &str, RequestEdit<'_>, &str)] = &[
        (
            "untouched",
            "GET / HTTP/1.1\r\nHost: a\r\nX:  y \r\n\r\n",
            plain,
            "GET / HTTP/1.1\r\nHost: a\r\nX:  y \r\n\r\n",
        ),
        (
            "no fields",
            "GET / HTTP/1.1\r\n\r\n",
            plain,
            "GET / HTTP/1.1\r\n\r\n",
        ),
        (
            "blank line in front",
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            plain,
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "hop by hop, first, middle and last",
            "GET / HTTP/1.1\r\nConnection: close, X-Hop\r\nHost: a\r\nKeep-Alive: 5\r\nX-Hop: 1\r\nY: 2\r\nProxy-Connection: x\r\nUpgrade: foo\r\n\r\n",
            plain,
            "GET / HTTP/1.1\r\nHost: a\r\nY: 2\r\n\r\n",
        ),
        (
            "what frames the message cannot be nominated",
            "POST / HTTP/1.1\r\nConnection: host, content-length, te\r\nHost: a\r\nTE: trailers\r\nContent-Length: 1\r\n\r\n",
            plain,
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n",
        ),
        (
            "a client id is replaced",
            "GET / HTTP/1.1\r\nL5D-Client-Id: evil\r\nHost: a\r\nl5d-client-id: worse\r\n\r\n",
            RequestEdit {
                drop: NameSet::EMPTY.with(Name::L5dClientId),
                add: &[("l5d-client-id", b"me")],
                ..plain
            },
            "GET / HTTP/1.1\r\nHost: a\r\nl5d-client-id: me\r\n\r\n",
        ),
        (
            "a value of ours cannot split the head",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            RequestEdit {
                add: &[("x", b"a\r\nb")],
                ..plain
            },
            "GET / HTTP/1.1\r\nHost: a\r\nx: a  b\r\n\r\n",
        ),
        (
            "names of policy",
            "GET / HTTP/1.1\r\nHost: a\r\nX-Secret: 1\r\nY: 2\r\nx-secret: 3\r\n\r\n",
            RequestEdit {
                drop_named: &["x-Secret"],
                ..plain
            },
            "GET / HTTP/1.1\r\nHost: a\r\nY: 2\r\n\r\n",
        ),
        (
            "host",
            "GET / HTTP/1.1\r\nA: b\r\nHost: a\r\n\r\n",
            RequestEdit {
                host: Some("c:1"),
                ..plain
            },
            "GET / HTTP/1.1\r\nhost: c:1\r\nA: b\r\n\r\n",
        ),
        (
            "absolute to origin",
            "GET http://a/b?c HTTP/1.1\r\nHost: a\r\n\r\n",
            RequestEdit {
                target: TargetEdit::Origin,
                ..plain
            },
            "GET /b?c HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "absolute without path to origin",
            "GET http://a?c HTTP/1.1\r\nHost: a\r\n\r\n",
            RequestEdit {
                target: TargetEdit::Origin,
                ..plain
            },
            "GET /?c HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "origin to absolute",
            "GET /b HTTP/1.1\r\nHost: a\r\n\r\n",
            RequestEdit {
                target: TargetEdit::Absolute("a"),
                ..plain
            },
            "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "another path",
            "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
            RequestEdit {
                target: TargetEdit::Path("/new?x"),
                ..plain
            },
            "GET http://a/new?x HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "connect keeps its target",
            "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
            RequestEdit {
                target: TargetEdit::Origin,
                ..plain
            },
            "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
        ),
        (
            "version and close",
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            RequestEdit {
                version: Some(Version::Http11),
                persist: Persist::Close,
                ..plain
            },
            "GET / HTTP/1.1\r\nconnection: close\r\n\r\n",
        ),
        (
            "upgrade",
            "GET / HTTP/1.1\r\nConnection: Upgrade\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
            plain,
            "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        ),
        (
            "upgrade refused",
            "GET / HTTP/1.1\r\nConnection: Upgrade\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
            RequestEdit {
                refuse_upgrade: true,
                ..plain
            },
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "h2c stripped",
            "GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: a\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
            plain,
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
    ];
    for (name, text, edit, want) in cases {
        assert_eq!(request(text, edit), *want, "{name}");
    }
}

#[test]
fn responses() {
    let plain = ResponseEdit::default();
    let planned = |version, keep_alive, framing| {
        ResponseEdit::planned(
            version,
            ResponsePlan::for_client(version, keep_alive, framing, false),
        )
    };
    let cases: &[(&str, &str, ResponseEdit<'_>, &str)] = &[
        (
            "untouched",
            "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 1\r\n\r\n",
            plain,
            "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 1\r\n\r\n",
        ),
        (
            "no reason",
            "HTTP/1.1 200\r\nContent-Length: 1\r\n\r\n",
            plain,
            "HTTP/1.1 200\r\nContent-Length: 1\r\n\r\n",
        ),
        (
            "empty reason",
            "HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\n",
            plain,
            "HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\n",
        ),
        (
            "the server's connection is not the client's",
            "HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n",
            plain,
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n",
        ),
        (
            "repeated length once",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nA: b\r\nContent-Length: 1\r\n\r\n",
            plain,
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nA: b\r\n\r\n",
        ),
        (
            "until close for 1.1",
            "HTTP/1.1 200 OK\r\n\r\n",
            planned(Version::Http11, true, Framing::UntilClose),
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ),
        (
            "chunks for 1.0",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            planned(Version::Http10, true, Framing::Chunked),
            "HTTP/1.0 200 OK\r\nconnection: close\r\n\r\n",
        ),
        (
            "length for 1.0 keep-alive",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n",
            planned(Version::Http10, true, Framing::Length(1)),
            "HTTP/1.0 200 OK\r\nContent-Length: 1\r\nconnection: keep-alive\r\n\r\n",
        ),
        (
            "101",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n",
            ResponseEdit {
                persist: Persist::Close,
                ..plain
            },
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\nconnection: upgrade\r\n\r\n",
        ),
        (
            "a peer's error header",
            "HTTP/1.1 502 Bad Gateway\r\nl5d-proxy-error: x\r\ncontent-length: 0\r\nl5d-proxy-connection: close\r\n\r\n",
            ResponseEdit {
                drop: NameSet::EMPTY
                    .with(Name::L5dProxyError)
                    .with(Name::L5dProxyConnection),
                ..plain
            },
            "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
        ),
    ];
    for (name, text, edit, want) in cases {
        assert_eq!(response(text, edit), *want, "{name}");
    }
}
