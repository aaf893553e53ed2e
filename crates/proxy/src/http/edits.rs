//! Header changes of one request and its response, collected while routing. Empty ones cost nothing.

use http::{HeaderName, HeaderValue};
use linkerd_http1::{Name, NameSet};
use smallvec::SmallVec;

use crate::policy::filter::HeaderChange;

/// What changes in a request and its response.
#[derive(Debug, Default)]
pub struct Edits {
    /// Replaces the authority.
    pub authority: Option<String>,
    /// Known request names left out.
    pub drop: NameSet,
    /// Changes of the request, in order.
    pub request: SmallVec<[Lines; 1]>,
    /// Known response names left out.
    pub drop_response: NameSet,
    /// Changes of the response, in order.
    pub response: SmallVec<[Lines; 1]>,
}

/// One change: names left out, then lines added.
#[derive(Debug, Default)]
pub struct Lines {
    /// Names left out.
    pub remove: SmallVec<[HeaderName; 1]>,
    /// Lines added.
    pub add: SmallVec<[(HeaderName, HeaderValue); 1]>,
}

impl Lines {
    /// One line, replacing nothing.
    pub fn one(name: HeaderName, value: HeaderValue) -> Self {
        Self {
            remove: SmallVec::new(),
            add: smallvec::smallvec![(name, value)],
        }
    }

    /// The change a filter asks for. What is added and then removed never shows.
    pub fn from_filter(change: &HeaderChange) -> Self {
        let set = change.set.iter().map(|(name, _)| name.clone());
        let kept = |name: &HeaderName| !change.remove.contains(name);
        let is_set = |name: &HeaderName| change.set.iter().any(|(n, _)| n == name);
        Self {
            remove: set.chain(change.remove.iter().cloned()).collect(),
            add: change
                .add
                .iter()
                .filter(|(name, _)| !is_set(name))
                .chain(&change.set)
                .filter(|(name, _)| kept(name))
                .cloned()
                .collect(),
        }
    }

    /// Applies the change to a map.
    pub fn apply(&self, headers: &mut http::HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
    }
}

/// Several changes as the HTTP/1 engine wants them: names to drop, lines to add.
pub(super) struct Flat<'a> {
    pub(super) drop: SmallVec<[&'a str; 4]>,
    pub(super) add: SmallVec<[(&'a str, &'a [u8]); 4]>,
}

/// A later removal also removes what an earlier change added.
pub(super) fn flatten(changes: &[Lines]) -> Flat<'_> {
    let mut flat = Flat {
        drop: SmallVec::new(),
        add: SmallVec::new(),
    };
    for change in changes {
        for name in &change.remove {
            flat.drop.push(name.as_str());
            flat.add.retain(|(added, _)| *added != name.as_str());
        }
        for (name, value) in &change.add {
            flat.add.push((name.as_str(), value.as_bytes()));
        }
    }
    flat
}

/// Takes known names out of a map.
pub(super) fn drop_known(headers: &mut http::HeaderMap, names: NameSet) {
    if names == NameSet::EMPTY {
        return;
    }
    let doomed: SmallVec<[HeaderName; 4]> = headers
        .keys()
        .filter(|name| {
            let known = Name::of(name.as_str().as_bytes());
            known != Name::Other && names.contains(known)
        })
        .cloned()
        .collect();
    for name in doomed {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(s: &'static str) -> HeaderName {
        HeaderName::from_static(s)
    }

    fn value(s: &'static str) -> HeaderValue {
        HeaderValue::from_static(s)
    }

    #[test]
    fn filters_add_then_set_then_remove() {
        let change = HeaderChange {
            add: vec![
                (name("a"), value("1")),
                (name("b"), value("2")),
                (name("c"), value("3")),
            ],
            set: vec![(name("b"), value("4"))],
            remove: vec![name("c")],
        };
        let mut map = http::HeaderMap::new();
        map.insert("a", value("0"));
        map.insert("b", value("0"));
        map.insert("c", value("0"));
        let mut reference = map.clone();
        Lines::from_filter(&change).apply(&mut map);
        change.apply(&mut reference);
        assert_eq!(map, reference);
        let a: Vec<_> = map.get_all("a").iter().collect();
        assert_eq!((a.len(), &map["b"], map.get("c")), (2, &value("4"), None));
    }

    #[test]
    fn later_changes_win() {
        let changes = [
            Lines::one(name("x"), value("1")),
            Lines {
                remove: smallvec::smallvec![name("x")],
                add: smallvec::smallvec![(name("y"), value("2"))],
            },
        ];
        let flat = flatten(&changes);
        assert_eq!(flat.add.as_slice(), &[("y", &b"2"[..])]);
        assert_eq!(flat.drop.as_slice(), &["x"]);
    }
}
