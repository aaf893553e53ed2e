//! One client's subscription: what it asked for, what it saw last, and what to tell it next.
//!
//! A stream holds no queue. [`EndpointsStream::next`] compares the newest snapshot with the last
//! one sent, so a slow client skips what happened in between.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use linkerd_k8s::Watches;
use linkerd_runtime::ready::Readiness;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::{
    config::Config,
    endpoint::Cut,
    index::{Dispatch, Index, NoService, Resolved, Zones},
    intern::{Name, ObjectId},
    metrics::Metrics,
    view::{
        AddressView, Base, Encode, Encoded, EndpointsView, InstanceKey, Messages, Profile,
        ProfileKey, ProfileView, Snapshot, ValueView, ViewKey,
    },
};

/// The index, shared by the watches that feed it and the streams that read it. The lock is held
/// for lookups and for applying one object, never across an await.
#[derive(Clone, Debug)]
pub struct Discovery {
    index: Arc<Mutex<Index>>,
    config: Arc<Config>,
    metrics: Metrics,
    listed: Readiness,
    since: Instant,
}

/// Where a client runs, as far as it matters for endpoints.
#[derive(Clone, Debug, Default)]
pub struct Client {
    pub hostname: Option<Name>,
    pub node: Option<Name>,
    /// The endpoints are another cluster's: none is left out for where it is.
    pub anywhere: bool,
}

/// A subscription to the endpoints of a Service's port.
#[derive(Debug)]
pub struct EndpointsStream {
    view: Arc<EndpointsView>,
    base: watch::Receiver<Arc<Base>>,
    zones: watch::Receiver<Zones>,
    client: Client,
    dispatch: Option<Dispatch>,
    last: Option<Arc<Snapshot>>,
    /// Revision of the newest set this client was shown, and how many went by before it.
    seen: Option<u64>,
    missed: u64,
    watching: Watching,
}

/// A subscription to one profile.
#[derive(Debug)]
pub struct ProfileStream {
    source: Source,
    missed: u64,
    watching: Watching,
}

#[derive(Debug)]
enum Source {
    Service {
        value: watch::Receiver<Arc<Encoded<Option<Profile>>>>,
        last: Latest<Option<Profile>>,
    },
    Address {
        value: watch::Receiver<Arc<Encoded<Resolved>>>,
        last: Latest<Resolved>,
    },
}

/// What a stream should do now.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Send(Messages),
    /// Nothing changed for this client.
    Wait,
    /// The question has another answer now: the client must ask again.
    End,
}

/// What an address turned out to be.
#[derive(Debug)]
pub enum AtAddress {
    Service(ObjectId),
    Profile(ProfileStream),
    Conflict(String),
}

/// Keeps a view alive.
#[derive(Debug)]
struct Watching {
    index: Arc<Mutex<Index>>,
    key: ViewKey,
}

// === impl Discovery ===

impl Discovery {
    pub fn new(config: Config, metrics: Metrics) -> Self {
        let config = Arc::new(config);
        let index = Arc::new(Mutex::new(Index::new(config.clone(), metrics.clone())));
        Self {
            index,
            config,
            metrics,
            listed: Readiness::new(),
            since: Instant::now(),
        }
    }

    /// How long it has been there.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Held back until the index has been filled, where that is told apart from the process's own
    /// readiness: a linked cluster may be away for long.
    pub fn listed(&self) -> &Readiness {
        &self.listed
    }

    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The index itself, for whoever feeds it.
    pub fn index(&self) -> &Arc<Mutex<Index>> {
        &self.index
    }

    /// Asks for every kind the index is made of.
    pub fn subscribe(&self, watches: &mut Watches) {
        use linkerd_k8s as k8s;
        if self.config.enable_endpoint_slices {
            watches.subscribe::<k8s::EndpointSlice, _>(&self.index);
        } else {
            watches.subscribe::<k8s::Endpoints, _>(&self.index);
        }
        // Only slices refer to them, but they have addresses of their own too.
        watches.subscribe::<k8s::ExternalWorkload, _>(&self.index);
        watches.subscribe::<k8s::Service, _>(&self.index);
        watches.subscribe::<k8s::Pod, _>(&self.index);
        watches.subscribe::<k8s::ReplicaSet, _>(&self.index);
        watches.subscribe::<k8s::Job, _>(&self.index);
        watches.subscribe::<k8s::Node, _>(&self.index);
        watches.subscribe::<k8s::ServiceProfile, _>(&self.index);
        watches.subscribe::<k8s::policy::Server, _>(&self.index);
    }

    /// Asks for the kinds of a linked cluster.
    pub fn subscribe_remote(&self, watches: &mut Watches) {
        use linkerd_k8s as k8s;
        if self.config.enable_endpoint_slices {
            watches.subscribe::<k8s::EndpointSlice, _>(&self.index);
        } else {
            watches.subscribe::<k8s::Endpoints, _>(&self.index);
        }
        watches.subscribe::<k8s::Service, _>(&self.index);
        watches.subscribe::<k8s::Pod, _>(&self.index);
        watches.subscribe::<k8s::ReplicaSet, _>(&self.index);
        watches.subscribe::<k8s::policy::Server, _>(&self.index);
    }

