//! Port items (`N` or `A-B`) as users write them, and their packing into multiport rules.
//! Pure; the wording of every error is part of the public interface.

use std::fmt;

/// A multiport match holds at most this many slots; a range takes two.
pub const MULTIPORT_SLOTS: usize = 15;

/// An inclusive range of ports; a single port has equal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    pub lower: u16,
    pub upper: u16,
}

/// Why a port item was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    #[error("ranges expected as <lower>-<upper>")]
    Shape,
    #[error("\"{0}\" is not a valid lower-bound")]
    Lower(String),
    #[error("\"{0}\" is not a valid upper-bound")]
    Upper(String),
    #[error("\"{0}\": upper-bound must be greater than or equal to lower-bound")]
    Order(String),
}

// === impl PortRange ===

impl PortRange {
    /// A range of one port.
    pub fn single(port: u16) -> Self {
        Self {
            lower: port,
            upper: port,
        }
    }

    /// Reads `N` or `A-B`.
    pub fn parse(item: &str) -> Result<Self, PortError> {
        let mut bounds = item.split('-');
        let lower = bounds.next().unwrap_or_default();
        let upper = bounds.next();
        if bounds.next().is_some() {
            return Err(PortError::Shape);
        }
        let lower_port = parse_port(lower).ok_or_else(|| PortError::Lower(lower.to_owned()))?;
        let Some(upper) = upper else {
            return Ok(Self::single(lower_port));
        };
        let upper_port = parse_port(upper).ok_or_else(|| PortError::Upper(upper.to_owned()))?;
        if upper_port < lower_port {
            return Err(PortError::Order(item.to_owned()));
        }
        Ok(Self {
            lower: lower_port,
            upper: upper_port,
        })
    }

    /// Reads the form iptables writes: `N` or `A:B`.
    pub fn parse_multiport(item: &str) -> Option<Self> {
        match item.split_once(':') {
            None => parse_port(item).map(Self::single),
            Some((lower, upper)) => {
                let (lower, upper) = (parse_port(lower)?, parse_port(upper)?);
                (lower <= upper).then_some(Self { lower, upper })
            }
        }
    }

    /// How many multiport slots the range takes.
    fn slots(self) -> usize {
        if self.lower == self.upper { 1 } else { 2 }
    }
}

/// The form iptables takes and writes.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lower == self.upper {
            write!(f, "{}", self.lower)
        } else {
            write!(f, "{}:{}", self.lower, self.upper)
        }
    }
}

/// Decimal digits only: no sign, no blanks.
fn parse_port(text: &str) -> Option<u16> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Packs ranges greedily, in input order, into lists of at most `slots` slots.
/// Nothing is sorted, merged or dropped.
pub fn chunks(ranges: &[PortRange], slots: usize) -> Vec<Vec<PortRange>> {
    let mut lists: Vec<Vec<PortRange>> = Vec::new();
    let mut used = 0;
    for range in ranges {
        match lists.last_mut() {
            Some(list) if used + range.slots() <= slots => {
                list.push(*range);
                used += range.slots();
            }
            _ => {
                lists.push(vec![*range]);
                used = range.slots();
            }
        }
    }
    lists
}

/// `4190,4191,4567:4568`
pub fn join(ranges: &[PortRange]) -> String {
    let items: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    items.join(",")
}

