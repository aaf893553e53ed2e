//! To and from `http` types, for the legs that speak HTTP/2 through the `h2` crate.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};

use crate::error::HeadError;
use crate::framing::{self, Framing};
use crate::head::{FieldTable, Version, tokens};
use crate::name::{Name, NameSet};
use crate::persist::{BodyEdit, Persist, ResponsePlan};
use crate::reply::put_status_line;
use crate::request::{Method, RequestView};
use crate::response::ResponseView;
use crate::rewrite::{put_line, put_persist};
use crate::target::TargetForm;

/// Fields that have no place in HTTP/2, on top of the hop-by-hop ones.
const NOT_IN_HTTP2: NameSet = NameSet::HOP_BY_HOP
    .with(Name::TransferEncoding)
    .with(Name::Host);

impl RequestView<'_> {
    /// The request for an HTTP/2 leg: `Host` becomes the authority, hop-by-hop fields and `drop` are left out, `te` says
    /// `trailers` or nothing. Without any authority the URI is relative and the version stays below 2, as `h2` wants it.
    pub fn to_http(&self, drop: NameSet) -> Result<http::Request<()>, HeadError> {
        let shared = Bytes::copy_from_slice(&self.buf[..self.head.len()]);
        let mut request = http::Request::new(());
        *request.method_mut() =
            http::Method::from_bytes(self.method().as_bytes()).map_err(|_| HeadError::Method)?;
        *request.uri_mut() = self.uri()?;
        *request.version_mut() = if request.uri().authority().is_some() {
            http::Version::HTTP_2
        } else {
            self.head.version().as_http()
        };
        let mut drop = NOT_IN_HTTP2.union(drop);
        if request.uri().authority().is_none() {
            // An empty `Host` says so on the other side, too.
            drop = drop.without(Name::Host);
        }
        *request.headers_mut() = collect(&shared, self.buf, &self.head.fields, drop)?;
        Ok(request)
    }

    fn uri(&self) -> Result<Uri, HeadError> {
        let authority = match self.authority() {
            Some(text) => Some(Authority::try_from(text).map_err(|_| HeadError::Host)?),
            None => None,
        };
        let mut parts = http::uri::Parts::default();
        if self.head.form() == TargetForm::Authority {
            parts.authority = authority;
            return Uri::from_parts(parts).map_err(|_| HeadError::Target);
        }
        let path = self.path_and_query();
        let path = if path.starts_with('?') {
            PathAndQuery::try_from(format!("/{path}"))
        } else {
            PathAndQuery::try_from(path)
        };
        parts.path_and_query = Some(path.map_err(|_| HeadError::Target)?);
        if authority.is_some() {
            parts.scheme = Some(Scheme::HTTP);
            parts.authority = authority;
        }
        Uri::from_parts(parts).map_err(|_| HeadError::Target)
    }
}

impl ResponseView<'_> {
    /// The response for an HTTP/2 client or an upgraded leg; `te` and framing fields have no place there.
    pub fn to_http(&self, drop: NameSet) -> Result<http::Response<()>, HeadError> {
        let shared = Bytes::copy_from_slice(&self.buf[..self.head.len()]);
        let mut response = http::Response::new(());
        *response.status_mut() =
            http::StatusCode::from_u16(self.head.status()).map_err(|_| HeadError::Status)?;
        *response.version_mut() = http::Version::HTTP_2;
        let drop = NOT_IN_HTTP2.without(Name::Host).union(drop);
        *response.headers_mut() = collect(&shared, self.buf, &self.head.fields, drop)?;
        Ok(response)
    }
}

/// Gathers the fields that stay; values share one copy of the head.
fn collect(
    shared: &Bytes,
    buf: &[u8],
    fields: &FieldTable,
    drop: NameSet,
) -> Result<HeaderMap, HeadError> {
    let mut map = HeaderMap::with_capacity(fields.list.len());
    for field in &fields.list {
        if drop.contains(field.known) || (field.known != Name::Te && fields.nominated(buf, field)) {
            continue;
        }
        match field.known {
            Name::Te => {
                if tokens(&buf[field.value.range()])
                    .any(|token| token.eq_ignore_ascii_case(b"trailers"))
                {
                    map.insert(header::TE, HeaderValue::from_static("trailers"));
                }
                continue;
            }
            Name::ContentLength if map.contains_key(header::CONTENT_LENGTH) => continue,
            _ => {}
        }
        let name =
            HeaderName::from_bytes(&buf[field.name.range()]).map_err(|_| HeadError::FieldName)?;
        let value = HeaderValue::from_maybe_shared(shared.slice(field.value.range()))
            .map_err(|_| HeadError::FieldValue)?;
        map.append(name, value);
    }
    Ok(map)
}

/// How the writer must encode the body that follows a head written from `http` types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEncoding {
    /// No body, or the stream ends with its head.
    None,
    /// Payload as it is; its length was announced.
    Length(u64),
    /// Through [`crate::put_chunk`] and [`crate::put_last_chunk`].
    Chunked,
    /// Payload as it is; then the connection is closed.
    UntilClose,
}

/// What [`write_request`] needs to know besides the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutboundRequest<'a> {
    /// The version to write, from `l5d-orig-proto` for upgraded requests.
    pub version: Version,
    /// Whether the target is written with scheme and authority.
    pub absolute: bool,
    /// The stream has no body behind its head.
    pub end_stream: bool,
    /// Replaces the request's authority.
    pub authority: Option<&'a str>,
    pub drop: NameSet,
    /// Other names to leave out, in lower case.
    pub drop_named: &'a [&'a str],
    pub add: &'a [(&'a str, &'a [u8])],
    pub persist: Persist,
}

