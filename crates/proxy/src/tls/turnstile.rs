//! Full handshakes take turns: one step of one handshake, then everybody else who has something to do.
//! When many clients come back at once, after a restart or with tickets nobody knows any more, they
//! queue here, and connections that are there already are served between any two of them.

use std::{cell::RefCell, collections::VecDeque, io, rc::Rc, sync::Arc};

use rustls::HandshakeKind;
use tokio::sync::oneshot;

use crate::metrics::{Counter, Family, Registry};

/// Handshakes that may wait: some seconds' worth of them, less than the deadline they have. Who comes
/// then is closed on at once and comes back later, instead of waiting in vain.
const MAX_WAITING: usize = 4096;
/// So many in a queue are worth a word to the operator.
const STORM: usize = 64;

/// How far a handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing has been done about its hello.
    New,
    /// It has been answered. What is begun is finished first: its client is waiting for the second time.
    Begun,
}

/// The turns of one worker.
#[derive(Debug)]
pub struct Turnstile {
    queues: RefCell<Queues>,
    waiting: Arc<Counter>,
    full: Arc<Counter>,
    resumed: Arc<Counter>,
    refused: Arc<Counter>,
}

#[derive(Debug, Default)]
struct Queues {
    taken: bool,
    storm: bool,
    begun: VecDeque<oneshot::Sender<Turn>>,
    new: VecDeque<oneshot::Sender<Turn>>,
}

/// The right to take one step. Its end is the next one's turn.
#[derive(Debug)]
pub struct Turn(Rc<Turnstile>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.next();
    }
}

/// Somebody in a queue, for as long as it waits.
struct Waiting<'a>(&'a Counter);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Turnstile {
    /// One for a worker.
    pub fn new(registry: &Registry) -> Rc<Self> {
        let ended = |kind: &str| {
            let labels = format!("kind=\"{kind}\"").into();
            registry.counter(Family::InboundTlsHandshakes, &labels)
        };
        Rc::new(Self {
            queues: RefCell::default(),
            waiting: registry.counter(Family::InboundTlsHandshakeQueueLength, &"".into()),
            full: ended("full"),
            resumed: ended("resumed"),
            refused: ended("refused"),
        })
    }

    /// Waits for a turn.
    pub async fn turn(self: &Rc<Self>, progress: Progress) -> io::Result<Turn> {
        let waiter = {
            let mut queues = self.queues.borrow_mut();
            if !queues.taken {
                queues.taken = true;
                return Ok(Turn(self.clone()));
            }
            let (queue, limit) = match progress {
                Progress::New => (&mut queues.new, MAX_WAITING),
                // No more than were let in.
                Progress::Begun => (&mut queues.begun, usize::MAX),
            };
            if queue.len() >= limit {
                self.refused.inc();
                return Err(io::Error::other("too many TLS handshakes are waiting"));
            }
            let (place, waiter) = oneshot::channel();
            queue.push_back(place);
            queues.announce();
            waiter
        };
        self.waiting.inc();
        let _waiting = Waiting(&self.waiting);
        let gone = |_| io::Error::other("the worker has ended");
        waiter.await.map_err(gone)
    }

    /// Gives the turn to who is next: whoever waits no longer has left the queue.
    fn next(self: &Rc<Self>) {
        let mut queues = self.queues.borrow_mut();
        let next = loop {
            let next = match queues.begun.pop_front() {
                None => queues.new.pop_front(),
                begun => begun,
            };
            match next {
                Some(place) if place.is_closed() => {}
                next => break next,
            }
        };
        match next {
            Some(place) => {
                drop(queues);
                let _ = place.send(Turn(self.clone()));
            }
            None => {
                queues.taken = false;
                queues.storm = false;
            }
        }
    }

    /// Counts a handshake that succeeded.
    pub fn ended(&self, kind: Option<HandshakeKind>) {
        match kind {
            Some(HandshakeKind::Resumed) => self.resumed.inc(),
            _ => self.full.inc(),
        }
    }
}

