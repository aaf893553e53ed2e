//! What a cluster holds from the start: the pause image, CoreDNS and its node objects;
//! and the questions that tell whether names and services work.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::kubectl::Kubectl;
use super::spec::Spec;
use crate::archive::{self, Image};
use crate::tools::COREDNS_VERSION;

pub(crate) const PAUSE_IMAGE: &str = "localhost/linkerd-rs/pause:1";
const MANIFEST: &str = include_str!("../../assets/cluster/coredns.yaml");

pub(crate) fn coredns_image_name() -> String {
    format!("localhost/linkerd-rs/coredns:{COREDNS_VERSION}")
}

pub(crate) fn pause_image(program: &Path) -> Result<Image> {
    Ok(Image::new(PAUSE_IMAGE)
        .copy("/pause", 0o755, program)?
        .entrypoint(["/pause"])
        .user("65535:65535"))
}

pub(crate) fn coredns_image(program: &Path) -> Result<Image> {
    Ok(Image::new(coredns_image_name())
        .copy("/coredns", 0o755, program)?
        .entrypoint(["/coredns"]))
}

/// Applies CoreDNS, unless it is there as we would make it and answers.
pub(crate) fn ensure_coredns(spec: &Spec, kubectl: &Kubectl) -> Result<()> {
    let manifest = MANIFEST
        .replace("COREDNS_IMAGE", &coredns_image_name())
        .replace("DNS_ADDRESS", &spec.dns_ip().to_string());
    let digest = archive::hex_digest(manifest.as_bytes());
    let field = r"--output=jsonpath={.metadata.annotations.linkerd-rs/manifest}";
    let found = kubectl.output(&[
        "get",
        "deployment",
        "coredns",
        "--namespace=kube-system",
        field,
    ]);
    if found.is_ok_and(|found| found == digest) && dns_answers(spec)? {
        return Ok(());
    }
    kubectl.feed("apply", &manifest.replace("MANIFEST_DIGEST", &digest))
}

/// The node as an object, made before its kubelet comes: so it has our pod subnet.
pub(crate) fn node_object(spec: &Spec, node: u8) -> String {
    let pods = spec.node_pods(node).to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": spec.node_name(node) },
        "spec": { "podCIDR": pods, "podCIDRs": [pods] },
    })
    .to_string()
}

const API_NAME: &str = "kubernetes.default.svc.cluster.local";

/// Whether the cluster's DNS service answers with the address of the API's service: this
/// passes kube-proxy, the pod network, CoreDNS and its view of the API.
pub(crate) fn dns_answers(spec: &Spec) -> Result<bool> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("opening a socket")?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    let server = SocketAddr::from((spec.dns_ip(), 53));
    let mut answer = [0; 512];
    // Refusals and silence both mean: not yet.
    let asked = socket
        .connect(server)
        .and_then(|()| socket.send(&dns_query(API_NAME)));
    let length = match asked.and_then(|_| socket.recv(&mut answer)) {
        Ok(length) => length,
        Err(_) => return Ok(false),
    };
    Ok(dns_address(&answer[..length]) == Some(spec.api_service_ip()))
}

const DNS_ID: [u8; 2] = [0x6c, 0x64];

/// A question for the IPv4 address of `name`.
fn dns_query(name: &str) -> Vec<u8> {
    let mut packet = DNS_ID.to_vec();
    // Recursion desired, one question.
    packet.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).unwrap_or(0));
        packet.extend(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}

/// The address in an answer with one record, which is last in the packet.
fn dns_address(answer: &[u8]) -> Option<Ipv4Addr> {
    let header = answer.get(..12)?;
    let good = header[..2] == DNS_ID && header[3] & 0x0f == 0 && header[6..8] == [0, 1];
    let record: [u8; 4] = answer.last_chunk().copied()?;
    good.then(|| Ipv4Addr::from(record))
}

/// Whether a plain HTTP server answers 200 on this path.
pub(crate) fn http_ok(address: SocketAddr, path: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let patience = Duration::from_millis(500);
        let mut stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok(head.ends_with(b"200"))
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_well_formed() {
        let query = dns_query("a.bc");
        assert_eq!(&query[12..], b"\x01a\x02bc\x00\x00\x01\x00\x01");
    }

    #[test]
    fn answers_are_read() {
        let mut good = DNS_ID.to_vec();
        good.extend([0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        good.extend(b"\x01a\x00\x00\x01\x00\x01\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04");
        good.extend([10, 160, 0, 1]);
        let mut absent = good.clone();
        absent[3] = 0x83;
        let cases = [
            ("an address", good, Some(Ipv4Addr::new(10, 160, 0, 1))),
            ("no such name", absent, None),
            ("half a header", DNS_ID.to_vec(), None),
        ];
        for (name, packet, expected) in cases {
            assert_eq!(dns_address(&packet), expected, "{name}");
        }
    }
}
