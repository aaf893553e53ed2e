//! Sets of ports as annotations write them: numbers, ranges and, where the reader knows names,
//! port names.

use std::fmt;

/// Sorted, non-overlapping ranges.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct PortSet(Vec<(u16, u16)>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a port, a range of ports or a known port name")]
pub struct NotAPort(pub String);

impl PortSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, port: u16) -> bool {
        let at = self.0.partition_point(|(first, _)| *first <= port);
        at.checked_sub(1).is_some_and(|at| self.0[at].1 >= port)
    }

    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// Reads a comma-separated list of numbers and ranges; the first bad entry fails the whole.
    pub fn parse(list: &str) -> Result<Self, NotAPort> {
        let entries = entries(list).map(|entry| range(entry).ok_or_else(|| NotAPort(entry.into())));
        entries
            .collect::<Result<Vec<_>, _>>()
            .map(Self::from_ranges)
    }

    /// Like [`PortSet::parse`], but asks `named` for the ports of a name first: a port may be
    /// called `123-456`. Entries nobody knows are handed to `unknown` and left out.
    pub fn parse_named<N>(
        list: &str,
        named: impl Fn(&str) -> N,
        mut unknown: impl FnMut(&str),
    ) -> Self
    where
        N: IntoIterator<Item = u16>,
    {
        let mut ranges = Vec::new();
        for entry in entries(list) {
            let before = ranges.len();
            ranges.extend(named(entry).into_iter().map(|port| (port, port)));
            if ranges.len() > before {
                continue;
            }
            match range(entry) {
                Some(range) => ranges.push(range),
                None => unknown(entry),
            }
        }
        Self::from_ranges(ranges)
    }

    fn from_ranges(mut ranges: Vec<(u16, u16)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(range) if first <= range.1.saturating_add(1) => range.1 = range.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        merged.shrink_to_fit();
        Self(merged)
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        Self::from_ranges(ports.into_iter().map(|port| (port, port)).collect())
    }
}

impl std::str::FromStr for PortSet {
    type Err = NotAPort;

    fn from_str(list: &str) -> Result<Self, NotAPort> {
        Self::parse(list)
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
}

fn range(entry: &str) -> Option<(u16, u16)> {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    match entry.split_once('-') {
        None => port(entry).map(|port| (port, port)),
        Some((first, last)) => {
            Some((port(first)?, port(last)?)).filter(|(first, last)| first <= last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        for (name, list, expected) in [
            ("empty", "", Ok("")),
            ("numbers in any order", "587, 25,587", Ok("25,587")),
            ("ranges merge", "10-20,15-30,31,40-41", Ok("10-31,40-41")),
            ("whole space", "1-65535", Ok("1-65535")),
            ("zero", "0", Err("0")),
            ("too large", "65536", Err("65536")),
            ("backwards", "20-10", Err("20-10")),
            ("a name", "80,http", Err("http")),
        ] {
            let parsed = PortSet::parse(list).map(|set| set.to_string());
            let expected = expected
                .map(str::to_owned)
                .map_err(|entry| NotAPort(entry.to_owned()));
            assert_eq!(parsed, expected, "{name}");
        }
    }

    #[test]
    fn contains() {
        let set = PortSet::parse("25,100-200,65535").expect("valid");
        for (port, expected) in [
            (24, false),
            (25, true),
            (26, false),
            (100, true),
            (200, true),
            (201, false),
            (65535, true),
        ] {
            assert_eq!(set.contains(port), expected, "{port}");
        }
    }

    #[test]
    fn names_come_before_ranges_and_unknown_entries_are_left_out() {
        let named = |name: &str| {
            if name == "123-456" {
                vec![8080]
            } else {
                vec![]
            }
        };
        let mut unknown = Vec::new();
        let set = PortSet::parse_named("123-456,5-6,what", named, |entry| {
            unknown.push(entry.to_owned())
        });
        assert_eq!(set.to_string(), "5-6,8080");
        assert_eq!(unknown, ["what"]);
    }
}
