//! `kubectl port-forward` beside a test, ended with it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Stdio};

use crate::Kubectl;

#[derive(Debug)]
pub struct PortForward {
    child: Child,
    address: SocketAddr,
    /// Kept open: kubectl dies when it cannot write a line for each connection.
    _stdout: BufReader<ChildStdout>,
}

impl PortForward {
    /// Forwards a free port of this machine to `port` of `target`, such as `deployment/web`.
    #[track_caller]
    pub fn start(kubectl: &Kubectl, namespace: &str, target: &str, port: u16) -> Self {
        let ports = format!(":{port}");
        let mut child = kubectl
            .command(&["--namespace", namespace, "port-forward", target, &ports])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("kubectl can be started");
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut stdout = BufReader::new(stdout);
        // kubectl names the port once it listens, or ends.
        let address = stdout
            .by_ref()
            .lines()
            .map_while(Result::ok)
            .find_map(|line| parse(&line));
        match address {
            Some(address) => Self {
                child,
                address,
                _stdout: stdout,
            },
            None => {
                let status = child.wait().expect("kubectl can be waited for");
                panic!("port-forward to {target} ended early ({status})");
            }
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// `Forwarding from 127.0.0.1:40001 -> 8080`
fn parse(line: &str) -> Option<SocketAddr> {
    let rest = line.strip_prefix("Forwarding from ")?;
    rest.split(" -> ").next()?.parse().ok()
}

impl Drop for PortForward {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read() {
        let address = parse("Forwarding from 127.0.0.1:40001 -> 8080").expect("it is named");
        assert_eq!(address.port(), 40001);
        assert_eq!(parse("Handling connection for 40001"), None);
    }
}
