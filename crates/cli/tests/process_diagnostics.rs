//! `linkerd diagnostics` against a control plane in this process, reached with `--api-addr`.

use linkerd_api::proto::{
    destination::{DestinationProfile, WeightedAddr},
    inbound::Server,
    outbound::OutboundPolicy,
};
use linkerd_testkit::control_plane::ControlPlane;
use serde_json::{Value, json};
use std::{net::SocketAddr, process::Command};

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn linkerd(api: &str, args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_linkerd"))
        .args(["--api-addr", api])
        .args(args)
        .env_clear()
        .output()
        .expect("linkerd starts");
    Ran {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn endpoint(address: &str, pod: &str) -> WeightedAddr {
    let address: SocketAddr = address.parse().expect("an address");
    let labels = [("pod", pod), ("namespace", "app"), ("service", "web")];
    WeightedAddr {
        addr: Some(address.into()),
        weight: 10000,
        metric_labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        ..WeightedAddr::default()
    }
}

#[test]
fn what_proxies_are_told() {
    let plane = ControlPlane::start();
    let api = plane.addr().to_string();
    let authority = "web.app.svc.cluster.local:80";
    plane.set_endpoints(
        authority,
        [
            endpoint("10.0.0.2:8080", "web-b"),
            endpoint("10.0.0.1:8080", "web-a"),
        ],
    );
    let ran = linkerd(&api, &["diagnostics", "endpoints", authority]);
    assert_eq!(
        ran.out,
        "NAMESPACE   IP         PORT   POD     SERVICE\n\
         app         10.0.0.1   8080   web-a   web.app\n\
         app         10.0.0.2   8080   web-b   web.app\n",
        "{}",
        ran.err
    );
    let ran = linkerd(&api, &["dg", "ep", authority, "-o", "json"]);
    let rows: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(rows[1]["pod"], "web-b");

    plane.set_endpoints("none.app.svc.cluster.local:80", []);
    let ran = linkerd(
        &api,
        &["diagnostics", "endpoints", "none.app.svc.cluster.local:80"],
    );
    assert_eq!(
        (ran.code, ran.out.as_str(), ran.err.as_str()),
        (0, "", "No endpoints found.\n")
    );

    plane.set_profile(
        "10.0.0.1:8080",
        DestinationProfile {
            fully_qualified_name: "web.app.svc.cluster.local".to_owned(),
            ..DestinationProfile::default()
        },
    );
    let ran = linkerd(&api, &["diagnostics", "profile", "10.0.0.1:8080"]);
    assert_eq!(
        ran.out, "{\n  \"fully_qualified_name\": \"web.app.svc.cluster.local\"\n}\n",
        "{}",
        ran.err
    );
}

#[test]
fn policies_as_yaml_and_json() {
    let plane = ControlPlane::start();
    let api = plane.addr().to_string();
    let labels = [("kind", "default"), ("name", "all-unauthenticated")];
    plane.set_inbound(
        8080,
        Server {
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..Server::default()
        },
    );
    plane.set_outbound("web.app.svc:80", OutboundPolicy::default());
    let ran = linkerd(
        &api,
        &["diagnostics", "policy", "-n", "app", "po/web-a", "8080"],
    );
    assert_eq!(
        ran.out, "labels:\n  kind: default\n  name: all-unauthenticated\n",
        "{}",
        ran.err
    );
    let ran = linkerd(
        &api,
        &[
            "diagnostics",
            "policy",
            "-n",
            "app",
            "svc/web",
            "80",
            "-o",
            "json",
        ],
    );
    let policy: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}", ran.err));
    assert_eq!(policy, json!({}));
}

#[test]
fn mistakes_are_explained() {
    let plane = ControlPlane::start();
    let api = plane.addr().to_string();
    for (args, code, start) in [
        (
            &["diagnostics", "profile", "nonsense"][..],
            1,
            "Destination API error: ",
        ),
        (
            &["diagnostics", "endpoints", "-o", "xml", "a:80"],
            1,
            "Error: --output supports table and json",
        ),
        (
            &["diagnostics", "policy", "svc/web"],
            1,
            "Error: resource type and name are required",
        ),
        (
            &["diagnostics", "policy", "deploy/web", "80"],
            1,
            "Error: invalid resource type deployment; must be one of Pod or Service",
        ),
        (
            &["diagnostics", "policy", "svc/web", "80", "-o", "xml"],
            1,
            "Error: output must be one of: yaml, json",
        ),
        (
            &["diagnostics", "endpoints"],
            1,
            "Error: the following required arguments were not provided",
        ),
    ] {
        let ran = linkerd(&api, args);
        assert_eq!(ran.code, code, "{args:?}");
        assert!(ran.err.starts_with(start), "{args:?}: {}", ran.err);
    }
    drop(plane);
    let ran = linkerd(&api, &["diagnostics", "endpoints", "a:80"]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err
            .starts_with("Error creating destination client: cannot connect to "),
        "{}",
        ran.err
    );
}
