//! A federated Service: the union of a local Service and of Services of linked clusters.
//!
//! Each member is a stream of its own; this one follows the Service's annotations and the linked
//! clusters, merges what the members say first into one message, and takes back a member's
//! endpoints when it leaves.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use ahash::AHashMap;
use futures::future::select_all;
use tokio::sync::watch;

use crate::{
    clusters::Clusters,
    endpoint::{Endpoint, Endpoints, Labels},
    grpc::{Source, Wire},
    index::{Dispatch, Zones},
    intern::{Name, ObjectId},
    stream::{Client, Discovery, EndpointsStream, Next},
    view::Snapshot,
};

/// A member: the cluster (none is ours) and the name of its Service.
type Member = (Option<Name>, Name);

/// Reads `service@cluster,…`; entries that make no sense are handed to `malformed`.
pub(crate) fn remote_members<'a>(
    list: &'a str,
    mut malformed: impl FnMut(&str) + 'a,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let entries = list.split(',').map(str::trim);
    entries
        .filter(|entry| !entry.is_empty())
        .filter_map(move |entry| match entry.split_once('@') {
            Some((service, cluster)) if !service.is_empty() && !cluster.is_empty() => {
                Some((service, cluster))
            }
            _ => {
                malformed(entry);
                None
            }
        })
}

pub(crate) struct FederatedStream {
    local: Discovery,
    clusters: watch::Receiver<Arc<AHashMap<Name, Discovery>>>,
    zones: watch::Receiver<Zones>,
    id: ObjectId,
    port: u16,
    client: Client,
    /// Follows the annotations of the Service itself.
    service: EndpointsStream,
    members: BTreeMap<Member, EndpointsStream>,
    last: Option<Arc<Snapshot>>,
}

impl FederatedStream {
    pub(crate) fn new(
        local: &Discovery,
        clusters: &Clusters,
        id: &ObjectId,
        port: u16,
        client: Client,
    ) -> Self {
        let zones = local.zones();
        Self {
            service: local.endpoints(id, port, client.clone(), zones.clone()),
            local: local.clone(),
            clusters: clusters.follow(),
            zones,
            id: id.clone(),
            port,
            client,
            members: BTreeMap::new(),
            last: None,
        }
    }

    /// Subscribes to members that came and drops those that left.
    fn join(&mut self, local: Option<&Name>, remote: Option<&Name>) {
        let clusters = self.clusters.borrow_and_update().clone();
        let mut wanted: BTreeMap<Member, (Discovery, Client)> = BTreeMap::new();
        if let Some(service) = local.filter(|service| !service.is_empty()) {
            wanted.insert(
                (None, service.clone()),
                (self.local.clone(), self.client.clone()),
            );
        }
        let malformed = |entry: &str| {
            tracing::warn!(service = %self.id, entry, "Malformed member of a federated Service");
        };
        let remote = remote.map(|list| &**list).unwrap_or_default();
        for (service, cluster) in remote_members(remote, malformed) {
            // A cluster that is not linked yet joins when it is.
            if let Some(discovery) = clusters.get(cluster) {
                let client = Client {
                    anywhere: true,
                    ..self.client.clone()
                };
                let member = (Some(cluster.into()), service.into());
                wanted.insert(member, (discovery.clone(), client));
            }
        }
        self.members.retain(|member, stream| {
            // A cluster that was linked anew is another index.
            wanted
                .get(member)
                .is_some_and(|(discovery, _)| stream.is_of(discovery))
        });
        for (member, (discovery, client)) in wanted {
            if !self.members.contains_key(&member) {
                let id = ObjectId {
                    namespace: self.id.namespace.clone(),
                    name: member.1.clone(),
                };
                let stream = discovery.endpoints(&id, self.port, client, self.zones.clone());
                self.members.insert(member, stream);
            }
        }
    }

    /// The union. An endpoint says itself which Service it is of, since the set has several.
    fn union(&mut self) -> Arc<Snapshot> {
        let mut union: BTreeMap<SocketAddr, Arc<Endpoint>> = BTreeMap::new();
        let mut zone = None;
        for stream in self.members.values_mut() {
            let snapshot = stream.snapshot();
            zone = snapshot.zone.clone();
            for endpoint in snapshot.endpoints.iter() {
                union
                    .entry(endpoint.addr)
                    .or_insert_with(|| Arc::new(labelled(endpoint, &snapshot.labels)));
            }
        }
        let endpoints: Endpoints = union.into_values().collect();
        let last = self.last.as_deref();
        Arc::new(Snapshot::of(endpoints, zone, last))
    }
}

fn labelled(endpoint: &Endpoint, set: &Labels) -> Endpoint {
    let labels = endpoint.labels.iter().chain(set.iter()).cloned().collect();
    Endpoint {
        labels,
        ..endpoint.clone()
    }
}

impl Source for FederatedStream {
    fn next(&mut self, wire: &Wire) -> Next {
        match self.service.dispatch_now() {
            Some(Dispatch::Federated { local, remote }) => {
                self.join(local.as_ref(), remote.as_ref())
            }
            // Deleted, or not federated any more: ask again.
            _ => return Next::End,
        }
        let snapshot = self.union();
        let messages = match &self.last {
            None => snapshot.first(wire),
            Some(last) => snapshot.since(last, wire),
        };
        let capacity = self.local.config().stream_queue_capacity;
        if self.members.values().any(|it| it.missed() > capacity) {
            self.local.metrics().overflow(&self.id, self.port);
        }
        self.last = Some(snapshot);
        if messages.is_empty() {
            Next::Wait
        } else {
            Next::Send(messages)
        }
    }

    async fn changed(&mut self) {
        let members = self
            .members
            .values_mut()
            .map(|stream| Box::pin(stream.changed()));
        let members: Vec<_> = members.collect();
        let any_member = async {
            if members.is_empty() {
                std::future::pending::<()>().await;
            } else {
                select_all(members).await;
            }
        };
        tokio::select! {
            () = self.service.changed() => {}
            () = any_member => {}
            changed = self.clusters.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
        }
    }
}
