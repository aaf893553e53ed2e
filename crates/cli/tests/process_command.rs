//! The program as people run it: whole outputs against golden files. `UPDATE_GOLDEN=1` rewrites
//! them.

use serde_json::Value;
use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// Runs `linkerd` away from every cluster.
fn linkerd(args: &[&str], stdin: &str) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_linkerd"))
        .args(args)
        .env_clear()
        .env("PATH", "/nowhere")
        .env("KUBECONFIG", "/nowhere/kubeconfig")
        .current_dir(golden_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("linkerd starts");
    let mut input = child.stdin.take().expect("a pipe");
    let text = stdin.to_owned();
    let writer = std::thread::spawn(move || {
        let _ = input.write_all(text.as_bytes());
    });
    let output = child.wait_with_output().expect("linkerd ends");
    writer.join().expect("the input is written");
    Ran {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn golden(name: &str, text: &str) {
    let file = golden_dir().join(name);
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, text).expect("the golden file is written");
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{name}; UPDATE_GOLDEN=1 rewrites it");
}

fn transcript(lines: &[&[&str]], stdin: &str) -> String {
    let mut text = String::new();
    for args in lines {
        let ran = linkerd(args, stdin);
        text += &format!("$ linkerd {}\n{}", args.join(" "), ran.out);
        for line in ran.err.lines() {
            text += &format!("2> {line}\n");
        }
        text += &format!("exit {}\n\n", ran.code);
    }
    text
}

#[test]
fn help() {
    let text = transcript(
        &[
            &[],
            &["version", "-h"],
            &["install", "--help"],
            &["upgrade", "--help"],
            &["inject", "--help"],
            &["uninject", "--help"],
            &["profile", "--help"],
            &["prune", "--help"],
            &["uninstall", "--help"],
            &["completion", "--help"],
            &["install-cni", "--help"],
        ],
        "",
    );
    golden("help.txt", &text);
}

#[test]
fn mistakes() {
    let text = transcript(
        &[
            &["instal"],
            &["metrics"],
            &["stat", "deploy"],
            &["logs"],
            &["viz", "stat"],
            &["install-cni", "--cni-log-level", "loud"],
            &["install-cni", "--skip-inbound-ports", "http"],
            &["install-cni", "--set", "iptablesMode=other"],
            &["nothing-like-it"],
            &["install", "--bogus"],
            &["install", "config"],
            &["upgrade", "control-plane"],
            &["check", "config"],
            &["check", "--only", "linkerd-identiy"],
            &["check", "--pre", "--skip", "linkerd-identity"],
            &["install", "-o", "xml"],
            &["-L", "a_b", "version", "--client"],
            &["version"],
            &["install"],
            &["install", "--ignore-cluster", "--set", "proxy.logLevel="],
            &["install", "--ignore-cluster", "--set", "novalue"],
            &[
                "install",
                "--ignore-cluster",
                "--identity-issuance-lifetime",
                "24x",
            ],
            &[
                "install",
                "--ignore-cluster",
                "--set",
                "identity.issuer.clockSkewAllowance=20",
            ],
            &[
                "install",
                "--ignore-cluster",
                "--skip-inbound-ports",
                "80,http",
            ],
            &["install", "--ignore-cluster", "--identity-external-issuer"],
            &[
                "install",
                "--ignore-cluster",
                "--identity-issuer-key-file",
                "key.txt",
            ],
            &[
                "install",
                "--ignore-cluster",
                "--set",
                "identity.issuer.scheme=other",
            ],
            &["install", "--ignore-cluster", "-f", "missing.yaml"],
            &["inject"],
            &["inject", "app.yaml"],
            &["inject", "http://example.org/app.yaml", "--ignore-cluster"],
            &["inject", "missing.yaml", "--ignore-cluster"],
            &["inject", "broken.yaml", "--ignore-cluster"],
            &["inject", "refused.yaml", "--ignore-cluster"],
            &["completion", "tcsh"],
            &["check"],
            &["profile", "--ignore-cluster", "web"],
            &["profile", "--ignore-cluster", "--template", "Web"],
        ],
        "",
    );
    golden("mistakes.txt", &text);
}

#[test]
fn version_of_the_client() {
    let text = transcript(
        &[
            &["version", "--client"],
            &["--short", "version", "--client=true"],
        ],
        "",
    );
    golden("version.txt", &text);
}

#[test]
fn inject_and_uninject() {
    let app = fs::read_to_string(golden_dir().join("app.yaml")).expect("the sample");
    golden(
        "inject.txt",
        &transcript(&[&["inject", "--ignore-cluster", "-"]], &app),
    );
    golden(
        "inject_flags.txt",
        &transcript(
            &[&[
                "inject",
                "--ignore-cluster",
                "--ingress",
                "--opaque-ports",
                "80,6379",
                "--proxy-cpu-request",
                "100m",
                "--skip-outbound-ports",
                "25,587",
                "--native-sidecar",
                "--enable-debug-sidecar",
                "-o",
                "json",
                "-",
            ]],
            &app,
        ),
    );
    golden(
        "inject_manual.txt",
        &transcript(&[&["inject", "--ignore-cluster", "--manual", "-"]], &app),
    );
    let injected = linkerd(&["inject", "--ignore-cluster", "-"], &app).out;
    golden(
        "uninject.txt",
        &transcript(&[&["uninject", "-"]], &injected),
    );
}

fn documents(text: &str) -> Vec<Value> {
    let documents = linkerd_cli::manifest::documents("test", text).expect("YAML");
    documents
        .into_iter()
        .map(|document| document.value)
        .collect()
}

#[test]
fn uninject_undoes_inject() {
    let app = fs::read_to_string(golden_dir().join("app.yaml")).expect("the sample");
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": documents(&app)})
        .to_string();
    for input in [app, list] {
        for flags in [
            &["inject", "--ignore-cluster", "-"][..],
            &["inject", "--ignore-cluster", "--manual", "-"],
        ] {
            let once = linkerd(flags, &input);
            assert_eq!(once.code, 0, "{}", once.err);
            assert_ne!(documents(&once.out), documents(&input));
            let twice = linkerd(flags, &once.out);
            assert_eq!(
                documents(&twice.out),
                documents(&once.out),
                "injecting twice is injecting once"
            );
            let back = linkerd(&["uninject", "-"], &once.out);
            assert_eq!(documents(&back.out), documents(&input), "{flags:?}");
        }
    }
}

/// What `-o json` prints is read again: objects one after another.
#[test]
fn json_streams_are_read_back() {
    let app = fs::read_to_string(golden_dir().join("app.yaml")).expect("the sample");
    let json = linkerd(&["inject", "--ignore-cluster", "-o", "json", "-"], &app);
    assert!(json.out.lines().count() > 1, "{}", json.out);
    let back = linkerd(&["uninject", "-"], &json.out);
    assert_eq!(back.code, 0, "{}", back.err);
    assert_eq!(documents(&back.out), documents(&app));
}

/// Less than a buffer of output was lost without a word.
#[test]
fn a_full_disk_is_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let output = Command::new(env!("CARGO_BIN_EXE_linkerd"))
        .args(["inject", "--ignore-cluster", "app.yaml"])
        .env_clear()
        .current_dir(golden_dir())
        .stdout(full.expect("/dev/full"))
        .output()
        .expect("linkerd starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Error: cannot write the output: "), "{said}");
}

