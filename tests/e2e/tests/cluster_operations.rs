//! Ordinary operations on a meshed application under steady load. The client counts: nothing may
//! fail, though no pod has a preStop hook and no application waits before it ends. One thing is excused:
//! a client that gives up on pods nobody could tell it of (`UNNOTICED_ABSENCE`).

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use linkerd_e2e::{Kubectl, Mesh, Namespace, product_image};
use linkerd_testkit::{ca::Ca, wait_for, wait_for_some};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(240);
/// Requests a second, each of which makes two more.
const RATE: u64 = 40;
/// How much more load must pass undisturbed after an operation: three seconds of it.
const AFTER: u64 = 3 * RATE;
/// The client waits ten seconds for an answer, and pods that are new know nobody until the control
/// plane is back: when that takes longer than this, a request may have come too early to wait for it.
/// No other failure is excused by it.
const UNNOTICED_ABSENCE: Duration = Duration::from_secs(5);
/// What the client reaches, and itself.
const APPS: [&str; 4] = ["web-svc", "emoji-svc", "voting-svc", "load"];

/// The sample application, meshed, and a client that asks its page for votes.
struct Sample<'a> {
    mesh: &'a Mesh,
    kubectl: Kubectl,
    namespace: Namespace,
    image: String,
    /// What the client noticed of operations it should not notice.
    noticed: RefCell<Vec<String>>,
    /// For how long the latest operation left the mesh without its control plane.
    away: Cell<Duration>,
}

impl<'a> Sample<'a> {
    fn deploy(mesh: &'a Mesh, kubectl: &Kubectl) -> Self {
        let sample = Self {
            mesh,
            kubectl: kubectl.clone(),
            namespace: Namespace::create(kubectl, "emojivoto"),
            image: product_image(kubectl, "emojivoto"),
            noticed: RefCell::default(),
            away: Cell::default(),
        };
        let injected = mesh.file("sample.yaml", &sample.manifest());
        mesh.apply_text(&mesh.linkerd(&["inject", injected.to_str().expect("UTF-8")]));
        sample.apply_load();
        sample.wait();
        sample
    }

