//! Pods in network namespaces behind real redirection, each with the proxy program and nothing given
//! to it but its environment. The control plane is the test's, on loopback of every pod.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use linkerd_init::{
    apply,
    args::Args,
    log::{Format, Level, Logger},
};
use linkerd_testkit::{
    ca::identity,
    control_plane::{ControlPlane, objects},
    netns::{self, Lan, Namespace, Pod},
    wait_for,
};
use tempfile::TempDir;

/// Nothing in a test may take longer.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// The proxy's user: its own traffic is not redirected.
pub const PROXY_USER: u32 = 2102;
/// Ports of every proxy.
pub const INBOUND: u16 = 4143;
pub const ADMIN: u16 = 4191;

/// A node with a control plane.
pub struct Mesh {
    pub lan: Lan,
    pub control: ControlPlane,
    program: PathBuf,
    dir: TempDir,
}

/// A pod with a proxy.
pub struct Meshed {
    pub pod: Pod,
    pub identity: String,
    pub proxy: netns::Process,
    /// Where its control plane is.
    control: SocketAddr,
    env: HashMap<String, String>,
    program: PathBuf,
}

/// What a proxy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Resident memory, and the part of it that is no file, in KB.
    pub resident: u64,
    pub anonymous: u64,
    /// Connections with anybody but the control plane.
    pub connections: usize,
    /// Open files of any kind, but for connections with the control plane.
    pub files: usize,
}

/// A proxy, looked at from outside.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    id: u32,
    /// Of its control plane.
    control: u16,
}

/// A pod whose packets to and from the control plane are lost while this is held.
pub struct CutOff<'a>(&'a Meshed);

impl Mesh {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        open(dir.path());
        // The proxy's user cannot look into the directories of the one who builds.
        let program = dir.path().join("linkerd-proxy");
        let built = std::env::var_os("LINKERD_TEST_PROXY");
        let built = built.unwrap_or_else(|| env!("CARGO_BIN_EXE_linkerd-proxy").into());
        std::fs::copy(built, &program).expect("a copy");
        Self {
            lan: Lan::new(),
            control: ControlPlane::start(),
            program,
            dir,
        }
    }

    /// Adds a pod with redirection and a proxy that is ready.
    pub fn meshed(&mut self, name: &str, extra: &[(&str, &str)]) -> Meshed {
        let pod = self.lan.pod(name);
        redirect(&pod.netns);
        let at = self.control.listen_in(&pod.netns);
        let control = at.to_string();
        let home = self.dir.path().join(name);
        std::fs::create_dir(&home).expect("a directory can be made");
        let token = home.join("token");
        std::fs::write(&token, "token").expect("a file can be written");
        for path in [&home, &token] {
            chown(path, Some(PROXY_USER), Some(PROXY_USER)).expect("root gives files away");
        }
        let id = identity(name, "ns");
        let path = |p: &Path| p.to_str().expect("text").to_owned();
        let mut env: HashMap<String, String> = [
            (
                "OUTBOUND_LISTEN_ADDRS",
                "127.0.0.1:4140,[::1]:4140".to_owned(),
            ),
            ("INBOUND_LISTEN_ADDR", format!("[::]:{INBOUND}")),
            ("ADMIN_LISTEN_ADDR", format!("[::]:{ADMIN}")),
            ("DESTINATION_SVC_ADDR", control.clone()),
            ("POLICY_SVC_ADDR", control.clone()),
            ("IDENTITY_SVC_ADDR", control),
            ("POLICY_WORKLOAD", format!("ns:{name}")),
            ("IDENTITY_DIR", path(&home)),
            ("IDENTITY_TOKEN_FILE", path(&token)),
            (
                "IDENTITY_TRUST_ANCHORS",
                self.control.anchors_pem().to_owned(),
            ),
            ("IDENTITY_LOCAL_NAME", id.clone()),
            (
                "DESTINATION_PROFILE_NETWORKS",
                "10.0.0.0/8,fd00::/8".to_owned(),
            ),
            ("INBOUND_IPS", format!("{},{}", pod.ip4, pod.ip6)),
            ("INBOUND_DEFAULT_POLICY", "all-unauthenticated".to_owned()),
            ("SHUTDOWN_GRACE_PERIOD", "10s".to_owned()),
            ("LOG", "warn,linkerd=info".to_owned()),
        ]
        .into_iter()
        .map(|(k, v)| (format!("LINKERD2_PROXY_{k}"), v))
        .collect();
        for (name, value) in extra {
            env.insert(format!("LINKERD2_PROXY_{name}"), (*value).to_owned());
        }
        let proxy = start(&pod.netns, &self.program, &env);
        let meshed = Meshed {
            pod,
            identity: id,
            proxy,
            control: at,
            env,
            program: self.program.clone(),
        };
        meshed.wait_ready();
        meshed
    }

    /// A pod without a proxy.
    pub fn plain(&self, name: &str) -> Pod {
        self.lan.pod(name)
    }

    /// Makes a service out of a virtual address and endpoints.
    pub fn service(
        &self,
        vip: SocketAddr,
        path: &str,
        endpoints: impl IntoIterator<Item = linkerd_api::proto::destination::WeightedAddr>,
    ) {
        self.control.set_outbound(vip, objects::service(path));
        self.control.set_endpoints(path, endpoints);
    }
}