/// A Service alone is something that can be annotated; without ports to write there is nothing to warn of.
#[test]
fn a_lone_service_is_skipped_without_a_warning() {
    let service = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n";
    let ran = linkerd(&["inject", "--ignore-cluster", "-"], service);
    assert_eq!(
        (ran.code, ran.err.as_str()),
        (0, "\nservice \"web\" skipped\n\n")
    );
    let named = [
        "inject",
        "--ignore-cluster",
        "--opaque-ports",
        "mysql,6379",
        "-",
    ];
    let ran = linkerd(&named, service);
    assert_eq!(ran.err, "\nservice \"web\" annotated\n\n");
    assert!(
        ran.out
            .contains("config.linkerd.io/opaque-ports: mysql,6379"),
        "{}",
        ran.out
    );
}

/// Kinds and names in the order of output; certificates differ at each run.
#[test]
fn install_objects() {
    let list = |args: &[&str]| {
        let ran = linkerd(args, "");
        assert_eq!(ran.code, 0, "{}", ran.err);
        let objects = documents(&ran.out);
        let lines = objects.iter().map(|object| {
            let (group, kind, namespace, name) = linkerd_cli::inventory::identity(object);
            format!("{group}/{kind} {namespace}/{name}\n")
        });
        lines.collect::<String>()
    };
    golden(
        "install_objects.txt",
        &list(&["install", "--ignore-cluster"]),
    );
    golden(
        "install_ha_objects.txt",
        &list(&[
            "install",
            "--ignore-cluster",
            "--ha",
            "--set",
            "podMonitor.enabled=true",
        ]),
    );
    golden(
        "install_crds_objects.txt",
        &list(&["install", "--ignore-cluster", "--crds"]),
    );
    let json = linkerd(&["install", "--ignore-cluster", "-o", "json"], "");
    assert_eq!(json.out.lines().count(), 44);
}

