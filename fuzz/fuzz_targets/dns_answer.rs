//! Answers of name servers, and names of pods, whatever they are.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_proxy::control::dns::{Kind, decode_answer, encode_query, name_servers, pod_ip};

fuzz_target!(|bytes: &[u8]| {
    let name = "linkerd-dst-headless.linkerd.svc.cluster.local.";
    for kind in [Kind::A, Kind::Aaaa, Kind::Srv] {
        let _ = decode_answer(bytes, 7, name, kind);
        // The same behind a question of ours, to get past it.
        if let Some(mut message) = encode_query(7, name, kind) {
            message[2] |= 0x80;
            message[7] = bytes.first().copied().unwrap_or_default() % 8;
            message.extend(bytes);
            let _ = decode_answer(&message, 7, name, kind);
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (pod_ip(text), name_servers(text), encode_query(1, text, Kind::A));
    }
});
