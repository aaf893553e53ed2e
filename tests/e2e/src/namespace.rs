//! A namespace of a test's own, deleted when the test ends, also when it panics.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Kubectl;

static COUNT: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub struct Namespace {
    kubectl: Kubectl,
    name: String,
    /// Objects outside the namespace that go with it, as `kind/name`.
    attached: Vec<String>,
}

impl Namespace {
    /// A new namespace whose name begins with `stem`; no two runs share one.
    #[track_caller]
    pub fn create(kubectl: &Kubectl, stem: &str) -> Self {
        let name = format!(
            "{stem}-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": name, "labels": { "linkerd-rs/test": name } },
        });
        kubectl.feed(&["create"], &object);
        Self {
            kubectl: kubectl.clone(),
            name,
            attached: Vec::new(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of a service in this namespace, as other pods ask for it.
    pub fn host(&self, service: &str) -> String {
        format!("{service}.{}.svc.cluster.local", self.name)
    }

    /// Runs kubectl in this namespace.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        self.kubectl.run(&self.with_namespace(arguments))
    }

    /// Runs kubectl in this namespace, however it ends: whether it ended well, and its output.
    pub fn try_run(&self, arguments: &[&str]) -> (bool, String) {
        let done = self.kubectl.try_run(&self.with_namespace(arguments));
        let mut text = String::from_utf8_lossy(&done.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&done.stderr));
        (done.status.success(), text)
    }

    #[track_caller]
    pub fn apply(&self, object: &Value) {
        self.kubectl
            .feed(&["--namespace", &self.name, "apply"], object);
    }

    /// An object outside any namespace, which is deleted together with this one.
    #[track_caller]
    pub fn apply_attached(&mut self, object: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = text(&object["kind"]);
        self.attached
            .push(format!("{kind}/{}", text(&object["metadata"]["name"])));
        self.kubectl.feed(&["apply"], object);
    }

    /// Waits until every replica of a deployment is ready; shows the pods when they are not.
    #[track_caller]
    pub fn wait_deployment(&self, name: &str, patience: Duration) {
        let target = format!("deployment/{name}");
        let timeout = format!("--timeout={}s", patience.as_secs());
        let (ready, said) = self.try_run(&["rollout", "status", &target, &timeout]);
        assert!(ready, "{target}: {said}\n{}", self.describe());
    }

    /// Waits until a pod has ended well, and gives what its container printed.
    #[track_caller]
    pub fn wait_pod_success(&self, name: &str, patience: Duration) -> String {
        let target = format!("pod/{name}");
        let timeout = format!("--timeout={}s", patience.as_secs());
        let wanted = "--for=jsonpath={.status.phase}=Succeeded";
        let (done, said) = self.try_run(&["wait", wanted, &target, &timeout]);
        let logs = self.try_run(&["logs", &target, "--all-containers"]).1;
        assert!(done, "{target}: {said}\n{logs}\n{}", self.describe());
        logs
    }

    /// A field of the first pod of an application, by its label `app`.
    #[track_caller]
    pub fn pod(&self, app: &str, field: &str) -> String {
        let selector = format!("-l=app={app}");
        let path = format!("-o=jsonpath={{.items[0].{field}}}");
        let value = self.run(&["get", "pods", &selector, &path]);
        value.trim().to_owned()
    }

    /// The sum of the series that carry every one of `labels`, from the proxy of an application.
    #[track_caller]
    pub fn series(&self, app: &str, family: &str, labels: &[String]) -> Option<f64> {
        let name = self.pod(app, "metadata.name");
        let admin = format!(
            "/api/v1/namespaces/{}/pods/{name}:4191/proxy/metrics",
            self.name
        );
        let scrape = self.run(&["get", "--raw", &admin]);
        let matching = scrape
            .lines()
            .filter(|line| line.starts_with(&format!("{family}{{")))
            .filter(|line| labels.iter().all(|label| line.contains(label.as_str())));
        let values: Vec<f64> = matching
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// The state of the namespace, for the message of a failed test.
    pub fn describe(&self) -> String {
        let pods = self.try_run(&["get", "pods", "--output=wide"]).1;
        let events = self
            .try_run(&["get", "events", "--sort-by=.lastTimestamp"])
            .1;
        format!("{pods}{events}")
    }

    fn with_namespace<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["--namespace", self.name.as_str()];
        all.extend(arguments);
        all
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nothing to do when a deletion fails: the names are never used again.
        for object in &self.attached {
            self.kubectl
                .try_run(&["delete", object, "--ignore-not-found", "--wait=false"]);
        }
        self.kubectl.try_run(&[
            "delete",
            "namespace",
            &self.name,
            "--ignore-not-found",
            "--wait=false",
        ]);
    }
}
