//! Session stores for TLS 1.3 resumption. A session belongs to one peer identity and one
//! credential generation, because each generation (and on the client each peer) has its own store,
//! and no session is handed out after a certificate it rests on has expired.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;
use rustls::{
    NamedGroup,
    client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue},
    server::{ServerSessionMemoryCache, StoresServerSessions},
};
use rustls_pki_types::ServerName;

use crate::clock::{Clock, unix_seconds};

/// Tickets kept per peer: enough for a pool that reopens a few connections at once.
const MAX_TICKETS: usize = 4;
/// Sessions a server remembers per credential generation, about 1.5 KB each.
const MAX_SERVER_SESSIONS: usize = 512;

/// The tickets of one peer under one credential generation.
pub(crate) struct ClientSessions {
    clock: Arc<dyn Clock>,
    server_name: ServerName<'static>,
    /// End of our own certificate, in seconds since 1970.
    own_not_after: Option<u64>,
    state: Mutex<Tickets>,
}

#[derive(Default)]
struct Tickets {
    queue: VecDeque<Tls13ClientSessionValue>,
    /// Earliest end among the certificates the peer has shown since the queue was last emptied.
    peer_not_after: Option<u64>,
    group: Option<NamedGroup>,
}

impl ClientSessions {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        server_name: ServerName<'static>,
        own_not_after: Option<u64>,
    ) -> Self {
        Self {
            clock,
            server_name,
            own_not_after,
            state: Mutex::default(),
        }
    }

    /// Called by the verifier for each full handshake with the earliest end of the peer's chain.
    pub(crate) fn verified(&self, not_after: u64) {
        let mut state = self.state.lock();
        state.peer_not_after = Some(state.peer_not_after.map_or(not_after, |t| t.min(not_after)));
    }

    fn own_expired(&self, now: u64) -> bool {
        self.own_not_after.is_some_and(|end| now >= end)
    }

    /// Empties the queue once a peer certificate has expired; the next full handshake starts anew.
    fn expire(state: &mut Tickets, now: u64) {
        if state.peer_not_after.is_some_and(|end| now >= end) {
            state.queue.clear();
            state.peer_not_after = None;
        }
    }
}

impl ClientSessionStore for ClientSessions {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.state.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.state.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, name: ServerName<'static>, value: Tls13ClientSessionValue) {
        if name != self.server_name {
            return;
        }
        let now = unix_seconds(self.clock.now());
        let mut state = self.state.lock();
        Self::expire(&mut state, now);
        if state.peer_not_after.is_none() || self.own_expired(now) {
            return;
        }
        if state.queue.len() == MAX_TICKETS {
            state.queue.pop_front();
        }
        state.queue.push_back(value);
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        if *name != self.server_name {
            return None;
        }
        let now = unix_seconds(self.clock.now());
        let mut state = self.state.lock();
        Self::expire(&mut state, now);
        if self.own_expired(now) {
            return None;
        }
        state.queue.pop_back()
    }
}

impl fmt::Debug for ClientSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSessions")
            .field("server_name", &self.server_name)
            .finish()
    }
}

/// The sessions a server remembers under one credential generation.
#[derive(Debug)]
pub(crate) struct ServerSessions {
    clock: Arc<dyn Clock>,
    own_not_after: u64,
    sessions: Arc<ServerSessionMemoryCache>,
}

impl ServerSessions {
    pub(crate) fn new(clock: Arc<dyn Clock>, own_not_after: u64) -> Self {
        let sessions = ServerSessionMemoryCache::new(MAX_SERVER_SESSIONS);
        Self {
            clock,
            own_not_after,
            sessions,
        }
    }

    fn live(&self) -> bool {
        unix_seconds(self.clock.now()) < self.own_not_after
    }
}

impl StoresServerSessions for ServerSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.live() && self.sessions.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        if self.live() {
            self.sessions.get(key)
        } else {
            None
        }
    }

    /// Single use: what is taken is gone, so a captured ticket cannot be replayed.
    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let value = self.sessions.take(key);
        if self.live() { value } else { None }
    }

    fn can_cache(&self) -> bool {
        true
    }
}
