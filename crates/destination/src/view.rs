//! What streams hold: shared snapshots of endpoint sets and profiles.
//!
//! A view exists while somebody watches it. The index publishes the whole set ([`Base`]) of a
//! Service's port; each way clients may see it ([`Cut`]) becomes a [`Snapshot`] when the first
//! client asks, together with its difference from the one before. All clients that see the same
//! share both, and the bytes made of them. A client that was not fast enough to see the one before
//! gets the difference between what it saw last and now, so nothing queues up.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use ahash::AHashMap;
use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::watch;

use crate::{
    endpoint::{self, Cut, Endpoint, Endpoints, Labels},
    index::{Dispatch, Resolved},
    intern::{Name, ObjectId},
    metrics::{Metrics, ViewMetrics},
    profile::Spec,
};

/// All endpoints of a Service's port.
#[derive(Debug)]
pub struct Base {
    pub(crate) revision: u64,
    /// Whether there is such a Service.
    pub(crate) exists: bool,
    pub(crate) local: bool,
    pub(crate) dispatch: Option<Dispatch>,
    pub(crate) labels: Labels,
    pub(crate) endpoints: Endpoints,
}

/// The endpoints as one kind of client sees them.
#[derive(Debug)]
pub struct Snapshot {
    /// Unique within the view.
    serial: u64,
    /// That of the set it was cut from.
    pub(crate) revision: u64,
    pub(crate) exists: bool,
    pub(crate) zone: Option<Name>,
    pub(crate) labels: Labels,
    pub(crate) endpoints: Endpoints,
    /// The first message of a stream.
    first: OnceLock<Messages>,
    delta: Option<(u64, Change)>,
}

/// What turns what a client saw into what it should see.
#[derive(Debug, Default)]
pub struct Change {
    pub added: Vec<Arc<Endpoint>>,
    pub removed: Vec<SocketAddr>,
    /// The set is empty now, and whether there is such a Service.
    pub emptied: Option<bool>,
    messages: OnceLock<Messages>,
}

/// Encoded messages, in order.
pub type Messages = SmallVec<[Bytes; 2]>;

/// Turns changes into messages; the wire format lives elsewhere.
pub trait Encode {
    fn first(&self, snapshot: &Snapshot) -> Messages;
    fn change(&self, snapshot: &Snapshot, change: &Change) -> Messages;
}

/// A value with the bytes made of it.
#[derive(Debug)]
pub struct Encoded<T> {
    pub value: T,
    /// One more than that of the value before.
    pub(crate) revision: u64,
    bytes: OnceLock<Bytes>,
}

/// What a profile says.
#[derive(Clone, Debug, PartialEq)]
pub enum Profile {
    /// The Service has no such port.
    Undefined,
    Service(ServiceProfile),
    Endpoint {
        endpoint: Endpoint,
        opaque: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct ServiceProfile {
    /// The name the client asked for, or the one it would have.
    pub name: Name,
    pub service: ObjectId,
    pub port: u16,
    pub opaque: bool,
    pub spec: Option<Arc<Spec>>,
}

/// Which instance of a Service is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InstanceKey {
    pub hostname: Name,
    pub port: u16,
}

/// Who asks for a Service's profile, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProfileKey {
    pub port: u16,
    pub name: Name,
    pub client: Option<Name>,
}

/// Endpoints of one Service's port.
#[derive(Debug)]
pub struct EndpointsView {
    base: watch::Sender<Arc<Base>>,
    cuts: Mutex<AHashMap<Cut, Arc<Snapshot>>>,
    serial: AtomicU64,
    enable_ipv6: bool,
    metrics: ViewMetrics,
}

/// One value that changes.
#[derive(Debug)]
pub struct ValueView<T> {
    value: watch::Sender<Arc<Encoded<T>>>,
    metrics: ViewMetrics,
}

/// `None` when the Service went away.
pub type ProfileView = ValueView<Option<Profile>>;
pub type AddressView = ValueView<Resolved>;

