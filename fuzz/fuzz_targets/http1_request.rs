//! A request head never panics, is read alike in two pieces, and what is written from it is accepted again.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use linkerd_http1::{Limits, NameSet, RequestEdit, RequestHead, Status, TargetEdit};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { head_bytes: 8192, ..Limits::default() };
    let mut head = RequestHead::new();
    let whole = head.parse(bytes, &limits);
    if whole != Ok(Status::Complete) {
        return;
    }
    let view = head.view(bytes);
    let _converted = view.to_http(NameSet::EMPTY).expect("what is accepted converts");

    let mut pieces = RequestHead::new();
    if pieces.parse(&bytes[..head.len() / 2], &limits) == Ok(Status::Partial) {
        assert_eq!(pieces.parse(bytes, &limits), Ok(Status::Complete));
        assert_eq!(pieces.len(), head.len());
    }
    for target in [TargetEdit::Keep, TargetEdit::Origin] {
        let mut out = BytesMut::new();
        view.write(&RequestEdit { target, ..RequestEdit::default() }, &mut out);
        let mut again = RequestHead::new();
        assert_eq!(again.parse(&out, &Limits::default()), Ok(Status::Complete));
        assert_eq!((again.len(), again.framing(), again.method()), (out.len(), head.framing(), head.method()));
    }
});
