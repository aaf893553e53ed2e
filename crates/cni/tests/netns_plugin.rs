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
    call_with(&[], command, netns, arguments, conf)
}

/// The same, with more in the runtime's environment.
fn call_with(
    environment: &[(&str, &str)],
    command: &str,
    netns: &str,
    arguments: &str,
    conf: &Value,
) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_linkerd-cni"))
        .envs(environment.iter().copied())
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
    arguments_in("shop", name)
}

fn arguments_in(namespace: &str, name: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID=u")
}

/// An API server with the namespace of the pods, and a kubeconfig for the plugin.
struct Served {
    api: ApiServer,
    dir: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Served {
    fn new() -> Self {
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
        let dir = tempfile::tempdir().expect("a directory");
        let text = api
            .kubeconfig()
            .replace("\"test\"", "\"linkerd-cni-context\"");
        std::fs::write(dir.path().join("kubeconfig"), text).expect("ours");
        Self {
            api,
            dir,
            _runtime: runtime,
        }
    }

    fn conf(&self) -> Value {
        conf(&self.dir.path().join("kubeconfig"))
    }
}

fn rules(sandbox: &Namespace) -> String {
    sandbox.output("iptables-nft-save", &["-t", "nat"])
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
    let served = Served::new();
    let api = &served.api;
    let skip = json!({"config.linkerd.io/skip-inbound-ports": "25"});
    api.apply("pods", pod("meshed", &["app", "linkerd-proxy"], skip));
    api.apply("pods", pod("plain", &["app"], json!({})));
    let conf = served.conf();

    let sandbox = Namespace::new("meshed");
    let ran = call("ADD", &sandbox.path(), &arguments("meshed"), &conf);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(
        ran.out, conf["prevResult"],
        "the result of the plugins before is passed on"
    );
    let rules = rules(&sandbox);
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
}

/// A pod that brings its own init container is left to it.
#[test]
fn a_pod_that_redirects_itself_is_left_alone() {
    let served = Served::new();
    let mut own = pod("own", &["app", "linkerd-proxy"], json!({}));
    own["spec"]["initContainers"] = json!([{"name": "linkerd-init"}]);
    served.api.apply("pods", own);
    let conf = served.conf();
    let sandbox = Namespace::new("own");
    let ran = call("ADD", &sandbox.path(), &arguments("own"), &conf);
    assert_eq!(
        (ran.code, &ran.out),
        (Some(0), &conf["prevResult"]),
        "{}",
        ran.err
    );
    assert!(!rules(&sandbox).contains("4143"));
}

/// The node's proxy is for other things.
#[test]
fn the_api_server_is_reached_without_the_nodes_http_proxy() {
    let served = Served::new();
    let meshed = pod("proxied", &["app", "linkerd-proxy"], json!({}));
    served.api.apply("pods", meshed);
    for proxy in ["http://127.0.0.1:9", "proxy.example:3128", "not a proxy"] {
        let sandbox = Namespace::new("proxied");
        let environment = [
            ("HTTPS_PROXY", proxy),
            ("https_proxy", proxy),
            ("HTTP_PROXY", proxy),
            ("http_proxy", proxy),
        ];
        let (netns, conf) = (sandbox.path(), served.conf());
        let ran = call_with(&environment, "ADD", &netns, &arguments("proxied"), &conf);
        assert_eq!(ran.code, Some(0), "{proxy}: {}", ran.err);
        assert!(rules(&sandbox).contains("--to-ports 4143"), "{proxy}");
    }
}

/// The control plane reaches the API server directly, on the ports of its Service or the usual ones.
#[test]
fn the_control_plane_reaches_the_api_server() {
    let served = Served::new();
    let mut meshed = pod("identity", &["identity", "linkerd-proxy"], json!({}));
    meshed["metadata"]["labels"] = json!({"linkerd.io/control-plane-component": "identity"});
    served.api.apply("pods", meshed);
    let service = json!({"apiVersion": "v1", "kind": "Service",
    "metadata": {"name": "kubernetes", "namespace": "default"},
    "spec": {"ports": [
        {"port": 7443, "targetPort": 7644}, {"port": 7445, "targetPort": "https"},
    ]}});
    for (name, service, ports) in [
        ("no Service", None, "--dports 3306,443,6443"),
        ("its Service", Some(service), "--dports 3306,7443,7644,7445"),
    ] {
        if let Some(service) = service {
            served.api.apply("services", service);
        }
        let sandbox = Namespace::new("control");
        let (netns, conf) = (sandbox.path(), served.conf());
        let ran = call("ADD", &netns, &arguments("identity"), &conf);
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.err);
        let rules = rules(&sandbox);
        assert!(rules.contains(ports), "{name}: {ports} in\n{rules}");
    }
}

