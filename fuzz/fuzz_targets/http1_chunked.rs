//! A chunked body ends at the same byte whether passed through whole, in pieces, or decoded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_http1::{Body, Framing};

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = input;
    let piece = usize::from(piece).max(1);
    let whole = Body::new(Framing::Chunked).consume(bytes);

    let mut body = Body::new(Framing::Chunked);
    let mut used = 0;
    let mut failed = None;
    for part in bytes.chunks(piece) {
        match body.consume(part) {
            Ok(progress) => used += progress.take,
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    match (whole, failed) {
        (Ok(progress), None) => assert_eq!((progress.take, progress.done), (used, body.is_done())),
        (Err(first), Some(second)) => assert_eq!(first, second),
        other => panic!("pieces matter: {other:?}"),
    }
    if body.is_done() {
        let _map = body.trailers();
    }
});
