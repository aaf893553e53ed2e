//! Which route a request takes: hosts, paths, headers, query parameters, methods, gRPC methods, and
//! the order in which matches are preferred. Pure; shared by outbound and inbound.

use http::{HeaderName, Method};
use regex::Regex;

/// What matching looks at. HTTP/1 and HTTP/2 heads both give this.
pub trait Request {
    /// The method.
    fn method(&self) -> &str;
    /// The authority, port included.
    fn authority(&self) -> Option<&str>;
    /// The path without the query.
    fn path(&self) -> &str;
    /// The query without its question mark.
    fn query(&self) -> Option<&str>;
    /// Whether any value of a header satisfies the test.
    fn any_header(&self, name: &HeaderName, test: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// Host of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    /// This name; lower case.
    Exact(String),
    /// Names below this one; lower case, leading dot.
    Suffix(String),
}

/// Quality of a host match; greater is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostRank {
    /// The route has no hosts.
    Any,
    /// A suffix of so many bytes.
    Suffix(usize),
    /// The name itself.
    Exact,
}

impl HostMatch {
    fn rank(&self, host: &str) -> Option<HostRank> {
        match self {
            Self::Exact(name) => host.eq_ignore_ascii_case(name).then_some(HostRank::Exact),
            Self::Suffix(suffix) => {
                let at = host.len().checked_sub(suffix.len()).filter(|at| *at > 0)?;
                let tail = host.as_bytes().get(at..)?;
                tail.eq_ignore_ascii_case(suffix.as_bytes())
                    .then_some(HostRank::Suffix(suffix.len()))
            }
        }
    }

    /// The best rank of a host among the hosts of a route.
    pub fn best(hosts: &[Self], host: Option<&str>) -> Option<HostRank> {
        if hosts.is_empty() {
            return Some(HostRank::Any);
        }
        let host = host_of(host?);
        hosts.iter().filter_map(|h| h.rank(host)).max()
    }
}

/// Authority without port and without one trailing dot.
pub fn host_of(authority: &str) -> &str {
    let host = match authority.rfind(':') {
        // An IPv6 literal without a port keeps its colons.
        Some(at) if !authority[at..].contains(']') => &authority[..at],
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}

/// Path of a request.
#[derive(Clone, Debug)]
pub enum PathMatch {
    /// This path.
    Exact(String),
    /// Paths below this one, on a segment boundary; without trailing slash.
    Prefix(String),
    /// The whole path matches.
    Regex(Regex),
}

impl PathMatch {
    /// A prefix, as routes write it.
    pub fn prefix(prefix: &str) -> Self {
        Self::Prefix(prefix.trim_end_matches('/').to_owned())
    }

    /// Length of the match, if it is one.
    fn len(&self, path: &str) -> Option<usize> {
        match self {
            Self::Exact(exact) => (path == exact).then_some(path.len()),
            Self::Prefix(prefix) if prefix.is_empty() => path.starts_with('/').then_some(1),
            Self::Prefix(prefix) => {
                let rest = path.strip_prefix(prefix.as_str())?;
                (rest.is_empty() || rest.starts_with('/')).then_some(prefix.len())
            }
            Self::Regex(regex) => regex
                .find(path)
                .filter(|m| m.start() == 0 && m.end() == path.len())
                .map(|m| m.len()),
        }
    }
}

/// Value of a header or a query parameter.
#[derive(Clone, Debug)]
pub enum ValueMatch {
    /// These bytes.
    Exact(Vec<u8>),
    /// The whole value matches.
    Regex(Regex),
}

impl ValueMatch {
    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => value == exact,
            Self::Regex(regex) => std::str::from_utf8(value).is_ok_and(|text| {
                regex
                    .find(text)
                    .is_some_and(|m| m.start() == 0 && m.end() == text.len())
            }),
        }
    }
}

/// One match of a rule; everything in it must hold.
#[derive(Clone, Debug, Default)]
pub struct HttpMatch {
    /// Path.
    pub path: Option<PathMatch>,
    /// Headers.
    pub headers: Vec<(HeaderName, ValueMatch)>,
    /// Query parameters.
    pub query: Vec<(String, ValueMatch)>,
    /// Method.
    pub method: Option<Method>,
}

/// One match of a gRPC rule.
#[derive(Clone, Debug, Default)]
pub struct GrpcMatch {
    /// Service; empty is any.
    pub service: String,
    /// Method; empty is any.
    pub method: String,
    /// Headers.
    pub headers: Vec<(HeaderName, ValueMatch)>,
}

