//! Whatever the engine accepts, hyper accepts with the same meaning and the same end.

#[path = "cases/engine.rs"]
mod engine;
#[path = "cases/hyper_client.rs"]
mod hyper_client;
#[path = "cases/hyper_peer.rs"]
mod hyper_peer;
#[path = "cases/smuggling.rs"]
mod smuggling;

use linkerd_http1::{
    Body, Framing, Limits, Method, RequestEdit, RequestHead, ResponseHead, Status,
};
use proptest::prelude::*;
use smuggling::Verdict;

const SECOND: &[u8] = b"GET /second HTTP/1.1\r\nhost: second\r\n\r\n";

/// Fails when the engine accepts what hyper refuses, or reads it differently, or ends it elsewhere.
fn compare(bytes: &[u8]) -> Result<(), String> {
    let Ok((ours, used)) = engine::read(bytes) else {
        return Ok(());
    };
    let mut stream = bytes[..used].to_vec();
    stream.extend_from_slice(SECOND);
    let theirs = hyper_peer::serve(&stream);
    let keep_alive = ours.keep_alive && ours.method != "CONNECT";
    let Some(first) = theirs.first() else {
        return Err(format!("hyper refuses what we read as {ours:?}"));
    };
    let first = engine::Meaning {
        keep_alive: ours.keep_alive,
        ..first.clone()
    };
    if first != ours {
        return Err(format!("we read {ours:?}\nhyper reads {first:?}"));
    }
    let second = theirs.get(1).map(|meaning| meaning.target.1.as_str());
    if keep_alive && second != Some("/second") {
        return Err(format!(
            "the request behind it became {second:?} after {ours:?}"
        ));
    }
    if !ours.keep_alive && second.is_some() {
        return Err(format!("hyper keeps alive what we close: {ours:?}"));
    }
    Ok(())
}

#[test]
fn every_case_has_its_verdict_and_hyper_agrees_on_the_accepted() {
    for (name, bytes, want) in smuggling::CASES {
        let got = match engine::read(bytes) {
            Ok((_, used)) => {
                assert_eq!(used, bytes.len(), "{name}: bytes are left over");
                Verdict::Accept
            }
            Err(engine::Failure::Refused(_)) => Verdict::Refuse,
            Err(engine::Failure::Incomplete) => panic!("{name}: waits for more"),
        };
        assert_eq!(got, *want, "{name}");
        compare(bytes).unwrap_or_else(|difference| panic!("{name}: {difference}"));
    }
}

/// Reads a final response with the engine, the connection closing behind it.
fn read_answer(bytes: &[u8], method: &str) -> Option<hyper_client::Answer> {
    let mut head = ResponseHead::new();
    let mut at = 0;
    loop {
        let status = head.parse(
            &bytes[at..],
            &Limits::default(),
            Method::of(method.as_bytes()),
        );
        if status != Ok(Status::Complete) {
            return None;
        }
        if !head.interim() {
            break;
        }
        at += head.len();
    }
    if head.framing() == Framing::Tunnel {
        return None;
    }
    let view = head.view(&bytes[at..]);
    let mut fields: Vec<_> = view
        .fields()
        .map(|field| {
            (
                String::from_utf8_lossy(field.name).to_lowercase(),
                field.value.to_vec(),
            )
        })
        .collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    at += head.len();
    let (mut body, mut data) = (Body::new(head.framing()), Vec::new());
    while at < bytes.len() && !body.is_done() {
        let step = body.decode(&bytes[at..]).ok()?;
        data.extend_from_slice(&bytes[at..][step.data]);
        at += step.take;
    }
    body.close().ok()?;
    Some(hyper_client::Answer {
        status: head.status(),
        fields,
        body: data,
    })
}

const STATUS_LINES: &[&[u8]] = &[
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 200 OK",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 No Content",
    b"HTTP/1.1 304 x",
    b"HTTP/1.1 404",
    b"HTTP/1.1 599 \xe4",
    b"HTTP/1.1 100 Continue",
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK",
    b"HTTP/1.1 99 x",
    b"HTTP/2 200",
];

fn pick(choices: &'static [&'static [u8]]) -> impl Strategy<Value = Vec<u8>> {
    prop::sample::select(choices).prop_map(<[u8]>::to_vec)
}

