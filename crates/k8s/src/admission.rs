//! Admission webhooks: an HTTPS server that hands reviews to a [`Handler`] and answers in the
//! version it was asked in. Bodies, time and connections are bounded.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

const MAX_BODY: usize = 10 * 1024 * 1024;
const MAX_CONNECTIONS: usize = 512;
const HANDSHAKE: Duration = Duration::from_secs(10);
const READ: Duration = Duration::from_secs(30);

/// What is to be admitted.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Review {
    pub uid: String,
    pub kind: Kind,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub namespace: String,
    pub operation: String,
    #[serde(default)]
    pub object: Value,
    #[serde(default)]
    pub old_object: Value,
    #[serde(default)]
    pub dry_run: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Kind {
    #[serde(default)]
    pub group: String,
    pub version: String,
    pub kind: String,
}

/// The answer to a review.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Allow,
    /// Allowed with these JSON patch operations.
    Patch(Vec<Value>),
    Deny {
        code: u16,
        message: String,
    },
}

/// Decides on reviews.
pub trait Handler: Send + Sync + 'static {
    /// Whether only `POST /` is a review; anything else is not found.
    const ROOT_ONLY: bool = false;

    fn review(&self, review: Review) -> impl Future<Output = Verdict> + Send;
}

impl Verdict {
    /// Refused because the object is wrong.
    pub fn deny(message: impl Into<String>) -> Self {
        Self::Deny {
            code: 400,
            message: message.into(),
        }
    }

    fn response(self, uid: &str) -> Value {
        match self {
            Self::Allow => json!({"uid": uid, "allowed": true}),
            Self::Patch(operations) => {
                let patch =
                    k8s_openapi::ByteString(Value::from(operations).to_string().into_bytes());
                json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch})
            }
            Self::Deny { code, message } => {
                json!({"uid": uid, "allowed": false, "status": {"code": code, "message": message}})
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    api_version: String,
    request: Review,
}

/// Answers one body: status and JSON. An empty body is a health check of sorts.
async fn answer(handler: &impl Handler, body: &[u8]) -> (StatusCode, Bytes) {
    if body.is_empty() {
        return (StatusCode::OK, Bytes::new());
    }
    match serde_json::from_slice::<Envelope>(body) {
        Ok(Envelope {
            api_version,
            request,
        }) => {
            let uid = request.uid.clone();
            let response = handler.review(request).await.response(&uid);
            let review =
                json!({"apiVersion": api_version, "kind": "AdmissionReview", "response": response});
            (StatusCode::OK, review.to_string().into())
        }
        Err(error) => {
            tracing::warn!(%error, "Undecodable admission review");
            (
                StatusCode::BAD_REQUEST,
                format!("not an AdmissionReview: {error}\n").into(),
            )
        }
    }
}

async fn respond<H: Handler>(handler: &H, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if H::ROOT_ONLY && (request.method() != Method::POST || request.uri().path() != "/") {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    let body = timeout(READ, Limited::new(request.into_body(), MAX_BODY).collect()).await;
    let (status, body) = match body {
        Ok(Ok(body)) => answer(handler, &body.to_bytes()).await,
        Ok(Err(_)) => (
            StatusCode::PAYLOAD_TOO_LARGE,
            Bytes::from_static(b"the body is too large or broken\n"),
        ),
        Err(_) => (
            StatusCode::REQUEST_TIMEOUT,
            Bytes::from_static(b"the body did not come in time\n"),
        ),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

/// Serves until `stop` ends; `tls` is asked for each connection, so that certificates can change.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    tls: impl Fn() -> Arc<ServerConfig>,
    handler: Arc<H>,
    stop: impl Future<Output = ()>,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut stop = std::pin::pin!(stop);
    loop {
        let slot = slots.clone().acquire_owned().await.expect("never closed");
        let socket = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => return,
        };
        let socket = match socket {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a webhook connection");
                continue;
            }
        };
        let acceptor = TlsAcceptor::from(tls());
        let handler = handler.clone();
        linkerd_runtime::spawn("webhook connection", async move {
            let _slot = slot;
            let stream = match timeout(HANDSHAKE, acceptor.accept(socket)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "Webhook handshake failed"),
                Err(_) => return tracing::debug!("Webhook handshake timed out"),
            };
            let service = service_fn(|request| {
                let handler = handler.clone();
                async move { Ok::<_, Infallible>(respond(&*handler, request).await) }
            });
            let mut server = auto::Builder::new(TokioExecutor::new());
            server
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(READ);
            server
                .http2()
                .timer(TokioTimer::new())
                .max_concurrent_streams(64);
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "Webhook connection ended");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ByName;

    impl Handler for ByName {
        async fn review(&self, review: Review) -> Verdict {
            match review.name.as_str() {
                "good" => Verdict::Allow,
                "plain" => Verdict::Patch(vec![json!({"op": "add", "path": "/x", "value": 1})]),
                _ => Verdict::deny("no"),
            }
        }
    }

    fn review(version: &str, name: &str) -> Vec<u8> {
        let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
        let request =
            json!({"uid": "u1", "kind": kind, "name": name, "operation": "CREATE", "object": null});
        json!({"apiVersion": version, "kind": "AdmissionReview", "request": request})
            .to_string()
            .into_bytes()
    }

    #[tokio::test]
    async fn reviews_are_answered_in_their_version() {
        let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL3giLCJ2YWx1ZSI6MX1d";
        for (version, name, expected) in [
            (
                "admission.k8s.io/v1",
                "good",
                json!({"uid": "u1", "allowed": true}),
            ),
            (
                "admission.k8s.io/v1beta1",
                "plain",
                json!({"uid": "u1", "allowed": true, "patchType": "JSONPatch", "patch": patch}),
            ),
            (
                "admission.k8s.io/v1",
                "bad",
                json!({"uid": "u1", "allowed": false, "status": {"code": 400, "message": "no"}}),
            ),
        ] {
            let (status, body) = answer(&ByName, &review(version, name)).await;
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(
                (status, &body["apiVersion"], &body["response"]),
                (StatusCode::OK, &json!(version), &expected)
            );
        }
    }

    #[tokio::test]
    async fn broken_bodies_are_refused() {
        assert_eq!(answer(&ByName, b"").await, (StatusCode::OK, Bytes::new()));
        for body in [&b"{"[..], b"[]", b"{\"apiVersion\":\"v1\"}"] {
            assert_eq!(answer(&ByName, body).await.0, StatusCode::BAD_REQUEST);
        }
    }
}