/// A match of either kind of route.
#[derive(Clone, Debug)]
pub enum RuleMatch {
    /// Of an HTTP route.
    Http(HttpMatch),
    /// Of a gRPC route.
    Grpc(GrpcMatch),
    /// Of a service profile: all are equal, the first counts.
    Profile(super::profile::RequestMatch),
}

/// Quality of a match below the host; greater is preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    path: usize,
    grpc_method: usize,
    headers: usize,
    query: usize,
    method: bool,
}

impl RuleMatch {
    fn rank(&self, request: &impl Request) -> Option<Rank> {
        match self {
            Self::Http(m) => m.rank(request),
            Self::Grpc(m) => m.rank(request),
            Self::Profile(m) => m.matches(request).then(Rank::default),
        }
    }
}

/// Length of the path prefix that made a request take the rule with these matches. None at all is a
/// prefix, too; an exact path and an expression are not.
pub fn matched_prefix(matches: &[RuleMatch], request: &impl Request) -> Option<usize> {
    let ranked = matches.iter().filter_map(|m| Some((m.rank(request)?, m)));
    let best = ranked.reduce(|best, next| if next.0 > best.0 { next } else { best });
    match best {
        None => Some(0),
        Some((_, RuleMatch::Http(m))) => match &m.path {
            None => Some(0),
            Some(PathMatch::Prefix(prefix)) => Some(prefix.len()),
            Some(PathMatch::Exact(_) | PathMatch::Regex(_)) => None,
        },
        Some((_, RuleMatch::Grpc(_) | RuleMatch::Profile(_))) => None,
    }
}

impl HttpMatch {
    fn rank(&self, request: &impl Request) -> Option<Rank> {
        let path = match &self.path {
            Some(path) => path.len(request.path())?,
            None => 0,
        };
        if let Some(method) = &self.method
            && request.method() != method.as_str()
        {
            return None;
        }
        let headers_match = self
            .headers
            .iter()
            .all(|(name, want)| request.any_header(name, &mut |v| want.matches(v)));
        let query_match = self.query.iter().all(|(name, want)| {
            query_pairs(request.query().unwrap_or_default())
                .any(|(k, v)| k == *name && want.matches(v.as_bytes()))
        });
        (headers_match && query_match).then_some(Rank {
            path,
            grpc_method: 0,
            headers: self.headers.len(),
            query: self.query.len(),
            method: self.method.is_some(),
        })
    }
}

impl GrpcMatch {
    fn rank(&self, request: &impl Request) -> Option<Rank> {
        if request.method() != "POST" {
            return None;
        }
        let (service, method) = request.path().strip_prefix('/')?.split_once('/')?;
        if (!self.service.is_empty() && self.service != service)
            || (!self.method.is_empty() && self.method != method)
        {
            return None;
        }
        let headers_match = self
            .headers
            .iter()
            .all(|(name, want)| request.any_header(name, &mut |v| want.matches(v)));
        headers_match.then_some(Rank {
            path: self.service.len(),
            grpc_method: self.method.len(),
            headers: self.headers.len(),
            query: 0,
            method: false,
        })
    }
}

/// The rule a request takes among the rules of all routes: the preferred match, ties to the first.
/// `routes` gives hosts and, per rule, its matches; a rule without matches takes everything.
pub fn find<'a, R, I, J>(request: &R, routes: I) -> Option<(usize, usize)>
where
    R: Request,
    I: IntoIterator<Item = (&'a [HostMatch], J)>,
    J: IntoIterator<Item = &'a [RuleMatch]>,
{
    let mut best: Option<((HostRank, Rank), (usize, usize))> = None;
    for (route_index, (hosts, rules)) in routes.into_iter().enumerate() {
        let Some(host) = HostMatch::best(hosts, request.authority()) else {
            continue;
        };
        for (rule_index, matches) in rules.into_iter().enumerate() {
            let rank = if matches.is_empty() {
                Some(Rank::default())
            } else {
                matches.iter().filter_map(|m| m.rank(request)).max()
            };
            if let Some(rank) = rank
                && best.as_ref().is_none_or(|(b, _)| (host, rank) > *b)
            {
                best = Some(((host, rank), (route_index, rule_index)));
            }
        }
    }
    best.map(|(_, at)| at)
}

/// Decoded pairs of a query string.
fn query_pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query.split('&').filter(|p| !p.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decode(key), percent_decode(value))
    })
}