type Held<V> = (usize, Arc<V>);

/// Views count their watchers.
trait Measured {
    fn metrics(&self) -> &ViewMetrics;
}

/// The views somebody watches, each with the number of watchers.
#[derive(Debug)]
pub(crate) struct Views {
    endpoints: AHashMap<ObjectId, AHashMap<u16, Held<EndpointsView>>>,
    profiles: AHashMap<ObjectId, AHashMap<ProfileKey, Held<ProfileView>>>,
    instances: AHashMap<ObjectId, AHashMap<InstanceKey, Held<AddressView>>>,
    addresses: AHashMap<IpAddr, AHashMap<u16, Held<AddressView>>>,
    pub(crate) metrics: Metrics,
}

/// Names a view.
#[derive(Clone, Debug)]
pub(crate) enum ViewKey {
    Endpoints(ObjectId, u16),
    Profile(ObjectId, ProfileKey),
    Instance(ObjectId, InstanceKey),
    Address(IpAddr, u16),
}

// === impl EndpointsView ===

impl EndpointsView {
    pub(crate) fn new(base: Base, enable_ipv6: bool, metrics: ViewMetrics) -> Self {
        metrics.endpoints(base.endpoints.len(), base.exists);
        Self {
            base: watch::Sender::new(Arc::new(base)),
            cuts: Mutex::default(),
            serial: AtomicU64::new(1),
            enable_ipv6,
            metrics,
        }
    }

    pub(crate) fn base(&self) -> Option<Arc<Base>> {
        Some(self.base.borrow().clone())
    }

    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Base>> {
        self.base.subscribe()
    }

    pub(crate) fn publish(&self, base: Base) {
        self.base.send_if_modified(|last| {
            if last.shows(&base) {
                return false;
            }
            self.metrics.updated();
            self.metrics.endpoints(base.endpoints.len(), base.exists);
            *last = Arc::new(base);
            true
        });
    }

    /// The newest snapshot for the cut; made now if nobody has asked since the set changed.
    pub(crate) fn snapshot(&self, base: &Base, cut: Cut) -> Arc<Snapshot> {
        let mut cuts = self.cuts.lock();
        let last = cuts.get(&cut).cloned();
        // Someone who saw a newer set may have been here already.
        if let Some(last) = &last
            && last.revision >= base.revision
        {
            return last.clone();
        }
        let mut snapshot = Snapshot {
            serial: self.serial.fetch_add(1, Ordering::Relaxed),
            revision: base.revision,
            exists: base.exists,
            zone: cut.zone.clone(),
            labels: base.labels.clone(),
            endpoints: endpoint::filter(&base.endpoints, &cut, base.local, self.enable_ipv6),
            first: OnceLock::new(),
            delta: None,
        };
        if let Some(last) = &last {
            snapshot.delta = Some((last.serial, Change::between(last, &snapshot)));
        }
        let snapshot = Arc::new(snapshot);
        // Only cuts somebody still sees are kept.
        cuts.retain(|_, held| Arc::strong_count(held) > 1);
        cuts.insert(cut, snapshot.clone());
        snapshot
    }
}

