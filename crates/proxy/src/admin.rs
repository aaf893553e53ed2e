//! The proxy's own admin answers, on top of what every daemon has: its environment, its trust anchors
//! and `/shutdown`.

pub mod port;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use linkerd_runtime::{
    admin::{Admin, Flavor, not_allowed, text},
    log,
    metrics::Exposition,
    ready::Readiness,
};
use linkerd_tls::Store;
use tokio::sync::mpsc;

/// Builds the admin server.
pub fn build(
    readiness: Readiness,
    metrics: Arc<Exposition>,
    log: Option<log::Handle>,
    shutdown: Option<mpsc::Sender<()>>,
    store: Arc<Store>,
) -> Arc<Admin> {
    let mut admin = Admin::new(Flavor::Proxy, readiness, metrics)
        .route("/env.json", |request| environment(request, &process_env))
        // What is believed now, which a rotation may have made other than what the pod was made with.
        .route("/trust-anchors", move |request| match *request.method() {
            Method::GET => text(StatusCode::OK, store.snapshot().anchors().to_pem()),
            _ => not_allowed("GET"),
        })
        .loopback_route("/shutdown", move |request| {
            if request.method() != Method::POST {
                return not_allowed("POST");
            }
            match &shutdown {
                Some(sender) => {
                    // A full channel means that it has been asked already.
                    let _ = sender.try_send(());
                    text(StatusCode::OK, "shutdown\n")
                }
                None => text(StatusCode::NOT_FOUND, "shutdown endpoint is not enabled\n"),
            }
        });
    if let Some(log) = log {
        admin = admin.log_level(log);
    }
    Arc::new(admin)
}

fn process_env() -> Vec<(String, String)> {
    let mut vars: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    vars.sort();
    vars
}

fn environment(
    request: &Request<Bytes>,
    env: &dyn Fn() -> Vec<(String, String)>,
) -> Response<Bytes> {
    if request.method() != Method::GET {
        return not_allowed("GET");
    }
    let accepted = request
        .headers()
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .collect::<Vec<_>>();
    let json = accepted.is_empty()
        || accepted
            .iter()
            .flat_map(|v| v.split(','))
            .map(|v| v.split(';').next().unwrap_or_default().trim())
            .any(|v| matches!(v, "*/*" | "application/*" | "application/json"));
    if !json {
        return text(
            StatusCode::NOT_ACCEPTABLE,
            "only application/json is offered\n",
        );
    }
    let vars = env();
    let query = request.uri().query().unwrap_or_default();
    if query.contains('=') {
        return text(
            StatusCode::BAD_REQUEST,
            "invalid query: expected names only\n",
        );
    }
    let mut out = String::from("{");
    let mut put = |name: &str, value: Option<&str>| {
        if out.len() > 1 {
            out.push(',');
        }
        put_json(&mut out, name);
        out.push(':');
        match value {
            Some(value) => put_json(&mut out, value),
            None => out.push_str("null"),
        }
    };
    if query.is_empty() {
        for (name, value) in &vars {
            put(name, Some(value));
        }
    } else {
        for name in query.split('&').filter(|n| !n.is_empty()) {
            let value = vars.iter().find(|(k, _)| k == name);
            put(name, value.map(|(_, v)| v.as_str()));
        }
    }
    out.push('}');
    let mut response = Response::new(Bytes::from(out));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

/// Writes a JSON string.
pub(crate) fn put_json(out: &mut String, text: &str) {
    use std::fmt::Write;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(uri: &str, accept: Option<&str>) -> (StatusCode, String) {
        let mut request = Request::builder().uri(uri);
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let request = request.body(Bytes::new()).expect("valid");
        let env = || {
            vec![
                ("A".to_owned(), "1".to_owned()),
                ("B".to_owned(), "x\"\n".to_owned()),
            ]
        };
        let response = environment(&request, &env);
        let body = String::from_utf8(response.body().to_vec()).expect("text");
        (response.status(), body)
    }

    #[test]
    fn environment_table() {
        let ok = StatusCode::OK;
        assert_eq!(
            get("/env.json", None),
            (ok, r#"{"A":"1","B":"x\"\n"}"#.into())
        );
        assert_eq!(
            get("/env.json?A&C", None),
            (ok, r#"{"A":"1","C":null}"#.into())
        );
        assert_eq!(get("/env.json?A=1", None).0, StatusCode::BAD_REQUEST);
        assert_eq!(get("/env.json", Some("application/json")).0, ok);
        assert_eq!(get("/env.json", Some("text/html, */*;q=0.1")).0, ok);
        assert_eq!(
            get("/env.json", Some("text/html")).0,
            StatusCode::NOT_ACCEPTABLE
        );
    }
}
