//! The one program of the house tests' image. Its first argument says what it is in a pod:
//! `serve` (a web server that is ready once a file is there), `webhook` (an admission webhook
//! and an aggregated API over TLS), `get URL` (a client), `capture` (what TCP of the pod's network
//! looks like), `write` and `cat` (files), `wait`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(10);
/// More than any request these tests send.
const BODY_LIMIT: u64 = 4 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["serve", address, ready_file, greeting] => serve(address, Path::new(ready_file), greeting),
        ["webhook", address, certificates] => webhook(address, Path::new(certificates)),
        ["get", url] => get(url),
        ["write", path, text] => std::fs::write(path, text),
        ["cat", path] => std::fs::read_to_string(path).map(|text| say(&text)),
        ["capture"] => capture(),
        ["wait"] => wait(),
        _ => Err(io::Error::other(
            "serve | webhook | get | capture | write | cat | wait",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Stays until it is killed.
fn wait() -> io::Result<()> {
    say("waiting");
    loop {
        std::thread::park();
    }
}

/// Every protocol, in the byte order of the network.
const ETH_P_ALL: i32 = 0x0003_u16.to_be() as i32;
/// A capture that nobody ends does not fill the disk.
const PACKETS: usize = 20_000;

/// Prints every TCP packet over IPv4 that enters or leaves any interface of this network namespace:
/// `SOURCE DESTINATION FLAGS SEQUENCE PAYLOAD`, the last three in hexadecimal.
fn capture() -> io::Result<()> {
    let protocol = socket2::Protocol::from(ETH_P_ALL);
    let mut socket = socket2::Socket::new(
        socket2::Domain::PACKET,
        socket2::Type::DGRAM,
        Some(protocol),
    )?;
    say("capturing");
    let mut packet = vec![0; 65_536];
    for _ in 0..PACKETS {
        let length = socket.read(&mut packet)?;
        if let Some(line) = tcp(&packet[..length]) {
            say(&line);
        }
    }
    wait()
}

fn tcp(packet: &[u8]) -> Option<String> {
    let version = packet.first()? >> 4;
    if version != 4 || *packet.get(9)? != 6 {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
    let (ip, segment) = packet
        .get(..total)?
        .split_at_checked(usize::from(packet[0] & 15) * 4)?;
    let address = |ip: &[u8], port: &[u8]| {
        let port = u16::from_be_bytes([port[0], port[1]]);
        format!("{}.{}.{}.{}:{port}", ip[0], ip[1], ip[2], ip[3])
    };
    let header = segment.get(..20)?;
    let payload = segment.get(usize::from(header[12] >> 4) * 4..)?;
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    Some(format!(
        "{} {} {} {} {}",
        address(&ip[12..16], &header[..2]),
        address(&ip[16..20], &header[2..4]),
        hex(&header[13..14]),
        hex(&header[4..8]),
        hex(payload)
    ))
}

#[derive(Debug)]
struct Request {
    method: String,
    path: String,
    body: Vec<u8>,
}

fn serve(address: &str, ready_file: &Path, greeting: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    say(&format!("serving on {}", listener.local_addr()?));
    for stream in listener.incoming() {
        let (mut stream, ready) = (stream?, ready_file.exists());
        let greeting = greeting.to_owned();
        std::thread::spawn(move || {
            stream.set_read_timeout(Some(PATIENCE))?;
            let request = read_request(&mut stream)?;
            say(&format!("{} {}", request.method, request.path));
            match (request.path.as_str(), ready) {
                ("/ready", false) => respond(&mut stream, 503, "not ready\n"),
                ("/ready", true) => respond(&mut stream, 200, "ready\n"),
                _ => respond(&mut stream, 200, &greeting),
            }
        });
    }
    Ok(())
}

fn webhook(address: &str, certificates: &Path) -> io::Result<()> {
    let certificate = CertificateDer::from(std::fs::read(certificates.join("tls.crt.der"))?);
    let key = PrivateKeyDer::try_from(std::fs::read(certificates.join("tls.key.der"))?)
        .map_err(io::Error::other)?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(io::Error::other)?;
    let config = Arc::new(config);
    let listener = TcpListener::bind(address)?;
    say(&format!("serving on {}", listener.local_addr()?));
    for stream in listener.incoming() {
        let (stream, config) = (stream?, Arc::clone(&config));
        std::thread::spawn(move || -> io::Result<()> {
            stream.set_read_timeout(Some(PATIENCE))?;
            let connection = ServerConnection::new(config).map_err(io::Error::other)?;
            let mut stream = StreamOwned::new(connection, stream);
            // A probe that only connects sends nothing.
            let Ok(request) = read_request(&mut stream) else {
                return Ok(());
            };
            say(&format!("{} {}", request.method, request.path));
            let (status, body) = answer(&request);
            respond(&mut stream, status, &body.to_string())?;
            stream.conn.send_close_notify();
            stream.flush()
        });
    }
    Ok(())
}

fn answer(request: &Request) -> (u16, Value) {
    if request.path.starts_with("/mutate") {
        let review: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        return (200, mutate(&review["request"]["uid"]));
    }
    let path = request.path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts.as_slice() {
        ["apis", group, "v1"] => (200, resources(group)),
        ["apis", group, "v1", "namespaces", namespace, "greetings"] => {
            (200, greetings(group, namespace))
        }
        _ => (
            404,
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404 }),
        ),
    }
}

/// Lets the object pass, with a label. The patch is base64 of
/// `[{"op":"add","path":"/metadata/labels","value":{"house":"was-here"}}]`.
fn mutate(uid: &Value) -> Value {
    let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscyIsInZhbHVlIjp7ImhvdXNlIjoid2FzLWhlcmUifX1d";
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": { "uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch },
    })
}

fn resources(group: &str) -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{group}/v1"),
        "resources": [{
            "name": "greetings",
            "singularName": "greeting",
            "namespaced": true,
            "kind": "Greeting",
            "verbs": ["get", "list"],
        }],
    })
}

fn greetings(group: &str, namespace: &str) -> Value {
    json!({
        "kind": "GreetingList",
        "apiVersion": format!("{group}/v1"),
        "metadata": {},
        "items": [{
            "kind": "Greeting",
            "apiVersion": format!("{group}/v1"),
            "metadata": { "name": "hello", "namespace": namespace },
        }],
    })
}

/// Prints the body; fails unless the server answers 200.
fn get(url: &str) -> io::Result<()> {
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| io::Error::other("only http:// is spoken here"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| io::Error::other("no answer"))?;
    if head.split(' ').nth(1) != Some("200") {
        return Err(io::Error::other(head.to_owned()));
    }
    say(body);
    Ok(())
}

fn read_request(stream: &mut impl Read) -> io::Result<Request> {
    let mut reader = BufReader::new(stream.take(BODY_LIMIT));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Err(io::Error::other("not a request"));
    };
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    Ok(Request { method, path, body })
}

fn respond(stream: &mut impl Write, status: u16, body: &str) -> io::Result<()> {
    let kind = if body.starts_with('{') {
        "application/json"
    } else {
        "text/plain"
    };
    write!(
        stream,
        "HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.flush()
}
