//! An API server for tests of the program, and the program run against it.

#![allow(dead_code, reason = "each test target uses its own part of this")]

use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// An API server that answers each path with a status and an object.
pub(crate) fn api_server(
    answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
) -> SocketAddr {
    serving(move |path, _| answer(path))
}

/// An API server that has these objects and no others.
pub(crate) fn holding(objects: Vec<Value>) -> SocketAddr {
    serving(move |path, query| match path {
        "/version" => version(),
        path => found(&objects, path, query),
    })
}

pub(crate) fn found(objects: &[Value], path: &str, query: &str) -> (u16, Value) {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let skip = if segments[0] == "api" { 2 } else { 3 };
    let (namespace, plural, name) = match segments.get(skip..).unwrap_or_default() {
        ["namespaces", namespace, plural] => (Some(*namespace), *plural, None),
        ["namespaces", namespace, plural, name] => (Some(*namespace), *plural, Some(*name)),
        [plural, name] => (None, *plural, Some(*name)),
        [plural] => (None, *plural, None),
        _ => return refusal(404, "NotFound", "a path nobody asks for"),
    };
    let group = segments[..skip - 1].get(1).copied().unwrap_or_default();
    let mut found = objects.iter().filter(|object| {
        let (of, kind, within, named) = linkerd_cli::inventory::identity(object);
        let kind = kind.to_lowercase();
        let many = match kind.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{kind}s"),
        };
        (segments[0] == "api" || of == group)
            && many == plural
            && namespace.is_none_or(|namespace| within == namespace)
            && name.is_none_or(|name| named == name)
            && selected(object, query)
    });
    if let Some(name) = name {
        return match found.next() {
            Some(object) => (200, object.clone()),
            None => refusal(404, "NotFound", &format!("{plural} \"{name}\" not found")),
        };
    }
    let items: Vec<&Value> = found.collect();
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
    (200, list)
}

fn selected(object: &Value, query: &str) -> bool {
    let mut pairs = query.split('&');
    let Some(selector) = pairs.find_map(|pair| pair.strip_prefix("labelSelector=")) else {
        return true;
    };
    let selector = ["%2C=,", "%2F=/", "%3D==", "%21=!"]
        .iter()
        .filter_map(|code| code.split_once('='))
        .fold(selector.to_owned(), |text, (code, c)| text.replace(code, c));
    selector.split(',').all(|term| {
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        match (term.strip_prefix('!'), term.split_once('=')) {
            (Some(key), _) => label(key).is_none(),
            (None, Some((key, value))) => label(key) == Some(value),
            (None, None) => label(term).is_some(),
        }
    })
}

fn serving(answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || serve(&stream, &*answer));
        }
    });
    address
}

fn serve(stream: &TcpStream, answer: &dyn Fn(&str, &str) -> (u16, Value)) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let path = line.split_whitespace().nth(1)?.to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            if header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let (code, object) = answer(path, query);
        let text = object.to_string();
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        )
        .ok()?;
    }
}

pub(crate) fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code});
    (code, status)
}

pub(crate) fn version() -> (u16, Value) {
    let info = json!({"major": "1", "minor": "34", "gitVersion": "v1.34.1", "gitCommit": "",
        "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
    (200, info)
}

/// Runs `linkerd` with a kubeconfig for that API server.
pub(crate) fn linkerd(server: SocketAddr, args: &[&str], stdin: &str) -> Ran {
    linkerd_with(server, args, stdin, &[])
}

/// The same with more variables.
pub(crate) fn linkerd_with(
    server: SocketAddr,
    args: &[&str],
    stdin: &str,
    variables: &[(&str, &str)],
) -> Ran {
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = command(server, dir.path(), args)
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("linkerd starts");
    let mut input = child.stdin.take().expect("a pipe");
    let _ = input.write_all(stdin.as_bytes());
    drop(input);
    let output = child.wait_with_output().expect("linkerd ends");
    Ran {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// The program with a kubeconfig, kept in `dir`, for that API server.
pub(crate) fn command(server: SocketAddr, dir: &Path, args: &[&str]) -> Command {
    let kubeconfig = dir.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{server}")}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    fs::write(&kubeconfig, config.to_string()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd"));
    command
        .args(args)
        .env_clear()
        .env("PATH", "/nowhere")
        .env("KUBECONFIG", &kubeconfig);
    command
}

#[track_caller]
pub(crate) fn says(ran: &Ran, code: i32, parts: &[&str]) {
    let all = format!("{}{}", ran.out, ran.err);
    assert_eq!(ran.code, code, "{all}");
    for part in parts {
        assert!(all.contains(part), "{part:?} is missing in: {all}");
    }
    assert!(!all.contains("panicked"), "{all}");
}

/// What the program prints without any cluster, as objects.
pub(crate) fn printed(args: &[&str]) -> Vec<Value> {
    let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let ran = linkerd(nobody, args, "");
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    objects(&ran.out)
}

/// The objects of a manifest.
pub(crate) fn objects(text: &str) -> Vec<Value> {
    let documents = linkerd_cli::manifest::documents("test", text).expect("YAML");
    documents
        .into_iter()
        .map(|document| document.value)
        .collect()
}

/// The object of that kind and name.
#[track_caller]
pub(crate) fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("there is a {kind} {name}"))
}

/// What an `install` finds in a cluster that is ready for it: our definitions, the API server's own
/// Service, a slice of endpoints.
pub(crate) fn ready() -> Vec<Value> {
    let mut objects = printed(&["install", "--ignore-cluster", "--crds"]);
    let ports = json!([{"name": "https", "port": 443, "targetPort": 8443}]);
    objects.push(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {"ports": ports}}));
    objects.push(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default"}, "addressType": "IPv4", "endpoints": []}));
    objects
}
