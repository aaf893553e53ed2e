//! `check` and `version` through the program: selection, formats, the version server, extensions.

use cluster::{Ran, api_server, command, holding, linkerd, linkerd_with};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Stdio,
};

#[path = "process_bad_input/cluster.rs"]
mod cluster;

fn config(values: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"values": values},
        "metadata": {"name": "linkerd-config", "namespace": "linkerd", "uid": "u"}})
}

fn installed() -> Vec<Value> {
    let version = linkerd_runtime::version::VERSION;
    vec![config(&format!("linkerdVersion: {version}\n"))]
}

fn run(server: SocketAddr, args: &[&str]) -> Ran {
    let mut words = vec!["check", "--wait=0s"];
    words.extend(args);
    linkerd(server, &words, "")
}

const API: &str = "kubernetes-api\n--------------\n√ can initialize the client\n√ can query the Kubernetes API\n\n";
const VERSION: &str =
    "kubernetes-version\n------------------\n√ is running the minimum Kubernetes API version\n\n";
const GOOD: &str = "Status check results are √\n";

#[test]
fn parts_of_the_checks() {
    let server = holding(installed());
    for (args, code, expected) in [
        (
            &["--only", "kubernetes-api,kubernetes-version"][..],
            0,
            format!("{API}{VERSION}{GOOD}"),
        ),
        (&["--only", "kubernetes-version"], 0, format!("{VERSION}{GOOD}")),
        (&["--only", "k8s-version"], 0, format!("{VERSION}{GOOD}")),
        (
            &["--only", "kubernetes-api", "--only", "k8s-version", "--skip", "k8s-api"],
            0,
            format!("{VERSION}{GOOD}"),
        ),
        (
            &["--only", "kubernetes-api", "-o", "short"],
            0,
            GOOD.to_owned(),
        ),
        (
            &["--only", "linkerd-version"],
            0,
            "linkerd-version\n---------------\n√ can determine the latest version\n√ cli is up-to-date\n\nStatus check results are √\n".to_owned(),
        ),
        (&["--only", "linkerd-version", "--offline"], 0, format!("\n{GOOD}")),
        (
            &["--only", "linkerd-version", "--expected-version", "edge-99.1.1", "-o", "short"],
            0,
            format!(
                "linkerd-version\n---------------\n‼ cli is up-to-date\n    is running version {} but the latest edge version is 99.1.1\n    see https://linkerd.io/2/checks/#l5d-version-cli for hints\n\n{GOOD}",
                linkerd_runtime::version::VERSION.trim_start_matches("edge-")
            ),
        ),
    ] {
        let ran = run(server, args);
        assert_eq!((ran.out, ran.code, ran.err.as_str()), (expected, code, ""), "{args:?}");
    }
}

/// What was asked for cannot be judged without the control plane's values.
#[test]
fn a_part_without_a_control_plane_is_no_success() {
    let server = holding(vec![]);
    for only in [
        "linkerd-ha-checks",
        "linkerd-cni-plugin",
        "linkerd-identity",
    ] {
        let ran = run(server, &["--only", only]);
        assert_eq!(ran.code, 1, "{only}: {}", ran.out);
        assert!(
            ran.out.contains("× 'linkerd-config' config map exists"),
            "{}",
            ran.out
        );
    }
    assert_eq!(run(server, &["--only", "kubernetes-version"]).code, 0);
}

#[test]
fn json_through_the_program() {
    let server = holding(installed());
    for format in ["json", "json-merged"] {
        let ran = run(server, &["--only", "kubernetes-version", "-o", format]);
        let document: Value = serde_json::from_str(&ran.out).expect("one document");
        assert_eq!(
            document,
            json!({"success": true, "categories": [{"categoryName": "kubernetes-version", "checks": [
                {"description": "is running the minimum Kubernetes API version", "result": "success"}]}]}),
            "{format}"
        );
    }
    // Fatal: the API server knows no ConfigMap.
    let ran = run(holding(vec![]), &["-o", "json"]);
    let first = serde_json::Deserializer::from_str(&ran.out)
        .into_iter::<Value>()
        .next();
    let document = first.expect("a document").expect("JSON");
    assert_eq!((ran.code, &document["success"]), (1, &json!(false)));
    let categories = document["categories"].as_array().expect("categories");
    let last = &categories.last().expect("one")["checks"][0];
    assert_eq!(last["result"], "error");
    assert_eq!(
        last["hint"],
        "https://linkerd.io/2/checks/#l5d-existence-linkerd-config"
    );
}

