//! Applies the filters of a rule or backend while a request is routed.

use super::edits::{Edits, Lines};
use crate::{
    errors::{Class, HttpError},
    policy::{
        filter::Filter,
        matching::{self, Request, RuleMatch},
    },
};

/// Collects header changes; redirects and injected failures end the request. `matches` are those of
/// the rule it takes.
pub(crate) fn apply<R: Request>(
    filters: &[Filter],
    request: &R,
    matches: &[RuleMatch],
    edits: &mut Edits,
) -> Result<(), HttpError> {
    for filter in filters {
        match filter {
            Filter::RequestHeaders(change) => edits.request.push(Lines::from_filter(change)),
            Filter::ResponseHeaders(change) => edits.response.push(Lines::from_filter(change)),
            Filter::Redirect(redirect) => {
                let path = match request.query() {
                    Some(query) => format!("{}?{query}", request.path()),
                    None => request.path().to_owned(),
                };
                let prefix = matching::matched_prefix(matches, request);
                let found = redirect.location("http", request.authority(), &path, prefix);
                let found = found.map_err(|error| {
                    tracing::debug!(%error, "Invalid redirect");
                    HttpError::unexpected()
                })?;
                if let Some((status, location)) = found {
                    return Err(HttpError::redirected(status, location));
                }
            }
            Filter::HttpFailure(failure) => {
                if failure.hits(|n| rand::random_range(0..n)) {
                    let class = Class::InjectedHttp(failure.status);
                    return Err(HttpError::new(class, "unexpected", failure.message.clone()));
                }
            }
            Filter::GrpcFailure(failure) => {
                if failure.hits(|n| rand::random_range(0..n)) {
                    let class = Class::InjectedGrpc(failure.status);
                    return Err(HttpError::new(class, "unexpected", failure.message.clone()));
                }
            }
        }
    }
    Ok(())
}
