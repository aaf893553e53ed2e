//! A control plane driven by the test: identity, destination and policy on one plain-text port.
//! Values set here reach subscribers at once; streams can be cut and the service taken away.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use linkerd_api::proto::destination::{
    AddrSet, DestinationProfile, GetDestination, NoEndpoints, Update, WeightedAddr,
    WeightedAddrSet,
    destination_server::{Destination, DestinationServer},
    update,
};
use linkerd_api::proto::identity::{
    CertifyRequest, CertifyResponse,
    identity_server::{Identity, IdentityServer},
};
use linkerd_api::proto::inbound::{
    PortSpec, Server,
    inbound_server_policies_server::{InboundServerPolicies, InboundServerPoliciesServer},
};
use linkerd_api::proto::outbound::{
    OutboundPolicy, TrafficSpec,
    outbound_policies_server::{OutboundPolicies, OutboundPoliciesServer},
    traffic_spec,
};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};

use crate::ca::{Ca, Validity};
use crate::netns::Namespace;

pub mod objects;

type Endpoints = BTreeMap<SocketAddr, WeightedAddr>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    addr: SocketAddr,
    state: Arc<State>,
    server: Option<Running>,
    /// The same services on loopback of other namespaces.
    elsewhere: Vec<Elsewhere>,
}

/// A listener in a namespace, and what runs there while the control plane does.
#[derive(Debug)]
struct Elsewhere {
    netns: Arc<Namespace>,
    addr: SocketAddr,
    server: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

struct State {
    root_pem: String,
    issuer: Ca,
    validity: Mutex<Validity>,
    outbound: Table<String, OutboundPolicy>,
    profiles: Table<String, DestinationProfile>,
    endpoints: Table<String, Endpoints>,
    inbound: Table<u16, Server>,
    calls: Mutex<Vec<Call>>,
    /// Streams end when this changes.
    cut: watch::Sender<u64>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

/// A call the control plane has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Certify(String),
    Get(String),
    GetProfile(String),
    WatchPort(u16),
    WatchOutbound(String),
}

/// Values by name; subscribers see changes.
#[derive(Debug)]
struct Table<K, V>(Mutex<HashMap<K, watch::Sender<Option<V>>>>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: std::hash::Hash + Eq, V> Table<K, V> {
    fn set(&self, key: K, value: Option<V>) {
        lock(&self.0)
            .entry(key)
            .or_insert_with(|| watch::channel(None).0)
            .send_replace(value);
    }

    fn subscribe(&self, key: K) -> watch::Receiver<Option<V>> {
        lock(&self.0)
            .entry(key)
            .or_insert_with(|| watch::channel(None).0)
            .subscribe()
    }
}

impl Default for ControlPlane {
    fn default() -> Self {
        Self::start()
    }
}

impl ControlPlane {
    /// Starts on a free port of loopback, with a certificate authority of its own.
    pub fn start() -> Self {
        let (root, issuer) = Ca::linkerd();
        let state = Arc::new(State {
            root_pem: root.pem().to_owned(),
            issuer,
            validity: Mutex::new(Validity::Current),
            outbound: Table::default(),
            profiles: Table::default(),
            endpoints: Table::default(),
            inbound: Table::default(),
            calls: Mutex::default(),
            cut: watch::channel(0).0,
        });
        let (addr, server) = serve(state.clone(), ([127, 0, 0, 1], 0).into());
        Self {
            addr,
            state,
            server: Some(server),
            elsewhere: Vec::new(),
        }
    }

    /// Serves on loopback of a namespace, too; gives where.
    pub fn listen_in(&mut self, netns: &Arc<Namespace>) -> SocketAddr {
        let state = self.state.clone();
        let (addr, server) = netns.run(|| serve(state, ([127, 0, 0, 1], 0).into()));
        self.elsewhere.push(Elsewhere {
            netns: netns.clone(),
            addr,
            server: Some(server),
        });
        addr
    }

    /// Where all services are.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The trust anchor of every certificate it issues.
    pub fn anchors_pem(&self) -> &str {
        &self.state.root_pem
    }

    /// The authority that signs.
    pub fn issuer(&self) -> &Ca {
        &self.state.issuer
    }

    /// How long certificates are valid from now on.
    pub fn set_validity(&self, validity: Validity) {
        *lock(&self.state.validity) = validity;
    }

    /// The policy of an address or `host:port`; without one the answer is NOT_FOUND.
    pub fn set_outbound(&self, target: impl ToString, policy: OutboundPolicy) {
        self.state.outbound.set(target.to_string(), Some(policy));
    }

    /// The profile of an address or `host:port`; without one the answer is INVALID_ARGUMENT.
    pub fn set_profile(&self, target: impl ToString, profile: DestinationProfile) {
        self.state.profiles.set(target.to_string(), Some(profile));
    }

    /// The endpoints of a service.
    pub fn set_endpoints(
        &self,
        path: impl ToString,
        addrs: impl IntoIterator<Item = WeightedAddr>,
    ) {
        let map = addrs
            .into_iter()
            .map(|addr| {
                let key = addr.addr.and_then(|a| SocketAddr::try_from(a).ok());
                (key.expect("an endpoint has an address"), addr)
            })
            .collect();
        self.state.endpoints.set(path.to_string(), Some(map));
    }

    /// The policy of an inbound port; without one the stream stays silent.
    pub fn set_inbound(&self, port: u16, server: Server) {
        self.state.inbound.set(port, Some(server));
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.state.calls).clone()
    }

    /// Ends every stream; clients will come back.
    pub fn cut_streams(&self) {
        self.state.cut.send_modify(|n| *n += 1);
    }

    /// Stops listening and closes every connection.
    pub fn stop(&mut self) {
        let others = self.elsewhere.iter_mut().map(|e| e.server.take());
        let running: Vec<Running> = others.chain([self.server.take()]).flatten().collect();
        if !running.is_empty() {
            self.cut_streams();
        }
        for server in running {
            let _ = server.stop.send(());
            let _ = server.thread.join();
        }
    }

    /// Listens again on the same address.
    pub fn restart(&mut self) {
        self.stop();
        let (_, server) = serve(self.state.clone(), self.addr);
        self.server = Some(server);
        for other in &mut self.elsewhere {
            let (state, addr) = (self.state.clone(), other.addr);
            let (_, server) = other.netns.run(|| serve(state, addr));
            other.server = Some(server);
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(state: Arc<State>, addr: SocketAddr) -> (SocketAddr, Running) {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(addr),
        socket2::Type::STREAM,
        None,
    )
    .expect("a socket can be made");
    socket.set_reuse_address(true).expect("an option");
    socket.set_nonblocking(true).expect("an option");
    socket
        .bind(&addr.into())
        .unwrap_or_else(|error| panic!("cannot listen on {addr}: {error}"));
    socket.listen(128).expect("a bound socket listens");
    let listener: std::net::TcpListener = socket.into();
    let addr = listener
        .local_addr()
        .expect("a bound socket has an address");
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new()
        .name("control-plane".into())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be made");
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a listener registers");
                let serve = tonic::transport::Server::builder()
                    .add_service(IdentityServer::from_arc(state.clone()))
                    .add_service(DestinationServer::from_arc(state.clone()))
                    .add_service(InboundServerPoliciesServer::from_arc(state.clone()))
                    .add_service(OutboundPoliciesServer::from_arc(state))
                    .serve_with_incoming(TcpListenerStream::new(listener));
                tokio::select! {
                    result = serve => result.expect("the control plane serves"),
                    _ = stopped => {}
                }
            });
        })
        .expect("a thread can be started");
    (addr, Running { stop, thread })
}