const METHODS: &[&[u8]] = &[
    b"GET",
    b"POST",
    b"HEAD",
    b"OPTIONS",
    b"CONNECT",
    b"PATCH",
    b"M-SEARCH",
    b"get",
    b"G T",
    b"",
];
const TARGETS: &[&[u8]] = &[
    b"/",
    b"/a?b=c",
    b"*",
    b"a:80",
    b"http://a/",
    b"http://a:80/x?y",
    b"https://a",
    b"http://a?q",
    b"//x",
    b"/%00",
    b"/a|b",
    b"/{a}",
    b"/a\"b",
    b"/?\"",
    b"/^",
    b"/\\",
    b"/?a?b",
    b"/a#b",
    b"/;x=[1]",
    b"http://[::1]:8/",
    b"http://a_b/",
    b"",
];
const VERSIONS: &[&[u8]] = &[
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/2.0",
];
const LINES: &[&[u8]] = &[
    b"Host: a",
    b"Host: a:80",
    b"Host: [::1]:8",
    b"HOST:a",
    b"Content-Length: 5",
    b"Content-Length:0",
    b"content-length: 05",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding:  CHUNKED ",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, gzip",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Upgrade",
    b"Connection: x, close",
    b"Connection: ,",
    b"Upgrade: websocket",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"TE: trailers",
    b"X: y",
    b"X:",
    b"X:  y  z ",
    b"x-y_z.1: \xe4",
    b"X : y",
    b" X: y",
    b"Trailer: X",
    b"Cookie: a=b",
    b"!#$%&'*+-.^_`|~: 1",
];
const ENDS: &[&[u8]] = &[
    b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n",
];
const BODIES: &[&[u8]] = &[
    b"",
    b"hello",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;a\r\nhello\r\n0\r\nX: y\r\n\r\n",
    b"5 \r\nhello\r\n00\r\n\r\n",
    b"A\r\n0123456789\r\n1\r\nx\r\n0;a=\"b\"\r\nX:\r\nY: z\r\n\r\n",
];

fn request() -> impl Strategy<Value = Vec<u8>> {
    let lines = prop::collection::vec((pick(LINES), pick(ENDS)), 0..6);
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2);
    (
        pick(METHODS),
        pick(TARGETS),
        pick(VERSIONS),
        pick(ENDS),
        lines,
        pick(ENDS),
        pick(BODIES),
        damage,
    )
        .prop_map(
            |(method, target, version, first_end, lines, last_end, body, damage)| {
                let mut text = [method, target, version].join(&b' ');
                text.extend(first_end);
                for (line, end) in lines {
                    text.extend(line);
                    text.extend(end);
                }
                text.extend(last_end);
                text.extend(body);
                for (at, byte) in damage {
                    let at = at.index(text.len());
                    text[at] = byte;
                }
                text
            },
        )
}

fn response() -> impl Strategy<Value = Vec<u8>> {
    let lines = prop::collection::vec((pick(LINES), pick(ENDS)), 0..5);
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2);
    (pick(STATUS_LINES), pick(ENDS), lines, pick(BODIES), damage).prop_map(
        |(first, end, lines, body, damage)| {
            let mut text = first;
            text.extend(end);
            for (line, end) in lines {
                text.extend(line);
                text.extend(end);
            }
            text.extend(b"\r\n");
            text.extend(body);
            for (at, byte) in damage {
                let at = at.index(text.len());
                text[at] = byte;
            }
            text
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hyper_reads_alike(bytes in request()) {
        prop_assert_eq!(compare(&bytes), Ok(()), "{}", bytes.escape_ascii());
    }

    #[test]
    fn hyper_reads_responses_alike(bytes in response(), head in any::<bool>()) {
        let method = if head { "HEAD" } else { "GET" };
        if let Some(ours) = read_answer(&bytes, method) {
            let theirs = hyper_client::read(&bytes, method);
            prop_assert_eq!(Some(&ours), theirs.as_ref(), "{} {}", method, bytes.escape_ascii());
        }
    }

    #[test]
    fn pieces_do_not_matter(bytes in request(), piece in 1usize..40) {
        let whole = engine::read(&bytes);
        let mut head = RequestHead::new();
        let mut end = 0;
        let outcome = loop {
            end = (end + piece).min(bytes.len());
            match head.parse(&bytes[..end], &Limits::default()) {
                Ok(Status::Partial) if end < bytes.len() => {}
                other => break other,
            }
        };
        match (whole, outcome) {
            (Ok(_), outcome) => prop_assert_eq!(outcome, Ok(Status::Complete)),
            (Err(_), Ok(_) | Err(_)) => {}
        }
    }

    #[test]
    fn rewriting_keeps_the_meaning(bytes in request()) {
        let Ok((ours, _)) = engine::read(&bytes) else { return Ok(()) };
        let mut head = RequestHead::new();
        prop_assert!(head.parse(&bytes, &Limits::default()).is_ok());
        let mut out = bytes::BytesMut::new();
        head.view(&bytes).write(&RequestEdit::default(), &mut out);
        out.extend_from_slice(&bytes[head.len()..]);
        let (again, _) = engine::read(&out).map_err(|failure| TestCaseError::fail(format!("{failure:?}")))?;
        prop_assert_eq!((&again.method, &again.target, &again.body, &again.trailers), (&ours.method, &ours.target, &ours.body, &ours.trailers));
        prop_assert!(again.fields.iter().all(|field| ours.fields.contains(field) || field.0 == "connection"));
    }
}