impl Base {
    /// Whether clients would see no difference.
    fn shows(&self, other: &Self) -> bool {
        self.exists == other.exists
            && self.local == other.local
            && self.dispatch == other.dispatch
            && self.labels == other.labels
            && (Arc::ptr_eq(&self.endpoints, &other.endpoints) || self.endpoints == other.endpoints)
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// A set that belongs to one client alone, following `last`.
    pub(crate) fn of(endpoints: Endpoints, zone: Option<Name>, last: Option<&Snapshot>) -> Self {
        Self {
            serial: last.map_or(1, |last| last.serial + 1),
            revision: last.map_or(1, |last| last.revision + 1),
            exists: true,
            zone,
            labels: Arc::new([]),
            endpoints,
            first: OnceLock::new(),
            delta: None,
        }
    }

    /// Messages for a client that has seen nothing.
    pub(crate) fn first(&self, encode: &dyn Encode) -> Messages {
        self.first.get_or_init(|| encode.first(self)).clone()
    }

    /// Messages for a client that has seen `last`.
    pub(crate) fn since(&self, last: &Snapshot, encode: &dyn Encode) -> Messages {
        if self.serial == last.serial {
            return Messages::new();
        }
        match &self.delta {
            Some((from, change)) if *from == last.serial => change.messages(self, encode),
            _ => encode.change(self, &Change::between(last, self)),
        }
    }
}

// === impl Change ===

impl Change {
    fn between(last: &Snapshot, next: &Snapshot) -> Self {
        let (mut added, removed) = endpoint::diff(&last.endpoints, &next.endpoints);
        // What is said of the whole set is only said with its endpoints.
        if last.zone != next.zone || last.labels != next.labels {
            added = next.endpoints.to_vec();
        }
        let emptied =
            next.endpoints.is_empty() && (!last.endpoints.is_empty() || last.exists != next.exists);
        let emptied = emptied.then_some(next.exists);
        Self {
            added,
            removed,
            emptied,
            messages: OnceLock::new(),
        }
    }

    fn messages(&self, snapshot: &Snapshot, encode: &dyn Encode) -> Messages {
        self.messages
            .get_or_init(|| encode.change(snapshot, self))
            .clone()
    }
}

// === impl Encoded ===

impl<T> Encoded<T> {
    pub(crate) fn new(value: T, revision: u64) -> Self {
        Self {
            value,
            revision,
            bytes: OnceLock::new(),
        }
    }

    pub(crate) fn bytes(&self, encode: impl FnOnce(&T) -> Bytes) -> Bytes {
        self.bytes.get_or_init(|| encode(&self.value)).clone()
    }
}

// === impl ValueView ===

impl<T> Measured for ValueView<T> {
    fn metrics(&self) -> &ViewMetrics {
        &self.metrics
    }
}

impl Measured for EndpointsView {
    fn metrics(&self) -> &ViewMetrics {
        &self.metrics
    }
}

impl<T: PartialEq> ValueView<T> {
    pub(crate) fn new(value: T, metrics: ViewMetrics) -> Self {
        Self {
            value: watch::Sender::new(Arc::new(Encoded::new(value, 1))),
            metrics,
        }
    }

    pub(crate) fn now(&self) -> Arc<Encoded<T>> {
        self.value.borrow().clone()
    }

    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Encoded<T>>> {
        self.value.subscribe()
    }

    pub(crate) fn publish(&self, value: T) {
        self.value.send_if_modified(|last| {
            if last.value == value {
                return false;
            }
            self.metrics.updated();
            *last = Arc::new(Encoded::new(value, last.revision + 1));
            true
        });
    }
}

impl Profile {
    pub(crate) fn endpoint(endpoint: Endpoint, opaque: bool) -> Self {
        Self::Endpoint { endpoint, opaque }
    }
}

// === impl Views ===

impl Views {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self {
            endpoints: AHashMap::new(),
            profiles: AHashMap::new(),
            instances: AHashMap::new(),
            addresses: AHashMap::new(),
            metrics,
        }
    }

    pub(crate) fn endpoints_of(&self, id: &ObjectId) -> Vec<(u16, Arc<EndpointsView>)> {
        of(&self.endpoints, id)
    }

    pub(crate) fn profiles_of(&self, id: &ObjectId) -> Vec<(ProfileKey, Arc<ProfileView>)> {
        of(&self.profiles, id)
    }

    pub(crate) fn instances_of(&self, id: &ObjectId) -> Vec<(InstanceKey, Arc<AddressView>)> {
        of(&self.instances, id)
    }

