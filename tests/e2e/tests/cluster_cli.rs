//! The quick start as people type it, against a real cluster: every check prints the lines that the
//! public text shows, installing twice changes nothing, meshing and unmeshing work from pipes, the
//! commands that look into the mesh see it, and removing it leaves nothing.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use linkerd_e2e::{Kubectl, Namespace, cli, house_image, sweep};
use linkerd_testkit::{wait_for, wait_for_some};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(300);
const APPS: [&str; 4] = ["emoji", "vote-bot", "voting", "web"];

/// `linkerd` on the cluster under test, with a version server that knows a newer release.
struct Linkerd {
    kubectl: Kubectl,
    program: PathBuf,
    versions: String,
    scratch: tempfile::TempDir,
}

impl Linkerd {
    fn new(kubectl: &Kubectl) -> Self {
        Self {
            kubectl: kubectl.clone(),
            program: cli(),
            versions: version_server(),
            scratch: tempfile::tempdir().expect("a directory"),
        }
    }

    fn try_run(&self, arguments: &[&str], stdin: &str) -> Output {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env("KUBECONFIG", self.kubectl.kubeconfig())
            .env("LINKERD_VERSION_CHECK_URL", &self.versions)
            // No extension of this machine takes part.
            .env("PATH", "/nowhere")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("linkerd starts");
        let mut input = child.stdin.take().expect("a pipe");
        // What it does not read it does not need.
        let _ = input.write_all(stdin.as_bytes());
        drop(input);
        child.wait_with_output().expect("linkerd ends")
    }

    #[track_caller]
    fn pipe(&self, arguments: &[&str], stdin: &str) -> String {
        let output = self.try_run(arguments, stdin);
        let errors = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(
            output.status.success(),
            "linkerd {arguments:?}: {text}{errors}"
        );
        text
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        self.pipe(arguments, "")
    }

    /// The text in a file of that name, for `kubectl -f`.
    fn file(&self, name: &str, content: &str) -> String {
        let path = self.scratch.path().join(name);
        fs::write(&path, content).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }

    #[track_caller]
    fn apply(&self, name: &str, manifests: &str) {
        self.kubectl
            .run(&["apply", "-f", &self.file(name, manifests)]);
    }

    /// `kubectl get deploy -o yaml | linkerd VERB - | kubectl apply -f -`, again when the
    /// deployments' own controller was faster.
    fn turn(&self, namespace: &Namespace, verb: &str) {
        wait_for(PATIENCE, verb, || {
            let live = namespace.run(&["get", "deploy", "-o", "yaml"]);
            let turned = self.file("turned.yaml", &self.pipe(&[verb, "-"], &live));
            let applied = self.kubectl.try_run(&["apply", "-f", &turned]);
            applied.status.success()
        });
    }

    /// A check that prints what the quick start shows.
    #[track_caller]
    fn check(&self, golden: &str, arguments: &[&str]) {
        let mut words = arguments.to_vec();
        words.push("--wait=180s");
        let said = self.run(&words);
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../crates/cli/tests/golden/check")
            .join(golden);
        let expected = fs::read_to_string(file).expect("the golden file");
        assert_eq!(normal(&said), normal(&expected), "linkerd {arguments:?}");
    }
}