/// Sorted, with overlapping and adjacent ranges merged: the form an interval set holds.
pub fn merged(ranges: &[PortRange]) -> Vec<PortRange> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut out: Vec<PortRange> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match out.last_mut() {
            Some(last) if u32::from(range.lower) <= u32::from(last.upper) + 1 => {
                last.upper = last.upper.max(range.upper);
            }
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn items() {
        let ok = [
            ("33", 33, 33),
            ("0", 0, 0),
            ("8080", 8080, 8080),
            ("65535", 65535, 65535),
            ("23-23", 23, 23),
            ("25-27", 25, 27),
            ("0-65535", 0, 65535),
        ];
        for (item, lower, upper) in ok {
            assert_eq!(
                PortRange::parse(item),
                Ok(PortRange { lower, upper }),
                "{item}"
            );
        }
        let bad = [
            ("", "\"\" is not a valid lower-bound"),
            ("-1", "\"\" is not a valid lower-bound"),
            ("65536", "\"65536\" is not a valid lower-bound"),
            ("notanumber", "\"notanumber\" is not a valid lower-bound"),
            ("not-number", "\"not\" is not a valid lower-bound"),
            ("-23-25", "ranges expected as <lower>-<upper>"),
            ("-23", "\"\" is not a valid lower-bound"),
            (
                "25-23",
                "\"25-23\": upper-bound must be greater than or equal to lower-bound",
            ),
            ("65536-65539", "\"65536\" is not a valid lower-bound"),
            ("23-notanumber", "\"notanumber\" is not a valid upper-bound"),
            ("23-70000", "\"70000\" is not a valid upper-bound"),
            (" 4568", "\" 4568\" is not a valid lower-bound"),
            ("+5", "\"+5\" is not a valid lower-bound"),
        ];
        for (item, text) in bad {
            let error = PortRange::parse(item).expect_err(item);
            assert_eq!(error.to_string(), text, "{item}");
        }
    }

    #[test]
    fn packing() {
        let parse = |text: &str| -> Vec<PortRange> {
            text.split(',')
                .filter(|item| !item.is_empty())
                .map(|item| PortRange::parse(item).expect("a valid item"))
                .collect()
        };
        let cases: &[(&str, &str, &[&str])] = &[
            ("nothing", "", &[]),
            ("mixed", "22,25-27,33", &["22,25:27,33"]),
            ("equal ends are one port", "22-22", &["22"]),
            (
                "fifteen slots fit",
                "22-23,25-27,33-34,35-35,37-38,50-54,56,58,60,63",
                &["22:23,25:27,33:34,35,37:38,50:54,56,58,60,63"],
            ),
            (
                "a range that does not fit opens a rule",
                "22-23,25-27,33-34,35-35,37-38,50-54,56,58,60,63,70-72",
                &["22:23,25:27,33:34,35,37:38,50:54,56,58,60,63", "70:72"],
            ),
            ("duplicates stay", "443,443", &["443,443"]),
        ];
        for (name, input, expected) in cases {
            let lists: Vec<String> = chunks(&parse(input), MULTIPORT_SLOTS)
                .iter()
                .map(|list| join(list))
                .collect();
            assert_eq!(&lists, expected, "{name}");
        }
    }

    prop_compose! {
        fn range()(a in any::<u16>(), b in any::<u16>()) -> PortRange {
            PortRange { lower: a.min(b), upper: a.max(b) }
        }
    }

    proptest! {
        #[test]
        fn packing_keeps_everything_in_order(ranges in proptest::collection::vec(range(), 0..80)) {
            let lists = chunks(&ranges, MULTIPORT_SLOTS);
            for list in &lists {
                prop_assert!(!list.is_empty());
                prop_assert!(list.iter().map(|r| r.slots()).sum::<usize>() <= MULTIPORT_SLOTS);
            }
            prop_assert_eq!(lists.concat(), ranges);
        }

        #[test]
        fn merging_keeps_the_union(ranges in proptest::collection::vec(range(), 0..20), port in any::<u16>()) {
            let holds = |list: &[PortRange]| list.iter().any(|r| (r.lower..=r.upper).contains(&port));
            let out = merged(&ranges);
            prop_assert_eq!(holds(&ranges), holds(&out));
            prop_assert!(out.windows(2).all(|w| u32::from(w[0].upper) + 1 < u32::from(w[1].lower)));
        }

        #[test]
        fn any_text_is_an_answer(text in ".{0,24}") {
            let _ = PortRange::parse(&text);
            let _ = PortRange::parse_multiport(&text);
        }
    }
}
