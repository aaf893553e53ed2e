//! Who a token belongs to: the seam to Kubernetes' TokenReview and the reading of its answer.

use std::{fmt, future::Future};

use linkerd_core::identity::{ServiceAccountId, is_dns_label};

/// The audience proxies ask for in their projected token.
pub const AUDIENCE: &str = "identity.l5d.io";

/// What the API server says about a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    pub authenticated: bool,
    pub username: String,
    /// Why the token could not be checked; empty when it could.
    pub error: String,
    pub audiences: Vec<String>,
}

/// The API server could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReviewError(pub String);

/// Asks whether a token is good for the audiences, or for the API server itself when there are none.
pub trait TokenReviewer: Send + Sync + 'static {
    fn review(
        &self,
        token: &str,
        audiences: &[&str],
    ) -> impl Future<Output = Result<Review, ReviewError>> + Send;
}

/// `system:<type>:<namespace>:<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Username {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUsername {
    #[error("Username must be in form system:TYPE:NS:SA: {0}")]
    Form(String),
    #[error("Not a label: {0}")]
    NotALabel(String),
}

impl Username {
    pub fn parse(text: &str) -> Result<Self, InvalidUsername> {
        let parts: Vec<_> = text.split(':').collect();
        let ["system", kind, namespace, name] = parts.as_slice() else {
            return Err(InvalidUsername::Form(text.to_owned()));
        };
        for part in [kind, namespace, name] {
            if !is_dns_label(part) {
                return Err(InvalidUsername::NotALabel((*part).to_owned()));
            }
        }
        Ok(Self {
            kind: (*kind).to_owned(),
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
        })
    }

    /// The identity this user may have.
    pub fn identity(&self, control_plane_namespace: &str, trust_domain: &str) -> ServiceAccountId {
        ServiceAccountId {
            kind: self.kind.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            control_plane_namespace: control_plane_namespace.to_owned(),
            trust_domain: trust_domain.to_owned(),
        }
    }
}

impl fmt::Display for Username {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "system:{}:{}:{}", self.kind, self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usernames() {
        for (text, want) in [
            (
                "system:serviceaccount:emojivoto:web",
                Ok("web.emojivoto.serviceaccount.identity.linkerd.cluster.local"),
            ),
            (
                "system:serviceaccount:emojivoto",
                Err("Username must be in form system:TYPE:NS:SA: system:serviceaccount:emojivoto"),
            ),
            (
                "system:serviceaccount:a:b:c",
                Err("Username must be in form system:TYPE:NS:SA: system:serviceaccount:a:b:c"),
            ),
            (
                "root:serviceaccount:a:b",
                Err("Username must be in form system:TYPE:NS:SA: root:serviceaccount:a:b"),
            ),
            ("", Err("Username must be in form system:TYPE:NS:SA: ")),
            ("system:serviceaccount:a:b.c", Err("Not a label: b.c")),
            ("system:serviceaccount:A:b", Err("Not a label: A")),
            ("system::a:b", Err("Not a label: ")),
        ] {
            let got = Username::parse(text)
                .map(|user| user.identity("linkerd", "cluster.local").to_string())
                .map_err(|error| error.to_string());
            assert_eq!(
                got,
                want.map(str::to_owned).map_err(str::to_owned),
                "{text}"
            );
        }
    }
}