/// The definitions that `cargo xtask charts` adds stand between ours, in a fixed order.
#[test]
fn gateway_definitions_have_their_place() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../charts/linkerd-crds/templates/gateway.networking.k8s.io");
    let ran = linkerd(
        &[
            "install",
            "--ignore-cluster",
            "--crds",
            "--set",
            "installGatewayAPI=true",
        ],
        "",
    );
    if !folder.is_dir() {
        assert_eq!(ran.code, 1, "a build without them says so");
        assert!(
            ran.err.contains("carries no Gateway API CRDs"),
            "{}",
            ran.err
        );
        return;
    }
    let names: Vec<String> = documents(&ran.out)
        .iter()
        .map(|object| {
            object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    let group = "gateway.networking.k8s.io";
    let expected =
        ["httproutes", "grpcroutes", "tlsroutes", "tcproutes"].map(|p| format!("{p}.{group}"));
    assert_eq!(names.len(), 14);
    assert_eq!(names[9..13], expected);
}

#[test]
fn extensions_run_in_our_place() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("linkerd-foo");
    fs::write(&program, "#!/bin/sh\necho \"foo: $*\"\nexit 7\n").expect("ours");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    let path = env::join_paths([dir.path(), Path::new("/bin")]).expect("a path");
    for (args, code, out, err) in [
        (
            &["foo", "install", "--x=1", "-y"][..],
            7,
            "foo: install --x=1 -y\n",
            "",
        ),
        (
            &["--verbose", "foo"],
            1,
            "",
            "Cannot accept flags before Linkerd extension name\n",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_linkerd"))
            .args(args)
            .env("PATH", &path)
            .output()
            .expect("linkerd starts");
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), out, "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), err, "{args:?}");
    }
}

/// The words of a line as bash completes them, by the very script that is printed.
#[test]
fn bash_completes_with_the_script() {
    let dir = tempfile::tempdir().expect("a directory");
    let bin = Path::new(env!("CARGO_BIN_EXE_linkerd"));
    let kubeconfig = dir.path().join("kubeconfig");
    let context = |name: &str| format!("- name: {name}\n  context: {{cluster: c, user: u}}\n");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncontexts:\n{}{}",
        context("blue"),
        context("green")
    );
    fs::write(&kubeconfig, text).expect("ours");
    let script = linkerd(&["completion", "bash"], "").out;
    for (line, expected) in [
        ("linkerd che", "check"),
        ("linkerd check --pr", "--pre --proxy"),
        ("linkerd check -o ", "json json-merged short table"),
        ("linkerd check --output = s", "short"),
        ("linkerd check --context ", "blue green"),
        ("linkerd check --context = g", "green"),
        ("linkerd authz stat", "statefulset"),
        ("linkerd inject ", ""),
    ] {
        let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
        let asked = format!(
            "{script}\nCOMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1))\n_linkerd_complete\necho \"${{COMPREPLY[*]}}\"\n",
            words.join(" ")
        );
        let path = env::join_paths([
            bin.parent().expect("a directory"),
            Path::new("/usr/bin"),
            Path::new("/bin"),
        ])
        .expect("a path");
        let output = Command::new("bash")
            .args(["--norc", "-c", &asked])
            .env("PATH", path)
            .env("KUBECONFIG", &kubeconfig)
            .output()
            .expect("bash starts");
        let said = String::from_utf8_lossy(&output.stdout);
        let words: Vec<&str> = said.split_whitespace().collect();
        assert_eq!(words.join(" "), expected, "{line}");
    }
}

/// Names come from the cluster; one that does not answer gives none, and no error.
#[test]
fn completion_without_a_cluster_is_silent() {
    for words in [
        &["check", "-n", ""][..],
        &["identity", ""],
        &["authz", "deploy/"],
    ] {
        let mut args = vec!["__complete", "--"];
        args.extend(words);
        let ran = linkerd(&args, "");
        assert_eq!(
            (ran.code, ran.out.as_str(), ran.err.as_str()),
            (0, "", ""),
            "{words:?}"
        );
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = linkerd(&["completion", shell], "").out;
        assert!(script.contains("linkerd __complete -- "), "{script}");
    }
}

const OPENAPI: &str = r#"{"swagger": "2.0", "basePath": "/api", "paths": {
  "/books/{id}": {"get": {"x-linkerd-retryable": true, "responses": {"200": {}, "503": {}}},
    "delete": {"x-linkerd-timeout": "2s", "responses": {"204": {}}}},
  "/authors.json": {"post": {}}}}"#;
const PROTO: &str = "syntax = \"proto3\";\npackage emoji.v1;\nservice Emoji {\n  rpc List (A) returns (B) {}\n  rpc Find (A) returns (B) { option idempotency_level = IDEMPOTENT; }\n}\n";

#[test]
fn profiles() {
    let mut text = String::new();
    for (source, input) in [
        (&["--template"][..], ""),
        (&["--open-api", "-"], OPENAPI),
        (&["--proto", "-"], PROTO),
    ] {
        for format in ["yaml", "json"] {
            let mut args = vec!["profile", "--ignore-cluster", "-n", "shop", "-o", format];
            args.extend(source);
            args.push("web");
            text += &transcript(&[&args], input);
        }
    }
    text += &transcript(
        &[
            &[
                "profile",
                "--ignore-cluster",
                "--template",
                "-o",
                "xml",
                "web",
            ],
            &[
                "profile",
                "--ignore-cluster",
                "--template",
                "-n",
                "a_b",
                "web",
            ],
            &["profile", "--ignore-cluster", "--template", "1web"],
            &[
                "profile",
                "--ignore-cluster",
                "--template",
                "--proto",
                "x",
                "web",
            ],
        ],
        "",
    );
    golden("profile.txt", &text);
}
