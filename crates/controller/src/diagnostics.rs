//! What the policy service's watches and lease are up to, as JSON for people on the same host.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header::CONTENT_TYPE};
use k8s_openapi::jiff::Timestamp;
use linkerd_k8s::{lease::Leadership, watch};
use linkerd_policy::args::LEASE;
use linkerd_runtime::admin;
use serde_json::{Value, json};

#[derive(Debug)]
pub(crate) struct Diagnostics {
    pub(crate) started: Timestamp,
    pub(crate) watches: watch::Metrics,
    pub(crate) namespace: String,
    pub(crate) identity: String,
    /// Not there before the first claim.
    pub(crate) lease: Arc<OnceLock<Leadership>>,
}

impl Diagnostics {
    /// The page; `?resources` also names what each watch holds.
    pub(crate) fn page(&self, request: &Request<Bytes>) -> Response<Bytes> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return admin::not_allowed("GET, HEAD");
        }
        let query = request.uri().query().unwrap_or_default();
        let resources = query
            .split('&')
            .any(|it| it.split('=').next() == Some("resources"));
        let mut response = Response::new(Bytes::from(self.json(resources).to_string()));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }

    fn json(&self, resources: bool) -> Value {
        let lease = self.lease.get().map(|leadership| {
            json!({
                "namespace": self.namespace, "name": LEASE,
                "identity": self.identity, "held": leadership.is_held(),
            })
        });
        json!({
            "initialTimestamp": self.started.to_string(),
            "currentTimestamp": Timestamp::now().to_string(),
            "watches": self.watches.diagnostics(resources),
            "leases": lease.into_iter().collect::<Vec<_>>(),
        })
    }
}
