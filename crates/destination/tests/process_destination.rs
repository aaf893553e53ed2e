//! The gRPC service with a real client and a real server in one process; objects go straight into
//! the index.

use std::time::Duration;

use linkerd_api::proto::destination::{GetDestination, Update, update};
use linkerd_k8s::{EndpointSlice, ExternalWorkload, Index as _, Key, Pod, Service, ServiceProfile};
use linkerd_runtime::gate::{Gate, Rate};
use serde_json::json;
use tokio::time::timeout;
use tonic::{Code, transport::Channel};

#[path = "support/service.rs"]
mod service;

use service::{PATIENCE, Running, WEB, fixture::*, next, until};

/// What a proxy grants the first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn endpoints_follow_the_objects() {
    let mut running = Running::with_web().await;
    let mut stream = running
        .get(WEB, r#"{"ns":"ns","nodeName":"node-1"}"#)
        .await
        .expect("a stream");
    let mut seen = Replay::default();
    seen.update(next(&mut stream).await);
    assert_eq!(seen.addresses(), ["10.1.0.1:8080".to_owned()].into());

    running.index(|index| {
        index.apply(object::<Pod>(pod("b", "10.1.0.2")));
        let both = [to_pod("a", "10.1.0.1"), to_pod("b", "10.1.0.2")];
        index.apply(object::<EndpointSlice>(slice("web-1", &both)));
    });
    until(&mut stream, &mut seen, |seen| seen.endpoints.len() == 2).await;

    running.index(|index| {
        linkerd_k8s::Index::<EndpointSlice>::delete(index, &Key::new("ns", "web-1"))
    });
    until(&mut stream, &mut seen, |seen| seen.endpoints.is_empty()).await;
    assert_eq!(seen.exists, Some(true));
}

/// Whatever is asked for, something is said before a proxy gives up.
#[tokio::test]
async fn the_first_message_comes_in_time() {
    let mut running = Running::with_web().await;
    running.index(|index| {
        index.apply(object::<Service>(with(
            service("10.0.0.2"),
            json!({"metadata": {"name": "empty"}}),
        )));
    });
    for path in [
        WEB,
        "empty.ns.svc.cluster.local",
        "web.ns.svc.cluster.local:9999",
        "x.web.ns.svc.cluster.local:80",
    ] {
        let mut stream = running.get(path, "").await.expect("a stream");
        timeout(FIRST_MESSAGE, next(&mut stream))
            .await
            .unwrap_or_else(|_| panic!("{path}"));
    }
    for path in [
        WEB,
        "10.0.0.1:80",
        "10.0.0.1:81",
        "10.1.0.1:8080",
        "[fd00::1]:80",
        "8.8.8.8:53",
        "empty.ns.svc.cluster.local",
    ] {
        let mut stream = running.profile(path, "ns:other").await.expect("a stream");
        timeout(FIRST_MESSAGE, next(&mut stream))
            .await
            .unwrap_or_else(|_| panic!("{path}"));
    }
}

#[tokio::test]
async fn an_empty_service_is_said_to_be_empty() {
    let mut running = Running::start().await;
    running.index(|index| index.apply(object::<Service>(service("10.0.0.1"))));
    let mut stream = running.get(WEB, "").await.expect("a stream");
    match next(&mut stream).await.update {
        Some(update::Update::NoEndpoints(none)) => assert!(none.exists),
        other => panic!("{other:?}"),
    }
}