#[test]
fn the_version_server_of_the_flag_is_asked() {
    let server = holding(installed());
    let versions = api_server(|path| match path {
        "/v.json" => (
            200,
            json!({"edge": "edge-99.1.1", "stable": "stable-9.9.9"}),
        ),
        _ => (404, json!({})),
    });
    let newer = "but the latest edge version is 99.1.1";
    let url = format!("http://{versions}/v.json");
    let ran = run(
        server,
        &["--only", "linkerd-version", "--version-check-url", &url],
    );
    assert_eq!(ran.code, 0, "a warning: {}", ran.out);
    assert!(ran.out.contains(newer), "{}", ran.out);
    let by_variable = [("LINKERD_VERSION_CHECK_URL", url.as_str())];
    let words = ["check", "--wait=0s", "--only", "l5d-version-cli"];
    let ran = linkerd_with(server, &words, "", &by_variable);
    assert!(ran.out.contains(newer), "{}", ran.out);
    // Of the control plane's values.
    let told = holding(vec![config(&format!("versionCheckURL: {url}\n"))]);
    let ran = run(told, &["--only", "linkerd-version"]);
    assert!(ran.out.contains(newer), "{}", ran.out);
    let skipped = run(
        told,
        &[
            "--only",
            "control-plane-version",
            "--skip",
            "linkerd-version",
        ],
    );
    assert!(!skipped.out.contains(newer), "{}", skipped.out);
}

