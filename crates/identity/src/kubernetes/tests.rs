//! The API server played by a function: what is asked of it, and what its answers lead to.

use std::{convert::Infallible, sync::Arc};

use http::{Method, Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;

/// A status and a body.
type Answer = (u16, String);

/// Answers every request the same way until told another, and counts them.
#[derive(Clone)]
struct Server(Arc<Mutex<(Answer, Vec<String>)>>);

impl Server {
    fn new(answer: Answer) -> Self {
        Self(Arc::new(Mutex::new((answer, Vec::new()))))
    }

    fn says(&self, answer: Answer) {
        self.0.lock().0 = answer;
    }

    fn asked(&self) -> usize {
        self.0.lock().1.len()
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (method, uri) = (request.method(), request.uri());
            let mut state = server.0.lock();
            state.1.push(format!("{method} {uri}"));
            let (status, body) = state.0.clone();
            let body = Body::from(body.into_bytes());
            let response = Response::builder().status(status).body(body);
            std::future::ready(Ok::<_, Infallible>(response.expect("a response")))
        });
        Client::new(service, "default")
    }
}

fn failure(code: u16) -> Answer {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        _ => "InternalError",
    };
    let status = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{reason}","reason":"{reason}","code":{code}}}"#
    );
    (code, status)
}

fn reviewed(status: &str) -> Answer {
    let review = format!(
        r#"{{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{{}},"status":{status}}}"#
    );
    (201, review)
}

#[tokio::test]
async fn without_the_right_to_review_tokens_there_is_no_start() {
    for (name, answer, expected) in [
        ("allowed", reviewed(r#"{"allowed":true}"#), None),
        (
            "not allowed",
            reviewed(r#"{"allowed":false,"reason":"no role"}"#),
            Some("not allowed to create tokenreviews.authentication.k8s.io: no role"),
        ),
        (
            "not allowed, no reason",
            reviewed(r#"{"allowed":false}"#),
            Some("not allowed to create tokenreviews.authentication.k8s.io: "),
        ),
        (
            "no answer to the question",
            reviewed("null"),
            Some("not allowed to create tokenreviews.authentication.k8s.io: "),
        ),
        (
            "may not even ask",
            failure(403),
            Some("Cannot check the right to create token reviews"),
        ),
        (
            "a server that fails",
            failure(500),
            Some("Cannot check the right to create token reviews"),
        ),
    ] {
        let server = Server::new(answer);
        let outcome = check_access(&server.client()).await;
        let outcome = outcome.err().map(|error| error.to_string());
        assert_eq!(outcome.as_deref(), expected, "{name}");
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?";
        let asked = format!("{} {path}", Method::POST);
        assert_eq!(server.0.lock().1, [asked], "{name}");
    }
}

fn bundle(text: &str) -> Answer {
    config_map(&format!(r#"{{"ca-bundle.crt":"{text}"}}"#))
}

fn config_map(data: &str) -> Answer {
    let map = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"roots"}},"data":{data}}}"#
    );
    (200, map)
}

/// Waits for the text, and answers how long it took.
async fn until(live: &mut watch::Receiver<Option<String>>, expected: Option<&str>) -> Duration {
    let started = Instant::now();
    let seen = live.wait_for(|text| text.as_deref() == expected);
    let seen = tokio::time::timeout(Duration::from_secs(600), seen).await;
    seen.expect("in time").expect("followed");
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_bundle_is_followed_and_the_mounted_one_does_when_it_cannot_be_read() {
    let server = Server::new(bundle("one"));
    let (live, mut followed) = watch::channel(None);
    let reader = Bundle::new(server.client(), "linkerd", "roots");
    let task = linkerd_runtime::spawn("bundle", async move { reader.follow(live).await });
    until(&mut followed, Some("one")).await;
    for (name, answer) in [
        ("reading it is not allowed", failure(403)),
        ("it does not exist", failure(404)),
        ("it has no such key", config_map("{}")),
        ("it has no data", config_map("null")),
    ] {
        server.says(answer);
        let noticed = until(&mut followed, None).await;
        assert!(noticed <= BUNDLE_INTERVAL, "{name}: {noticed:?}");
        // Asked for now and then, as it may come.
        let asked = server.asked();
        tokio::time::sleep(3 * BUNDLE_RETRY).await;
        let asked = server.asked() - asked;
        assert!((2..=4).contains(&asked), "{name}: {asked}");
        server.says(bundle("two"));
        let noticed = until(&mut followed, Some("two")).await;
        assert!(noticed <= BUNDLE_RETRY, "{name}: {noticed:?}");
    }
    // A server that is away says nothing about the bundle.
    server.says(failure(500));
    let asked = server.asked();
    tokio::time::sleep(3 * BUNDLE_INTERVAL).await;
    assert!(server.asked() - asked >= 2);
    assert_eq!(followed.borrow().as_deref(), Some("two"));
    server.says(bundle("three"));
    until(&mut followed, Some("three")).await;
    task.abort();
}
