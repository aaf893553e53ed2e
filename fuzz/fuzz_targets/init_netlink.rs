//! Whatever the kernel sends back is read without panic, and a rule read is one that can be written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_init::native::{expr, wire};
use linkerd_init::rules::Family;

fuzz_target!(|bytes: &[u8]| {
    for message in wire::messages(bytes) {
        let _errno = message.errno();
        for attr in message.attrs() {
            let _numbers = (attr.u32(), attr.u64(), attr.text());
            let _comment = expr::read_comment(attr.value);
            let _jump = expr::jump_target(attr);
            for family in Family::BOTH {
                let _meaning = expr::read(family, attr);
            }
        }
    }
});