    /// The manifest of the quick start in a namespace of this test.
    fn manifest(&self) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sample/emojivoto.yml");
        let manifest = fs::read_to_string(path).expect("the sample's manifest");
        let name = self.namespace.name();
        let image = manifest
            .lines()
            .find_map(|line| line.trim().strip_prefix("image: "))
            .expect("it names an image");
        manifest
            .replace(image, &self.image)
            .replace("namespace: emojivoto", &format!("namespace: {name}"))
            .replace("name: emojivoto", &format!("name: {name}"))
            .replace("-svc.emojivoto:", &format!("-svc.{name}:"))
    }

    fn apply_load(&self) {
        let container = json!({
            "name": "load",
            "image": self.image,
            "args": ["load", self.url(), "--rate", RATE.to_string()],
        });
        self.namespace.apply(&json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "load"},
            "spec": {
                "selector": {"matchLabels": {"app": "load"}},
                "template": {
                    "metadata": {
                        "labels": {"app": "load"},
                        "annotations": {"linkerd.io/inject": "enabled"},
                    },
                    "spec": {"containers": [container]},
                },
            },
        }));
    }

    fn url(&self) -> String {
        format!(
            "http://web-svc.{}/api/vote?choice=:joy:",
            self.namespace.name()
        )
    }

    fn wait(&self) {
        self.namespace
            .run(&["rollout", "status", "deploy", "--timeout=240s"]);
    }

    fn pods(&self, app: &str) -> Vec<Value> {
        let selector = format!("-l=app={app}");
        let list = self.namespace.run(&["get", "pods", &selector, "-o=json"]);
        let list: Value = serde_json::from_str(&list).expect("a list");
        let all = list["items"].as_array().expect("items").clone();
        let stays = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
        all.into_iter().filter(stays).collect()
    }

    fn names(&self, app: &str) -> Vec<String> {
        let name = |pod: &Value| {
            pod["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        self.pods(app).iter().map(name).collect()
    }

    /// An answer of a pod, through the API server.
    fn ask(&self, pod: &str, port: u16, path: &str) -> Option<String> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:{port}/proxy/{path}",
            self.namespace.name()
        );
        let done = self.kubectl.try_run(&["get", "--raw", &path]);
        let answer = String::from_utf8_lossy(&done.stdout).into_owned();
        done.status.success().then_some(answer)
    }

    /// What came of the load since the last time.
    fn report(&self) -> Value {
        let report = wait_for_some(PATIENCE, "a report of the load", || {
            let pod = self.names("load").pop()?;
            self.ask(&pod, 8090, "report")
        });
        serde_json::from_str(&report).expect("a report")
    }

    /// Load of at least `AFTER` requests, added up with what was before.
    fn settle(&self) -> Value {
        let mut all = self.report();
        let before = count(&all, "sent");
        wait_for(PATIENCE, "more load", || {
            let next = self.report();
            for key in ["sent", "failed"] {
                all[key] = (count(&all, key) + count(&next, key)).into();
            }
            for (why, n) in next["failures"].as_object().into_iter().flatten() {
                let all = &mut all["failures"][why];
                *all = (all.as_u64().unwrap_or_default() + n.as_u64().unwrap_or_default()).into();
            }
            // Whoever still waits since the operation belongs to it.
            let settled = count(&next, "oldest_waiting_ms") < 2000;
            settled && count(&all, "sent") >= before + AFTER
        });
        all
    }

    /// Does something to the mesh or the application that no client may notice.
    #[track_caller]
    fn unnoticed(&self, operation: &str, operate: impl FnOnce()) {
        self.report();
        let start = Instant::now();
        operate();
        let report = self.settle();
        let (sent, failed) = (count(&report, "sent"), count(&report, "failed"));
        #[expect(clippy::print_stderr, reason = "the figures are worth reading")]
        {
            eprintln!(
                "{operation}: {sent} requests, {failed} failed, p50 {} us, p99 {} us, {:?}, \
                 control plane away {:?}, {}",
                report["p50_us"],
                report["p99_us"],
                start.elapsed(),
                self.away.get(),
                report["failures"]
            );
        }
        assert!(sent >= AFTER, "{operation}: {report}");
        // Nobody can be told of new pods while nobody knows of them, and clients do not wait for ever.
        let all = report["failures"].as_object().into_iter().flatten();
        let late = all.filter(|(why, _)| why.starts_with("no answer in time"));
        let late: u64 = late.filter_map(|(_, n)| n.as_u64()).sum();
        let excused = match self.away.take() > UNNOTICED_ABSENCE {
            true => late,
            false => 0,
        };
        if failed > excused {
            let pods = self.namespace.run(&["get", "pods", "--output=wide"]);
            let told = format!("{operation}: {report:#}\n{pods}");
            self.noticed.borrow_mut().push(told);
        }
    }

    /// Every pod and container there is, and how often each was restarted.
    fn lives(&self) -> Vec<(String, String, u64)> {
        let mut lives = Vec::new();
        for pod in APPS.iter().flat_map(|app| self.pods(app)) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            for kind in ["containerStatuses", "initContainerStatuses"] {
                for container in pod["status"][kind].as_array().into_iter().flatten() {
                    let restarts = container["restartCount"].as_u64().expect("a count");
                    let (pod, name) = (text(&pod["metadata"]["name"]), text(&container["name"]));
                    lives.push((pod, name, restarts));
                }
            }
        }
        lives.sort();
        lives
    }

    /// Nothing waits before it ends.
    fn assert_no_hooks(&self) {
        for pod in APPS.iter().flat_map(|app| self.pods(app)) {
            for kind in ["containers", "initContainers"] {
                for container in pod["spec"][kind].as_array().into_iter().flatten() {
                    let hook = &container["lifecycle"]["preStop"];
                    assert!(hook.is_null(), "{} waits: {hook}", container["name"]);
                }
            }
        }
    }

    /// How often the proxies of each app were certified.
    fn certified(&self) -> [f64; 4] {
        let family = "control_identity_cert_refreshes_total";
        APPS.map(|app| self.metric(app, family, &[r#"result="ok""#]))
    }

    fn wait_certified(&self, before: [f64; 4]) {
        let what = "every proxy to be certified by the new issuer";
        wait_for(PATIENCE, what, || {
            let now = self.certified();
            now.iter().zip(&before).all(|(now, before)| now > before)
        });
    }

    /// The sum of a family over the proxies of an app, of series with all `labels`.
    fn metric(&self, app: &str, family: &str, labels: &[&str]) -> f64 {
        let mut sum = 0.0;
        for pod in self.names(app) {
            let scrape = self.ask(&pod, 4191, "metrics").unwrap_or_default();
            let lines = scrape
                .lines()
                .filter(|line| line.starts_with(family) && labels.iter().all(|l| line.contains(l)));
            sum += lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum::<f64>();
        }
        sum
    }
}

fn count(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_default()
}

/// Arguments of `install` and `upgrade` that name an issuer.
fn issuer_flags(mesh: &Mesh, issuer: &Ca) -> [String; 4] {
    let certificate = mesh_file(mesh, "issuer.crt", issuer.pem());
    let key = mesh_file(mesh, "issuer.key", &issuer.key_pem());
    [
        "--identity-issuer-certificate-file".to_owned(),
        certificate,
        "--identity-issuer-key-file".to_owned(),
        key,
    ]
}

fn mesh_file(mesh: &Mesh, name: &str, content: &str) -> String {
    mesh.file(name, content).to_str().expect("UTF-8").to_owned()
}

#[test]
fn nobody_notices_ordinary_operations() {
    let kubectl = Kubectl::from_env();
    let (old_root, old_issuer) = Ca::linkerd();
    let scratch = tempfile::tempdir().expect("a directory");
    let write = |name: &str, content: &str| {
        let path = scratch.path().join(name);
        fs::write(&path, content).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let mesh = Mesh::install(
        &kubectl,
        &[
            "--identity-trust-anchors-file",
            &write("old.crt", old_root.pem()),
            "--identity-issuer-certificate-file",
            &write("issuer.crt", old_issuer.pem()),
            "--identity-issuer-key-file",
            &write("issuer.key", &old_issuer.key_pem()),
        ],
    );
    let sample = Sample::deploy(&mesh, &kubectl);
    sample.assert_no_hooks();
    let run = |arguments: &[&str]| {
        sample.namespace.run(arguments);
    };
    let tiers = ["deploy/web", "deploy/emoji", "deploy/voting"];
    let linkerd = |arguments: &[&str]| {
        kubectl.run(&[&["--namespace", "linkerd"], arguments].concat());
    };

    wait_for(PATIENCE, "load that is answered", || {
        let report = sample.report();
        count(&report, "sent") > 0 && count(&report, "failed") == 0
    });
    sample.unnoticed("nothing at all", || {});

    sample.unnoticed("rolling restart", || {
        run(&[
            "rollout",
            "restart",
            "deploy/web",
            "deploy/emoji",
            "deploy/voting",
            "deploy/vote-bot",
        ]);
        sample.wait();
    });
    sample.unnoticed("scaling from one to five and back", || {
        run(&[&["scale", "--replicas=5"], &tiers[..]].concat());
        sample.wait();
        run(&[&["scale", "--replicas=1"], &tiers[..]].concat());
        sample.wait();
    });
    sample.unnoticed("control plane deleted", || {
        linkerd(&["delete", "pods", "--all", "--wait=true"]);
        mesh.wait();
    });
    run(&[&["scale", "--replicas=2"], &tiers[..]].concat());
    sample.wait();
    sample.unnoticed(
        "destination removed by force during a rolling restart",
        || {
            run(&[&["rollout", "restart"], &tiers[..]].concat());
            let component = "-l=linkerd.io/control-plane-component=destination";
            let start = Instant::now();
            linkerd(&["delete", "pods", component, "--force", "--grace-period=0"]);
            mesh.wait();
            sample.away.set(start.elapsed());
            sample.wait();
        },
    );
    sample.unnoticed("upgrade", || {
        mesh.apply(&["upgrade"]);
        mesh.wait();
    });

    authorization_closes_and_opens(&sample);
    a_route_splits_ninety_to_ten(&sample);
    sample.unnoticed("a job beside it", || {
        a_job_with_a_native_sidecar_ends(&sample)
    });

    let before = sample.lives();
    sample.unnoticed("issuer rotated", || {
        let certified = sample.certified();
        let issuer = old_root.intermediate("identity.linkerd.cluster.local");
        let flags = issuer_flags(&mesh, &issuer);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        mesh.apply(&[&["upgrade"], &flags[..]].concat());
        mesh.wait();
        sample.wait_certified(certified);
    });
    sample.unnoticed("trust anchor rotated", || rotate_anchor(&sample, &old_root));
    assert_eq!(before, sample.lives(), "nothing was restarted for it");
    let noticed = sample.noticed.borrow();
    assert!(noticed.is_empty(), "{}", noticed.join("\n"));
}

/// A Server without an authorization closes the port to everybody, and a policy opens it again.
fn authorization_closes_and_opens(sample: &Sample<'_>) {
    let apply = |kind: &str, version: &str, name: &str, spec: Value| {
        sample.namespace.apply(&json!({
            "apiVersion": format!("policy.linkerd.io/{version}"),
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }));
    };
    sample.report();
    apply(
        "Server",
        "v1beta3",
        "web",
        json!({
            "podSelector": {"matchLabels": {"app": "web-svc"}},
            "port": "http",
            "proxyProtocol": "HTTP/1",
        }),
    );
    wait_for(PATIENCE, "the Server to refuse", || {
        let report = sample.report();
        let failures = report["failures"].as_object().expect("failures");
        assert!(
            failures.keys().all(|why| why.starts_with("403")),
            "{report}"
        );
        count(&report, "failed") > 0
    });
    let group = "policy.linkerd.io";
    let account = json!({"kind": "ServiceAccount", "name": "default"});
    apply(
        "MeshTLSAuthentication",
        "v1alpha1",
        "clients",
        json!({"identityRefs": [account]}),
    );
    apply(
        "AuthorizationPolicy",
        "v1alpha1",
        "web",
        json!({
            "targetRef": {"group": group, "kind": "Server", "name": "web"},
            "requiredAuthenticationRefs": [
                {"group": group, "kind": "MeshTLSAuthentication", "name": "clients"},
            ],
        }),
    );
    wait_for(PATIENCE, "the policy to let in again", || {
        let report = sample.report();
        let failures = report["failures"].as_object().expect("failures");
        assert!(
            failures.keys().all(|why| why.starts_with("403")),
            "{report}"
        );
        count(&report, "sent") > 0 && count(&report, "failed") == 0
    });
    sample.unnoticed("an authorized port", || {});
}

/// One request in ten goes to a second deployment.
fn a_route_splits_ninety_to_ten(sample: &Sample<'_>) {
    let second = sample.manifest();
    let second: Vec<&str> = second
        .split("---\n")
        .filter(|document| {
            document.contains("  name: web\n") && document.contains("kind: Deployment")
                || document.contains("  name: web-svc\n")
        })
        .collect();
    assert_eq!(second.len(), 2, "a deployment and a service");
    let second = second
        .join("---\n")
        .replace("name: web\n", "name: web-2\n")
        .replace("name: web-svc\n", "name: web-2-svc\n")
        .replace("app: web-svc\n", "app: web-2-svc\n")
        .replace("serviceAccountName: web-2\n", "serviceAccountName: web\n");
    let file = sample.mesh.file("second.yaml", &second);
    let file = file.to_str().expect("UTF-8").to_owned();
    sample
        .mesh
        .apply_text(&sample.mesh.linkerd(&["inject", &file]));
    sample.wait();
    // Of peers in the mesh: probes are counted, too.
    let served = |app: &str| {
        let labels = [r#"direction="inbound""#, "client_id"];
        sample.metric(app, "response_total{", &labels)
    };
    let backend = |name: &str, weight: u32| json!({"name": name, "port": 80, "weight": weight});
    sample.unnoticed("a route that splits", || {
        sample.namespace.apply(&json!({
            "apiVersion": "policy.linkerd.io/v1beta3",
            "kind": "HTTPRoute",
            "metadata": {"name": "split"},
            "spec": {
                "parentRefs": [{"name": "web-svc", "kind": "Service", "group": "core", "port": 80}],
                "rules": [{"backendRefs": [backend("web-svc", 90), backend("web-2-svc", 10)]}],
            },
        }));
        wait_for(PATIENCE, "the second backend to be used", || {
            served("web-2-svc") > 0.0
        });
        let (first, second) = (served("web-svc"), served("web-2-svc"));
        wait_for(PATIENCE, "six hundred requests", || {
            served("web-svc") + served("web-2-svc") - first - second > 600.0
        });
        let (first, second) = (served("web-svc") - first, served("web-2-svc") - second);
        let share = second / (first + second);
        // Six standard deviations of a fair draw around a tenth.
        assert!(
            (0.03..0.17).contains(&share),
            "{second} of {}",
            first + second
        );
    });
    sample.unnoticed("a route that goes", || {
        let route = "httproutes.policy.linkerd.io/split";
        sample.namespace.run(&["delete", route]);
        let before = served("web-svc");
        wait_for(PATIENCE, "a hundred requests", || {
            served("web-svc") - before > 100.0
        });
    });
    let second = ["delete", "deploy/web-2", "svc/web-2-svc"];
    sample.unnoticed("a deployment nobody uses that goes", || {
        sample.namespace.run(&second);
    });
}

fn a_job_with_a_native_sidecar_ends(sample: &Sample<'_>) {
    let container = json!({
        "name": "job",
        "image": sample.image,
        "args": ["load", sample.url(), "--rate", "20", "--seconds", "2"],
    });
    sample.namespace.apply(&json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "votes"},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": {
                    "linkerd.io/inject": "enabled",
                    "config.beta.linkerd.io/proxy-enable-native-sidecar": "true",
                }},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }));
    sample.namespace.run(&[
        "wait",
        "--for=condition=complete",
        "job/votes",
        "--timeout=120s",
    ]);
    let report = sample.namespace.run(&["logs", "job/votes", "-c", "job"]);
    let report = report.lines().rfind(|line| line.starts_with('{'));
    let report: Value = serde_json::from_str(report.expect("a report")).expect("JSON");
    assert_eq!(
        (count(&report, "sent"), count(&report, "failed")),
        (40, 0),
        "{report}"
    );
}

