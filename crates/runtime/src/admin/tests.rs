//! Answers of each flavour, by tables of named cases.

use super::*;
use crate::metrics::Registry;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

fn admin(flavor: Flavor, readiness: &Readiness) -> Admin {
    Admin::new(
        flavor,
        readiness.clone(),
        Arc::new(Exposition::new(Registry::default())),
    )
}

fn request(method: &str, path: &str) -> Request<Bytes> {
    Request::builder()
        .method(method)
        .uri(path)
        .body(Bytes::new())
        .expect("a valid request")
}

fn body(response: &Response<Bytes>) -> &str {
    std::str::from_utf8(response.body()).expect("text")
}

#[test]
fn probes_answer_as_their_flavour_does() {
    let ready = Readiness::new();
    let not_ready = Readiness::new();
    let _block = not_ready.block("identity");
    for (flavor, readiness, method, path, status, text) in [
        (Flavor::Proxy, &ready, "GET", "/live", 200, "live\n"),
        (Flavor::Proxy, &not_ready, "POST", "/live", 200, "live\n"),
        (Flavor::Proxy, &ready, "GET", "/ready", 200, "ready\n"),
        (
            Flavor::Proxy,
            &not_ready,
            "GET",
            "/ready",
            503,
            "not ready\n",
        ),
        (Flavor::Proxy, &ready, "GET", "/ping", 404, ""),
        (Flavor::Controller, &ready, "GET", "/ping", 200, "pong\n"),
        (Flavor::Controller, &ready, "GET", "/ready", 200, "ok\n"),
        (
            Flavor::Controller,
            &not_ready,
            "GET",
            "/ready",
            500,
            "not ready\n",
        ),
        (Flavor::Controller, &ready, "GET", "/live", 404, ""),
        (Flavor::Policy, &ready, "GET", "/live", 200, "alive\n"),
        (Flavor::Policy, &ready, "HEAD", "/ready", 200, "ready\n"),
        (
            Flavor::Policy,
            &not_ready,
            "GET",
            "/ready",
            500,
            "not ready\n",
        ),
        (Flavor::Policy, &ready, "POST", "/live", 405, ""),
        (Flavor::Policy, &ready, "GET", "/nothing", 404, ""),
    ] {
        let response = admin(flavor, readiness).handle(&request(method, path), ELSEWHERE);
        let case = format!("{flavor:?} {method} {path}");
        assert_eq!(response.status(), status, "{case}");
        assert_eq!(body(&response), text, "{case}");
        if status == 405 {
            assert_eq!(response.headers()[ALLOW], "GET, HEAD", "{case}");
        }
    }
}

#[test]
fn metrics_are_compressed_when_accepted() {
    for (name, accept, compressed) in [
        ("absent", None, false),
        ("plain", Some("gzip"), true),
        ("among others", Some("deflate, GZIP;q=0.5"), true),
        ("refused", Some("gzip;q=0, identity"), false),
        ("another", Some("br"), false),
    ] {
        let mut request = request("GET", "/metrics");
        if let Some(accept) = accept {
            request
                .headers_mut()
                .insert(ACCEPT_ENCODING, HeaderValue::from_static(accept));
        }
        let response = admin(Flavor::Proxy, &Readiness::new()).handle(&request, ELSEWHERE);
        assert_eq!(response.status(), 200, "{name}");
        assert_eq!(response.headers()[CONTENT_TYPE], "text/plain", "{name}");
        assert_eq!(
            response.headers().contains_key(CONTENT_ENCODING),
            compressed,
            "{name}"
        );
        let mut text = String::new();
        if compressed {
            let mut decoder = flate2::read::GzDecoder::new(&response.body()[..]);
            std::io::Read::read_to_string(&mut decoder, &mut text).expect("gzip");
        } else {
            text.push_str(body(&response));
        }
        assert_eq!(text, "# EOF\n", "{name}");
    }
}

#[test]
fn own_routes_may_be_for_this_host_only() {
    let admin = admin(Flavor::Proxy, &Readiness::new())
        .route("/env.json", |request| {
            text(StatusCode::OK, format!("{:?}", request.uri().query()))
        })
        .loopback_route("/shutdown", |request| match *request.method() {
            Method::POST => text(StatusCode::OK, "shutdown\n"),
            _ => not_allowed("POST"),
        });
    let mapped: IpAddr = "::ffff:127.0.0.1".parse().expect("an address");
    for (method, path, peer, status, text) in [
        ("GET", "/env.json?A", ELSEWHERE, 200, "Some(\"A\")"),
        ("POST", "/shutdown", HERE, 200, "shutdown\n"),
        ("POST", "/shutdown", mapped, 200, "shutdown\n"),
        ("GET", "/shutdown", HERE, 405, ""),
        (
            "POST",
            "/shutdown",
            ELSEWHERE,
            403,
            "Requests are only permitted from localhost.",
        ),
        ("GET", "/proxy-log-level", HERE, 404, ""),
    ] {
        let response = admin.handle(&request(method, path), peer);
        assert_eq!(response.status(), status, "{method} {path} from {peer}");
        assert_eq!(body(&response), text, "{method} {path} from {peer}");
    }
}

#[test]
fn the_log_is_for_this_host_and_for_proxies() {
    let (_, handle) = crate::log::tests::built("info");
    let elsewhere = |flavor| {
        let admin = admin(flavor, &Readiness::new()).log_level(handle.clone());
        let answer = admin.logs(&request("GET", "/logs.json"), ELSEWHERE);
        answer.map(|answer| answer.expect_err("refused").status().as_u16())
    };
    assert_eq!(elsewhere(Flavor::Proxy), Some(403));
    assert_eq!(elsewhere(Flavor::Controller), None);
    assert_eq!(elsewhere(Flavor::Policy), None);
}

#[test]
fn percent_signs_are_undone() {
    for (query, want) in [
        ("", Some("")),
        ("warn,linkerd=debug", Some("warn,linkerd=debug")),
        ("warn%2Clinkerd%3ddebug", Some("warn,linkerd=debug")),
        ("%5B%7Bheaders%7D%5D=off", Some("[{headers}]=off")),
        ("%", None),
        ("a%2", None),
        ("%zz", None),
    ] {
        let want = want.map(|text| text.as_bytes().to_vec());
        assert_eq!(unescaped(query), want, "{query}");
    }
}
