//! The program itself, started against an API server of the test, on free ports.

#![allow(dead_code, reason = "tests and benchmarks take what they need")]

use std::{process::Stdio, time::Duration};

use linkerd_testkit::{api_server::ApiServer, port, wait_for_async};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::{Child, Command},
};

const PATIENCE: Duration = Duration::from_secs(120);

/// A running process. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) destination: u16,
    pub(crate) policy: u16,
    pub(crate) destination_admin: u16,
    pub(crate) policy_admin: u16,
    _files: tempfile::TempDir,
}

impl Running {
    pub(crate) async fn start(api: &ApiServer) -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let path = |name: &str| files.path().join(name).display().to_string();
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let certified = certified.expect("a certificate");
        std::fs::write(path("kubeconfig"), api.kubeconfig()).expect("writes");
        std::fs::write(path("tls.crt"), certified.cert.pem()).expect("writes");
        std::fs::write(path("tls.key"), certified.signing_key.serialize_pem()).expect("writes");
        let ports: [u16; 7] = std::array::from_fn(|_| port::free());
        let [
            destination,
            destination_admin,
            policy,
            policy_admin,
            validator,
            sp,
            sp_admin,
        ] = ports;
        let listen = |flag: &str, port: u16| format!("--{flag}=127.0.0.1:{port}");
        // A benchmark may bring a program that was built another way.
        let program = std::env::var_os("LINKERD_CONTROLLER");
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_linkerd-controller").into());
        let child = Command::new(program)
            .arg("destination")
            .arg(format!("-kubeconfig={}", path("kubeconfig")))
            .args(["-log-level", "info", "-default-opaque-ports=25,3306"])
            .arg(listen("addr", destination))
            .arg(listen("metrics-addr", destination_admin))
            .arg(listen("grpc-addr", policy))
            .arg(listen("admin-addr", policy_admin))
            .arg(listen("server-addr", validator))
            .arg(listen("sp-validator-addr", sp))
            .arg(listen("sp-validator-metrics-addr", sp_admin))
            .arg(format!("--server-tls-certs={}", path("tls.crt")))
            .arg(format!("--server-tls-key={}", path("tls.key")))
            .arg(format!("--sp-validator-tls-certs={}", path("tls.crt")))
            .arg(format!("--sp-validator-tls-key={}", path("tls.key")))
            .env("HOSTNAME", "controller-1")
            .stdin(Stdio::null())
            // What a benchmark prints is its result and nothing else.
            .stdout(Stdio::from(std::io::stderr()))
            .kill_on_drop(true)
            .spawn()
            .expect("starts");
        let running = Self {
            child,
            destination,
            policy,
            destination_admin,
            policy_admin,
            _files: files,
        };
        wait_for_async(PATIENCE, "the controller to be ready", async || {
            running.is_ready().await
        })
        .await;
        running
    }

    pub(crate) async fn is_ready(&self) -> bool {
        let ready = get(self.destination_admin, "/ready").await;
        ready.is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }
}

/// The whole answer to a request to this host, if there is one.
pub(crate) async fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}
