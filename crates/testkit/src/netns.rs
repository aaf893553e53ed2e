//! Network namespaces with links and routes. A namespace has no name in the file system: it is
//! kept alive by a descriptor of this process and ends with it, also after a panic or a kill.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

mod lan;
mod process;

pub use lan::{Lan, Pod};
pub use process::Process;

/// A network namespace of its own, with loopback up and nothing else.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: OwnedFd,
}

/// One end of a veth pair: the link's name and its addresses with prefix lengths.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub link: &'a str,
    pub addresses: &'a [&'a str],
}

/// Fails the test when it cannot make namespaces, saying how it could.
#[track_caller]
pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "network namespaces need root: run `sudo -E cargo xtask test --floor netns`, \
         or choose other floors by name"
    );
}

// === impl Namespace ===

impl Namespace {
    /// Makes a namespace; `name` only appears in messages.
    ///
    /// # Panics
    /// Without root, or when the kernel refuses.
    #[track_caller]
    pub fn new(name: &str) -> Self {
        require_root();
        let file = std::thread::spawn(unshared)
            .join()
            .expect("the thread only makes system calls")
            .unwrap_or_else(|error| panic!("cannot make network namespace {name}: {error}"));
        let namespace = Self {
            name: name.to_owned(),
            file,
        };
        for scope in ["all", "default"] {
            namespace.sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "0");
        }
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where other processes find it: `nsenter --net=PATH`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Runs `work` on a thread inside the namespace and waits for it. Threads, runtimes and
    /// processes started by `work` are inside too, and sockets it made stay inside.
    #[track_caller]
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let worked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                work()
            });
            thread.join()
        });
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs an async closure on a single-threaded runtime inside the namespace.
    #[track_caller]
    pub fn block_on<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> T {
        self.run(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be built")
                .block_on(work())
        })
    }

    /// Starts a process inside the namespace, killed when the guard is dropped.
    #[track_caller]
    pub fn spawn(&self, command: &mut Command) -> Process {
        let child = self.run(|| command.spawn());
        Process::new(child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")))
    }

    /// Runs a program inside the namespace to its end and returns what it printed.
    ///
    /// # Panics
    /// With what it wrote to standard error when it fails.
    #[track_caller]
    pub fn output(&self, program: &str, args: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(args);
        let output = self
            .run(|| command.output())
            .unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
        assert!(
            output.status.success(),
            "in {}: {program} {args:?} {}: {}",
            self.name,
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `ip` inside the namespace.
    #[track_caller]
    pub fn ip(&self, args: &[&str]) {
        self.output("ip", args);
    }

    /// Joins two namespaces by a veth pair. Its addresses are usable at once.
    #[track_caller]
    pub fn link(&self, here: End<'_>, other: &Namespace, there: End<'_>) {
        let netns = other.path();
        self.ip(&[
            "link", "add", here.link, "type", "veth", "peer", "name", there.link, "netns", &netns,
        ]);
        for (namespace, end) in [(self, here), (other, there)] {
            namespace.addresses(end.link, end.addresses);
            namespace.ip(&["link", "set", end.link, "up"]);
        }
    }

    /// Sends what is for `destination` (a prefix or `default`) to `gateway`.
    #[track_caller]
    pub fn route(&self, destination: &str, gateway: std::net::IpAddr) {
        let family = if gateway.is_ipv6() { "-6" } else { "-4" };
        self.ip(&[
            family,
            "route",
            "add",
            destination,
            "via",
            &gateway.to_string(),
        ]);
    }

    /// Sets a kernel parameter of the namespace, such as `net/ipv4/ip_forward`.
    #[track_caller]
    pub fn sysctl(&self, key: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/{key}"), value))
            .unwrap_or_else(|error| panic!("in {}: cannot set {key}: {error}", self.name));
    }

    fn addresses(&self, link: &str, addresses: &[&str]) {
        for address in addresses {
            let mut args = vec!["address", "add", address, "dev", link];
            if address.contains(':') {
                // Otherwise an address is not usable for about a second.
                args.push("nodad");
            }
            self.ip(&args);
        }
    }

    fn enter(&self) {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .unwrap_or_else(|error| {
                panic!("cannot enter network namespace {}: {error}", self.name)
            });
    }
}

/// Moves the calling thread into a new namespace and opens it.
fn unshared() -> io::Result<OwnedFd> {
    #[expect(unsafe_code, reason = "unshare is unsafe because of its other flags")]
    // SAFETY: only the network namespace is unshared; the thread keeps its descriptors.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNET)?;
    }
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}
