//! Discovery for the whole process: one stream per target, shared by all workers as watch channels,
//! dropped some time after the last user. Streams run on the admin thread.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use linkerd_api::proto::{
    destination::{GetDestination, destination_client::DestinationClient},
    inbound::{PortSpec, inbound_server_policies_client::InboundServerPoliciesClient},
    outbound::{TrafficSpec, outbound_policies_client::OutboundPoliciesClient, traffic_spec},
};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::watch};
use tonic::Response;

use super::{
    client::Channel,
    convert::endpoint_update,
    destination,
    policy::{client_policy, server_policy},
    stream::{Keep, TERMINAL, TERMINAL_POLICY},
};
use crate::{
    config::{Backoff, Config, StreamLimits},
    policy::{
        client::{ClientPolicy, Protocol},
        endpoint::{EndpointMeta, Endpoints},
        profile::Profile,
        server::ServerPolicy,
    },
};

/// What is looked up for outbound traffic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An original destination.
    Addr(SocketAddr),
    /// A name, in ingress mode or at the gateway.
    Name(String, u16),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Addr(addr) => addr.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// What is known about an outbound target.
#[derive(Clone, Debug, Default)]
pub enum Outbound {
    /// The control plane has not answered yet.
    #[default]
    Pending,
    /// The policy to follow.
    Ready(Arc<ClientPolicy>),
    /// The control plane refuses to say.
    Failed(Arc<str>),
}

/// What is known about the service profile of a name.
#[derive(Clone, Debug, Default)]
pub enum ProfileLookup {
    /// The control plane has not answered yet.
    #[default]
    Pending,
    /// There is none.
    Absent,
    /// This one.
    Known(Arc<Profile>),
}

/// Lookups; clones share everything.
#[derive(Clone, Debug)]
pub struct Discovery(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    runtime: Handle,
    destination: Channel,
    policy: Channel,
    context: String,
    workload: String,
    profile_networks: Vec<ipnet::IpNet>,
    limits: StreamLimits,
    backoff: Backoff,
    config: Arc<Config>,
    outbound: Cache<Target, Outbound>,
    endpoints: Cache<Arc<str>, Endpoints>,
    inbound: Cache<u16, Arc<ServerPolicy>>,
    profiles: Cache<Target, ProfileLookup>,
}

impl Discovery {
    /// Streams will run on `runtime`.
    pub fn new(
        runtime: Handle,
        destination: Channel,
        policy: Channel,
        config: Arc<Config>,
    ) -> Self {
        let control = &config.control;
        Self(Arc::new(Inner {
            runtime,
            destination,
            policy,
            context: control.context.clone(),
            workload: control.workload.clone(),
            profile_networks: control.profile_networks.clone(),
            limits: control.streams,
            backoff: config.outbound.backoff,
            outbound: Cache::new(config.outbound.discovery_idle),
            endpoints: Cache::new(config.outbound.discovery_idle),
            inbound: Cache::new(config.inbound.discovery_idle),
            profiles: Cache::new(config.inbound.discovery_idle),
            config,
        }))
    }

    /// An endpoint could not be reached: is what the control plane said last still true?
    pub fn doubt(&self) {
        self.0.destination.doubt();
        self.0.policy.doubt();
    }

    /// Whether endpoints may have changed without our hearing of it.
    pub fn is_cut_off(&self) -> bool {
        !self.0.destination.is_current()
    }

    /// Policy of an outbound target.
    pub fn outbound(&self, target: &Target) -> watch::Receiver<Outbound> {
        let this = self.clone();
        self.0.outbound.get(
            &self.0.runtime,
            target.clone(),
            || Outbound::Pending,
            |target, sender| async move { this.run_outbound(target, &sender).await },
        )
    }

    /// Endpoints of a balanced service.
    pub fn endpoints(&self, path: &Arc<str>) -> watch::Receiver<Endpoints> {
        let this = self.clone();
        self.0.endpoints.get(
            &self.0.runtime,
            path.clone(),
            Endpoints::default,
            |path, sender| async move { this.run_endpoints(path, &sender).await },
        )
    }

