//! Rules of MeshTLSAuthentications and NetworkAuthentications.

use linkerd_k8s::policy::{MeshTLSAuthenticationSpec, Network, NetworkAuthenticationSpec};

use crate::network;

pub(super) fn mesh_tls(spec: &MeshTLSAuthenticationSpec) -> Result<(), String> {
    for identity in spec.identities.iter().flatten() {
        identity_name(identity)?;
    }
    for reference in spec.identity_refs.iter().flatten() {
        if reference.name.is_empty() {
            return Err(format!("identity_ref to a {} has no name", reference.kind));
        }
        if reference.targets("", "Namespace") {
            if reference.namespace.is_some() {
                return Err(
                    "Namespace identity_ref is cluster-scoped and cannot have a namespace"
                        .to_owned(),
                );
            }
        } else if !reference.targets("", "ServiceAccount") {
            return Err(format!("invalid identity target kind: {}", reference.kind));
        }
    }
    Ok(())
}

pub(super) fn network(spec: &NetworkAuthenticationSpec) -> Result<(), String> {
    if spec.networks.is_empty() {
        return Err("at least one network must be specified".to_owned());
    }
    networks(&spec.networks)
}

/// Networks that can be read and whose exceptions make sense.
pub(super) fn networks(list: &[Network]) -> Result<(), String> {
    for entry in list {
        let network = network::parse(entry).map_err(|error| error.to_string())?;
        network::validate(&network).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A DNS-like name, with `*` allowed as its first label, or a SPIFFE id.
fn identity_name(identity: &str) -> Result<(), String> {
    if let Some(spiffe) = identity.strip_prefix("spiffe://") {
        return spiffe_id(spiffe)
            .map_err(|reason| format!("identity {identity:?} is not a valid SPIFFE ID: {reason}"));
    }
    let label = |label: &str| {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && label.chars().all(inside)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let mut labels = identity.split('.');
    let first = labels.next().unwrap_or_default();
    if (first == "*" || label(first)) && labels.all(label) {
        return Ok(());
    }
    Err(format!(
        "identity {identity:?} is neither a DNS name nor a SPIFFE ID"
    ))
}

fn spiffe_id(rest: &str) -> Result<(), &'static str> {
    let (domain, path) = match rest.split_once('/') {
        Some((domain, path)) => (domain, Some(path)),
        None => (rest, None),
    };
    if domain.is_empty() {
        return Err("the trust domain is empty");
    }
    let in_domain =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
    if !domain.chars().all(in_domain) {
        return Err("the trust domain has characters that are not allowed");
    }
    let in_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    for segment in path.into_iter().flat_map(|path| path.split('/')) {
        match segment {
            "" => return Err("the path has an empty segment or a trailing slash"),
            "." | ".." => return Err("the path has a relative segment"),
            segment if !segment.chars().all(in_path) => {
                return Err("the path has characters that are not allowed");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities() {
        for (name, identity, good) in [
            (
                "dns",
                "web.shop.serviceaccount.identity.linkerd.cluster.local",
                true,
            ),
            ("everyone", "*", true),
            (
                "suffix",
                "*.shop.serviceaccount.identity.linkerd.cluster.local",
                true,
            ),
            ("one label", "web", true),
            ("digits", "1web-2.x", true),
            ("empty", "", false),
            ("star inside", "web.*.cluster.local", false),
            ("upper case", "Web.x", false),
            ("empty label", "web..x", false),
            ("trailing dot", "web.", false),
            ("dash at the end", "web-.x", false),
            ("spiffe", "spiffe://trust.domain/ns/web_1", true),
            ("spiffe without path", "spiffe://trust-domain", true),
            ("spiffe, no domain", "spiffe:///web", false),
            ("spiffe, upper case domain", "spiffe://Trust/web", false),
            ("spiffe, trailing slash", "spiffe://td/web/", false),
            ("spiffe, empty segment", "spiffe://td//web", false),
            ("spiffe, dot", "spiffe://td/./web", false),
            ("spiffe, dot dot", "spiffe://td/../web", false),
            ("spiffe, query", "spiffe://td/web?x", false),
        ] {
            assert_eq!(identity_name(identity).is_ok(), good, "{name}");
        }
    }
}