/// Writes a request that came over HTTP/2 as HTTP/1. The authority becomes `host`, cookie crumbs are joined again.
pub fn write_request(
    request: &http::request::Parts,
    how: &OutboundRequest<'_>,
    out: &mut BytesMut,
) -> Result<BodyEncoding, HeadError> {
    let connect = request.method == http::Method::CONNECT;
    let named = request.uri.authority().map(Authority::as_str);
    let authority = how.authority.or(named);
    let path = request
        .uri
        .path_and_query()
        .map_or("/", PathAndQuery::as_str);
    out.put_slice(request.method.as_str().as_bytes());
    out.put_u8(b' ');
    match authority {
        Some(authority) if connect => out.put_slice(authority.as_bytes()),
        _ if connect => return Err(HeadError::Connect),
        Some(authority) if how.absolute => {
            out.put_slice(b"http://");
            out.put_slice(authority.as_bytes());
            out.put_slice(path.as_bytes());
        }
        _ => out.put_slice(if path.is_empty() {
            b"/"
        } else {
            path.as_bytes()
        }),
    }
    out.put_u8(b' ');
    out.put_slice(how.version.as_str().as_bytes());
    out.put_slice(b"\r\n");
    let mut drop = NOT_IN_HTTP2.without(Name::Host).union(how.drop);
    if let Some(authority) = authority {
        put_line(out, b"host", authority.as_bytes());
        drop = drop.with(Name::Host);
    }
    let encoding = if how.end_stream || connect {
        BodyEncoding::None
    } else {
        match length(&request.headers)? {
            Some(length) => BodyEncoding::Length(length),
            None if how.version == Version::Http10 => return Err(HeadError::ContentLength),
            None => BodyEncoding::Chunked,
        }
    };
    put_map(out, &request.headers, drop, how.drop_named);
    if encoding == BodyEncoding::Chunked {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    }
    for (name, value) in how.add {
        put_line(out, name.as_bytes(), value);
    }
    put_persist(out, how.persist);
    out.put_slice(b"\r\n");
    Ok(encoding)
}

/// What [`write_response`] needs to know besides the response.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutboundResponse<'a> {
    /// The client's version and whether it lets the connection live on.
    pub version: Version,
    pub keep_alive: bool,
    /// The method of the request this answers.
    pub method: Method,
    /// The stream has no body behind its head.
    pub end_stream: bool,
    /// We want the client's connection to end.
    pub closing: bool,
    pub drop: NameSet,
    pub add: &'a [(&'a str, &'a [u8])],
}

/// Writes a response that came over HTTP/2 as HTTP/1 for the client that asked.
pub fn write_response(
    response: &http::response::Parts,
    how: &OutboundResponse<'_>,
    out: &mut BytesMut,
) -> Result<(BodyEncoding, ResponsePlan), HeadError> {
    let status = response.status.as_u16();
    let bodiless = how.method == Method::Head || matches!(status, 100..=199 | 204 | 304);
    let announced = length(&response.headers)?;
    let arrives = match announced {
        _ if bodiless => Framing::None,
        Some(0) => Framing::None,
        Some(length) => Framing::Length(length),
        None if how.end_stream => Framing::None,
        None => Framing::UntilClose,
    };
    let plan = ResponsePlan::for_client(how.version, how.keep_alive, arrives, how.closing);
    put_status_line(out, how.version, status);
    put_map(
        out,
        &response.headers,
        NOT_IN_HTTP2.without(Name::Host).union(how.drop),
        &[],
    );
    if announced.is_none() && how.end_stream && !bodiless {
        out.put_slice(b"content-length: 0\r\n");
    }
    if plan.body == BodyEdit::Chunked {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    }
    for (name, value) in how.add {
        put_line(out, name.as_bytes(), value);
    }
    put_persist(out, plan.persist);
    out.put_slice(b"\r\n");
    let encoding = match (plan.body, arrives) {
        (BodyEdit::Chunked, _) => BodyEncoding::Chunked,
        (BodyEdit::UntilClose, _) => BodyEncoding::UntilClose,
        (BodyEdit::Keep, Framing::Length(length)) => BodyEncoding::Length(length),
        (BodyEdit::Keep, _) => BodyEncoding::None,
    };
    Ok((encoding, plan))
}

fn length(headers: &HeaderMap) -> Result<Option<u64>, HeadError> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).into_iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(HeadError::ContentLength);
    }
    framing::content_length(first.as_bytes()).map(Some)
}

fn put_map(out: &mut BytesMut, headers: &HeaderMap, drop: NameSet, drop_named: &[&str]) {
    for name in headers.keys() {
        let known = Name::of(name.as_str().as_bytes());
        // What frames the message or says where it goes stays.
        let changeable = !matches!(known, Name::ContentLength | Name::Host);
        if drop.contains(known) || (changeable && drop_named.contains(&name.as_str())) {
            continue;
        }
        let mut values = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
        if *name == header::COOKIE {
            let crumbs: Vec<&[u8]> = values.collect();
            put_line(out, b"cookie", &crumbs.join(&b"; "[..]));
            continue;
        }
        values
            .by_ref()
            .for_each(|value| put_line(out, name.as_str().as_bytes(), value));
    }
}

#[cfg(test)]
mod tests;
