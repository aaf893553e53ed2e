//! The Destination service: reads requests, finds what they ask for, and serves streams of
//! messages that were encoded once for everybody.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::Arc,
    task,
    time::{Duration, Instant},
};

use ahash::AHashMap;
use bytes::Bytes;
use futures::{
    future::{BoxFuture, join_all},
    stream::{self, BoxStream, Stream, StreamExt},
};
use linkerd_api::proto::destination::GetDestination;
use linkerd_runtime::{
    drain,
    gate::Gate,
    metrics::grpc::{self as calls, Call, Calls},
    ready::Readiness,
};
use tokio::sync::watch;
use tonic::{Code, Status, body::Body};
use tracing::debug;

pub(crate) mod frame;
mod wire;

pub use wire::Wire;

use crate::{
    clusters::Clusters,
    federated::{FederatedStream, remote_members},
    index::{Dispatch, NoService},
    intern::{Name, ObjectId},
    name::{Authority, ServiceName, Token},
    stream::{AtAddress, Client, Discovery, EndpointsStream, Next, ProfileStream},
    view::Messages,
};

const SERVICE: &str = "io.linkerd.proxy.destination.Destination";
pub(crate) static GET: calls::Method = calls::Method::server_stream(SERVICE, "Get");
static GET_PROFILE: calls::Method = calls::Method::server_stream(SERVICE, "GetProfile");

/// A request that comes before the index is filled waits this long for it.
const SYNC_PATIENCE: Duration = Duration::from_secs(2);

/// A cluster that was linked longer ago than this and is not listed yet is away.
const NEW_CLUSTER: Duration = Duration::from_secs(10);

/// Serves `io.linkerd.proxy.destination.Destination`.
#[derive(Clone, Debug)]
pub struct Server(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    local: Discovery,
    clusters: Clusters,
    wire: Arc<Wire>,
    ready: Readiness,
    drain: drain::Watch,
    calls: Calls,
    gate: Gate,
}

/// Framed messages.
type ByteStream = BoxStream<'static, Bytes>;

// === impl Server ===

impl Server {
    /// Requests are answered once `ready` says that every kind was listed; streams end when
    /// `drain` is signalled; `gate` says how many may come at once.
    pub fn new(
        local: Discovery,
        clusters: Clusters,
        ready: Readiness,
        drain: drain::Watch,
        calls: Calls,
        gate: Gate,
    ) -> Self {
        let wire = Arc::new(Wire::new(local.config()));
        Self(Arc::new(Inner {
            local,
            clusters,
            wire,
            ready,
            drain,
            calls,
            gate,
        }))
    }
}