/// Whoever follows the output sees how far it got, and keeps it when the run is ended.
#[test]
fn results_are_seen_while_checks_are_waited_for() {
    let server = holding(vec![config("disableHeartBeat: true\n")]);
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = command(server, dir.path(), &["check", "--wait=10m"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("linkerd starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // No pod of the control plane is there: the next check is tried for ten minutes.
    let seen = lines
        .map_while(Result::ok)
        .find(|line| line == "√ no unschedulable pods");
    assert!(seen.is_some(), "the row before the one that waits");
    assert!(child.try_wait().expect("ours").is_none(), "it still waits");
    child.kill().expect("ours");
    child.wait().expect("ours");
}

fn extension(dir: &Path, name: &str, script: &str) {
    let file = dir.join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("ours");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("ours");
}

fn extension_namespace(name: &str) -> Value {
    let labels = json!({"linkerd.io/extension": name});
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// The core stops at its first fatal failure; extensions are checked all the same.
#[test]
fn extensions_are_checked_as_blocks_of_their_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let answer = |name: &str, success: bool| {
        let (result, rest) = if success {
            ("success", String::new())
        } else {
            (
                "error",
                r#","error":"broken","hint":"https://h/#x""#.to_owned(),
            )
        };
        format!(
            r#"echo '{{"success":{success},"categories":[{{"categoryName":"linkerd-{name}","checks":[{{"description":"'"$*"'","result":"{result}"{rest}}}]}}]}}'"#
        )
    };
    extension(dir.path(), "linkerd-foo", &answer("foo", true));
    extension(dir.path(), "linkerd-unasked", "exit 3");
    let metadata = r#"if [ "$1" = _extension-metadata ]; then echo '{"name":"linkerd-watch","checks":"always"}'; exit; fi"#;
    let always = format!("{metadata}\n{}", answer("watch", false));
    extension(dir.path(), "linkerd-watch", &always);
    extension(dir.path(), "linkerd-odd", "echo no JSON");
    let path = format!("{}:/bin:/usr/bin", dir.path().display());
    let names = ["foo", "odd", "gone"];
    let server = holding(names.map(extension_namespace).to_vec());
    let ran = |args: &[&str]| {
        let mut words = vec!["check", "--wait=0s"];
        words.extend(args);
        linkerd_with(server, &words, "", &[("PATH", path.as_str())])
    };
    let table = ran(&[]);
    let blocks = table.out.split_once("config-map").is_none();
    assert!(blocks, "{}", table.out);
    let from = table
        .out
        .find("linkerd-foo\n-")
        .expect("the first extension");
    let words = "check --linkerd-namespace=linkerd --wait=0s --output=json";
    let odd = format!("{}/linkerd-odd {words}", dir.path().display());
    let expected = format!(
        "linkerd-foo\n-----------\n√ {words}\n\n\
         linkerd-odd\n-----------\n× Running: {odd}\n    invalid extension check output from \"{odd}\" (JSON object expected):\nno JSON\n[expected ident at line 1 column 2]\n    see https://linkerd.io/2/checks/#extensions for hints\n\n\
         linkerd-watch\n-------------\n× {words}\n    broken\n    see https://h/#x for hints\n\n\
         linkerd-gone\n------------\n‼ Linkerd extension command linkerd-gone exists\n    exec: \"linkerd-gone\": executable file not found in $PATH\n    see https://linkerd.io/2/checks/#extensions for hints\n\n\
         Status check results are ×\n"
    );
    assert_eq!(&table.out[from..], expected);
    assert_eq!(table.code, 1);
    let parsed = |text: &str| -> Vec<Value> {
        let documents = serde_json::Deserializer::from_str(text).into_iter();
        documents.map(|document| document.expect("JSON")).collect()
    };
    assert_eq!(parsed(&ran(&["-o", "json"]).out).len(), 5);
    let merged = parsed(&ran(&["-o", "json-merged"]).out);
    assert_eq!(merged.len(), 1);
    assert_eq!(merged[0]["success"], false);
    let categories = merged[0]["categories"].as_array().expect("categories");
    let named: Vec<&str> = categories
        .iter()
        .filter_map(|c| c["categoryName"].as_str())
        .collect();
    let ours = [
        "linkerd-foo",
        "linkerd-odd",
        "linkerd-watch",
        "linkerd-gone",
    ];
    assert_eq!(named[named.len() - 4..], ours);
}

#[test]
fn versions_of_the_proxies() {
    let pod = |namespace: &str, name: &str, tag: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"containers": [{"name": "linkerd-proxy", "image": format!("example/proxy:{tag}")}]}})
    };
    let mut objects = vec![config("linkerdVersion: edge-25.9.1\n")];
    objects.extend([
        pod("shop", "a", "edge-25.9.1"),
        pod("shop", "b", "edge-25.10.7"),
        pod("blog", "c", "edge-25.9.1"),
    ]);
    let mut other = pod("blog", "d", "edge-1");
    other["metadata"]["labels"]["linkerd.io/control-plane-ns"] = json!("other");
    objects.push(other);
    let server = holding(objects);
    let client = linkerd_runtime::version::VERSION;
    for (args, expected) in [
        (
            &["--proxy"][..],
            format!(
                "Client version: {client}\nServer version: edge-25.9.1\nProxy versions:\n\tedge-25.10.7 (1 pods)\n\tedge-25.9.1 (2 pods)\n"
            ),
        ),
        (
            &["--proxy", "--short"],
            format!("{client}\nedge-25.9.1\nedge-25.10.7\nedge-25.9.1\n"),
        ),
        (
            &["--proxy", "-n", "blog"],
            format!(
                "Client version: {client}\nServer version: edge-25.9.1\nProxy versions:\n\tedge-25.9.1 (1 pods)\n"
            ),
        ),
        (
            &["--proxy", "-n=nowhere"],
            format!(
                "Client version: {client}\nServer version: edge-25.9.1\nProxy versions: unavailable\n"
            ),
        ),
    ] {
        let mut words = vec!["version"];
        words.extend(args);
        let ran = linkerd(server, &words, "");
        assert_eq!(
            (ran.out, ran.code, ran.err.as_str()),
            (expected, 0, ""),
            "{args:?}"
        );
    }
}
