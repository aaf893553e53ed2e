//! Whatever the engine accepts, hyper accepts with the same meaning and the same end.

#![no_main]

#[path = "../../crates/http1/tests/cases/engine.rs"]
mod engine;
#[path = "../../crates/http1/tests/cases/hyper_peer.rs"]
mod hyper_peer;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok((ours, used)) = engine::read(bytes) else { return };
    // hyper stops at a hundred fields and has its own head limit.
    if ours.fields.len() > 100 {
        return;
    }
    let mut stream = bytes[..used].to_vec();
    stream.extend_from_slice(b"GET /second HTTP/1.1\r\nhost: second\r\n\r\n");
    let theirs = hyper_peer::serve(&stream);
    let first = theirs.first().expect("hyper accepts what we accept");
    let first = engine::Meaning { keep_alive: ours.keep_alive, ..first.clone() };
    assert_eq!(first, ours);
    let second = theirs.get(1).map(|meaning| meaning.target.1.as_str());
    let alive = ours.keep_alive && ours.method != "CONNECT";
    assert_eq!(second, alive.then_some("/second"));
});