impl Inner {
    async fn get(&self, path: &str, token: Token) -> Result<ByteStream, Status> {
        let invalid = || Status::invalid_argument(format!("Invalid authority: {path}"));
        let authority = Authority::parse(path).ok_or_else(invalid)?;
        if authority.ip().is_some() {
            let host = &authority.host;
            return Err(Status::invalid_argument(format!(
                "IP queries not supported by Get API: host={host}"
            )));
        }
        let domain = &self.local.config().cluster_domain;
        let name = ServiceName::parse(&authority.host, domain).ok_or_else(invalid)?;
        self.synced().await?;

        let id = ObjectId::new(&name.namespace, &name.service);
        let port = authority.port;
        let dispatch = self.local.dispatch(&id).map_err(|error| match error {
            NoService::Unknown => not_found(&id),
            NoService::ExternalName => invalid(),
        })?;
        let client = Client {
            hostname: name.hostname.map(Name::from),
            node: Some(token.node)
                .filter(|node| !node.is_empty())
                .map(Name::from),
            anywhere: false,
        };
        let zones = self.local.zones();
        match dispatch {
            Dispatch::Local => {
                let stream = self.local.endpoints(&id, port, client, zones);
                Ok(self.serve(
                    Endpoints {
                        stream,
                        discovery: self.local.clone(),
                        id,
                        port,
                    },
                    &GET,
                ))
            }
            Dispatch::Remote { cluster, service } => {
                let service = service
                    .filter(|service| !service.is_empty())
                    .ok_or_else(|| {
                        let message =
                            format!("Remote discovery service missing remote service name {path}");
                        Status::failed_precondition(message)
                    })?;
                let remote = self.clusters.get(&cluster).ok_or_else(|| {
                    Status::not_found(format!("Remote cluster not found: {cluster}"))
                })?;
                // A set that is not complete would take endpoints away from a client that had them.
                listed(remote.listed()).await?;
                let follow = self
                    .local
                    .endpoints(&id, port, client.clone(), zones.clone());
                let client = Client {
                    anywhere: true,
                    ..client
                };
                let remote_id = ObjectId {
                    namespace: id.namespace.clone(),
                    name: service,
                };
                let stream = remote.endpoints(&remote_id, port, client, zones);
                let inner = Endpoints {
                    stream,
                    discovery: remote,
                    id: remote_id,
                    port,
                };
                let remote = Remote {
                    inner,
                    follow,
                    cluster,
                    clusters: self.clusters.follow(),
                };
                Ok(self.serve(remote, &GET))
            }
            Dispatch::Federated { remote, .. } => {
                self.members_listed(remote.as_deref().unwrap_or_default())
                    .await;
                let stream = FederatedStream::new(&self.local, &self.clusters, &id, port, client);
                Ok(self.serve(stream, &GET))
            }
        }
    }

    async fn get_profile(&self, path: &str, token: Token) -> Result<ByteStream, Status> {
        let invalid = || Status::invalid_argument(format!("Invalid authority: {path}"));
        let authority = Authority::parse(path).ok_or_else(invalid)?;
        let port = authority.port;
        let client = Some(token.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        if let Some(ip) = authority.ip() {
            self.synced().await?;
            return self.address_profile(ip, port, client, &invalid);
        }
        let domain = &self.local.config().cluster_domain;
        let name = ServiceName::parse(&authority.host, domain).ok_or_else(invalid)?;
        self.synced().await?;
        let id = ObjectId::new(&name.namespace, &name.service);
        match name.hostname {
            None => self.service_profile(&id, port, Some(&authority.host), client, &invalid),
            Some(hostname) => {
                // Only a Service that is there has instances.
                self.local.dispatch(&id).map_err(|error| match error {
                    NoService::Unknown => not_found(&id),
                    NoService::ExternalName => invalid(),
                })?;
                let stream = self.local.instance(&id, &hostname, port).ok_or_else(|| {
                    let ObjectId { namespace, name } = &id;
                    Status::not_found(format!(
                        "no pod found in Service {name}.{namespace} for hostname {hostname}"
                    ))
                })?;
                Ok(self.serve_profile(stream))
            }
        }
    }

    fn address_profile(
        &self,
        ip: IpAddr,
        port: u16,
        client: Option<&str>,
        invalid: &dyn Fn() -> Status,
    ) -> Result<ByteStream, Status> {
        match self.local.address(ip, port) {
            AtAddress::Service(id) => self.service_profile(&id, port, None, client, invalid),
            AtAddress::Profile(stream) => Ok(self.serve_profile(stream)),
            AtAddress::Conflict(message) => Err(Status::failed_precondition(message)),
        }
    }

    fn service_profile(
        &self,
        id: &ObjectId,
        port: u16,
        name: Option<&str>,
        client: Option<&str>,
        invalid: &dyn Fn() -> Status,
    ) -> Result<ByteStream, Status> {
        match self.local.service_profile(id, port, name, client) {
            Ok(stream) => Ok(self.serve_profile(stream)),
            Err(NoService::Unknown) => Err(not_found(id)),
            Err(NoService::ExternalName) => Err(invalid()),
        }
    }

    /// Nothing is answered from an index that has not been filled.
    async fn synced(&self) -> Result<(), Status> {
        if self.drain.is_draining() {
            return Ok(());
        }
        listed(&self.ready).await
    }

    /// Gives the clusters of a federated Service a moment to be listed, so that the first message
    /// has them all. One that stays away does not keep the others from being served, and is waited
    /// for only while it is new.
    async fn members_listed(&self, remote: &str) {
        let clusters = remote_members(remote, |_| {}).filter_map(|(_, it)| self.clusters.get(it));
        let clusters = clusters.filter(|it| it.age() < NEW_CLUSTER);
        let listed = clusters.map(|cluster| async move { cluster.listed().ready().await });
        let _ = tokio::time::timeout(SYNC_PATIENCE, join_all(listed)).await;
    }

    fn serve_profile(&self, stream: ProfileStream) -> ByteStream {
        let discovery = self.local.clone();
        self.serve(Profiles { stream, discovery }, &GET_PROFILE)
    }

    fn serve(&self, source: impl Source + 'static, method: &'static calls::Method) -> ByteStream {
        let call = self.calls.start(method);
        serve(source, self.wire.clone(), self.drain.clone(), call).boxed()
    }
}

async fn listed(ready: &Readiness) -> Result<(), Status> {
    if ready.is_ready() {
        return Ok(());
    }
    let waited = tokio::time::timeout(SYNC_PATIENCE, ready.ready()).await;
    waited.map_err(|_| Status::unavailable("not all watches have been listed yet"))
}

fn not_found(id: &ObjectId) -> Status {
    Status::not_found(format!("Service {}.{} not found", id.name, id.namespace))
}

// === Streams ===

/// Where the messages of a stream come from.
pub(crate) trait Source: Send {
    /// What the client must be told to see what is now.
    fn next(&mut self, wire: &Wire) -> Next;

