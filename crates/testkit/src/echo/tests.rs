//! The echo behaves as told.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use super::*;

const ANY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn connect(echo: &Echo) -> TcpStream {
    let stream = TcpStream::connect(echo.addr()).expect("the echo listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a timeout is set");
    stream
}

fn read_all(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn bytes_come_back_until_the_client_ends() {
    let echo = Echo::tcp(
        ANY,
        Behavior {
            greeting: "hello ".into(),
            ..Behavior::default()
        },
    );
    let mut stream = connect(&echo);
    stream.write_all(b"world").expect("sent");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("half closed");
    assert_eq!(read_all(&mut stream).expect("answered"), b"hello world");
    let local = stream.local_addr().expect("an address");
    let seen = echo.connections();
    assert_eq!(seen[0].peer, local);
    assert_eq!(seen[0].original_dst, None);
}

#[test]
fn a_connection_ends_as_told() {
    let close = Echo::tcp(
        ANY,
        Behavior {
            close_after: Some(2),
            ..Behavior::default()
        },
    );
    let mut stream = connect(&close);
    stream.write_all(b"ab").expect("sent");
    assert_eq!(read_all(&mut stream).expect("closed orderly"), b"ab");

    let reset = Echo::tcp(
        ANY,
        Behavior {
            reset_after: Some(0),
            ..Behavior::default()
        },
    );
    let error = read_all(&mut connect(&reset)).expect_err("a reset is an error");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

    let half = Echo::tcp(
        ANY,
        Behavior {
            half_close_after: Some(2),
            ..Behavior::default()
        },
    );
    let mut stream = connect(&half);
    stream.write_all(b"ab").expect("sent");
    assert_eq!(read_all(&mut stream).expect("its side closed"), b"ab");
    stream
        .write_all(b"still read")
        .expect("the other side stays open");
}

fn get(echo: &Echo, headers: &str) -> String {
    let mut stream = connect(echo);
    write!(
        stream,
        "GET /path HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{headers}\r\n"
    )
    .expect("sent");
    String::from_utf8(read_all(&mut stream).unwrap_or_default()).expect("text")
}

#[test]
fn http_reports_the_request_and_does_what_it_asks() {
    let echo = Echo::http(ANY);
    let answer = get(&echo, "x-a: b\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let seen: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(seen["uri"], "/path");
    assert_eq!(seen["local"], echo.addr().to_string());
    let requests = echo.requests();
    assert_eq!(requests[0].header("X-A"), Some("b"));

    let answer = get(&echo, "x-echo-status: 503\r\nx-echo-body-bytes: 3\r\n");
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\r\n\r\nxxx"),
        "{answer}"
    );
}

#[test]
fn http_answers_as_the_test_wants() {
    let echo = Echo::http_with(ANY, |request| match request.header("x-cut") {
        Some(_) => Answer::Cut,
        None => Answer::status(204, ""),
    });
    assert!(get(&echo, "").starts_with("HTTP/1.1 204 "));
    assert_eq!(get(&echo, "x-cut: now\r\n"), "");
    assert_eq!(echo.requests().len(), 2);
}
