//! The plugin as the container runtime calls it, in real network namespaces (root), with an API
//! server that knows the pods.

use linkerd_testkit::{api_server::ApiServer, netns::Namespace};
use serde_json::{Value, json};
use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

struct Ran {
    code: Option<i32>,
    out: Value,
    err: String,
}

/// Calls the plugin for a pod's sandbox.
fn call(command: &str, netns: &str, arguments: &str, conf: &Value) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_linkerd-cni"))
        .env("CNI_COMMAND", command)
        .env("CNI_NETNS", netns)
        .env("CNI_CONTAINERID", "c")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_ARGS", arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the plugin starts");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(conf.to_string().as_bytes()).expect("read");
    drop(input);
    let output = child.wait_with_output().expect("the plugin ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ran {
        code: output.status.code(),
        out: serde_json::from_str(&text).unwrap_or(Value::Null),
        err: format!("{text}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn pod(name: &str, containers: &[&str], annotations: Value) -> Value {
    let containers: Vec<Value> = containers
        .iter()
        .map(|name| json!({"name": name}))
        .collect();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
        "spec": {"containers": containers}})
}

fn arguments(name: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID=u")
}

fn conf(kubeconfig: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "linkerd-cni", "log_level": "debug",
        "kubernetes": {"kubeconfig": kubeconfig},
        "linkerd": {
            "incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": 2102,
            "ports-to-redirect": [], "inbound-ports-to-ignore": ["4191", "4190"],
            "simulate": false, "use-wait-flag": false, "iptables-mode": "nft", "ipv6": false,
        },
        "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}], "ips": []},
    })
}

#[test]
fn meshed_pods_are_redirected_and_others_left_alone() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let api = runtime.block_on(ApiServer::start());
    api.apply(
        "namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop",
            "annotations": {"config.linkerd.io/skip-outbound-ports": "3306"}}}),
    );
    let skip = json!({"config.linkerd.io/skip-inbound-ports": "25"});
    api.apply("pods", pod("meshed", &["app", "linkerd-proxy"], skip));
    api.apply("pods", pod("plain", &["app"], json!({})));
    let dir = tempfile::tempdir().expect("a directory");
    let kubeconfig = dir.path().join("kubeconfig");
    let text = api
        .kubeconfig()
        .replace("\"test\"", "\"linkerd-cni-context\"");
    std::fs::write(&kubeconfig, text).expect("ours");
    let conf = conf(&kubeconfig);

    let sandbox = Namespace::new("meshed");
    let ran = call("ADD", &sandbox.path(), &arguments("meshed"), &conf);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(
        ran.out, conf["prevResult"],
        "the result of the plugins before is passed on"
    );
    let rules = sandbox.output("iptables-nft-save", &["-t", "nat"]);
    for part in [
        "--to-ports 4143",
        "--to-ports 4140",
        "--uid-owner 2102",
        "--dports 4191,4190,25",
        "--dports 3306",
    ] {
        assert!(rules.contains(part), "{part} in\n{rules}");
    }
    // A runtime that starts over finds its rules and is content.
    let again = call("ADD", &sandbox.path(), &arguments("meshed"), &conf);
    assert_eq!(again.code, Some(0), "{}", again.err);

    let sandbox = Namespace::new("plain");
    let ran = call("ADD", &sandbox.path(), &arguments("plain"), &conf);
    assert_eq!(
        (ran.code, &ran.out),
        (Some(0), &conf["prevResult"]),
        "{}",
        ran.err
    );
    assert!(
        !sandbox
            .output("iptables-nft-save", &["-t", "nat"])
            .contains("4143")
    );

    let missing = call("ADD", &sandbox.path(), &arguments("gone"), &conf);
    assert_eq!((missing.code, &missing.out["code"]), (Some(1), &json!(999)));
    let said = missing.out["msg"].as_str().unwrap_or_default();
    assert!(
        said.starts_with("linkerd-cni: cannot read pod shop/gone"),
        "{said}"
    );
    drop(api);
}

#[test]
fn what_needs_no_cluster() {
    let nobody = json!({"cniVersion": "0.4.0", "name": "net", "type": "linkerd-cni"});
    // Not a pod's sandbox.
    let ran = call("ADD", "/nowhere", "", &nobody);
    assert_eq!(
        (ran.code, ran.out),
        (Some(0), json!({"cniVersion": "0.4.0"}))
    );
    // Commands that need no configuration read theirs too, however long: a runtime that is still
    // writing must not see a broken pipe.
    let long = json!({"cniVersion": "0.4.0", "name": "n".repeat(1 << 20)});
    for command in ["DEL", "CHECK", "GC", "STATUS"] {
        let ran = call(command, "/nowhere", "", &long);
        assert_eq!(ran.code, Some(0), "{command}: {}", ran.err);
    }
    let ran = call("VERSION", "", "", &nobody);
    assert_eq!(ran.out["supportedVersions"][0], "0.1.0");
    let ran = call("DANCE", "", "", &nobody);
    assert_eq!(ran.code, Some(1));
    let ran = call("ADD", "", "", &json!("text"));
    let said = ran.out["msg"].as_str().unwrap_or_default();
    assert!(
        said.starts_with("linkerd-cni: failed to parse network configuration"),
        "{said}"
    );
}
