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

/// Why a redirect has no location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRedirect {
    /// A prefix is to be replaced, and none was matched.
    #[error("a redirect replaces a prefix, but no prefix was matched")]
    NoPrefix,
    /// Neither the request nor the redirect names a host.
    #[error("a redirect names no host, and the request has none")]
    NoAuthority,
}

impl Redirect {
    /// The location, or `None` when it is where the request already is. `matched_prefix` is the length
    /// of the path prefix that made the request take the rule.
    pub fn location(
        &self,
        scheme: &str,
        authority: Option<&str>,
        path_and_query: &str,
        matched_prefix: Option<usize>,
    ) -> Result<Option<(StatusCode, String)>, InvalidRedirect> {
        let to_scheme = self.scheme.as_deref().unwrap_or(scheme);
        let to_authority = self.authority(to_scheme, authority)?;
        let to_path = match &self.path {
            None => path_and_query.to_owned(),
            Some(PathChange::Full(path)) => path.clone(),
            Some(PathChange::Prefix(prefix)) => {
                let matched = matched_prefix.ok_or(InvalidRedirect::NoPrefix)?;
                let rest = path_and_query.get(matched..).unwrap_or_default();
                let slash = !rest.is_empty() && !rest.starts_with(['/', '?']);
                let prefix = if rest.starts_with('/') {
                    prefix.trim_end_matches('/')
                } else {
                    prefix
                };
                format!("{prefix}{}{rest}", if slash { "/" } else { "" })
            }
        };
        let location = format!("{to_scheme}://{to_authority}{to_path}");
        let here = authority.map(|authority| format!("{scheme}://{authority}{path_and_query}"));
        let status = self.status.unwrap_or(StatusCode::MOVED_PERMANENTLY);
        Ok((here.as_ref() != Some(&location)).then_some((status, location)))
    }

    /// Host and port: both as they are given, or else of the request. A port that goes without saying
    /// is not said.
    fn authority(&self, scheme: &str, of: Option<&str>) -> Result<String, InvalidRedirect> {
        let usual = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let said = |port: &u16| Some(*port) != usual;
        let join = |host: &str, port: Option<u16>| match port {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let split = |of: &str| {
            let host = super::matching::host_of(of).len();
            let port = of[host..].trim_start_matches('.').strip_prefix(':');
            (of[..host].to_owned(), port.and_then(|p| p.parse().ok()))
        };
        match (&self.host, self.port) {
            (Some(host), Some(port)) => Ok(join(host, Some(port))),
            (Some(host), None) => {
                let port = of.and_then(|of| split(of).1);
                Ok(join(host, port.filter(said)))
            }
            (None, port) => {
                let of = of.ok_or(InvalidRedirect::NoAuthority)?;
                Ok(match port {
                    None => of.to_owned(),
                    Some(port) => join(&split(of).0, Some(port).filter(said)),
                })
            }
        }
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

    fn redirect(scheme: Option<&str>, host: Option<&str>, port: Option<u16>) -> Redirect {
        Redirect {
            scheme: scheme.map(Into::into),
            host: host.map(Into::into),
            port,
            ..Redirect::default()
        }
    }

    #[test]
    fn places_of_redirects() {
        let b = Some("b.example");
        for (name, from, to, want) in [
            ("nothing", "a:8080", redirect(None, None, None), None),
            (
                "host, the port stays",
                "a:8080",
                redirect(None, b, None),
                Some("http://b.example:8080/foo"),
            ),
            (
                "host, the usual port is not said",
                "a:80",
                redirect(None, b, None),
                Some("http://b.example/foo"),
            ),
            (
                "host and port as they are",
                "a:8080",
                redirect(None, b, Some(80)),
                Some("http://b.example:80/foo"),
            ),
            (
                "port",
                "a",
                redirect(None, None, Some(8080)),
                Some("http://a:8080/foo"),
            ),
            (
                "the usual port is not said",
                "a:8080",
                redirect(None, None, Some(80)),
                Some("http://a/foo"),
            ),
            (
                "the usual port, where it is",
                "a",
                redirect(None, None, Some(80)),
                None,
            ),
            (
                "the port where it is",
                "a:8080",
                redirect(None, None, Some(8080)),
                None,
            ),
            (
                "scheme, the rest stays",
                "a:8080",
                redirect(Some("https"), None, None),
                Some("https://a:8080/foo"),
            ),
            (
                "scheme and its usual port",
                "a:8080",
                redirect(Some("https"), None, Some(443)),
                Some("https://a/foo"),
            ),
            (
                "scheme and the other's usual port",
                "a",
                redirect(Some("https"), None, Some(80)),
                Some("https://a:80/foo"),
            ),
            (
                "an address",
                "[::1]:8080",
                redirect(None, None, Some(9090)),
                Some("http://[::1]:9090/foo"),
            ),
        ] {
            let got = to.location("http", Some(from), "/foo", None);
            let want = want.map(|to| (StatusCode::MOVED_PERMANENTLY, to.to_owned()));
            assert_eq!(got, Ok(want), "{name}");
        }
    }

    #[test]
    fn paths_of_redirects() {
        let full = PathChange::Full("/x".into());
        let prefix = PathChange::Prefix("/y".into());
        for (name, path, matched, want) in [
            ("whole", &full, None, Ok("http://a/x")),
            ("prefix", &prefix, Some(4), Ok("http://a/y/bar?q=1")),
            (
                "no prefix at all",
                &prefix,
                Some(0),
                Ok("http://a/y/foo/bar?q=1"),
            ),
            (
                "not by a prefix",
                &prefix,
                None,
                Err(InvalidRedirect::NoPrefix),
            ),
        ] {
            let to = Redirect {
                path: Some(path.clone()),
                ..Redirect::default()
            };
            let got = to.location("http", Some("a"), "/foo/bar?q=1", matched);
            let got = got.map(|to| to.expect("somewhere else").1);
            assert_eq!(got, want.map(ToOwned::to_owned), "{name}");
        }
    }

    #[test]
    fn a_request_without_a_host_goes_where_the_redirect_says() {
        let to = |redirect: Redirect| {
            let got = redirect.location("http", None, "/foo", None);
            got.map(|to| to.expect("somewhere else").1)
        };
        let host = redirect(None, Some("b"), None);
        assert_eq!(to(host), Ok("http://b/foo".into()));
        let port = redirect(None, None, Some(8080));
        assert_eq!(to(port), Err(InvalidRedirect::NoAuthority));
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