/// Annotations for subnets and for the timeout of half-closed connections arrive in the sandbox.
#[test]
fn subnets_and_close_wait_are_the_pods() {
    let served = Served::new();
    let annotations = json!({
        "config.linkerd.io/skip-inbound-subnets": "10.1.0.0/16",
        "config.linkerd.io/skip-outbound-subnets": "10.2.0.0/16",
        "config.linkerd.io/close-wait-timeout": "1h",
    });
    let meshed = pod("subnets", &["app", "linkerd-proxy"], annotations);
    served.api.apply("pods", meshed);
    let sandbox = Namespace::new("subnets");
    let (netns, conf) = (sandbox.path(), served.conf());
    let ran = call("ADD", &netns, &arguments("subnets"), &conf);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let rules = rules(&sandbox);
    for part in ["-s 10.1.0.0/16", "-d 10.2.0.0/16"] {
        assert!(rules.contains(part), "{part} in\n{rules}");
    }
    let key = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    assert_eq!(sandbox.output("cat", &[key]).trim(), "3600");
}

/// A node whose kubeconfig is lost still starts the installer, which brings a new one.
#[test]
fn the_installer_starts_on_a_node_without_a_kubeconfig() {
    let mut conf = conf(Path::new("/nowhere/kubeconfig"));
    conf["kubernetes"]["namespace"] = json!("net");
    let installer = arguments_in("net", "linkerd-cni-x7k2p");
    let ran = call("ADD", "/nowhere", &installer, &conf);
    assert_eq!(
        (ran.code, &ran.out),
        (Some(0), &conf["prevResult"]),
        "{}",
        ran.err
    );
    for (name, arguments) in [
        ("its neighbour", arguments_in("net", "web")),
        (
            "its namesake",
            arguments_in("linkerd-cni", "linkerd-cni-x7k2p"),
        ),
    ] {
        let ran = call("ADD", "/nowhere", &arguments, &conf);
        assert_eq!(
            (ran.code, &ran.out["code"]),
            (Some(1), &json!(999)),
            "{name}"
        );
        let said = ran.out["msg"].as_str().unwrap_or_default();
        assert!(
            said.starts_with("linkerd-cni: cannot read kubeconfig /nowhere/kubeconfig"),
            "{name}: {said}"
        );
    }
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
    let long = json!({"cniVersion": "1.1.0", "name": "n".repeat(1 << 20)});
    for command in ["DEL", "CHECK", "GC", "STATUS"] {
        let ran = call(command, "/nowhere", "", &long);
        assert_eq!(ran.code, Some(0), "{command}: {}", ran.err);
        let said = match command {
            "DEL" => "msg=\"linkerd-cni: delete called but not implemented\"\n",
            "CHECK" => "msg=\"linkerd-cni: check called but not implemented\"\n",
            _ => "",
        };
        assert!(ran.err.ends_with(said), "{command}: {}", ran.err);
        assert_eq!(ran.err.is_empty(), said.is_empty(), "{command}");
    }
    // They came with later versions of the protocol.
    for (command, version) in [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0")] {
        let ran = call(command, "/nowhere", "", &json!({"cniVersion": version}));
        assert_eq!(ran.code, Some(1), "{command}");
        let said = format!("config version does not allow {command}");
        assert_eq!(
            ran.out,
            json!({"cniVersion": version, "code": 1, "msg": said})
        );
    }
    let ran = call(
        "ADD",
        "/nowhere",
        "",
        &json!({"cniVersion": "1.0.0", "prevResult": "text"}),
    );
    let said = ran.out["msg"].as_str().unwrap_or_default();
    assert_eq!(ran.code, Some(1));
    assert!(
        said.starts_with("linkerd-cni: could not parse prevResult: "),
        "{said}"
    );
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
