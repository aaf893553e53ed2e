//! Service profiles → our type. A route that cannot be understood is left out, the others stay.

use std::{sync::Arc, time::Duration};

use linkerd_api::proto::destination as dst;

use super::convert::{Result, Unusable, duration, endpoint, meta, regex};
use crate::{
    budget::Terms,
    policy::{
        Meta,
        profile::{Override, Profile, ProfileRoute, RequestMatch, ResponseClass, ResponseMatch},
    },
};

/// How deep conditions may be nested.
const MAX_DEPTH: usize = 32;

/// One message of `Destination.GetProfile`.
pub(super) fn profile(profile: dst::DestinationProfile) -> Profile {
    let reference = |m: Option<_>| m.and_then(|m| meta(Some(m)).ok());
    Profile {
        name: Some(profile.fully_qualified_name).filter(|n| !n.is_empty()),
        opaque: profile.opaque_protocol,
        endpoint: profile
            .endpoint
            .and_then(|e| endpoint(e, &std::collections::HashMap::new()))
            .map(|(addr, meta)| (addr, Arc::new(meta))),
        routes: profile
            .routes
            .into_iter()
            .filter_map(|r| match route(r) {
                Ok(route) => Some(route),
                Err(error) => {
                    tracing::warn!(%error, "A route of a service profile is not used");
                    None
                }
            })
            .collect(),
        budget: profile.retry_budget.and_then(budget),
        overrides: profile
            .dst_overrides
            .into_iter()
            .map(|o| Override {
                meta: reference(o.backend_ref).unwrap_or_else(|| Meta::default_named(&o.authority)),
                path: o.authority.into(),
                weight: o.weight,
            })
            .collect(),
        parent: reference(profile.parent_ref),
        reference: reference(profile.profile_ref),
    }
}

/// A budget outside its bounds is none at all, and without one nothing is retried.
fn budget(budget: dst::RetryBudget) -> Option<Terms> {
    let seconds = Duration::from_secs(1)..=Duration::from_secs(60);
    let ttl = budget.ttl.and_then(|ttl| duration(ttl).ok());
    let ttl = ttl.filter(|ttl| seconds.contains(ttl));
    let ratio = Some(f64::from(budget.retry_ratio)).filter(|r| (0.0..=1000.0).contains(r));
    let (Some(ttl), Some(ratio)) = (ttl, ratio) else {
        tracing::warn!(?budget, "The retry budget of a service profile is not used");
        return None;
    };
    Some(Terms {
        ratio,
        min_per_second: budget.min_retries_per_second,
        ttl,
    })
}

fn route(route: dst::Route) -> Result<ProfileRoute> {
    let condition = route
        .condition
        .ok_or_else(|| Unusable::new("missing condition"))?;
    let mut labels: Vec<_> = route.metrics_labels.into_iter().collect();
    labels.sort();
    Ok(ProfileRoute {
        condition: request_match(condition, 0)?,
        classes: route
            .response_classes
            .into_iter()
            .map(|class| {
                let condition = class
                    .condition
                    .ok_or_else(|| Unusable::new("missing condition"))?;
                Ok(ResponseClass {
                    condition: response_match(condition, 0)?,
                    failure: class.is_failure,
                })
            })
            .collect::<Result<_>>()?,
        labels,
        retryable: route.is_retryable,
        timeout: route
            .timeout
            .map(duration)
            .transpose()?
            .filter(|d| !d.is_zero()),
    })
}

fn request_match(m: dst::RequestMatch, depth: usize) -> Result<RequestMatch> {
    use dst::request_match::Match;
    if depth > MAX_DEPTH {
        return Err(Unusable::new("conditions are nested too deeply"));
    }
    let list = |seq: dst::request_match::Seq| {
        seq.matches
            .into_iter()
            .map(|m| request_match(m, depth + 1))
            .collect::<Result<Vec<_>>>()
    };
    Ok(match m.r#match {
        Some(Match::All(seq)) => RequestMatch::All(list(seq)?),
        Some(Match::Any(seq)) => RequestMatch::Any(list(seq)?),
        Some(Match::Not(not)) => RequestMatch::Not(Box::new(request_match(*not, depth + 1)?)),
        Some(Match::Path(path)) => RequestMatch::Path(regex(&path.regex)?),
        Some(Match::Method(method)) => {
            RequestMatch::Method(http::Method::try_from(method).map_err(Unusable::new)?)
        }
        None => return Err(Unusable::new("empty condition")),
    })
}

fn response_match(m: dst::ResponseMatch, depth: usize) -> Result<ResponseMatch> {
    use dst::response_match::Match;
    if depth > MAX_DEPTH {
        return Err(Unusable::new("conditions are nested too deeply"));
    }
    let list = |seq: dst::response_match::Seq| {
        seq.matches
            .into_iter()
            .map(|m| response_match(m, depth + 1))
            .collect::<Result<Vec<_>>>()
    };
    Ok(match m.r#match {
        Some(Match::All(seq)) => ResponseMatch::All(list(seq)?),
        Some(Match::Any(seq)) => ResponseMatch::Any(list(seq)?),
        Some(Match::Not(not)) => ResponseMatch::Not(Box::new(response_match(*not, depth + 1)?)),
        Some(Match::Status(range)) => {
            let code = |n: u32| u16::try_from(n).map_err(Unusable::new);
            match (code(range.min)?, code(range.max)?) {
                (0, 0) => return Err(Unusable::new("empty status range")),
                // One bound alone is that status.
                (0, only) | (only, 0) => ResponseMatch::Status(only, only),
                (min, max) => ResponseMatch::Status(min, max),
            }
        }
        None => return Err(Unusable::new("empty condition")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_outside_their_bounds_are_none() {
        let ttl = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
        for (name, ratio, ttl, used) in [
            ("as the controller sends it", 0.2, ttl(10, 0), true),
            ("the shortest", 0.2, ttl(1, 0), true),
            ("the longest", 0.2, ttl(60, 0), true),
            ("no share at all", 0.0, ttl(10, 0), true),
            ("the largest share", 1000.0, ttl(10, 0), true),
            ("no time", 0.2, None, false),
            ("too short", 0.2, ttl(0, 999_000_000), false),
            ("too long", 0.2, ttl(60, 1), false),
            ("before now", 0.2, ttl(-10, 0), false),
            ("a negative share", -0.1, ttl(10, 0), false),
            ("too large a share", 1000.5, ttl(10, 0), false),
            ("no number", f32::NAN, ttl(10, 0), false),
        ] {
            let got = budget(dst::RetryBudget {
                retry_ratio: ratio,
                min_retries_per_second: 10,
                ttl,
            });
            assert_eq!(got.is_some(), used, "{name}: {got:?}");
        }
    }
}
