//! The access log of the inbound proxy, line by line.

#[path = "support/harness.rs"]
mod harness;

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use harness::{Client, DEADLINE, Pair, Settings, get, http_echo};
use linkerd_testkit::wait_for;

/// A writer that keeps what it is given.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl io::Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Kept {
    /// Waits for so many whole lines.
    fn lines(&self, n: usize) -> Vec<String> {
        let read = || {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&kept).into_owned()
        };
        wait_for(DEADLINE, "the access log", || {
            read().matches('\n').count() >= n
        });
        read().lines().map(str::to_owned).collect()
    }
}

fn pair(format: &str, app: std::net::SocketAddr, kept: &Kept) -> Pair {
    let server = Settings {
        env: &[("ACCESS_LOG", format)],
        access_log: Some(Box::new(kept.clone())),
        ..Settings::default()
    };
    Pair::with_settings(app, Settings::default(), server)
}

#[test]
fn apache_lines() {
    let app = http_echo();
    let kept = Kept::default();
    let pair = pair("apache", app.addr(), &kept);
    get(pair.client.outbound, "/a?b=c", "web");
    let ask = "POST /d HTTP/1.1\r\nhost: web\r\nx-echo-status: 503\r\ncontent-length: 2\r\n\r\nhi";
    Client::connect(pair.client.outbound).send(ask).answer();
    let lines = kept.lines(2);
    let id = &pair.client.identity;
    for (line, request) in lines
        .iter()
        .zip(["\"GET /a?b=c HTTP/1.1\" 200", "\"POST /d HTTP/1.1\" 503"])
    {
        // The client's port and the time are the only parts that differ between runs.
        let (client, rest) = line.split_once(' ').expect("a client");
        assert!(client.starts_with("127.0.0.1:"), "{line}");
        let (before, after) = rest.split_once(" - [").expect("an identity");
        assert_eq!(before, id);
        let (time, what) = after.split_once("] ").expect("a time");
        assert_eq!(time.len(), "2022-08-23T20:28:20.071809491Z".len(), "{line}");
        assert_eq!(what, request);
    }
}

#[test]
fn json_lines() {
    let app = http_echo();
    let kept = Kept::default();
    let pair = pair("json", app.addr(), &kept);
    let ask = "POST /d HTTP/1.1\r\nhost: web\r\nuser-agent: test/1\r\nx-request-id: r7\r\n\
               x-echo-body-bytes: 9\r\ncontent-length: 2\r\n\r\nhi";
    Client::connect(pair.client.outbound).send(ask).answer();
    let line = kept.lines(1).remove(0);
    let line: serde_json::Value = serde_json::from_str(&line).expect("an object per line");
    let names: Vec<&str> = line
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        names,
        [
            "client.addr",
            "client.id",
            "host",
            "method",
            "processing_ns",
            "request_bytes",
            "response_bytes",
            "status",
            "timestamp",
            "total_ns",
            "trace_id",
            "uri",
            "user_agent",
            "version"
        ]
    );
    for (name, want) in [
        ("client.id", pair.client.identity.as_str()),
        ("host", "web"),
        ("method", "POST"),
        ("request_bytes", "2"),
        ("response_bytes", "9"),
        ("trace_id", "r7"),
        ("uri", "/d"),
        ("user_agent", "test/1"),
        ("version", "HTTP/1.1"),
    ] {
        assert_eq!(line[name], want, "{name}");
    }
    assert_eq!(line["status"], 200);
    let nanos = |name: &str| -> u64 {
        let text = line[name].as_str().expect("text");
        text.parse().expect("a number")
    };
    assert!(nanos("total_ns") >= nanos("processing_ns"));
    assert!(nanos("processing_ns") > 0);
}

#[test]
fn refusals_are_logged_and_outbound_is_not() {
    let app = http_echo();
    let kept = Kept::default();
    let ours = Kept::default();
    let client = Settings {
        env: &[("ACCESS_LOG", "apache")],
        access_log: Some(Box::new(ours.clone())),
        ..Settings::default()
    };
    let server = Settings {
        env: &[("ACCESS_LOG", "apache"), ("INBOUND_DEFAULT_POLICY", "deny")],
        access_log: Some(Box::new(kept.clone())),
        ..Settings::default()
    };
    let pair = Pair::with_settings(app.addr(), client, server);
    assert_eq!(get(pair.client.outbound, "/", "web").status(), 403);
    let lines = kept.lines(1);
    assert!(lines[0].ends_with("\"GET / HTTP/1.1\" 403"), "{}", lines[0]);
    assert_eq!(ours.lines(0).len(), 0, "outbound requests are not logged");
}

#[test]
fn http2_requests_have_their_whole_uri() {
    let app = http_echo();
    let kept = Kept::default();
    let pair = pair("apache", app.addr(), &kept);
    let done = harness::http2_get(pair.client.outbound, "http://web.ns/x?y");
    assert_eq!(done, 200);
    let line = kept.lines(1).remove(0);
    assert!(
        line.ends_with("\"GET http://web.ns/x?y HTTP/2.0\" 200"),
        "{line}"
    );
}
