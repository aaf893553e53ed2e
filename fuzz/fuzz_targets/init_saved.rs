//! The text of a save program is read without panic, and what is read is written as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_init::saved;

fuzz_target!(|text: &str| {
    let first = saved::parse(text);
    for rule in first.observed.rules.iter().filter_map(|found| found.rule.as_ref()) {
        if rule.comment.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '\\') {
            let again = saved::parse(&rule.clone().canonical().saved_text());
            let read = again.observed.rules.first().and_then(|found| found.rule.clone());
            assert_eq!(read, Some(rule.clone().canonical()));
        }
    }
});