/// Spec 2.1 and 2.2: what is refused, and how.
#[tokio::test]
async fn refusals_of_get() {
    let mut running = Running::with_web().await;
    let labelled = |name: &str, labels: serde_json::Value| {
        object::<Service>(with(
            service("None"),
            json!({"metadata": {"name": name, "labels": labels}}),
        ))
    };
    running.index(|index| {
        index.apply(object::<Service>(
            json!({"metadata": {"namespace": "ns", "name": "ext"},
            "spec": {"type": "ExternalName", "externalName": "example.com"}}),
        ));
        let cluster = "multicluster.linkerd.io/remote-discovery";
        index.apply(labelled("nameless", json!({cluster: "east"})));
        index.apply(labelled(
            "far",
            json!({cluster: "east", "multicluster.linkerd.io/remote-service": "web"}),
        ));
    });
    for (path, code, message) in [
        ("", Code::InvalidArgument, "Invalid authority: "),
        (
            "web.ns.svc.cluster.local:0",
            Code::InvalidArgument,
            "Invalid authority: web.ns.svc.cluster.local:0",
        ),
        (
            "web.ns.svc.cluster.local:65536",
            Code::InvalidArgument,
            "Invalid authority: web.ns.svc.cluster.local:65536",
        ),
        (
            "web.ns.svc.cluster.local:http",
            Code::InvalidArgument,
            "Invalid authority: web.ns.svc.cluster.local:http",
        ),
        (
            "web.ns.svc.cluster.local.:80",
            Code::InvalidArgument,
            "Invalid authority: web.ns.svc.cluster.local.:80",
        ),
        (
            "example.com:80",
            Code::InvalidArgument,
            "Invalid authority: example.com:80",
        ),
        (
            "a.b.web.ns.svc.cluster.local",
            Code::InvalidArgument,
            "Invalid authority: a.b.web.ns.svc.cluster.local",
        ),
        (
            "fd00::1",
            Code::InvalidArgument,
            "Invalid authority: fd00::1",
        ),
        (
            "[fd00::1]:80",
            Code::InvalidArgument,
            "IP queries not supported by Get API: host=fd00::1",
        ),
        (
            "10.0.0.1:80",
            Code::InvalidArgument,
            "IP queries not supported by Get API: host=10.0.0.1",
        ),
        (
            "ext.ns.svc.cluster.local:80",
            Code::InvalidArgument,
            "Invalid authority: ext.ns.svc.cluster.local:80",
        ),
        (
            "nobody.ns.svc.cluster.local:80",
            Code::NotFound,
            "Service nobody.ns not found",
        ),
        (
            "web.nowhere.svc.cluster.local:80",
            Code::NotFound,
            "Service web.nowhere not found",
        ),
        (
            "nameless.ns.svc.cluster.local:80",
            Code::FailedPrecondition,
            "Remote discovery service missing remote service name nameless.ns.svc.cluster.local:80",
        ),
        (
            "far.ns.svc.cluster.local:80",
            Code::NotFound,
            "Remote cluster not found: east",
        ),
    ] {
        let status = running.get(path, "").await.expect_err(path);
        assert_eq!((status.code(), status.message()), (code, message), "{path}");
    }
}

/// Spec 3.1: what is refused, and how.
#[tokio::test]
async fn refusals_of_get_profile() {
    let mut running = Running::with_web().await;
    running.index(|index| {
        index.apply(object::<Service>(
            json!({"metadata": {"namespace": "ns", "name": "ext"},
            "spec": {"type": "ExternalName", "externalName": "example.com"}}),
        ));
        index.apply(object::<Pod>(pod("twin", "10.1.0.1")));
        let host_port = json!({"spec": {"containers": [
            {"name": "app", "ports": [{"containerPort": 1, "hostPort": 7777}]},
        ]}});
        for (name, ip) in [("c", "10.1.0.3"), ("d", "10.1.0.4")] {
            index.apply(object::<Pod>(with(pod(name, ip), host_port.clone())));
        }
        for name in ["one", "two"] {
            let workload = external_workload(name, "172.16.0.1");
            index.apply(object::<ExternalWorkload>(workload));
        }
        index.apply(object::<Service>(with(
            service("10.0.0.1"),
            json!({"metadata": {"name": "twin"}}),
        )));
    });
    for (path, code, message) in [
        (
            "example.com:80",
            Code::InvalidArgument,
            "Invalid authority: example.com:80",
        ),
        (
            "10.0.0.1:0",
            Code::InvalidArgument,
            "Invalid authority: 10.0.0.1:0",
        ),
        (
            "ext.ns.svc.cluster.local:80",
            Code::InvalidArgument,
            "Invalid authority: ext.ns.svc.cluster.local:80",
        ),
        (
            "nobody.ns.svc.cluster.local:80",
            Code::NotFound,
            "Service nobody.ns not found",
        ),
        (
            "x.web.ns.svc.cluster.local:80",
            Code::NotFound,
            "no pod found in Service web.ns for hostname x",
        ),
        // An instance of a Service that is not there, or stands for something outside.
        (
            "x.nobody.ns.svc.cluster.local:80",
            Code::NotFound,
            "Service nobody.ns not found",
        ),
        (
            "x.ext.ns.svc.cluster.local:80",
            Code::InvalidArgument,
            "Invalid authority: x.ext.ns.svc.cluster.local:80",
        ),
        // Two claim the port of a host, or the address of a machine.
        (
            "192.168.0.1:7777",
            Code::FailedPrecondition,
            "found 2 pods with a conflicting host network endpoint 192.168.0.1:7777",
        ),
        (
            "172.16.0.1:8080",
            Code::FailedPrecondition,
            "found 2 externalworkloads with a conflicting ip 172.16.0.1",
        ),
        (
            "10.0.0.1:80",
            Code::FailedPrecondition,
            "found 2 services with conflicting cluster IP 10.0.0.1",
        ),
        (
            "10.1.0.1:80",
            Code::FailedPrecondition,
            "found 2 pods with a conflicting pod network IP 10.1.0.1",
        ),
    ] {
        let status = running.profile(path, "").await.expect_err(path);
        assert_eq!((status.code(), status.message()), (code, message), "{path}");
    }
}