impl Queues {
    fn announce(&mut self) {
        if self.new.len() >= STORM && !self.storm {
            self.storm = true;
            let waiting = self.new.len();
            tracing::warn!(
                waiting,
                "Many clients come at once: TLS handshakes take turns"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    fn turnstile() -> Rc<Turnstile> {
        Turnstile::new(&Registry::new(Duration::ZERO))
    }

    fn local(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(LocalSet::new().run_until(test));
    }

    /// Queues up at once; tells when its turn came.
    fn queue(
        turns: &Rc<Turnstile>,
        order: &Rc<RefCell<Vec<&'static str>>>,
        name: &'static str,
        progress: Progress,
    ) -> tokio::task::JoinHandle<()> {
        let (turns, order) = (turns.clone(), order.clone());
        linkerd_runtime::spawn_local("waiter", async move {
            let turn = turns.turn(progress).await.expect("a turn");
            order.borrow_mut().push(name);
            yield_now().await;
            drop(turn);
        })
    }

    #[test]
    fn what_is_begun_goes_first_and_the_rest_in_order() {
        local(async {
            let (turns, order) = (turnstile(), Rc::default());
            let held = turns.turn(Progress::New).await.expect("nobody has it");
            let mut waiting = Vec::new();
            for (name, progress) in [
                ("first", Progress::New),
                ("second", Progress::New),
                ("begun", Progress::Begun),
                ("third", Progress::New),
                ("begun later", Progress::Begun),
            ] {
                waiting.push(queue(&turns, &order, name, progress));
            }
            yield_now().await;
            assert_eq!(turns.waiting.get(), 5);
            drop(held);
            for waiter in waiting {
                waiter.await.expect("it ends");
            }
            let want = ["begun", "begun later", "first", "second", "third"];
            assert_eq!(*order.borrow(), want);
            assert_eq!(turns.waiting.get(), 0);
            let again = turns.turn(Progress::New).await;
            again.expect("free at the end");
        });
    }

    #[test]
    fn who_gives_up_does_not_keep_the_turn() {
        local(async {
            let (turns, order) = (turnstile(), Rc::default());
            let held = turns.turn(Progress::New).await.expect("nobody has it");
            let one = queue(&turns, &order, "gives up in the queue", Progress::New);
            let two = queue(&turns, &order, "gives up when it has it", Progress::New);
            let three = queue(&turns, &order, "stays", Progress::New);
            yield_now().await;
            one.abort();
            yield_now().await;
            assert_eq!(turns.waiting.get(), 2);
            drop(held);
            // The turn is on its way to the second.
            two.abort();
            three.await.expect("it ends");
            assert_eq!(*order.borrow(), ["stays"]);
        });
    }

    #[test]
    fn one_at_a_time_and_others_in_between() {
        local(async {
            let turns = turnstile();
            let (inside, most, others) =
                (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Cell::new(0));
            let mut waiting = Vec::new();
            for _ in 0..100 {
                let (turns, inside, most) = (turns.clone(), inside.clone(), most.clone());
                waiting.push(linkerd_runtime::spawn_local("waiter", async move {
                    let turn = turns.turn(Progress::New).await.expect("a turn");
                    inside.set(inside.get() + 1);
                    most.set(most.get().max(inside.get()));
                    yield_now().await;
                    inside.set(inside.get() - 1);
                    drop(turn);
                }));
            }
            while !waiting.iter().all(tokio::task::JoinHandle::is_finished) {
                others.set(others.get() + 1);
                yield_now().await;
            }
            assert_eq!(most.get(), 1);
            assert!(others.get() >= 50, "{} turns of others", others.get());
        });
    }

    #[test]
    fn the_queue_is_bounded() {
        local(async {
            let turns = turnstile();
            let held = turns.turn(Progress::New).await.expect("nobody has it");
            let mut waiting = Vec::new();
            for _ in 0..MAX_WAITING {
                let mut turn = Box::pin(turns.turn(Progress::New));
                assert!(futures::poll!(&mut turn).is_pending());
                waiting.push(turn);
            }
            turns.turn(Progress::New).await.expect_err("too many");
            assert_eq!(turns.refused.get(), 1);
            let mut begun = Box::pin(turns.turn(Progress::Begun));
            assert!(futures::poll!(&mut begun).is_pending(), "is let in");
            drop(held);
            begun.await.expect("a turn");
        });
    }
}
