//! The authority of a request on its way to an HTTP/2 peer.

use http::{HeaderMap, Uri, Version, header::HOST, request::Parts, uri::PathAndQuery, uri::Scheme};

use super::Routed;
use crate::endpoint::InFlight;

/// Gives a request the authority its route or endpoint wants.
pub(super) fn change(uri: &mut Uri, headers: &mut HeaderMap, routed: &Routed, flight: &InFlight) {
    if let Some(authority) = routed.authority(flight) {
        set(uri, authority);
        headers.remove(HOST);
        if flight.endpoint.meta().authority.is_some() {
            // The endpoint is a gateway: the next hop has names of its own.
            headers.remove(linkerd_api::headers::DST_CANONICAL);
        }
    }
}

/// An HTTP/2 request may come with `Host` alone, or without any name. `h2` sends no request of its own
/// version without an authority, but an older one's.
pub(super) fn complete(parts: &mut Parts) {
    if parts.uri.authority().is_some() {
        return;
    }
    let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
    if let Some(host) = host.filter(|host| !host.is_empty()) {
        set(&mut parts.uri, host);
    }
    if parts.uri.authority().is_none() {
        parts.version = Version::HTTP_11;
    }
}

/// Leaves the URI as it is when the text is no authority.
fn set(uri: &mut Uri, authority: &str) {
    let Ok(authority) = authority.parse() else {
        return;
    };
    let mut parts = uri.clone().into_parts();
    parts.authority = Some(authority);
    parts.scheme.get_or_insert(Scheme::HTTP);
    let root = || PathAndQuery::from_static("/");
    parts.path_and_query.get_or_insert_with(root);
    if let Ok(changed) = Uri::from_parts(parts) {
        *uri = changed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_an_authority() {
        for (name, uri, host, want, version) in [
            ("named", "http://a/b", None, "http://a/b", Version::HTTP_2),
            (
                "host differs",
                "http://a/b",
                Some("c"),
                "http://a/b",
                Version::HTTP_2,
            ),
            (
                "host alone",
                "/b?c",
                Some("a:1"),
                "http://a:1/b?c",
                Version::HTTP_2,
            ),
            ("nothing", "/b", None, "/b", Version::HTTP_11),
            ("empty host", "/b", Some(""), "/b", Version::HTTP_11),
            (
                "host that is none",
                "/b",
                Some("a b"),
                "/b",
                Version::HTTP_11,
            ),
        ] {
            let mut request = http::Request::builder().uri(uri).version(Version::HTTP_2);
            if let Some(host) = host {
                request = request.header(HOST, host);
            }
            let (mut parts, ()) = request.body(()).expect("a request").into_parts();
            complete(&mut parts);
            assert_eq!(parts.uri.to_string(), want, "{name}");
            assert_eq!(parts.version, version, "{name}");
        }
    }
}