/// A token nobody can read costs a log line, never discovery.
#[tokio::test]
async fn any_token_will_do() {
    let mut running = Running::with_web().await;
    for token in [
        "",
        "ns:shop",
        "{",
        "[]",
        r#"{"ns":1}"#,
        "\u{0}\u{7f}",
        r#"{"nodeName":"nowhere"}"#,
    ] {
        let mut stream = running.get(WEB, token).await.expect("a stream");
        let mut seen = Replay::default();
        seen.update(next(&mut stream).await);
        assert_eq!(seen.endpoints.len(), 1, "{token:?}");
    }
}

#[tokio::test]
async fn profiles_follow_the_objects() {
    let mut running = Running::with_web().await;
    let mut stream = running
        .profile("10.0.0.1:80", r#"{"ns":"shop"}"#)
        .await
        .expect("a stream");
    let profile = next(&mut stream).await;
    assert_eq!(profile.fully_qualified_name, "web.ns.svc.cluster.local");
    assert!(profile.routes.is_empty());
    running.index(|index| {
        index.apply(object::<ServiceProfile>(json!({
            "metadata": {"namespace": "shop", "name": "web.ns.svc.cluster.local"},
            "spec": {"routes": [{"name": "all", "condition": {"pathRegex": ".*"}}]},
        })));
    });
    assert_eq!(next(&mut stream).await.routes.len(), 1);
    running.index(|index| linkerd_k8s::Index::<Service>::delete(index, &Key::new("ns", "web")));
    let end = timeout(PATIENCE, stream.message()).await.expect("in time");
    assert!(matches!(end, Ok(None)), "the stream ends well: {end:?}");
}

/// Spec 3.1: an instance of a Service is answered for with the address of its pod.
#[tokio::test]
async fn the_profile_of_an_instance() {
    let mut running = Running::with_web().await;
    running.index(|index| {
        let named = with(to_pod("a", "10.1.0.1"), json!({"hostname": "web-0"}));
        index.apply(object::<EndpointSlice>(slice("web-1", &[named])));
    });
    let path = "web-0.web.ns.svc.cluster.local:8080";
    let mut stream = running.profile(path, "").await.expect("a stream");
    let profile = next(&mut stream).await;
    let endpoint = profile.endpoint.expect("an endpoint");
    let identity = "sa.ns.serviceaccount.identity.linkerd.cluster.local";
    assert_eq!(
        line(&endpoint),
        format!("10.1.0.1:8080 hint=h2 dns={identity} sni={identity}")
    );
    assert!(labels(&endpoint).contains("namespace=ns pod=a"));
    assert!(profile.fully_qualified_name.is_empty());
    running.index(|index| linkerd_k8s::Index::<Pod>::delete(index, &Key::new("ns", "a")));
    let endpoint = next(&mut stream).await.endpoint.expect("an endpoint");
    assert_eq!(line(&endpoint), "10.1.0.1:8080", "its pod is gone");
}

#[tokio::test]
async fn nothing_is_answered_from_an_index_that_is_not_filled() {
    let mut running = Running::with_web().await;
    let block = running.ready.block("pods");
    let status = running.get(WEB, "").await.expect_err("not yet");
    assert_eq!(status.code(), Code::Unavailable);
    // One that arrives early is answered as soon as the index is filled.
    let ready = running.ready.clone();
    let mut early = running.client.clone();
    let addr = running.addr;
    let asked = linkerd_runtime::spawn("early", async move {
        let request = GetDestination {
            path: WEB.to_owned(),
            ..GetDestination::default()
        };
        early.get(request).await.map(|_| addr)
    });
    drop(block);
    timeout(PATIENCE, ready.ready()).await.expect("ready");
    assert!(
        timeout(PATIENCE, asked)
            .await
            .expect("in time")
            .expect("task")
            .is_ok()
    );
}

#[tokio::test]
async fn streams_end_well_when_the_process_drains() {
    let mut running = Running::with_web().await;
    let mut endpoints = running.get(WEB, "").await.expect("a stream");
    let mut profile = running.profile(WEB, "").await.expect("a stream");
    next(&mut endpoints).await;
    next(&mut profile).await;
    linkerd_runtime::spawn("drain", running.drain.drain());
    let end = timeout(PATIENCE, endpoints.message())
        .await
        .expect("in time");
    assert!(matches!(end, Ok(None)), "{end:?}");
    let end = timeout(PATIENCE, profile.message()).await.expect("in time");
    assert!(matches!(end, Ok(None)), "{end:?}");
    drop((endpoints, profile, running.client));
    timeout(PATIENCE, running.server)
        .await
        .expect("the server ends")
        .expect("without a panic");
}

#[tokio::test]
async fn a_client_that_storms_is_told_to_come_later() {
    let rate = |burst| Rate {
        per_second: 1,
        burst,
    };
    let mut running = Running::behind(Gate::new(rate(100), rate(2))).await;
    running.index(|index| index.apply(object::<Service>(service("10.0.0.1"))));
    let storm = r#"{"ns":"ns","pod":"storm"}"#;
    let mut open = running.get(WEB, storm).await.expect("a stream");
    assert!(running.profile(WEB, storm).await.is_ok());
    let refused = running.get(WEB, storm).await.expect_err("too many");
    assert_eq!(refused.code(), Code::Unavailable);
    let pause = refused.metadata().get("grpc-retry-pushback-ms");
    let pause = pause.and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
    assert!(
        pause.is_some_and(|it| (1..=1000).contains(&it)),
        "{pause:?}"
    );
    // Others are served, and so are the streams that are open.
    assert!(
        running
            .get(WEB, r#"{"ns":"ns","pod":"calm"}"#)
            .await
            .is_ok()
    );
    next(&mut open).await;
    running.index(|index| {
        index.apply(object::<Pod>(pod("a", "10.1.0.1")));
        index.apply(object::<EndpointSlice>(slice(
            "web-1",
            &[to_pod("a", "10.1.0.1")],
        )));
    });
    next(&mut open).await;
}

/// Clients that do not say which pod they are cannot be told apart: none pays for the others.
#[tokio::test]
async fn clients_without_a_name_are_not_one_client() {
    let rate = |burst| Rate {
        per_second: 1,
        burst,
    };
    let mut running = Running::behind(Gate::new(rate(100), rate(2))).await;
    running.index(|index| index.apply(object::<Service>(service("10.0.0.1"))));
    for token in ["", "ns:shop", r#"{"ns":"shop","nodeName":"n"}"#, "?!"] {
        for _ in 0..5 {
            let stream = running.get(WEB, token).await;
            assert!(stream.is_ok(), "{token:?}: {:?}", stream.err());
        }
    }
}

#[tokio::test]
async fn unknown_methods_are_unimplemented() {
    let running = Running::start().await;
    let mut grpc = tonic::client::Grpc::new(
        Channel::from_shared(format!("http://{}", running.addr))
            .expect("a URI")
            .connect()
            .await
            .expect("connects"),
    );
    grpc.ready().await.expect("ready");
    let path =
        http::uri::PathAndQuery::from_static("/io.linkerd.proxy.destination.Destination/Nothing");
    let codec = tonic_prost::ProstCodec::<GetDestination, Update>::default();
    let status = grpc
        .unary(tonic::Request::new(GetDestination::default()), path, codec)
        .await
        .expect_err("no such method");
    assert_eq!(status.code(), Code::Unimplemented);
}

/// Many readers see the same last state, though some read only now and then.
#[tokio::test]
async fn many_readers_see_the_same() {
    let mut running = Running::with_web().await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let stream = running.get(WEB, "").await.expect("a stream");
        streams.push((stream, Replay::default()));
    }
    for n in 2..40 {
        let ip = format!("10.1.0.{n}");
        running.index(|index| {
            index.apply(object::<Pod>(pod("a", &ip)));
            index.apply(object::<EndpointSlice>(slice("web-1", &[to_pod("a", &ip)])));
        });
        if let Some((stream, seen)) = streams.get_mut(n) {
            seen.update(next(stream).await);
        }
    }
    let last = "10.1.0.39:8080".to_owned();
    for (stream, seen) in &mut streams {
        until(stream, seen, |seen| {
            seen.addresses() == [last.clone()].into()
        })
        .await;
    }
}
