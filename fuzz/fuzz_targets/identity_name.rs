//! Identity names: parsing never panics, what parses prints back and parses to itself.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_core::identity::{Id, ServiceAccountId};

fuzz_target!(|text: &str| {
    let Ok(id) = Id::parse(text) else { return };
    let printed = id.to_string();
    assert!(printed.eq_ignore_ascii_case(text));
    assert_eq!(Id::parse(&printed).as_ref(), Ok(&id));
    assert!(id.has_suffix(""));
    if id.is_dns() {
        assert!(id.has_suffix(&printed) && !printed.ends_with('.'));
    }
    if let Some(account) = ServiceAccountId::from_id(&id) {
        assert_eq!(account.to_id().as_ref(), Ok(&id));
    }
});