impl State {
    fn called(&self, call: Call) {
        lock(&self.calls).push(call);
    }

    /// Sends what `next` makes of each value until the streams are cut or the client is gone.
    fn stream<V, T>(
        &self,
        mut values: watch::Receiver<Option<V>>,
        mut next: impl FnMut(Option<&V>) -> Vec<Result<T, Status>> + Send + 'static,
    ) -> Response<Answers<T>>
    where
        V: Send + Sync + 'static,
        T: Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(16);
        let mut cut = self.cut.subscribe();
        #[expect(
            clippy::disallowed_methods,
            reason = "a test double has no spans to carry"
        )]
        tokio::spawn(async move {
            loop {
                let messages = next(values.borrow_and_update().as_ref());
                for message in messages {
                    if sender.send(message).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    changed = values.changed() => if changed.is_err() { return },
                    _ = cut.changed() => return,
                    () = sender.closed() => return,
                }
            }
        });
        Response::new(Box::pin(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl Identity for State {
    async fn certify(
        &self,
        request: Request<CertifyRequest>,
    ) -> Result<Response<CertifyResponse>, Status> {
        let request = request.into_inner();
        self.called(Call::Certify(request.identity.clone()));
        let validity = *lock(&self.validity);
        let chain = self
            .issuer
            .sign(&request.certificate_signing_request, validity);
        let mut chain = chain.into_iter().map(|cert| cert.to_vec());
        let lifetime = match validity {
            Validity::For(left) => left.whole_seconds(),
            _ => 24 * 3600,
        };
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after the epoch");
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX) + lifetime;
        Ok(Response::new(CertifyResponse {
            leaf_certificate: chain.next().expect("a leaf"),
            intermediate_certificates: chain.collect(),
            valid_until: Some(prost_types::Timestamp { seconds, nanos: 0 }),
        }))
    }
}

#[tonic::async_trait]
impl Destination for State {
    type GetStream = Answers<Update>;
    type GetProfileStream = Answers<DestinationProfile>;

    async fn get(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Answers<Update>>, Status> {
        let path = request.into_inner().path;
        self.called(Call::Get(path.clone()));
        let mut sent: Option<Endpoints> = None;
        Ok(self.stream(self.endpoints.subscribe(path), move |value| {
            let mut updates = Vec::new();
            let Some(now) = value else {
                if sent.is_none() {
                    updates.push(update::Update::NoEndpoints(NoEndpoints { exists: false }));
                    sent = Some(Endpoints::new());
                }
                return updates.into_iter().map(wrap).collect();
            };
            let old = sent.replace(now.clone()).unwrap_or_default();
            let removed: Vec<_> = old
                .keys()
                .filter(|addr| !now.contains_key(*addr))
                .map(|addr| (*addr).into())
                .collect();
            if !removed.is_empty() {
                updates.push(update::Update::Remove(AddrSet { addrs: removed }));
            }
            if now.is_empty() {
                updates.push(update::Update::NoEndpoints(NoEndpoints { exists: true }));
            } else {
                updates.push(update::Update::Add(WeightedAddrSet {
                    addrs: now.values().cloned().collect(),
                    metric_labels: HashMap::new(),
                }));
            }
            updates.into_iter().map(wrap).collect()
        }))
    }

    async fn get_profile(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Answers<DestinationProfile>>, Status> {
        let path = request.into_inner().path;
        self.called(Call::GetProfile(path.clone()));
        let values = self.profiles.subscribe(path);
        if values.borrow().is_none() {
            return Err(Status::invalid_argument("no profile"));
        }
        Ok(self.stream(values, |v| v.cloned().map(Ok).into_iter().collect()))
    }
}

fn wrap(update: update::Update) -> Result<Update, Status> {
    Ok(Update {
        update: Some(update),
    })
}

#[tonic::async_trait]
impl InboundServerPolicies for State {
    type WatchPortStream = Answers<Server>;

    /// What people ask; the proxy watches.
    async fn get_port(&self, request: Request<PortSpec>) -> Result<Response<Server>, Status> {
        let port = u16::try_from(request.into_inner().port)
            .map_err(|_| Status::invalid_argument("not a port"))?;
        let server = self.inbound.subscribe(port).borrow().clone();
        let server = server.ok_or_else(|| Status::not_found("no policy"))?;
        Ok(Response::new(server))
    }

    async fn watch_port(
        &self,
        request: Request<PortSpec>,
    ) -> Result<Response<Answers<Server>>, Status> {
        let port = u16::try_from(request.into_inner().port)
            .map_err(|_| Status::invalid_argument("not a port"))?;
        self.called(Call::WatchPort(port));
        let values = self.inbound.subscribe(port);
        Ok(self.stream(values, |v| v.cloned().map(Ok).into_iter().collect()))
    }
}

#[tonic::async_trait]
impl OutboundPolicies for State {
    type WatchStream = Answers<OutboundPolicy>;

    /// What people ask; the proxy watches.
    async fn get(&self, request: Request<TrafficSpec>) -> Result<Response<OutboundPolicy>, Status> {
        let target = target(request.into_inner())?;
        let policy = self.outbound.subscribe(target).borrow().clone();
        let policy = policy.ok_or_else(|| Status::not_found("no policy"))?;
        Ok(Response::new(policy))
    }

    async fn watch(
        &self,
        request: Request<TrafficSpec>,
    ) -> Result<Response<Answers<OutboundPolicy>>, Status> {
        let target = target(request.into_inner())?;
        self.called(Call::WatchOutbound(target.clone()));
        let values = self.outbound.subscribe(target);
        if values.borrow().is_none() {
            return Err(Status::not_found("no policy"));
        }
        Ok(self.stream(values, |v| v.cloned().map(Ok).into_iter().collect()))
    }
}

fn target(traffic: TrafficSpec) -> Result<String, Status> {
    match traffic.target {
        Some(traffic_spec::Target::Addr(addr)) => Ok(SocketAddr::try_from(addr)
            .map_err(|_| Status::invalid_argument("not an address"))?
            .to_string()),
        Some(traffic_spec::Target::Authority(authority)) => Ok(authority),
        None => Err(Status::invalid_argument("no target")),
    }
}
