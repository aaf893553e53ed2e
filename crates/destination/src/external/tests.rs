//! Two replicas against one API server that checks who writes: slices come from the holder of the
//! lease only, also while it is handed over.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kube::{Client, client::Body};
use linkerd_k8s::lease::Candidate;
use linkerd_runtime::drain;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::fixture::{object, with};

/// How long the server takes to write a slice.
const SLOW: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(120);

/// Holds one Lease and the slices, and notes who wrote what.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    lease: Option<Value>,
    slices: Vec<(String, Value)>,
    begun: usize,
    /// Writes by somebody who did not hold the lease when they were done.
    trespasses: Vec<String>,
    /// Writes to this Service are refused.
    refused: Option<&'static str>,
}

type Answer = (u16, Value);

impl Server {
    fn client(&self, who: &'static str) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (status, body) = server.answer(who, request).await;
                let body = Full::new(bytes::Bytes::from(body.to_string()));
                let response = Response::builder().status(status).body(body);
                Ok::<_, Infallible>(response.expect("a response"))
            }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, who: &str, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if head.uri.path().contains("/leases") {
            return self.lease(&head.method, body);
        }
        self.0.lock().begun += 1;
        tokio::time::sleep(SLOW).await;
        self.slice(who, &head.method, body)
    }

    fn lease(&self, method: &Method, body: Value) -> Answer {
        let mut state = self.0.lock();
        let Some(lease) = state.lease.clone() else {
            if *method != Method::POST {
                return failure(404);
            }
            return state.write_lease(body);
        };
        match *method {
            Method::GET => (200, lease),
            Method::PATCH
                if body["metadata"]["resourceVersion"] == lease["metadata"]["resourceVersion"] =>
            {
                state.write_lease(with(lease, body))
            }
            _ => failure(409),
        }
    }

    fn slice(&self, who: &str, method: &Method, mut slice: Value) -> Answer {
        let mut state = self.0.lock();
        let service = slice["metadata"]["labels"]["kubernetes.io/service-name"].clone();
        if state.refused.is_some_and(|refused| service == refused) {
            return failure(500);
        }
        if state.holder() != who {
            let trespass = format!("{who} wrote while {:?} led", state.holder());
            state.trespasses.push(trespass);
        }
        state.version += 1;
        if *method == Method::POST {
            slice["metadata"]["name"] = json!(format!("slice-{}", state.version));
        }
        slice["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.slices.push((who.to_owned(), slice.clone()));
        (200, slice)
    }
}

impl State {
    fn write_lease(&mut self, mut lease: Value) -> Answer {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        (200, lease)
    }

    fn holder(&self) -> String {
        let holder = self
            .lease
            .as_ref()
            .and_then(|it| it["spec"]["holderIdentity"].as_str());
        holder.unwrap_or_default().to_owned()
    }
}

fn failure(code: u16) -> Answer {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code,
    });
    (code, status)
}

/// A replica that knows Services selecting the one workload.
struct Replica {
    controller: Controller,
    drain: drain::Signal,
}

impl Replica {
    fn start(server: &Server, who: &'static str, services: &[&str]) -> Self {
        let replica = Self::knowing(services);
        replica.workload("192.0.2.1");
        replica.run(server, who, &Readiness::new());
        replica
    }

