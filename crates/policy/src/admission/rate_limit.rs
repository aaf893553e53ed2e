//! Rules of HTTPLocalRateLimitPolicies.

use linkerd_core::policy::POLICY_GROUP;
use linkerd_k8s::policy::HTTPLocalRateLimitPolicySpec;

pub(super) fn rate_limit(spec: &HTTPLocalRateLimitPolicySpec) -> Result<(), String> {
    if !spec.target_ref.targets(POLICY_GROUP, "Server") {
        return Err(format!(
            "invalid targetRef kind: {}; only Server is supported",
            spec.target_ref.kind
        ));
    }
    let total = spec.total.as_ref().map(|limit| limit.requests_per_second);
    if total == Some(0) {
        return Err("total.requestsPerSecond must be greater than 0".to_owned());
    }
    let above = |rate: u32| total.is_some_and(|total| rate > total);
    if let Some(identity) = spec
        .identity
        .as_ref()
        .map(|limit| limit.requests_per_second)
    {
        if identity == 0 {
            return Err("identity.requestsPerSecond must be greater than 0".to_owned());
        }
        if above(identity) {
            return Err(
                "identity.requestsPerSecond must be less than or equal to total.requestsPerSecond"
                    .to_owned(),
            );
        }
    }
    for limit in spec.overrides.iter().flatten() {
        if limit.requests_per_second == 0 {
            return Err("overrides.requestsPerSecond must be greater than 0".to_owned());
        }
        if above(limit.requests_per_second) {
            return Err(
                "overrides.requestsPerSecond must be less than or equal to total.requestsPerSecond"
                    .to_owned(),
            );
        }
        if let Some(other) = limit
            .client_refs
            .iter()
            .find(|client| !client.targets("", "ServiceAccount"))
        {
            return Err(format!(
                "invalid clientRefs kind: {}; only ServiceAccount is supported",
                other.kind
            ));
        }
    }
    Ok(())
}
