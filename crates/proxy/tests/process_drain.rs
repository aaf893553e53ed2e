//! How a proxy leaves: the program on a signal or when asked over its admin port, and what is waited
//! for until then.

#[path = "support/harness.rs"]
mod harness;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use harness::{Client, DEADLINE, Pair, environment, get, raw_app};
use linkerd_testkit::{ca::identity, control_plane::ControlPlane, wait_for};

/// An application that switches to bytes, and sends back what it gets.
fn tunnel_app() -> SocketAddr {
    raw_app(|mut io| {
        let mut buf = [0; 4096];
        let _ = io.read(&mut buf);
        let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                      upgrade: websocket\r\n\r\n";
        let _ = io.write_all(switch.as_bytes());
        while let Ok(n) = io.read(&mut buf)
            && n > 0
        {
            let _ = io.write_all(&buf[..n]);
        }
    })
}

#[test]
fn a_tunnel_is_waited_for() {
    let mut pair = Pair::new(tunnel_app());
    let mut client = Client::connect(pair.client.outbound);
    let upgrade =
        "GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    assert!(client.send(upgrade).head().contains(" 101 "));
    pair.client.shutdown();
    pair.server.shutdown();
    for at in [pair.client.outbound, pair.server.inbound] {
        wait_for(DEADLINE, "no new connection to be taken", || {
            TcpStream::connect(at).is_err()
        });
    }
    for word in ["one", "two"] {
        assert_eq!(client.send(word).exactly(3), word.as_bytes());
    }
    for proxy in [&pair.client, &pair.server] {
        let live = get(proxy.admin, "/live", "localhost").status();
        assert_eq!(live, 200, "the admin port goes on");
    }
    drop(client);
    pair.client.join();
    pair.server.join();
}

/// The program, certified, and where its ports are.
struct Program {
    child: Child,
    _control: ControlPlane,
    _dir: tempfile::TempDir,
    admin: SocketAddr,
    inbound: SocketAddr,
}

impl Program {
    fn start(extra: &[(&str, &str)]) -> Self {
        let control = ControlPlane::start();
        let dir = tempfile::tempdir().expect("a directory can be made");
        let env = environment(&control, dir.path(), &identity("web", "ns"), extra);
        let mut child = Command::new(env!("CARGO_BIN_EXE_linkerd-proxy"))
            .env_clear()
            .envs(env)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut port = |name: &str| -> SocketAddr {
            let line = lines.by_ref().map_while(Result::ok);
            let line = line.into_iter().find_map(|line| {
                let (_, addr) = line.split_once(&format!("{name} interface on "))?;
                addr.trim().parse().ok()
            });
            line.unwrap_or_else(|| panic!("no {name} port"))
        };
        let (admin, inbound) = (port("Admin"), port("Inbound"));
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        wait_for(DEADLINE, "the proxy to be ready", || {
            get(admin, "/ready", "localhost").status() == 200
        });
        Self {
            child,
            _control: control,
            _dir: dir,
            admin,
            inbound,
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.child.id()).expect("an id");
        let id = rustix::process::Pid::from_raw(id).expect("not 0");
        rustix::process::kill_process(id, signal).expect("it runs");
    }

    /// Waits for the end, which is a good one.
    fn ends(&mut self) {
        let mut status = None;
        wait_for(DEADLINE, "the program to end", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        assert!(status.is_some_and(|s| s.success()), "{status:?}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes of other users may hold sockets here, and a signalled proxy waits for those.
const GRACE: (&str, &str) = ("SHUTDOWN_GRACE_PERIOD", "2s");

#[test]
fn signals_end_the_program() {
    use rustix::process::Signal;
    for (name, signal) in [("SIGTERM", Signal::TERM), ("SIGINT", Signal::INT)] {
        let mut program = Program::start(&[GRACE]);
        program.signal(signal);
        wait_for(DEADLINE, name, || {
            TcpStream::connect(program.inbound).is_err()
        });
        program.ends();
    }
}

#[test]
fn the_program_ends_when_asked_over_its_admin_port() {
    let mut program = Program::start(&[("SHUTDOWN_GRACE_PERIOD", "60s")]);
    let started = Instant::now();
    let ask = "POST /shutdown HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    let answer = Client::connect(program.admin).send(ask).answer();
    assert_eq!(answer.status(), 200, "{}", answer.head);
    program.ends();
    // Nobody's sockets are waited for: who asks has ended already, or says so.
    assert!(started.elapsed() < Duration::from_secs(25), "at once");
}
