//! Nanoseconds for one request head: parsed, and parsed and rewritten as an outbound and an inbound proxy would.

#![allow(clippy::print_stdout, reason = "a bench prints its result")]

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Instant;

use bytes::BytesMut;
use linkerd_http1::{
    Limits, Method, Name, NameSet, RequestEdit, RequestHead, ResponseEdit, ResponseHead,
};

const SMALL: &[u8] = b"GET /echo HTTP/1.1\r\nHost: web.emojivoto.svc.cluster.local\r\n\r\n";
const BROWSER: &[u8] = b"GET /api/list?page=2 HTTP/1.1\r\nHost: web.emojivoto.svc.cluster.local:8080\r\nConnection: keep-alive\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0 Safari/537.36\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Encoding: gzip, deflate\r\nAccept-Language: en-US,en;q=0.5\r\n\
Referer: http://web.emojivoto.svc.cluster.local:8080/\r\nCookie: session=0123456789abcdef0123456789abcdef\r\nCache-Control: max-age=0\r\n\
X-Request-Id: 6f1c2a9e-54b1-4f0e-8a0e-2f6d2b7c9d10\r\nTraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Mon, 16 Nov 2026 00:00:00 GMT\r\nContent-Type: application/octet-stream\r\n\
Content-Length: 1024\r\nConnection: keep-alive\r\nETag: \"5f-1\"\r\n\r\n";

fn time(name: &str, mut work: impl FnMut()) {
    const ROUNDS: u32 = 200_000;
    (0..ROUNDS / 10).for_each(|_| work());
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| work());
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS));
    }
    println!("{name:<40} {best:8.0} ns");
}

fn main() {
    let limits = Limits::default();
    let mut head = RequestHead::new();
    let mut out = BytesMut::with_capacity(4096);
    for (size, text) in [("small", SMALL), ("browser", BROWSER)] {
        time(&format!("httparse alone, {size}"), || {
            let mut slots = [const { MaybeUninit::uninit() }; 64];
            let mut parsed = httparse::Request::new(&mut []);
            let done = parsed.parse_with_uninit_headers(black_box(text), &mut slots);
            black_box(done.expect("a good head"));
        });
        time(&format!("parse request, {size}"), || {
            head.parse(black_box(text), &limits).expect("a good head");
        });
        let outbound = RequestEdit::default();
        time(&format!("parse and rewrite outbound, {size}"), || {
            out.clear();
            head.parse(black_box(text), &limits).expect("a good head");
            head.view(text).write(&outbound, &mut out);
        });
        let inbound = RequestEdit {
            drop: NameSet::EMPTY.with(Name::L5dClientId),
            add: &[(
                "l5d-client-id",
                b"default.emojivoto.serviceaccount.identity.linkerd.cluster.local",
            )],
            ..RequestEdit::default()
        };
        time(&format!("parse and rewrite inbound, {size}"), || {
            out.clear();
            head.parse(black_box(text), &limits).expect("a good head");
            head.view(text).write(&inbound, &mut out);
        });
        time(&format!("parse and convert to http types, {size}"), || {
            head.parse(black_box(text), &limits).expect("a good head");
            black_box(
                head.view(text)
                    .to_http(NameSet::EMPTY)
                    .expect("convertible"),
            );
        });
    }
    let mut response = ResponseHead::new();
    let edit = ResponseEdit::default();
    time("parse and rewrite response", || {
        out.clear();
        response
            .parse(black_box(ANSWER), &limits, Method::Get)
            .expect("a good head");
        response.view(ANSWER).write(&edit, &mut out);
    });
}