/// Both anchors, then an issuer under the new one, then the new one alone.
fn rotate_anchor(sample: &Sample<'_>, old_root: &Ca) {
    let mesh = sample.mesh;
    let (root, issuer) = Ca::linkerd();
    let both = mesh_file(
        mesh,
        "both.crt",
        &format!("{}{}", old_root.pem(), root.pem()),
    );
    mesh.apply(&["upgrade", "--identity-trust-anchors-file", &both]);
    mesh.wait();
    let check = ["check", "--proxy", "--namespace", sample.namespace.name()];
    wait_for(PATIENCE, "every proxy to believe both", || {
        let told = mesh.linkerd(&check);
        told.contains("√ data plane proxies certificate match CA")
    });

    let certified = sample.certified();
    let flags = issuer_flags(mesh, &issuer);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    mesh.apply(&[&["upgrade"], &flags[..]].concat());
    mesh.wait();
    sample.wait_certified(certified);
    let new = mesh_file(mesh, "new.crt", root.pem());
    mesh.apply(&["upgrade", "--identity-trust-anchors-file", &new]);
    mesh.wait();
    wait_for(PATIENCE, "every proxy to believe the new one", || {
        let told = mesh.linkerd(&check);
        told.contains("√ data plane proxies certificate match CA")
    });
}
