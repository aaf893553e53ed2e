//! Names that occur thousands of times are kept once.

use std::{collections::HashSet, sync::Arc};

pub type Name = Arc<str>;

/// Hands out one `Arc` per distinct text and forgets those nobody holds.
#[derive(Debug, Default)]
pub struct Names {
    known: HashSet<Name>,
    sweep_at: usize,
}

impl Names {
    pub fn get(&mut self, text: &str) -> Name {
        if let Some(name) = self.known.get(text) {
            return name.clone();
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.sweep_at = (self.known.len() * 2).max(1024);
        }
        let name = Name::from(text);
        self.known.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_and_unheld_names_go() {
        let mut names = Names::default();
        let held = names.get("held");
        assert!(Arc::ptr_eq(&held, &names.get("held")));
        for n in 0..5000 {
            names.get(&n.to_string());
        }
        assert!(names.known.len() <= 1100, "{}", names.known.len());
        assert!(Arc::ptr_eq(&held, &names.get("held")));
    }
}