    /// A replica that has not heard of the workload yet.
    fn knowing(services: &[&str]) -> Self {
        let controller = Controller::new(Metrics::default());
        {
            let mut state = controller.state.lock();
            for name in services {
                let service = json!({
                    "metadata": {"namespace": "ns", "name": name, "uid": name},
                    "spec": {
                        "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"], "selector": {"app": "vm"},
                        "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
                    },
                });
                Index::<Service>::apply(&mut *state, object(service));
            }
        }
        Self {
            controller,
            drain: drain::channel().0,
        }
    }

    fn run(&self, server: &Server, who: &'static str, listed: &Readiness) {
        let client = server.client(who);
        let (candidate, leadership) = Candidate::new(client.clone(), lease_params("linkerd", who));
        let writing = crate::run::write_under_lease(
            self.controller.clone(),
            client,
            candidate,
            leadership,
            listed.clone(),
            self.drain.watch(),
        );
        linkerd_runtime::spawn("slices", writing);
    }

    fn workload(&self, ip: &str) {
        let workload = json!({
            "metadata": {"namespace": "ns", "name": "vm", "uid": "vm", "labels": {"app": "vm"}},
            "spec": {
                "meshTLS": {"identity": "spiffe://td/vm", "serverName": "vm.td"},
                "ports": [{"name": "http", "port": 8080}],
                "workloadIPs": [{"ip": ip}],
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let mut state = self.controller.state.lock();
        Index::<ExternalWorkload>::apply(&mut *state, object(workload));
    }
}

async fn until(server: &Server, what: &str, condition: impl Fn(&State) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition(&server.0.lock()) {
        if Instant::now() >= deadline {
            let state = server.0.lock();
            panic!(
                "waited in vain for {what}: lease {:?}, {} writes begun, {} done",
                state.lease,
                state.begun,
                state.slices.len()
            );
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn last_writer(state: &State) -> Option<&str> {
    state.slices.last().map(|(who, _)| who.as_str())
}

#[tokio::test(start_paused = true)]
async fn a_write_under_way_is_done_before_the_lease_is_let_go() {
    let server = Server::default();
    let first = Replica::start(&server, "first", &["web"]);
    until(&server, "the first slice", |state| state.slices.len() == 1).await;
    let second = Replica::start(&server, "second", &["web"]);

    // In the middle of a write, the first replica is told to go.
    first.workload("192.0.2.2");
    until(&server, "a second write", |state| state.begun == 2).await;
    first.drain.drain().await;
    assert_eq!(server.0.lock().slices.len(), 2, "it was carried out");
    assert_ne!(server.0.lock().holder(), "first");

    until(&server, "the second to lead", |state| {
        state.holder() == "second"
    })
    .await;
    second.workload("192.0.2.3");
    until(&server, "its slice", |state| {
        last_writer(state) == Some("second")
    })
    .await;
    assert_eq!(server.0.lock().trespasses, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_be_written_does_not_hold_up_others() {
    let server = Server::default();
    server.0.lock().refused = Some("bad");
    let replica = Replica::start(&server, "one", &["bad", "web"]);
    until(&server, "the other's slice", |state| {
        state.slices.len() == 1
    })
    .await;
    until(&server, "many tries", |state| state.begun > 8).await;
    let started = Instant::now();
    replica.workload("192.0.2.2");
    until(&server, "the other's next slice", |state| {
        state.slices.len() == 2
    })
    .await;
    assert!(started.elapsed() < Duration::from_secs(2), "at once");
    assert!(replica.controller.metrics.retries.get() > 3);
    // In the end it is left alone.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(replica.controller.metrics.drops.get(), 1);
}

/// Before workloads are listed, the slices of the replica that led before look like too many.
#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_everything_is_listed() {
    let server = Server::default();
    let before = Replica::start(&server, "before", &["web"]);
    until(&server, "a slice", |state| state.slices.len() == 1).await;
    before.drain.drain().await;
    let (_, slice) = server.0.lock().slices[0].clone();

    let replica = Replica::knowing(&["web"]);
    Index::<EndpointSlice>::reset(&mut *replica.controller.state.lock(), vec![object(slice)]);
    let listed = Readiness::new();
    let workloads = listed.block("externalworkloads");
    replica.run(&server, "after", &listed);
    until(&server, "the second to lead", |state| {
        state.holder() == "after"
    })
    .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.0.lock().begun, 1, "only what was written before");

    replica.workload("192.0.2.1");
    workloads.release();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.0.lock().begun, 1, "all is as it should be");
    replica.workload("192.0.2.2");
    until(&server, "its slice", |state| {
        last_writer(state) == Some("after")
    })
    .await;
}

/// A writer that is gone must not leave its lease behind.
#[tokio::test(start_paused = true)]
async fn a_writer_that_ends_by_itself_gives_the_lease_back() {
    let server = Server::default();
    let client = server.client("one");
    let (candidate, mut leadership) = Candidate::new(client, lease_params("linkerd", "one"));
    let (signal, drain) = drain::channel();
    let writer = linkerd_runtime::spawn("writer", async move { leadership.acquired().await });
    let ended = candidate.run_for(writer, drain, PATIENCE).await;
    assert_eq!(ended, Err(linkerd_k8s::lease::WriterEnded));
    assert_eq!(server.0.lock().holder(), "");
    drop(signal);
}
