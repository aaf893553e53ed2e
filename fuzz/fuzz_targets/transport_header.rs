//! A transport header is read or refused, and what we write of it is read as the same.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use linkerd_proxy::transport_header::Header;

fuzz_target!(|bytes: &[u8]| {
    let preface = b"transport.l5d.io/v1\r\n\r\n";
    let mut framed = preface.to_vec();
    framed.extend((bytes.len() as u32).to_be_bytes());
    framed.extend(bytes);
    for whole in [bytes, framed.as_slice()] {
        let mut buf = BytesMut::from(whole);
        if let Ok(Some(header)) = Header::decode(&mut buf) {
            assert!(header.port > 0);
            let mut again = BytesMut::from(&header.encode()[..]);
            assert_eq!(Header::decode(&mut again).expect("ours"), Some(header));
            assert!(again.is_empty());
        }
    }
});