    /// How a Service is discovered.
    pub fn dispatch(&self, id: &ObjectId) -> Result<Dispatch, NoService> {
        self.index.lock().dispatch(id)
    }

    /// Zones of this cluster's nodes.
    pub fn zones(&self) -> watch::Receiver<Zones> {
        self.index.lock().zones()
    }

    /// Endpoints of a Service's port, whether or not the Service exists. `zones` are those of the
    /// cluster the client runs in.
    pub fn endpoints(
        &self,
        id: &ObjectId,
        port: u16,
        client: Client,
        zones: watch::Receiver<Zones>,
    ) -> EndpointsStream {
        let mut index = self.index.lock();
        let view = match index.views.hold_endpoints(id, port) {
            Some(view) => view,
            None => {
                let base = index.assemble(id, port, None);
                let metrics = index.views.metrics.endpoints(id, port);
                let view = Arc::new(EndpointsView::new(base, self.config.enable_ipv6, metrics));
                index.views.add_endpoints(id.clone(), port, view.clone());
                view
            }
        };
        let base = view.follow();
        let dispatch = base.borrow().dispatch.clone();
        EndpointsStream {
            base,
            zones,
            client,
            dispatch,
            last: None,
            seen: None,
            missed: 0,
            watching: self.watching(ViewKey::Endpoints(id.clone(), port)),
            view,
        }
    }

    /// The profile of a Service's port. `name` is what the client calls the Service.
    pub fn service_profile(
        &self,
        id: &ObjectId,
        port: u16,
        name: Option<&str>,
        client: Option<&str>,
    ) -> Result<ProfileStream, NoService> {
        let mut index = self.index.lock();
        index.dispatch(id)?;
        let name = name.map_or_else(|| index.profile_name(id), Name::from);
        let key = ProfileKey {
            port,
            name,
            client: client.map(Name::from),
        };
        let view: Arc<ProfileView> = match index.views.hold_profile(id, &key) {
            Some(view) => view,
            None => {
                let metrics = index.views.metrics.profile(id, &key.name);
                let view = Arc::new(ValueView::new(index.service_profile(id, &key), metrics));
                index
                    .views
                    .add_profile(id.clone(), key.clone(), view.clone());
                view
            }
        };
        Ok(ProfileStream {
            source: Source::Service {
                value: view.follow(),
                last: None,
            },
            missed: 0,
            watching: self.watching(ViewKey::Profile(id.clone(), key)),
        })
    }

    /// What stands behind an address.
    pub fn address(&self, ip: IpAddr, port: u16) -> AtAddress {
        let mut index = self.index.lock();
        let view: Arc<AddressView> = match index.views.hold_address(ip, port) {
            Some(view) => view,
            None => match index.address_profile(ip, port) {
                Resolved::Service(id) => return AtAddress::Service(id),
                Resolved::Conflict(conflict) => return AtAddress::Conflict(conflict),
                resolved @ Resolved::Profile(_) => {
                    let metrics = index.views.metrics.workload();
                    let view = Arc::new(ValueView::new(resolved, metrics));
                    index.views.add_address(ip, port, view.clone());
                    view
                }
            },
        };
        let watching = self.watching(ViewKey::Address(ip, port));
        let value = view.follow();
        drop(index);
        let resolved = value.borrow().clone();
        match &resolved.value {
            Resolved::Service(id) => AtAddress::Service(id.clone()),
            Resolved::Conflict(conflict) => AtAddress::Conflict(conflict.clone()),
            Resolved::Profile(_) => AtAddress::Profile(ProfileStream {
                source: Source::Address { value, last: None },
                missed: 0,
                watching,
            }),
        }
    }

    /// The profile of one instance of a Service, wherever its pod is; none if there is no such
    /// instance, or nothing is known of its pod.
    pub fn instance(&self, service: &ObjectId, hostname: &str, port: u16) -> Option<ProfileStream> {
        let mut index = self.index.lock();
        let hostname = hostname.into();
        let key = InstanceKey { hostname, port };
        // One that is watched may have gone meanwhile.
        let resolved = index.instance_profile(service, &key)?;
        let view: Arc<AddressView> = match index.views.hold_instance(service, &key) {
            Some(view) => view,
            None => {
                let metrics = index.views.metrics.workload();
                let view = Arc::new(ValueView::new(resolved, metrics));
                index
                    .views
                    .add_instance(service.clone(), key.clone(), view.clone());
                view
            }
        };
        Some(ProfileStream {
            source: Source::Address {
                value: view.follow(),
                last: None,
            },
            missed: 0,
            watching: self.watching(ViewKey::Instance(service.clone(), key)),
        })
    }

