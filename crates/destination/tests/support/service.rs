//! The real service on a loopback port with a real client; objects go straight into the index.

#![allow(dead_code, unreachable_pub, reason = "each user takes what it needs")]

use std::{net::SocketAddr, time::Duration};

use linkerd_api::proto::destination::{
    DestinationProfile, GetDestination, Update, destination_client::DestinationClient,
};
use linkerd_destination::{Clusters, Config, Discovery, Index, Metrics, Server, serve};
use linkerd_k8s::{EndpointSlice, Index as _, Pod, Service};
use linkerd_runtime::{drain, gate::Gate, metrics::grpc::Calls, ready::Readiness};
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tonic::{Status, Streaming, transport::Channel};

#[path = "../../src/fixture.rs"]
pub mod fixture;

use fixture::*;

/// Much longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The service, what it is made of, and a client of it.
pub struct Running {
    pub discovery: Discovery,
    pub clusters: Clusters,
    pub ready: Readiness,
    pub client: DestinationClient<Channel>,
    pub addr: SocketAddr,
    pub drain: drain::Signal,
    pub server: JoinHandle<()>,
}

impl Running {
    pub async fn start() -> Self {
        Self::behind(Gate::open()).await
    }

    pub async fn behind(gate: Gate) -> Self {
        let discovery = Discovery::new(Config::default(), Metrics::default());
        let (signal, watch) = drain::channel();
        let ready = Readiness::new();
        let clusters = Clusters::default();
        let server = Server::new(
            discovery.clone(),
            clusters.clone(),
            ready.clone(),
            watch.clone(),
            Calls::unregistered(),
            gate,
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let server = linkerd_runtime::spawn("server", async move {
            serve(server, listener, watch).await.expect("serves");
        });
        let client = DestinationClient::connect(format!("http://{addr}"))
            .await
            .expect("connects");
        Self {
            discovery,
            clusters,
            ready,
            client,
            addr,
            drain: signal,
            server,
        }
    }

    pub async fn with_web() -> Self {
        let running = Self::start().await;
        running.index(|index| {
            index.apply(object::<Service>(service("10.0.0.1")));
            index.apply(object::<EndpointSlice>(slice(
                "web-1",
                &[to_pod("a", "10.1.0.1")],
            )));
            index.apply(object::<Pod>(pod("a", "10.1.0.1")));
        });
        running
    }

    pub fn index(&self, change: impl FnOnce(&mut Index)) {
        change(&mut self.discovery.index().lock());
    }

    pub async fn get(&mut self, path: &str, token: &str) -> Result<Streaming<Update>, Status> {
        let request = GetDestination {
            path: path.to_owned(),
            context_token: token.to_owned(),
            ..GetDestination::default()
        };
        self.client
            .get(request)
            .await
            .map(tonic::Response::into_inner)
    }

    pub async fn profile(
        &mut self,
        path: &str,
        token: &str,
    ) -> Result<Streaming<DestinationProfile>, Status> {
        let request = GetDestination {
            path: path.to_owned(),
            context_token: token.to_owned(),
            ..GetDestination::default()
        };
        self.client
            .get_profile(request)
            .await
            .map(tonic::Response::into_inner)
    }
}

pub async fn next<T>(stream: &mut Streaming<T>) -> T {
    let message = timeout(PATIENCE, stream.message())
        .await
        .expect("a message in time");
    message.expect("no error").expect("the stream is open")
}

/// Reads updates until the replayed state is as wanted.
pub async fn until(
    stream: &mut Streaming<Update>,
    seen: &mut Replay,
    wanted: impl Fn(&Replay) -> bool,
) {
    while !wanted(seen) {
        seen.update(next(stream).await);
    }
}

pub const WEB: &str = "web.ns.svc.cluster.local:80";
