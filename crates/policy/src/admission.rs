//! Refuses objects that make no sense, before they are stored.
//!
//! One rule set per kind; a rule set gets the parsed object and says what is wrong with it.
//! [`service_profile`] is the other validator, for ServiceProfiles.

use linkerd_core::policy::{GATEWAY_GROUP, POLICY_GROUP};
use linkerd_k8s::{
    admission::{Handler, Review, Verdict},
    policy as k8s,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

mod authentication;
mod authorization;
mod rate_limit;
mod route;
mod server;
pub mod service_profile;

pub use service_profile::ServiceProfileValidator;

/// Reviews policy resources.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyValidator;

/// An object under review.
struct Subject<'r> {
    namespace: &'r str,
    object: &'r Value,
}

impl Subject<'_> {
    fn spec<T: DeserializeOwned>(&self) -> Result<T, String> {
        let spec = self.object.get("spec").cloned().unwrap_or(Value::Null);
        serde_json::from_value(spec).map_err(|error| error.to_string())
    }

    fn annotations(&self) -> crate::annotation::Annotations {
        let annotations = self.object.pointer("/metadata/annotations").cloned();
        annotations
            .and_then(|value| serde_json::from_value(value).ok())
            .unwrap_or_default()
    }
}

impl Handler for PolicyValidator {
    const ROOT_ONLY: bool = true;

    async fn review(&self, review: Review) -> Verdict {
        match validate(&review) {
            Ok(()) => Verdict::Allow,
            Err(message) => {
                tracing::info!(kind = %review.kind.kind, namespace = %review.namespace, name = %review.name, %message, "Denied");
                Verdict::Deny { code: 403, message }
            }
        }
    }
}

/// Says what is wrong with an object.
pub fn validate(review: &Review) -> Result<(), String> {
    let subject = Subject {
        namespace: &review.namespace,
        object: &review.object,
    };
    let is = |group: &str, kind: &str| {
        review.kind.group.eq_ignore_ascii_case(group) && review.kind.kind.eq_ignore_ascii_case(kind)
    };
    if is(POLICY_GROUP, "AuthorizationPolicy") {
        authorization::policy(&subject.spec()?, subject.namespace)
    } else if is(POLICY_GROUP, "ServerAuthorization") {
        authorization::server_authorization(&subject.spec()?)
    } else if is(POLICY_GROUP, "MeshTLSAuthentication") {
        authentication::mesh_tls(&subject.spec()?)
    } else if is(POLICY_GROUP, "NetworkAuthentication") {
        authentication::network(&subject.spec()?)
    } else if is(POLICY_GROUP, "Server") {
        server::server(&subject.spec()?)
    } else if is(POLICY_GROUP, "EgressNetwork") {
        server::egress_network(&subject.spec()?)
    } else if is(POLICY_GROUP, "HTTPLocalRateLimitPolicy") {
        rate_limit::rate_limit(&subject.spec()?)
    } else if is(POLICY_GROUP, "HTTPRoute") {
        route::policy_http(&subject.spec()?, &subject.annotations())
    } else if is(GATEWAY_GROUP, "HTTPRoute") {
        readable(&subject, review, |spec| {
            route::gateway_http(spec, &subject.annotations())
        })
    } else if is(GATEWAY_GROUP, "GRPCRoute") {
        readable(&subject, review, |spec| {
            route::grpc(spec, &subject.annotations())
        })
    } else if is(GATEWAY_GROUP, "TLSRoute") {
        readable(&subject, review, |spec| route::connection(spec, "TlsRoute"))
    } else if is(GATEWAY_GROUP, "TCPRoute") {
        readable(&subject, review, |spec| route::connection(spec, "TcpRoute"))
    } else {
        let k8s_kind = &review.kind;
        Err(format!(
            "unsupported resource type: {}.{}.{}",
            k8s_kind.group, k8s_kind.version, k8s_kind.kind
        ))
    }
}

/// Other controllers use the Gateway API too: what we cannot read is none of our business.
fn readable<R: DeserializeOwned>(
    subject: &Subject<'_>,
    review: &Review,
    check: impl FnOnce(&k8s::route::Spec<R>) -> Result<(), String>,
) -> Result<(), String>
where
    k8s::route::Spec<R>: DeserializeOwned,
{
    match subject.spec() {
        Ok(spec) => check(&spec),
        Err(error) => {
            tracing::warn!(kind = %review.kind.kind, name = %review.name, %error, "Admitting a route that cannot be read");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
