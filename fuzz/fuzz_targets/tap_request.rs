//! What somebody asks to see: understood or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_api::proto::tap::ObserveRequest;
use linkerd_proxy::observe::tap::matching::{Match, Subject};
use prost::Message;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = ObserveRequest::decode(bytes) else { return };
    let Some(Ok(found)) = request.r#match.as_ref().map(Match::new) else { return };
    let labels = Default::default();
    let subject = Subject {
        source: ([10, 0, 0, 1], 1).into(),
        destination: ([10, 0, 0, 2], 80).into(),
        destination_labels: &labels,
        route_labels: &labels,
        scheme: "http",
        method: "GET",
        authority: "web",
        path: "/",
    };
    let held = found.holds(&subject);
    assert_ne!(Match::Not(Box::new(found)).holds(&subject), held);
});