    pub(crate) fn addresses_of(&self, ip: IpAddr) -> Vec<(u16, Arc<AddressView>)> {
        of(&self.addresses, &ip)
    }

    pub(crate) fn hold_endpoints(
        &mut self,
        id: &ObjectId,
        port: u16,
    ) -> Option<Arc<EndpointsView>> {
        hold(&mut self.endpoints, id, &port)
    }

    pub(crate) fn hold_profile(
        &mut self,
        id: &ObjectId,
        key: &ProfileKey,
    ) -> Option<Arc<ProfileView>> {
        hold(&mut self.profiles, id, key)
    }

    pub(crate) fn hold_instance(
        &mut self,
        id: &ObjectId,
        key: &InstanceKey,
    ) -> Option<Arc<AddressView>> {
        hold(&mut self.instances, id, key)
    }

    pub(crate) fn hold_address(&mut self, ip: IpAddr, port: u16) -> Option<Arc<AddressView>> {
        hold(&mut self.addresses, &ip, &port)
    }

    pub(crate) fn add_endpoints(&mut self, id: ObjectId, port: u16, view: Arc<EndpointsView>) {
        view.metrics.watchers(1);
        self.endpoints
            .entry(id)
            .or_default()
            .insert(port, (1, view));
    }

    pub(crate) fn add_profile(&mut self, id: ObjectId, key: ProfileKey, view: Arc<ProfileView>) {
        view.metrics.watchers(1);
        self.profiles.entry(id).or_default().insert(key, (1, view));
    }

    pub(crate) fn add_instance(&mut self, id: ObjectId, key: InstanceKey, view: Arc<AddressView>) {
        view.metrics.watchers(1);
        self.instances.entry(id).or_default().insert(key, (1, view));
    }

    pub(crate) fn add_address(&mut self, ip: IpAddr, port: u16, view: Arc<AddressView>) {
        view.metrics.watchers(1);
        self.addresses
            .entry(ip)
            .or_default()
            .insert(port, (1, view));
    }

    /// A watcher left; the view goes with the last one.
    pub(crate) fn release(&mut self, key: &ViewKey) {
        match key {
            ViewKey::Endpoints(id, port) => release(&mut self.endpoints, id, port),
            ViewKey::Profile(id, key) => release(&mut self.profiles, id, key),
            ViewKey::Instance(id, key) => release(&mut self.instances, id, key),
            ViewKey::Address(ip, port) => release(&mut self.addresses, ip, port),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
            && self.profiles.is_empty()
            && self.instances.is_empty()
            && self.addresses.is_empty()
    }
}

type Table<K, L, V> = AHashMap<K, AHashMap<L, Held<V>>>;

fn of<K, L, V>(table: &Table<K, L, V>, key: &K) -> Vec<(L, Arc<V>)>
where
    K: std::hash::Hash + Eq,
    L: Clone,
{
    let views = table.get(key).into_iter().flatten();
    views
        .map(|(key, (_, view))| (key.clone(), view.clone()))
        .collect()
}

fn hold<K, L, V: Measured>(table: &mut Table<K, L, V>, key: &K, inner: &L) -> Option<Arc<V>>
where
    K: std::hash::Hash + Eq,
    L: std::hash::Hash + Eq,
{
    let (watchers, view) = table.get_mut(key)?.get_mut(inner)?;
    *watchers += 1;
    view.metrics().watchers(*watchers);
    Some(view.clone())
}

fn release<K, L, V: Measured>(table: &mut Table<K, L, V>, key: &K, inner: &L)
where
    K: std::hash::Hash + Eq,
    L: std::hash::Hash + Eq,
{
    let Some(views) = table.get_mut(key) else {
        return;
    };
    let Some((watchers, view)) = views.get_mut(inner) else {
        return;
    };
    *watchers -= 1;
    view.metrics().watchers(*watchers);
    if *watchers == 0 {
        views.remove(inner);
        if views.is_empty() {
            table.remove(key);
        }
    }
}
