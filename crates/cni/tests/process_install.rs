//! The installer as its container runs it: a node's files made, kept, and given back when it is told
//! to stop.

use linkerd_testkit::{terminate, wait_for};
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
const LIST: &str = "host/etc/cni/net.d/10-net.conflist";
const KUBECONFIG: &str = "host/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig";
const PROGRAM: &str = "host/opt/cni/bin/linkerd-cni";
const FOREIGN: &str = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp"}]}"#;

struct Node {
    dir: tempfile::TempDir,
}

/// A running installer; it ends with this.
struct Installer(Child);

impl Drop for Installer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Installer {
    /// Asks it to stop; how it ended.
    fn stop(mut self) -> Option<i32> {
        terminate(self.0.id());
        let mut ended = None;
        wait_for(PATIENCE, "the installer ends", || {
            ended = self.0.try_wait().expect("ours");
            ended.is_some()
        });
        ended.expect("ended").code()
    }
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for part in ["host/opt/cni/bin", "host/etc/cni/net.d", "bin", "account"] {
            fs::create_dir_all(dir.path().join(part)).expect("ours");
        }
        let node = Self { dir };
        node.put("bin/linkerd-cni", "program");
        node.put("account/token", "one");
        node.put("account/ca.crt", "CA");
        node.put(LIST, FOREIGN);
        node
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Replaces a file at once, as those do who write such files.
    fn put(&self, file: &str, text: &str) {
        let beside = self.path("beside");
        fs::write(&beside, text).expect("ours");
        fs::rename(beside, self.path(file)).expect("ours");
    }

    fn has(&self, file: &str, part: &str) -> bool {
        fs::read_to_string(self.path(file)).is_ok_and(|text| text.contains(part))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let entry =
            json!({"type": "linkerd-cni", "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}});
        let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-install"));
        command
            .args(arguments)
            .env_clear()
            .env("CONTAINER_MOUNT_PREFIX", self.path("host"))
            .env("CONTAINER_CNI_BIN_DIR", self.path("bin"))
            .env("SERVICE_ACCOUNT_PATH", self.path("account"))
            .env("CNI_NETWORK_CONFIG", entry.to_string())
            .env("KUBERNETES_SERVICE_HOST", "10.96.0.1")
            .env("KUBERNETES_SERVICE_PORT", "443")
            .stdout(Stdio::null());
        command
    }

    fn start(&self, arguments: &[&str]) -> Installer {
        Installer(self.command(arguments).spawn().expect("it starts"))
    }

    fn is_ready(&self) -> bool {
        let status = self.command(&["--ready", "--log-level=error"]).status();
        status.expect("it starts").success()
    }
}

#[test]
fn a_node_is_kept_until_the_installer_stops() {
    let node = Node::new();
    assert!(!node.is_ready(), "nothing is done yet");
    let installer = node.start(&["--log-level=info"]);
    wait_for(PATIENCE, "readiness", || node.is_ready());
    assert!(node.has(PROGRAM, "program"));
    assert!(node.has(LIST, "/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig"));
    assert!(node.has(KUBECONFIG, "token: one"));
    // Others write while it runs.
    node.put("account/token", "two");
    node.put(LIST, FOREIGN);
    wait_for(PATIENCE, "the new token", || {
        node.has(KUBECONFIG, "token: two")
    });
    wait_for(PATIENCE, "our entry again", || {
        node.has(LIST, "linkerd-cni")
    });
    assert_eq!(installer.stop(), Some(0));
    let list: Value = serde_json::from_slice(&fs::read(node.path(LIST)).expect("there"))
        .expect("a configuration");
    let foreign: Value = serde_json::from_str(FOREIGN).expect("JSON");
    assert_eq!(list, foreign, "as it was");
    assert!(!node.path(KUBECONFIG).exists() && !node.path(PROGRAM).exists());
    assert!(!node.is_ready());
}

#[test]
fn what_is_to_be_kept_stays_and_the_next_installer_takes_over() {
    let node = Node::new();
    let installer = node.start(&["--keep-on-exit"]);
    wait_for(PATIENCE, "readiness", || node.is_ready());
    assert_eq!(installer.stop(), Some(0));
    assert!(node.has(LIST, "linkerd-cni") && node.has(PROGRAM, "program"));
    assert!(node.has(KUBECONFIG, "token: one"));
    node.put("account/token", "two");
    let installer = node.start(&[]);
    wait_for(PATIENCE, "the new token", || {
        node.has(KUBECONFIG, "token: two")
    });
    assert_eq!(installer.stop(), Some(0));
    assert!(!node.has(LIST, "linkerd-cni") && !node.path(PROGRAM).exists());
}

#[test]
fn a_log_level_in_every_shape() {
    let node = Node::new();
    let ask = |arguments: &[&str]| -> Output {
        let mut command = node.command(arguments);
        // Ends at once: there is nothing to be installed.
        command.env_remove("CNI_NETWORK_CONFIG");
        command.output().expect("it starts")
    };
    let cases: [(&[&str], Option<&str>); 7] = [
        (&["-log-level", "info"], None),
        (&["--log-level", "warning"], None),
        (&["-log-level=panic"], None),
        (&["--log-level=trace"], None),
        (&["-log-level", "loud"], Some("loud")),
        (&["--log-level=loud"], Some("loud")),
        (&["-log-level"], Some("")),
    ];
    for (arguments, refused) in cases {
        let output = ask(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match refused {
            Some(level) => assert_eq!(said, format!("Cannot parse log-level '{level}'\n")),
            None => assert!(!said.contains("Cannot parse"), "{arguments:?}: {said}"),
        }
    }
}