    fn watching(&self, key: ViewKey) -> Watching {
        Watching {
            index: self.index.clone(),
            key,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.index.lock().views.release(&self.key);
    }
}

// === impl EndpointsStream ===

impl EndpointsStream {
    /// What the client must be told to see what is now.
    pub fn next(&mut self, encode: &dyn Encode) -> Next {
        let base = self.base.borrow_and_update().clone();
        self.missed = 0;
        if base.dispatch.is_some() {
            let before = self
                .dispatch
                .get_or_insert_with(|| base.dispatch.clone().unwrap_or_default());
            if Some(&*before) != base.dispatch.as_ref() {
                return Next::End;
            }
        }
        let snapshot = self.cut_of(&base);
        let messages = match &self.last {
            None => snapshot.first(encode),
            Some(last) => snapshot.since(last, encode),
        };
        self.note(&snapshot);
        self.last = Some(snapshot);
        if messages.is_empty() {
            Next::Wait
        } else {
            Next::Send(messages)
        }
    }

    /// What the client should see now, whatever it saw before.
    pub(crate) fn snapshot(&mut self) -> Arc<Snapshot> {
        let base = self.base.borrow_and_update().clone();
        let snapshot = self.cut_of(&base);
        self.note(&snapshot);
        snapshot
    }

    /// Counts the sets that went by since the last one this client was shown.
    fn note(&mut self, snapshot: &Snapshot) {
        let seen = self.seen.replace(snapshot.revision);
        self.missed = seen.map_or(0, |seen| snapshot.revision.saturating_sub(seen));
    }

    /// How the Service is discovered now; none when it is gone.
    pub(crate) fn dispatch_now(&mut self) -> Option<Dispatch> {
        self.base.borrow_and_update().dispatch.clone()
    }

    /// Whether this is a stream of that cluster's index.
    pub(crate) fn is_of(&self, discovery: &Discovery) -> bool {
        Arc::ptr_eq(&self.watching.index, &discovery.index)
    }

    /// How many sets there were between the last two this client was shown.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Ends when there may be something to tell.
    pub async fn changed(&mut self) {
        tokio::select! {
            changed = self.base.changed() => gone(changed).await,
            changed = self.zones.changed() => gone(changed).await,
        }
    }

    fn cut_of(&mut self, base: &Base) -> Arc<Snapshot> {
        let cut = self.cut(base.local);
        self.view.snapshot(base, cut)
    }

    fn cut(&mut self, local: bool) -> Cut {
        let zones = self.zones.borrow_and_update();
        let node = self.client.node.as_ref();
        Cut {
            hostname: self.client.hostname.clone(),
            zone: node.and_then(|node| zones.get(node)).cloned(),
            node: node.filter(|_| local && !self.client.anywhere).cloned(),
            anywhere: self.client.anywhere,
        }
    }
}

/// A publisher that is gone publishes nothing more.
async fn gone(changed: Result<(), watch::error::RecvError>) {
    if changed.is_err() {
        std::future::pending().await
    }
}

// === impl ProfileStream ===

impl ProfileStream {
    /// What the client must be told now.
    pub fn next(&mut self, encode: impl Fn(&Profile) -> Bytes) -> Next {
        match &mut self.source {
            Source::Service { value, last } => {
                let Some(now) = newer(value, last, &mut self.missed) else {
                    return Next::Wait;
                };
                let Some(profile) = &now.value else {
                    return Next::End;
                };
                Next::Send(Messages::from_iter([now.bytes(|_| encode(profile))]))
            }
            Source::Address { value, last } => {
                let Some(now) = newer(value, last, &mut self.missed) else {
                    return Next::Wait;
                };
                let Resolved::Profile(profile) = &now.value else {
                    return Next::End;
                };
                Next::Send(Messages::from_iter([now.bytes(|_| encode(profile))]))
            }
        }
    }

    /// How many profiles there were between the last two this client was shown.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Name and port of the Service whose profile it is; none where it is an address's.
    pub fn service(&self) -> Option<(&str, u16)> {
        match &self.watching.key {
            ViewKey::Profile(_, key) => Some((&key.name, key.port)),
            ViewKey::Endpoints(..) | ViewKey::Instance(..) | ViewKey::Address(..) => None,
        }
    }

    /// Ends when there may be something to tell.
    pub async fn changed(&mut self) {
        match &mut self.source {
            Source::Service { value, .. } => gone(value.changed().await).await,
            Source::Address { value, .. } => gone(value.changed().await).await,
        }
    }
}

type Latest<T> = Option<Arc<Encoded<T>>>;

/// The newest value, unless it is the last one seen, and how many there were since that.
fn newer<T>(
    value: &mut watch::Receiver<Arc<Encoded<T>>>,
    last: &mut Latest<T>,
    missed: &mut u64,
) -> Latest<T> {
    let now = value.borrow_and_update().clone();
    let seen = last.as_ref().map_or(now.revision, |last| last.revision);
    *missed = now.revision.saturating_sub(seen);
    if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &now)) {
        return None;
    }
    *last = Some(now.clone());
    Some(now)
}