/// Lines with the random parts of pods' names left out.
fn normal(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("\t* ").and_then(|l| l.split_once(" (")) {
        Some((pod, rest)) => {
            let stem = pod.rsplitn(3, '-').nth(2).unwrap_or(pod);
            format!("\t* {stem} ({rest}\n")
        }
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Answers every request with the newest versions, as long as the test runs.
fn version_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let body = r#"{"edge":"edge-25.12.2","stable":"stable-2.14.10"}"#;
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    format!("http://{address}/version.json")
}

/// Whatever is left of a control plane goes, before and after the test.
struct Clean(Kubectl);

impl Clean {
    fn start(kubectl: &Kubectl) -> Self {
        let clean = Self(kubectl.clone());
        sweep(kubectl, true);
        clean
    }
}

impl Drop for Clean {
    fn drop(&mut self) {
        sweep(&self.0, true);
    }
}

fn deployments(namespace: &str, image: &str) -> String {
    let mut text = String::new();
    for app in APPS {
        text += &format!(
            "# {app} of the sample\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {app}\n  \
             namespace: {namespace}\nspec:\n  selector:\n    matchLabels: {{app: {app}}}\n  template:\n    \
             metadata:\n      labels: {{app: {app}}}   # as in the selector\n    spec:\n      \
             terminationGracePeriodSeconds: 1\n      containers:\n      # answers\n      - name: {app}\n        \
             image: {image}\n        imagePullPolicy: IfNotPresent\n        \
             args: [serve, \"0.0.0.0:8080\", /, hello]\n        ports:\n        - containerPort: 8080\n          \
             name: http\n---\n"
        );
        text += &format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: {app}\n  namespace: {namespace}\nspec:\n  \
             selector: {{app: {app}}}\n  ports:\n  - port: 80\n    targetPort: 8080\n---\n"
        );
    }
    text
}

/// What an object looks like without what differs at every render.
fn stable(manifests: &str) -> Vec<String> {
    let documents = manifests
        .split("\n---\n")
        .filter(|text| !text.trim().is_empty());
    let mut kept = Vec::new();
    for document in documents {
        let generated = ["-k8s-tls", "-webhook-config"];
        let name = document.lines().find(|line| line.starts_with("  name: "));
        if name.is_some_and(|name| generated.iter().any(|end| name.ends_with(end))) {
            continue;
        }
        let lines = document.lines().filter(|line| {
            !line.contains("checksum/config") && !line.trim_start().starts_with("schedule:")
        });
        kept.push(lines.collect::<Vec<_>>().join("\n"));
    }
    kept
}

/// The parts of a pod that injection is about.
fn injected(pod: &str) -> Value {
    let mut pod: Value = serde_json::from_str(pod).expect("JSON");
    let mut spec = pod["spec"].take();
    let mut metadata = pod["metadata"].take();
    let token = |value: &Value| {
        let name = value["name"].as_str().unwrap_or_default();
        name.starts_with("kube-api-access-")
    };
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.retain(|volume| !token(volume));
    }
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                mounts.retain(|mount| !token(mount));
            }
        }
    }
    for key in ["linkerd.io/created-by", "linkerd.io/inject"] {
        if let Some(annotations) = metadata["annotations"].as_object_mut() {
            annotations.remove(key);
        }
    }
    json!({
        "annotations": metadata["annotations"],
        "labels": metadata["labels"],
        "volumes": spec["volumes"],
        "containers": spec["containers"],
        "initContainers": spec["initContainers"],
    })
}

/// The same pod through `inject --manual` and through the webhook.
fn manual_equals_the_webhook(linkerd: &Linkerd, namespace: &Namespace, image: &str) {
    let pod = |annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "one", "namespace": namespace.name(), "labels": {"app": "one"},
                "annotations": annotations},
            "spec": {"containers": [{"name": "one", "image": image, "args": ["wait"],
                "ports": [{"containerPort": 3306, "name": "mysql"}]}]},
        })
    };
    let settings = json!({"config.linkerd.io/proxy-log-level": "debug"});
    let manual = linkerd.pipe(
        &["inject", "--manual", "-o", "json", "-"],
        &pod(settings).to_string(),
    );
    let asking =
        json!({"config.linkerd.io/proxy-log-level": "debug", "linkerd.io/inject": "enabled"});
    let dry_run = |name: &str, manifest: &str| {
        let file = linkerd.file(name, manifest);
        linkerd
            .kubectl
            .run(&["create", "--dry-run=server", "-o", "json", "-f", &file])
    };
    let by_hand = dry_run("manual.json", &manual);
    // A webhook that answers late is ignored: that is its failure policy.
    let by_webhook = wait_for_some(PATIENCE, "the webhook to answer in time", || {
        let pod = dry_run("asking.json", &pod(asking.clone()).to_string());
        pod.contains("linkerd-proxy-init-xtables-lock")
            .then_some(pod)
    });
    assert_eq!(injected(&by_hand), injected(&by_webhook));
    assert_eq!(injected(&by_hand)["containers"][0]["name"], "linkerd-proxy");
}