impl Meshed {
    pub fn wait_ready(&self) {
        wait_for(DEADLINE, "the proxy is ready", || {
            self.admin("/ready")
                .is_some_and(|text| text.contains("200"))
        });
    }

    /// The proxy program, once more.
    pub fn restart(&mut self) {
        self.proxy = start(&self.pod.netns, &self.program, &self.env);
        self.wait_ready();
    }

    /// The endpoint of an application here.
    pub fn endpoint(
        &self,
        ip: impl Into<IpAddr>,
        port: u16,
    ) -> linkerd_api::proto::destination::WeightedAddr {
        objects::meshed((ip.into(), port).into(), &self.identity, INBOUND)
    }

    /// What the admin server of this pod answers.
    pub fn admin(&self, path: &str) -> Option<String> {
        let path = path.to_owned();
        self.pod.netns.run(move || {
            let mut io = TcpStream::connect(("127.0.0.1", ADMIN)).ok()?;
            io.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
            let ask = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            io.write_all(ask.as_bytes()).ok()?;
            let mut text = String::new();
            io.read_to_string(&mut text).ok()?;
            Some(text)
        })
    }

    /// The sum of all series of a family whose labels contain every fragment.
    pub fn metric(&self, family: &str, labels: &[&str]) -> f64 {
        let text = self.admin("/metrics").unwrap_or_default();
        let series = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, rest) = series.split_once('{').unwrap_or((series, ""));
            (name == family && labels.iter().all(|l| rest.contains(l)))
                .then(|| value.parse::<f64>().ok())?
        });
        series.sum()
    }

    /// The proxy that runs now.
    pub fn process(&self) -> Process {
        Process {
            id: self.proxy.id(),
            control: self.control.port(),
        }
    }
    /// Loses every packet between this pod and its control plane, without a word to either.
    pub fn cut_off(&self) -> CutOff<'_> {
        self.losing("-I");
        CutOff(self)
    }

    fn losing(&self, how: &str) {
        let port = self.control.port().to_string();
        for side in ["--dport", "--sport"] {
            let rule = ["-w", how, "INPUT", "-p", "tcp", side, &port, "-j", "DROP"];
            self.pod.netns.output("iptables", &rule);
        }
    }
}

impl Process {
    /// What it holds now.
    pub fn held(self) -> Held {
        let proc = PathBuf::from(format!("/proc/{}", self.id));
        let read = |name: &str| std::fs::read_to_string(proc.join(name)).unwrap_or_default();
        let status = read("status");
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|n| n.parse().ok()).unwrap_or(0_u64)
        };
        let files: Vec<String> = std::fs::read_dir(proc.join("fd"))
            .into_iter()
            .flatten()
            .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
            .map(|target| target.to_string_lossy().into_owned())
            .collect();
        let (mut connections, mut control) = (0, 0);
        let tables = read("net/tcp") + &read("net/tcp6");
        for line in tables.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, _, remote, state, _, _, _, _, _, inode, ..] = words[..] else {
                continue;
            };
            let listens = state == "0A";
            if listens || !files.contains(&format!("socket:[{inode}]")) {
                continue;
            }
            let port = remote.rsplit(':').next();
            let port = port.and_then(|p| u16::from_str_radix(p, 16).ok());
            match port == Some(self.control) {
                true => control += 1,
                false => connections += 1,
            }
        }
        Held {
            resident: kilobytes("VmRSS:"),
            anonymous: kilobytes("RssAnon:"),
            connections,
            files: files.len() - control,
        }
    }
}

impl Held {
    /// The most of everything.
    pub fn max(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            anonymous: self.anonymous.max(other.anonymous),
            connections: self.connections.max(other.connections),
            files: self.files.max(other.files),
        }
    }
}

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.losing("-D");
        }
    }
}

fn open(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, everybody).expect("our own directory");
}

fn start(netns: &Arc<Namespace>, program: &Path, env: &HashMap<String, String>) -> netns::Process {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(env)
        .uid(PROXY_USER)
        .gid(PROXY_USER)
        .stdin(Stdio::null());
    if std::env::var_os("LINKERD_TEST_LOGS").is_none() {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    netns.spawn(&mut command)
}

/// What `linkerd-init` does in an injected pod.
fn redirect(netns: &Namespace) {
    netns.run(|| {
        let line: Vec<String> = [
            "-p",
            "4143",
            "-o",
            "4140",
            "-u",
            "2102",
            "--inbound-ports-to-ignore",
            "4190,4191",
            "--iptables-mode",
            "native",
        ]
        .map(str::to_owned)
        .to_vec();
        let args = Args::parse(&line).expect("flags").expect("no help asked");
        let config = args.resolve().expect("a configuration");
        let log = Logger::new(Format::Text, Level::Error, Box::new(std::io::sink()));
        apply::run(&config, &log).expect("rules can be set");
    });
}

/// One HTTP/1 request from inside a namespace; the whole answer.
pub fn get(netns: &Namespace, to: SocketAddr, path: &str) -> std::io::Result<String> {
    netns.run(|| {
        let mut io = TcpStream::connect(to)?;
        io.set_read_timeout(Some(DEADLINE))?;
        let ask = format!("GET {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n");
        io.write_all(ask.as_bytes())?;
        let mut text = String::new();
        io.read_to_string(&mut text)?;
        Ok(text)
    })
}