    /// Policy of an inbound port. Its first value is the default policy.
    pub fn inbound(&self, port: u16) -> watch::Receiver<Arc<ServerPolicy>> {
        let this = self.clone();
        let initial = || Arc::new(ServerPolicy::initial(&self.0.config.inbound, port));
        self.0
            .inbound
            .get(&self.0.runtime, port, initial, |port, sender| async move {
                this.run_inbound(port, &sender).await
            })
    }

    /// Service profile of a target, for inbound requests; nothing where none is looked up.
    pub fn profile(&self, target: &Target) -> Option<watch::Receiver<ProfileLookup>> {
        if !self.wants_profile(target) {
            return None;
        }
        let this = self.clone();
        Some(self.0.profiles.get(
            &self.0.runtime,
            target.clone(),
            || ProfileLookup::Pending,
            |target, sender| async move {
                this.follow_profile(&target, |profile| {
                    sender.send_replace(ProfileLookup::Known(profile));
                })
                .await;
                sender.send_if_modified(|known| {
                    let pending = matches!(known, ProfileLookup::Pending);
                    if pending {
                        *known = ProfileLookup::Absent;
                    }
                    pending
                });
                std::future::pending::<()>().await;
            },
        ))
    }

    /// Hears about a profile until the control plane says that there is none.
    async fn follow_profile(&self, target: &Target, mut on: impl FnMut(Arc<Profile>)) {
        let request = GetDestination {
            path: target.to_string(),
            context_token: self.0.context.clone(),
            ..GetDestination::default()
        };
        let open = || {
            let mut client = DestinationClient::new(self.0.destination.clone());
            let request = request.clone();
            async move { client.get_profile(request).await.map(Response::into_inner) }
        };
        let status = self
            .keep(&self.0.destination, TERMINAL)
            .run("profile", open, |message, _| {
                on(Arc::new(destination::profile(message)));
            })
            .await;
        tracing::debug!(%target, code = ?status.code(), "No profile");
    }

    fn keep(&self, channel: &Channel, terminal: &'static [tonic::Code]) -> Keep {
        Keep {
            // A controller on the same host has no network that could go silent.
            limits: if channel.is_loopback() {
                StreamLimits::default()
            } else {
                self.0.limits
            },
            backoff: self.0.backoff,
            terminal,
        }
    }

    fn wants_profile(&self, target: &Target) -> bool {
        match target {
            Target::Addr(addr) => {
                let ip: IpAddr = addr.ip();
                self.0.profile_networks.iter().any(|net| net.contains(&ip))
            }
            Target::Name(name, _) => self.0.config.control.profile_suffixes.matches(name),
        }
    }

    async fn run_outbound(&self, target: Target, sender: &watch::Sender<Outbound>) {
        let answers = Mutex::new(Answers {
            profile: (!self.wants_profile(&target)).then_some(None),
            policy: None,
        });
        let publish = |change: &mut dyn FnMut(&mut Answers)| {
            let mut answers = answers.lock();
            change(&mut answers);
            let state = answers.combine(&target);
            drop(answers);
            sender.send_replace(state);
        };

        let profile = async {
            if !self.wants_profile(&target) {
                return std::future::pending::<()>().await;
            }
            self.follow_profile(&target, |profile| {
                publish(&mut |a| a.profile = Some(Some(profile.clone())));
            })
            .await;
            publish(&mut |a| a.profile = Some(a.profile.take().flatten()));
            std::future::pending().await
        };

        let policy = async {
            let request = TrafficSpec {
                source_workload: self.0.workload.clone(),
                target: Some(match &target {
                    Target::Addr(addr) => traffic_spec::Target::Addr((*addr).into()),
                    Target::Name(..) => traffic_spec::Target::Authority(target.to_string()),
                }),
            };
            let open = || {
                let mut client = OutboundPoliciesClient::new(self.0.policy.clone());
                let request = request.clone();
                async move { client.watch(request).await.map(Response::into_inner) }
            };
            let status = self
                .keep(&self.0.policy, TERMINAL_POLICY)
                .run("outbound-policy", open, |message, _| {
                    let policy = Arc::new(client_policy(message));
                    publish(&mut |a| a.policy = Some(PolicyAnswer::Policy(policy.clone())));
                })
                .await;
            let absent = matches!(
                status.code(),
                tonic::Code::NotFound | tonic::Code::Unimplemented
            );
            tracing::debug!(%target, code = ?status.code(), "No outbound policy");
            publish(&mut |a| {
                a.policy = Some(if absent {
                    PolicyAnswer::Absent
                } else {
                    PolicyAnswer::Refused(status.message().into())
                });
            });
            std::future::pending::<()>().await
        };
        tokio::join!(profile, policy);
    }