/// Every command that looks into the mesh sees the sample.
fn the_mesh_explains_itself(linkerd: &Linkerd, namespace: &str) {
    let authority = format!("web.{namespace}.svc.cluster.local:80");
    let table = linkerd.run(&["diagnostics", "endpoints", &authority]);
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[0],
        ["NAMESPACE", "IP", "PORT", "POD", "SERVICE"],
        "{table}"
    );
    assert_eq!(rows.len(), 2, "{table}");
    assert_eq!((rows[1][0], rows[1][2]), (namespace, "8080"), "{table}");
    assert_eq!(rows[1][4], format!("web.{namespace}"), "{table}");
    let (ip, pod) = (rows[1][1], rows[1][3]);
    let rows: Value =
        serde_json::from_str(&linkerd.run(&["dg", "ep", &authority, "-o", "json"])).expect("JSON");
    assert_eq!(rows[0]["pod"], pod);
    assert_eq!(rows[0]["labels"]["deployment"], "web", "{rows}");

    let nothing = format!("nothing.{namespace}.svc.cluster.local:80");
    let output = linkerd.try_run(&["diagnostics", "endpoints", &nothing], "");
    let told = [output.stdout, output.stderr].concat();
    assert_eq!(String::from_utf8_lossy(&told), "No endpoints found.\n");
    assert_eq!(output.status.code(), Some(0));

    let address = format!("{ip}:8080");
    let profile: Value =
        serde_json::from_str(&linkerd.run(&["diagnostics", "profile", &address])).expect("JSON");
    let port = &profile["endpoint"]["addr"]["port"];
    assert_eq!(port, 8080, "{profile}");
    assert!(
        profile["endpoint"]["addr"]["ip"]["Ip"]["Ipv4"].is_u64(),
        "{profile}"
    );

    let policy = [
        "diagnostics",
        "policy",
        "-n",
        namespace,
        "svc/web",
        "80",
        "-o",
        "json",
    ];
    let policy: Value = serde_json::from_str(&linkerd.run(&policy)).expect("JSON");
    assert!(policy["protocol"]["Kind"]["Detect"].is_object(), "{policy}");
    let resource = format!("po/{pod}");
    let policy = linkerd.run(&["diagnostics", "policy", "-n", namespace, &resource, "8080"]);
    assert!(policy.contains("authorizations:"), "{policy}");

    let metrics = linkerd.run(&[
        "diagnostics",
        "proxy-metrics",
        "-n",
        namespace,
        "deploy/web",
    ]);
    assert!(
        metrics.starts_with(&format!("#\n# POD {pod} (1 of 1)\n#\n")),
        "{metrics}"
    );
    assert!(metrics.contains("process_start_time_seconds"), "{metrics}");
    let metrics = linkerd.run(&["diagnostics", "controller-metrics"]);
    assert!(metrics.contains("# CONTAINER identity \n#\n"), "{metrics}");
    assert!(!metrics.contains("# ERROR"), "{metrics}");

    let status = linkerd.run(&["status"]);
    for line in [
        "√ linkerd-destination 1/1 ready",
        "√ every pod that asks for a proxy has one",
    ] {
        assert!(status.contains(line), "{status}");
    }
}