    /// Ends when there may be something to tell.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

/// Endpoints of a Service in one cluster.
struct Endpoints {
    stream: EndpointsStream,
    discovery: Discovery,
    id: ObjectId,
    port: u16,
}

/// Endpoints of another cluster, as long as the local Service points there and the cluster stays
/// linked as it was.
struct Remote {
    inner: Endpoints,
    follow: EndpointsStream,
    cluster: Name,
    clusters: watch::Receiver<Arc<AHashMap<Name, Discovery>>>,
}

/// Profiles of a Service or of an address.
struct Profiles {
    stream: ProfileStream,
    discovery: Discovery,
}

impl Source for Endpoints {
    fn next(&mut self, wire: &Wire) -> Next {
        let next = self.stream.next(wire);
        if self.stream.missed() > self.discovery.config().stream_queue_capacity {
            self.discovery.metrics().overflow(&self.id, self.port);
        }
        next
    }

    async fn changed(&mut self) {
        self.stream.changed().await;
    }
}

impl Source for Remote {
    fn next(&mut self, wire: &Wire) -> Next {
        // A cluster that was linked anew is another index; the old one is not fed any more.
        let linked = self.clusters.borrow_and_update();
        let same = linked
            .get(&self.cluster)
            .is_some_and(|discovery| self.inner.stream.is_of(discovery));
        drop(linked);
        if !same {
            return Next::End;
        }
        match self.follow.next(wire) {
            Next::End => Next::End,
            Next::Send(_) | Next::Wait => self.inner.next(wire),
        }
    }

    async fn changed(&mut self) {
        tokio::select! {
            () = self.inner.changed() => {}
            () = self.follow.changed() => {}
            changed = self.clusters.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
        }
    }
}

impl Source for Profiles {
    fn next(&mut self, wire: &Wire) -> Next {
        let next = self.stream.next(|profile| wire.profile(profile));
        if self.stream.missed() > self.discovery.config().stream_queue_capacity {
            let metrics = self.discovery.metrics();
            match self.stream.service() {
                Some((name, port)) => metrics.profile_overflow(name, port),
                None => metrics.endpoint_profile_overflow(),
            }
        }
        next
    }