    async fn run_endpoints(&self, path: Arc<str>, sender: &watch::Sender<Endpoints>) {
        let request = GetDestination {
            path: path.to_string(),
            context_token: self.0.context.clone(),
            ..GetDestination::default()
        };
        let open = || {
            let mut client = DestinationClient::new(self.0.destination.clone());
            let request = request.clone();
            async move { client.get(request).await.map(Response::into_inner) }
        };
        let status = self
            .keep(&self.0.destination, TERMINAL)
            .run("endpoints", open, |message, first| {
                if let Some(update) = endpoint_update(message) {
                    sender.send_modify(|set| *set = set.apply(update, first));
                }
            })
            .await;
        tracing::debug!(%path, code = ?status.code(), "No endpoints");
        sender.send_if_modified(|set| {
            let pending = matches!(set, Endpoints::Pending);
            if pending {
                *set = Endpoints::Unknown;
            }
            pending
        });
        std::future::pending::<()>().await;
    }

    async fn run_inbound(&self, port: u16, sender: &watch::Sender<Arc<ServerPolicy>>) {
        let request = PortSpec {
            workload: self.0.workload.clone(),
            port: port.into(),
        };
        let open = || {
            let mut client = InboundServerPoliciesClient::new(self.0.policy.clone());
            let request = request.clone();
            async move { client.watch_port(request).await.map(Response::into_inner) }
        };
        let status = self
            .keep(&self.0.policy, TERMINAL)
            .run("inbound-policy", open, |message, _| {
                let mut policy = server_policy(message);
                policy.inherit(&sender.borrow());
                sender.send_replace(Arc::new(policy));
            })
            .await;
        tracing::debug!(port, code = ?status.code(), "Inbound policy watch ended");
        std::future::pending::<()>().await;
    }
}

/// What the two services said so far; the outer option is "has it answered".
struct Answers {
    profile: Option<Option<Arc<Profile>>>,
    policy: Option<PolicyAnswer>,
}

#[derive(Clone)]
enum PolicyAnswer {
    Policy(Arc<ClientPolicy>),
    Absent,
    Refused(Arc<str>),
}

