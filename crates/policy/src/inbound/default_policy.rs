//! The policies a port can have without anybody writing a resource.

use linkerd_core::policy::{
    Origin,
    inbound::{Authentication, Authorization, IdentityMatch},
};
use std::{fmt, str::FromStr};

use crate::cluster::{Cluster, all_networks};

/// A policy known by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultPolicy {
    /// Everyone.
    AllUnauthenticated,
    /// Every mesh identity.
    AllAuthenticated,
    /// Everyone in the cluster.
    ClusterUnauthenticated,
    /// Every mesh identity in the cluster.
    ClusterAuthenticated,
    /// Nobody.
    Deny,
    /// Everyone, and the proxy says so.
    Audit,
}

/// Not the name of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid default policy: {0:?}")]
pub struct UnknownPolicy(String);

const NAMES: [(DefaultPolicy, &str); 6] = [
    (DefaultPolicy::AllUnauthenticated, "all-unauthenticated"),
    (DefaultPolicy::AllAuthenticated, "all-authenticated"),
    (
        DefaultPolicy::ClusterUnauthenticated,
        "cluster-unauthenticated",
    ),
    (DefaultPolicy::ClusterAuthenticated, "cluster-authenticated"),
    (DefaultPolicy::Deny, "deny"),
    (DefaultPolicy::Audit, "audit"),
];

impl DefaultPolicy {
    /// The name on the wire and in annotations.
    pub fn name(self) -> &'static str {
        let named = NAMES.iter().find(|(policy, _)| *policy == self);
        named.expect("every policy is in the table").1
    }

    /// The policy that asks for an identity where this one does not.
    pub fn authenticated(self) -> Self {
        match self {
            Self::AllUnauthenticated => Self::AllAuthenticated,
            Self::ClusterUnauthenticated => Self::ClusterAuthenticated,
            other => other,
        }
    }

    /// What it allows.
    pub fn authorization(self, cluster: &Cluster) -> Option<Authorization> {
        let everyone = || Authentication::TlsAuthenticated(vec![IdentityMatch::Suffix(Vec::new())]);
        let (networks, authentication) = match self {
            Self::Deny => return None,
            Self::AllUnauthenticated | Self::Audit => {
                (all_networks(), Authentication::Unauthenticated)
            }
            Self::AllAuthenticated => (all_networks(), everyone()),
            Self::ClusterUnauthenticated => {
                (cluster.as_networks(), Authentication::Unauthenticated)
            }
            Self::ClusterAuthenticated => (cluster.as_networks(), everyone()),
        };
        Some(Authorization {
            origin: Origin::Default(self.name()),
            networks,
            authentication,
        })
    }
}

impl FromStr for DefaultPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let named = NAMES.iter().find(|(_, known)| *known == name);
        named
            .map(|(policy, _)| *policy)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

impl fmt::Display for DefaultPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::cluster;

    #[test]
    fn every_policy_has_its_name_and_its_authorization() {
        let cluster = cluster();
        let all = all_networks();
        let inside = cluster.as_networks();
        let any_identity = Authentication::TlsAuthenticated(vec![IdentityMatch::Suffix(vec![])]);
        let open = Authentication::Unauthenticated;
        for (name, expected) in [
            ("all-unauthenticated", Some((all.clone(), open.clone()))),
            (
                "all-authenticated",
                Some((all.clone(), any_identity.clone())),
            ),
            (
                "cluster-unauthenticated",
                Some((inside.clone(), open.clone())),
            ),
            ("cluster-authenticated", Some((inside, any_identity))),
            ("deny", None),
            ("audit", Some((all, open))),
        ] {
            let policy: DefaultPolicy = name.parse().expect(name);
            assert_eq!(policy.to_string(), name);
            let authorization = policy.authorization(&cluster);
            assert!(
                authorization
                    .iter()
                    .all(|authz| authz.origin == Origin::Default(policy.name()))
            );
            assert_eq!(
                authorization.map(|authz| (authz.networks, authz.authentication)),
                expected,
                "{name}"
            );
        }
        assert!("allow".parse::<DefaultPolicy>().is_err());
    }

    #[test]
    fn requiring_identity() {
        use DefaultPolicy::*;
        for (policy, expected) in [
            (AllUnauthenticated, AllAuthenticated),
            (ClusterUnauthenticated, ClusterAuthenticated),
            (AllAuthenticated, AllAuthenticated),
            (ClusterAuthenticated, ClusterAuthenticated),
            (Deny, Deny),
            (Audit, Audit),
        ] {
            assert_eq!(policy.authenticated(), expected, "{policy}");
        }
    }
}
