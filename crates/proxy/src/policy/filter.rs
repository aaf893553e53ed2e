//! Filters of routes and backends: header changes, redirects, injected failures. Compiled once.

use http::{HeaderName, HeaderValue, StatusCode};

/// One filter.
#[derive(Clone, Debug)]
pub enum Filter {
    /// Changes request headers.
    RequestHeaders(HeaderChange),
    /// Changes response headers.
    ResponseHeaders(HeaderChange),
    /// Answers with a redirect.
    Redirect(Redirect),
    /// Answers with an HTTP failure.
    HttpFailure(Failure<StatusCode>),
    /// Answers with a gRPC failure.
    GrpcFailure(Failure<u16>),
}

/// Add, then set, then remove.
#[derive(Clone, Debug, Default)]
pub struct HeaderChange {
    /// Lines added.
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Lines that replace all of their name.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Names left out.
    pub remove: Vec<HeaderName>,
}

impl HeaderChange {
    /// Applies the change to a map.
    pub fn apply(&self, headers: &mut http::HeaderMap) {
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }
}

/// Where a redirect points.
#[derive(Clone, Debug, Default)]
pub struct Redirect {
    /// Scheme, if it changes.
    pub scheme: Option<String>,
    /// Host, if it changes.
    pub host: Option<String>,
    /// Port, if it changes.
    pub port: Option<u16>,
    /// Path, if it changes.
    pub path: Option<PathChange>,
    /// Status; 301 by default.
    pub status: Option<StatusCode>,
}

/// How a redirect changes the path.
#[derive(Clone, Debug)]
pub enum PathChange {
    /// The whole path.
    Full(String),
    /// The matched prefix.
    Prefix(String),
}

impl Redirect {
    /// The location, or `None` when it is where the request already is.
    pub fn location(
        &self,
        scheme: &str,
        authority: Option<&str>,
        path_and_query: &str,
        matched_prefix: usize,
    ) -> Option<(StatusCode, String)> {
        let (host, port) = match authority {
            Some(authority) => {
                let host = super::matching::host_of(authority);
                (
                    host,
                    authority[host.len()..]
                        .trim_start_matches('.')
                        .strip_prefix(':'),
                )
            }
            None => (self.host.as_deref()?, None),
        };
        let new_scheme = self.scheme.as_deref().unwrap_or(scheme);
        let new_host = self.host.as_deref().unwrap_or(host);
        let new_port = match self.port {
            Some(port) => Some(port.to_string()),
            None if self.scheme.is_none() && self.host.is_none() => port.map(str::to_owned),
            None => None,
        };
        let new_path = match &self.path {
            None => path_and_query.to_owned(),
            Some(PathChange::Full(path)) => path.clone(),
            Some(PathChange::Prefix(prefix)) => {
                let rest = path_and_query.get(matched_prefix..).unwrap_or_default();
                let slash = !rest.is_empty() && !rest.starts_with(['/', '?']);
                let prefix = if rest.starts_with('/') {
                    prefix.trim_end_matches('/')
                } else {
                    prefix
                };
                format!("{prefix}{}{rest}", if slash { "/" } else { "" })
            }
        };
        let port_text = new_port.map(|p| format!(":{p}")).unwrap_or_default();
        let location = format!("{new_scheme}://{new_host}{port_text}{new_path}");
        let here = format!(
            "{scheme}://{host}{}{path_and_query}",
            port.map(|p| format!(":{p}")).unwrap_or_default()
        );
        (location != here).then(|| {
            (
                self.status.unwrap_or(StatusCode::MOVED_PERMANENTLY),
                location,
            )
        })
    }
}

/// A failure given to some share of requests.
#[derive(Clone, Debug)]
pub struct Failure<S> {
    /// Status or gRPC code.
    pub status: S,
    /// Message.
    pub message: String,
    /// So many of `denominator`.
    pub numerator: u32,
    /// 0 means all.
    pub denominator: u32,
}

impl<S> Failure<S> {
    /// Whether a request is hit; `random` is uniform in `0..denominator`.
    pub fn hits(&self, random: impl FnOnce(u32) -> u32) -> bool {
        self.denominator == 0
            || self.numerator >= self.denominator
            || (self.numerator > 0 && random(self.denominator) < self.numerator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects() {
        let to = |r: Redirect| r.location("http", Some("a.example:8080"), "/foo/bar?q=1", 4);
        let status = StatusCode::MOVED_PERMANENTLY;
        let host = Redirect {
            host: Some("b.example".into()),
            ..Redirect::default()
        };
        assert_eq!(
            to(host),
            Some((status, "http://b.example/foo/bar?q=1".into()))
        );
        let port = Redirect {
            port: Some(80),
            ..Redirect::default()
        };
        assert_eq!(
            to(port),
            Some((status, "http://a.example:80/foo/bar?q=1".into()))
        );
        let full = Redirect {
            path: Some(PathChange::Full("/x".into())),
            ..Redirect::default()
        };
        assert_eq!(to(full), Some((status, "http://a.example:8080/x".into())));
        let prefix = Redirect {
            path: Some(PathChange::Prefix("/y".into())),
            ..Redirect::default()
        };
        assert_eq!(
            to(prefix),
            Some((status, "http://a.example:8080/y/bar?q=1".into()))
        );
        assert_eq!(to(Redirect::default()), None);
    }

    #[test]
    fn failure_ratios() {
        let failure = |numerator, denominator| Failure {
            status: StatusCode::OK,
            message: String::new(),
            numerator,
            denominator,
        };
        assert!(failure(0, 0).hits(|_| 0));
        assert!(!failure(0, 10).hits(|_| 0));
        assert!(failure(3, 10).hits(|_| 2));
        assert!(!failure(3, 10).hits(|_| 3));
        assert!(failure(10, 10).hits(|_| 9));
    }
}