    async fn changed(&mut self) {
        self.stream.changed().await;
    }
}

/// Messages of a source until it ends or the process drains. Nothing is computed before the
/// transport asks for it.
fn serve(
    source: impl Source + 'static,
    wire: Arc<Wire>,
    drain: drain::Watch,
    call: Call,
) -> impl Stream<Item = Bytes> + Send {
    struct State<S> {
        source: S,
        pending: smallvec::IntoIter<[Bytes; 2]>,
        wire: Arc<Wire>,
        drain: drain::Watch,
        call: Call,
    }
    let pending = Messages::new().into_iter();
    let state = State {
        source,
        pending,
        wire,
        drain,
        call,
    };
    stream::unfold(state, |mut state| async move {
        loop {
            if let Some(message) = state.pending.next() {
                state.call.sent();
                return Some((message, state));
            }
            match state.source.next(&state.wire) {
                Next::Send(messages) => state.pending = messages.into_iter(),
                Next::End => {
                    state.call.end(Code::Ok.into());
                    return None;
                }
                Next::Wait => {
                    tokio::select! {
                        () = state.source.changed() => {}
                        () = state.drain.signaled() => {
                            state.call.end(Code::Ok.into());
                            return None;
                        }
                    }
                }
            }
        }
    })
}

// === The service as the transport sees it ===

impl tonic::server::NamedService for Server {
    const NAME: &'static str = SERVICE;
}

#[derive(Clone, Copy)]
enum Method {
    Get,
    GetProfile,
}

impl Inner {
    async fn call<B>(&self, method: Method, request: http::Request<B>) -> http::Response<Body>
    where
        B: tonic::codegen::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<tonic::codegen::StdError> + Send + 'static,
    {
        let request = match frame::read(request.into_body()).await {
            Ok(request) => request,
            Err(status) => return status.into_http(),
        };
        let (name, counted) = match method {
            Method::Get => ("Get", &GET),
            Method::GetProfile => ("GetProfile", &GET_PROFILE),
        };
        let token = Token::parse(&request.context_token);
        let answer = match (self.enter(&request, &token), method) {
            (Err(status), _) => Err(status),
            (Ok(()), Method::Get) => self.get(&request.path, token).await,
            (Ok(()), Method::GetProfile) => self.get_profile(&request.path, token).await,
        };
        log(&request, name, &answer);
        match answer {
            Ok(messages) => frame::respond(messages),
            Err(status) => {
                self.calls.start(counted).end(status.code().into());
                status.into_http()
            }
        }
    }

    /// Whether there is time for one more stream of this client now. A token without a pod does not
    /// say whose it is.
    fn enter(&self, request: &GetDestination, token: &Token) -> Result<(), Status> {
        let client = Some(request.context_token.as_str()).filter(|_| !token.pod.is_empty());
        let entered = self.gate.enter(client, Instant::now());
        entered.map_err(|too_many| {
            let mut status = Status::unavailable(too_many.to_string());
            let pause = u64::try_from(too_many.0.as_millis()).unwrap_or(u64::MAX);
            let metadata = status.metadata_mut();
            metadata.insert("grpc-retry-pushback-ms", pause.max(1).into());
            status
        })
    }
}

fn log(request: &GetDestination, method: &str, answer: &Result<ByteStream, Status>) {
    let GetDestination {
        path,
        context_token,
        ..
    } = request;
    match answer {
        Ok(_) => debug!(method, %path, token = %context_token, "Subscribed"),
        Err(status) => {
            debug!(method, %path, token = %context_token, code = ?status.code(), error = status.message(), "Refused");
        }
    }
}

impl<B> tonic::codegen::Service<http::Request<B>> for Server
where
    B: tonic::codegen::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<tonic::codegen::StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), Infallible>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let inner = self.0.clone();
        let method = match request.uri().path() {
            "/io.linkerd.proxy.destination.Destination/Get" => Method::Get,
            "/io.linkerd.proxy.destination.Destination/GetProfile" => Method::GetProfile,
            _ => return Box::pin(async { Ok(Status::unimplemented("").into_http()) }),
        };
        Box::pin(async move { Ok(inner.call(method, request).await) })
    }
}

#[cfg(test)]
mod tests;
