//! Things made per endpoint or destination: how many were made and how many are gone again.

use std::{rc::Rc, sync::Arc};

use super::{Counter, Family, Labels, Registry};

/// Series of one kind of thing, for one worker.
#[derive(Debug)]
pub struct Stacks {
    created: Arc<Counter>,
    dropped: Arc<Counter>,
    /// Shown because dashboards look for them; nothing moves them.
    _polls: [Arc<Counter>; 4],
}

/// One of them.
#[derive(Debug)]
pub struct Stack(Rc<Stacks>);

impl Stacks {
    /// Resolves the series.
    pub fn new(registry: &Registry, direction: &str, protocol: &str, name: &str) -> Rc<Self> {
        let labels = Labels::direction(direction)
            .with("protocol", protocol)
            .with("name", name);
        let polls = |ready| {
            let labels = labels.clone().with("ready", ready).finish();
            registry.counter(Family::StackPollTotal, &labels)
        };
        let [yes, no, error] = ["true", "false", "error"].map(polls);
        let labels = labels.finish();
        let millis = registry.counter(Family::StackPollTotalMs, &labels);
        Rc::new(Self {
            _polls: [yes, no, error, millis],
            created: registry.counter(Family::StackCreateTotal, &labels),
            dropped: registry.counter(Family::StackDropTotal, &labels),
        })
    }

    /// Counts one until it is dropped.
    pub fn one(self: &Rc<Self>) -> Stack {
        self.created.inc();
        Stack(self.clone())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.0.dropped.inc();
    }
}