#[test]
fn the_quick_start_line_by_line() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let _clean = Clean::start(&kubectl);
    let linkerd = Linkerd::new(&kubectl);

    // Nothing is installed.
    let output = linkerd.try_run(&["check", "--wait=1s"], "");
    assert_eq!(
        output.status.code(),
        Some(1),
        "a check without a mesh fails"
    );
    let output = linkerd.try_run(&["inject", "-"], &deployments("x", image));
    assert_eq!(
        output.status.code(),
        Some(1),
        "injection needs the mesh's settings"
    );
    // Where the public text applies the Gateway API's own file, its definitions are the same.
    let all = [
        "install",
        "--crds",
        "--ignore-cluster",
        "--set",
        "installGatewayAPI=true",
    ];
    let all = linkerd.run(&all);
    let gateway = all.split_inclusive("\n---\n");
    let gateway = gateway.filter(|document| document.contains("group: gateway.networking.k8s.io"));
    linkerd.apply("gateway.yaml", &gateway.collect::<String>());
    linkerd.check("pre.txt", &["check", "--pre"]);

    linkerd.apply("crds.yaml", &linkerd.run(&["install", "--crds"]));
    wait_for(PATIENCE, "the definitions to be known", || {
        linkerd
            .try_run(&["check", "--crds", "--wait=1s"], "")
            .status
            .success()
    });
    let control_plane = linkerd.run(&["install"]);
    linkerd.apply("install.yaml", &control_plane);
    linkerd.check("check.txt", &["check"]);
    let start = Instant::now();
    linkerd.run(&["check"]);
    println!("linkerd check: {:?}", start.elapsed());

    // Installing again is refused, upgrading changes nothing.
    let output = linkerd.try_run(&["install"], "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("ConfigMap/linkerd-config already exists"),
        "{errors}"
    );
    let upgrade = linkerd.run(&["upgrade"]);
    assert_eq!(stable(&upgrade), stable(&control_plane));
    linkerd.apply("upgrade.yaml", &upgrade);
    let file = linkerd.file("again.yaml", &upgrade);
    let diff = kubectl.try_run(&["diff", "-f", &file]);
    let difference = String::from_utf8_lossy(&diff.stdout);
    assert!(
        diff.status.success(),
        "the second apply would change: {difference}"
    );
    for name in [
        "linkerd-destination",
        "linkerd-identity",
        "linkerd-proxy-injector",
    ] {
        let name = format!("deploy/{name}");
        kubectl.run(&[
            "-n",
            "linkerd",
            "rollout",
            "status",
            &name,
            "--timeout=180s",
        ]);
    }

    // The sample, meshed by a pipe.
    let namespace = Namespace::create(&kubectl, "emojivoto");
    let name = namespace.name();
    linkerd.apply("sample.yaml", &deployments(name, image));
    for app in APPS {
        namespace.wait_deployment(app, PATIENCE);
    }
    linkerd.turn(&namespace, "inject");
    for app in APPS {
        namespace.wait_deployment(app, PATIENCE);
    }
    wait_for(PATIENCE, "the pods without a proxy to go", || {
        let pods = namespace.run(&["get", "pods", "-o", "name"]);
        pods.lines().count() == APPS.len()
    });
    linkerd.check("proxy.txt", &["-n", name, "check", "--proxy"]);
    the_mesh_explains_itself(&linkerd, name);
    manual_equals_the_webhook(&linkerd, &namespace, image);

    // Text in, text out: comments stay, and what was put in comes out again.
    let text = deployments(name, image);
    let there = linkerd.pipe(&["inject", "-"], &text);
    assert!(there.contains("# as in the selector") && there.contains("# answers"));
    assert_eq!(linkerd.pipe(&["uninject", "-"], &there), text);

    // The way out.
    let output = linkerd.try_run(&["uninstall"], "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("Please uninject the following resources"),
        "{errors}"
    );
    linkerd.turn(&namespace, "uninject");
    for app in APPS {
        namespace.wait_deployment(app, PATIENCE);
    }
    let label = "linkerd.io/control-plane-ns";
    wait_for(PATIENCE, "the meshed pods to go", || {
        namespace
            .run(&["get", "pods", "-l", label, "-o", "name"])
            .is_empty()
    });
    let rest = linkerd.run(&["uninstall"]);
    let file = linkerd.file("uninstall.yaml", &rest);
    kubectl.run(&["delete", "-f", &file, "--timeout=180s"]);
    let kinds = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,customresourcedefinitions,namespaces,apiservices,roles,rolebindings,configmaps,secrets,services,serviceaccounts,deployments,pods,cronjobs";
    let left = kubectl.run(&["get", kinds, "-A", "-l", label, "-o", "name"]);
    assert_eq!(left, "", "uninstall leaves nothing");
    let output = linkerd.try_run(&["uninstall"], "");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "No resources found to uninstall\n"
    );
}