fn percent_decode(s: &str) -> String {
    let hex = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16));
    let bytes = s.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            b'+' => out.push(b' '),
            b'%' => {
                if let (Some(high), Some(low)) = (hex(bytes.get(i + 1)), hex(bytes.get(i + 2))) {
                    out.push(u8::try_from(high << 4 | low).unwrap_or(b'%'));
                    i += 2;
                } else {
                    out.push(b'%');
                }
            }
            b => out.push(b),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl<T> Request for http::Request<T> {
    fn method(&self) -> &str {
        http::Request::method(self).as_str()
    }

    fn authority(&self) -> Option<&str> {
        self.uri()
            .authority()
            .map(http::uri::Authority::as_str)
            .or_else(|| self.headers().get(http::header::HOST)?.to_str().ok())
    }

    fn path(&self) -> &str {
        self.uri().path()
    }

    fn query(&self) -> Option<&str> {
        self.uri().query()
    }

    fn any_header(&self, name: &HeaderName, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.headers()
            .get_all(name)
            .iter()
            .any(|v| test(v.as_bytes()))
    }
}

impl Request for linkerd_http1::RequestView<'_> {
    fn method(&self) -> &str {
        linkerd_http1::RequestView::method(self)
    }

    fn authority(&self) -> Option<&str> {
        linkerd_http1::RequestView::authority(self)
    }

    fn path(&self) -> &str {
        let path = self.path_and_query();
        path.split_once('?').map_or(path, |(path, _)| path)
    }

    fn query(&self) -> Option<&str> {
        self.path_and_query()
            .split_once('?')
            .map(|(_, query)| query)
    }

    fn any_header(&self, name: &HeaderName, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.fields()
            .any(|f| f.name.eq_ignore_ascii_case(name.as_str().as_bytes()) && test(f.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, uri: &str, headers: &[(&str, &str)]) -> http::Request<()> {
        let mut builder = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).expect("valid")
    }

    fn http(m: HttpMatch) -> Vec<RuleMatch> {
        vec![RuleMatch::Http(m)]
    }

    #[test]
    fn hosts() {
        let exact = HostMatch::Exact("web.example.com".into());
        let suffix = HostMatch::Suffix(".example.com".into());
        let longer = HostMatch::Suffix(".web.example.com".into());
        let all = [suffix.clone(), exact, longer];
        for (authority, want) in [
            ("web.example.com", Some(HostRank::Exact)),
            ("WEB.example.com:80", Some(HostRank::Exact)),
            ("web.example.com.", Some(HostRank::Exact)),
            ("a.web.example.com", Some(HostRank::Suffix(16))),
            ("other.example.com", Some(HostRank::Suffix(12))),
            ("example.com", None),
            ("example.org", None),
        ] {
            assert_eq!(HostMatch::best(&all, Some(authority)), want, "{authority}");
        }
        assert_eq!(HostMatch::best(&[suffix], Some(".example.com")), None);
        assert_eq!(HostMatch::best(&[], None), Some(HostRank::Any));
        assert_eq!(host_of("[::1]:80"), "[::1]");
        assert_eq!(host_of("[::1]"), "[::1]");
    }

    #[test]
    fn paths() {
        let regex = |r: &str| PathMatch::Regex(Regex::new(r).expect("valid"));
        for (name, path_match, path, want) in [
            ("exact", PathMatch::Exact("/a".into()), "/a", Some(2)),
            ("exact differs", PathMatch::Exact("/a".into()), "/a/", None),
            ("root prefix", PathMatch::prefix("/"), "/x/y", Some(1)),
            ("prefix itself", PathMatch::prefix("/a"), "/a", Some(2)),
            ("prefix below", PathMatch::prefix("/a"), "/a/b", Some(2)),
            (
                "prefix inside a segment",
                PathMatch::prefix("/a"),
                "/ab",
                None,
            ),
            ("prefix with slash", PathMatch::prefix("/a/"), "/a", Some(2)),
            ("regex", regex("/[a-z]+"), "/abc", Some(4)),
            ("regex is full", regex("/[a-z]"), "/abc", None),
        ] {
            assert_eq!(path_match.len(path), want, "{name}");
        }
    }

    #[test]
    fn preference() {
        let header = (
            HeaderName::from_static("x-a"),
            ValueMatch::Exact(b"1".to_vec()),
        );
        let rules = [
            http(HttpMatch {
                path: Some(PathMatch::prefix("/")),
                ..HttpMatch::default()
            }),
            http(HttpMatch {
                path: Some(PathMatch::prefix("/foo")),
                ..HttpMatch::default()
            }),
            http(HttpMatch {
                path: Some(PathMatch::prefix("/foo")),
                headers: vec![header],
                ..HttpMatch::default()
            }),
            http(HttpMatch {
                path: Some(PathMatch::prefix("/foo")),
                method: Some(Method::POST),
                ..HttpMatch::default()
            }),
            http(HttpMatch {
                path: Some(PathMatch::prefix("/foo")),
                query: vec![("q".into(), ValueMatch::Exact(b"a b".to_vec()))],
                ..HttpMatch::default()
            }),
            http(HttpMatch {
                path: Some(PathMatch::prefix("/foo")),
                ..HttpMatch::default()
            }),
        ];
        let pick = |r: &http::Request<()>| {
            find(r, [(&[][..], rules.iter().map(Vec::as_slice))]).map(|(_, rule)| rule)
        };
        for (name, r, want) in [
            ("longest path", request("GET", "/foo/x", &[]), Some(1)),
            (
                "headers next",
                request("POST", "/foo", &[("x-a", "1")]),
                Some(2),
            ),
            ("then query", request("POST", "/foo?q=a+b", &[]), Some(4)),
            ("then method", request("POST", "/foo", &[]), Some(3)),
            ("fallback", request("GET", "/bar", &[]), Some(0)),
        ] {
            assert_eq!(pick(&r), want, "{name}");
        }
    }

    #[test]
    fn matched_prefixes() {
        let by = |path| {
            RuleMatch::Http(HttpMatch {
                path,
                ..HttpMatch::default()
            })
        };
        let prefix = |p: &str| by(Some(PathMatch::prefix(p)));
        let exact = |p: &str| by(Some(PathMatch::Exact(p.into())));
        let regex = by(Some(PathMatch::Regex(Regex::new("/a.*").expect("valid"))));
        for (name, matches, want) in [
            ("no match at all", vec![], Some(0)),
            ("no path", vec![by(None)], Some(0)),
            ("a prefix", vec![prefix("/a")], Some(2)),
            ("the root", vec![prefix("/")], Some(0)),
            (
                "the longest",
                vec![prefix("/"), prefix("/a/b"), prefix("/a")],
                Some(4),
            ),
            ("a name", vec![exact("/a/b/c")], None),
            (
                "a name before a prefix",
                vec![prefix("/a"), exact("/a/b/c")],
                None,
            ),
            (
                "a name that is not it",
                vec![prefix("/a"), exact("/a/b")],
                Some(2),
            ),
            ("an expression", vec![regex], None),
        ] {
            let request = request("GET", "/a/b/c", &[]);
            assert_eq!(matched_prefix(&matches, &request), want, "{name}");
        }
    }

    #[test]
    fn more_specific_hosts_win_over_paths() {
        let any = http(HttpMatch {
            path: Some(PathMatch::Exact("/foo".into())),
            ..HttpMatch::default()
        });
        let catch_all: Vec<RuleMatch> = Vec::new();
        let hosts = [HostMatch::Exact("a.example".into())];
        let routes = || {
            [
                (&[][..], vec![any.as_slice()]),
                (&hosts[..], vec![catch_all.as_slice()]),
            ]
        };
        let r = request("GET", "http://a.example/foo", &[]);
        assert_eq!(find(&r, routes()), Some((1, 0)));
        let r = request("GET", "http://b.example/foo", &[]);
        assert_eq!(find(&r, routes()), Some((0, 0)));
        let r = request("GET", "http://b.example/bar", &[]);
        assert_eq!(find(&r, routes()), None);
    }

    #[test]
    fn grpc() {
        let m = |service: &str, method: &str| {
            vec![RuleMatch::Grpc(GrpcMatch {
                service: service.into(),
                method: method.into(),
                headers: Vec::new(),
            })]
        };
        let rules = [m("", ""), m("pkg.Svc", ""), m("pkg.Svc", "Get")];
        let pick = |r: &http::Request<()>| {
            find(r, [(&[][..], rules.iter().map(Vec::as_slice))]).map(|(_, rule)| rule)
        };
        assert_eq!(pick(&request("POST", "/pkg.Svc/Get", &[])), Some(2));
        assert_eq!(pick(&request("POST", "/pkg.Svc/List", &[])), Some(1));
        assert_eq!(pick(&request("POST", "/other.Svc/List", &[])), Some(0));
        assert_eq!(pick(&request("GET", "/pkg.Svc/Get", &[])), None);
        assert_eq!(pick(&request("POST", "/nomethod", &[])), None);
    }

    #[test]
    fn query_decoding() {
        let pairs: Vec<_> = query_pairs("a=1&b=%2Fx&c&&d=%zz").collect();
        let want = [("a", "1"), ("b", "/x"), ("c", ""), ("d", "%zz")];
        let want: Vec<_> = want.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(pairs, want);
    }
}
