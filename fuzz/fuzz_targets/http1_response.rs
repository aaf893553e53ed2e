//! A response head never panics, and what is written from it is accepted again with the same framing.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use linkerd_http1::{Limits, Method, NameSet, ResponseEdit, ResponseHead, Status};

fuzz_target!(|bytes: &[u8]| {
    for method in [Method::Get, Method::Head, Method::Connect] {
        let mut head = ResponseHead::new();
        if head.parse(bytes, &Limits::default(), method) != Ok(Status::Complete) {
            continue;
        }
        let view = head.view(bytes);
        let _converted = view.to_http(NameSet::EMPTY).expect("what is accepted converts");
        let mut out = BytesMut::new();
        view.write(&ResponseEdit::default(), &mut out);
        let mut again = ResponseHead::new();
        assert_eq!(again.parse(&out, &Limits::default(), method), Ok(Status::Complete));
        assert_eq!((again.len(), again.framing(), again.status()), (out.len(), head.framing(), head.status()));
    }
});