impl Answers {
    fn combine(&self, target: &Target) -> Outbound {
        let (Some(profile), Some(policy)) = (&self.profile, &self.policy) else {
            return Outbound::Pending;
        };
        let opaque = profile.as_ref().is_some_and(|p| p.opaque);
        let port = match target {
            Target::Addr(addr) => addr.port(),
            Target::Name(_, port) => *port,
        };
        let logical = profile
            .as_ref()
            .and_then(|p| p.name.as_ref())
            .map(|name| format!("{name}:{port}"));
        if !opaque
            && let Some(profile) = profile.as_ref().filter(|p| p.decides())
            && !matches!(policy, PolicyAnswer::Refused(_))
        {
            let base = match policy {
                PolicyAnswer::Policy(policy) => Some(&**policy),
                _ => None,
            };
            if let Some(policy) = profile.policy(port, base) {
                return Outbound::Ready(Arc::new(policy));
            }
        }
        let mut policy = match (policy, target) {
            (PolicyAnswer::Refused(message), _) => return Outbound::Failed(message.clone()),
            (PolicyAnswer::Policy(policy), _) if !opaque && logical.is_none() => {
                return Outbound::Ready(policy.clone());
            }
            (PolicyAnswer::Policy(policy), _) => ClientPolicy::clone(policy),
            (PolicyAnswer::Absent, target) => {
                let endpoint = profile.as_ref().and_then(|p| p.endpoint.clone());
                match (endpoint, target) {
                    (Some((addr, meta)), _) => {
                        ClientPolicy::forward("endpoint", addr, meta, opaque)
                    }
                    (None, Target::Addr(addr)) => {
                        let meta = Arc::new(EndpointMeta::default());
                        ClientPolicy::forward("fallback", *addr, meta, opaque)
                    }
                    (None, Target::Name(..)) => {
                        return Outbound::Failed("no policy for this name".into());
                    }
                }
            }
        };
        policy.logical = logical;
        if opaque {
            policy.make_opaque();
            // Only a split has more to say about connections that are not looked at.
            if let Some(profile) = profile.as_ref().filter(|p| !p.overrides.is_empty())
                && let Some(split) = profile.policy(port, Some(&policy))
            {
                return Outbound::Ready(Arc::new(split));
            }
        }
        Outbound::Ready(Arc::new(policy))
    }
}

impl ClientPolicy {
    /// The profile says the destination must not be looked at.
    fn make_opaque(&mut self) {
        let protocol = std::mem::replace(&mut self.protocol, Protocol::Opaque(None));
        self.protocol = match protocol {
            Protocol::Detect { opaque, .. } => Protocol::Opaque(opaque),
            other @ (Protocol::Opaque(_) | Protocol::Tls(_) | Protocol::Invalid(_)) => other,
            Protocol::Http1(routes) | Protocol::Http2(routes) | Protocol::Grpc(routes) => {
                let route = routes.routes.into_iter().next();
                Protocol::Opaque(route.and_then(crate::policy::client::HttpRoute::into_tcp))
            }
        };
    }
}

/// Shared watch channels with idle eviction.
#[derive(Debug)]
struct Cache<K, V> {
    entries: Arc<Mutex<HashMap<K, watch::Sender<V>>>>,
    idle: Duration,
}

impl<K, V> Cache<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Send + Sync + 'static,
{
    fn new(idle: Duration) -> Self {
        Self {
            entries: Arc::default(),
            idle,
        }
    }

    fn get<F>(
        &self,
        runtime: &Handle,
        key: K,
        initial: impl FnOnce() -> V,
        run: impl FnOnce(K, watch::Sender<V>) -> F,
    ) -> watch::Receiver<V>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut entries = self.entries.lock();
        if let Some(sender) = entries.get(&key) {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(initial());
        entries.insert(key.clone(), sender.clone());
        let run = run(key.clone(), sender.clone());
        let unused = unused(self.entries.clone(), key, sender, self.idle);
        // Streams outlive the connection that asked first, and so do not carry its span.
        runtime.spawn(async move {
            tokio::select! {
                () = run => {}
                () = unused => {}
            }
        });
        receiver
    }
}

/// Ends, with the entry removed, once nobody has listened for `idle`.
async fn unused<K: Eq + Hash, V>(
    entries: Arc<Mutex<HashMap<K, watch::Sender<V>>>>,
    key: K,
    sender: watch::Sender<V>,
    idle: Duration,
) {
    loop {
        sender.closed().await;
        tokio::time::sleep(idle).await;
        // Subscribing happens under the same lock, so nobody can slip in between.
        let mut entries = entries.lock();
        if sender.receiver_count() == 0 {
            entries.remove(&key);
            return;
        }
    }
}
