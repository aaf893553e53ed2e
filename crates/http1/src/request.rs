//! Request heads: parsed once into offsets, judged by the rules of RFC 9112 with every choice taken on the strict side.

use std::mem::MaybeUninit;

use crate::error::HeadError;
use crate::framing::{Coding, Framing};
use crate::head::{EndSearch, FieldTable, Fields, Limits, MAX_FIELDS, Side, Span, Status, Version};
use crate::name::{Name, NameSet};
use crate::target::{self, Port, TargetForm};

/// The methods with rules of their own, and the common ones for matching without comparing text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Patch,
    Options,
    Trace,
    Connect,
    Other,
}

impl Method {
    /// Recognises a method; they are case-sensitive.
    pub fn of(method: &[u8]) -> Self {
        match method {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"PATCH" => Self::Patch,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }
}

/// A parsed request head. Holds no bytes: [`RequestHead::view`] pairs it with the buffer it was parsed from.
/// Keep one per connection and parse into it again and again; its field list is reused.
#[derive(Debug, Default)]
pub struct RequestHead {
    pub(crate) fields: FieldTable,
    pub(crate) method_span: Span,
    pub(crate) target_span: Span,
    authority: Span,
    path: Span,
    method: Method,
    form: TargetForm,
    version: Version,
    framing: Framing,
    search: EndSearch,
}

impl RequestHead {
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the head at the start of `buf`. On `Partial`, read more behind the same bytes and call again.
    /// On `Complete`, the body (or the next request) begins at [`RequestHead::len`].
    pub fn parse(&mut self, buf: &[u8], limits: &Limits) -> Result<Status, HeadError> {
        if !self.search.worth_parsing(buf) {
            return self.search.incomplete(buf, limits);
        }
        let mut slots = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_FIELDS];
        let slots = &mut slots[..limits.fields.min(MAX_FIELDS)];
        let mut parsed = httparse::Request::new(&mut []);
        let end = match parsed.parse_with_uninit_headers(buf, slots) {
            Ok(httparse::Status::Complete(end)) => end,
            Ok(httparse::Status::Partial) => {
                self.version = Version::from_minor(parsed.version);
                check_leading(buf)?;
                return self.search.incomplete(buf, limits);
            }
            Err(error) => {
                self.version = Version::from_minor(parsed.version);
                self.search.restart();
                return Err(refusal(error, &parsed, buf));
            }
        };
        self.search.restart();
        if end > limits.head_bytes {
            return Err(HeadError::TooLarge);
        }
        let method = parsed.method.unwrap_or_default().as_bytes();
        let target = parsed.path.unwrap_or_default().as_bytes();
        self.version = Version::from_minor(parsed.version);
        check_leading(buf)?;
        self.method = Method::of(method);
        self.method_span = Span::of(buf, method);
        self.target_span = Span::of(buf, target);
        self.fields.fill(buf, parsed.headers, end, Side::Request)?;
        self.judge_target(target)?;
        self.judge_host(buf, limits)?;
        self.judge_framing()
    }

    fn judge_target(&mut self, target: &[u8]) -> Result<(), HeadError> {
        if target.len() > usize::from(u16::MAX) - 1 {
            return Err(HeadError::TargetTooLong);
        }
        let connect = self.method == Method::Connect;
        if connect && self.version == Version::Http10 {
            return Err(HeadError::Connect);
        }
        let parts = target::parse(target, connect, self.method == Method::Options)?;
        let at = self.target_span.start();
        self.form = parts.form;
        self.authority = parts.authority.shift(at);
        self.path = parts.path.shift(at);
        Ok(())
    }

    fn judge_host(&self, buf: &[u8], limits: &Limits) -> Result<(), HeadError> {
        let Some(field) = self.fields.find(Name::Host) else {
            let required = limits.require_host && self.version == Version::Http11;
            return if required {
                Err(HeadError::MissingHost)
            } else {
                Ok(())
            };
        };
        let host = &buf[field.value.range()];
        let authority = &buf[self.authority.range()];
        // Empty is what a client says whose target has no authority (RFC 9112 3.2).
        let port = match host {
            [] => Port::Absent,
            host => target::authority(host)?,
        };
        let same = match self.form {
            _ if authority.is_empty() => true,
            // The port of a CONNECT is where to, not whom for; many clients name the host alone.
            TargetForm::Authority if port == Port::Absent => {
                same_authority(host, target::without_port(authority), b"")
            }
            _ => same_authority(host, authority, self.default_port(buf)),
        };
        if same {
            Ok(())
        } else {
            Err(HeadError::HostMismatch)
        }
    }

    fn default_port(&self, buf: &[u8]) -> &'static [u8] {
        match self.form {
            // The scheme was checked to be http or https; only the fifth byte tells them apart.
            TargetForm::Absolute if buf[self.target_span.start() + 4] | 0x20 == b's' => b":443",
            TargetForm::Absolute => b":80",
            _ => b"",
        }
    }

    fn judge_framing(&mut self) -> Result<Status, HeadError> {
        let has_body = self.fields.coding == Coding::Chunked
            || self.fields.content_length.is_some_and(|length| length > 0);
        if self.fields.coding == Coding::Chunked && self.version == Version::Http10 {
            return Err(HeadError::TransferEncoding);
        }
        if self.method == Method::Connect && has_body {
            return Err(HeadError::Connect);
        }
        self.framing = match (self.fields.coding, self.fields.content_length) {
            (Coding::Chunked, _) => Framing::Chunked,
            (Coding::Absent, Some(length)) if length > 0 => Framing::Length(length),
            _ => Framing::None,
        };
        Ok(Status::Complete)
    }

    /// Bytes of the head, blank line included: where the body begins.
    #[expect(clippy::len_without_is_empty, reason = "a parsed head is never empty")]
    pub fn len(&self) -> usize {
        self.fields.head_end
    }

    pub fn method(&self) -> Method {
        self.method
    }

    pub fn form(&self) -> TargetForm {
        self.form
    }

    /// The version; of a head that was refused, as far as it could be read.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How the request's body is delimited.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Whether the client lets the connection live on after this exchange.
    pub fn keep_alive(&self) -> bool {
        self.fields.keep_alive(self.version)
    }

    /// A real upgrade: HTTP/1.1, announced in `Connection`, and not to `h2c`, which is stripped instead.
    pub fn upgrade(&self) -> bool {
        self.fields.upgrade(self.version)
    }

    /// Whether the client waits for `100 Continue` before its body.
    pub fn expects_continue(&self) -> bool {
        self.fields.expect_continue
            && self.version == Version::Http11
            && self.framing != Framing::None
    }

    /// Which known names occur.
    pub fn seen(&self) -> NameSet {
        self.fields.seen
    }

    /// The head together with the bytes it was parsed from.
    pub fn view<'a>(&'a self, buf: &'a [u8]) -> RequestView<'a> {
        RequestView { head: self, buf }
    }
}

/// A request head with its bytes.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    pub(crate) head: &'a RequestHead,
    pub(crate) buf: &'a [u8],
}

impl<'a> RequestView<'a> {
    pub fn head(&self) -> &'a RequestHead {
        self.head
    }

    pub fn method(&self) -> &'a str {
        // Checked to be ASCII while parsing.
        std::str::from_utf8(&self.buf[self.head.method_span.range()]).unwrap_or_default()
    }

    /// The target as it was written.
    pub fn target(&self) -> &'a str {
        std::str::from_utf8(&self.buf[self.head.target_span.range()]).unwrap_or_default()
    }

    /// Path and query whatever the form; `/` when an absolute form has no path, empty for CONNECT.
    /// An absolute form such as `http://a?q` gives `?q`.
    pub fn path_and_query(&self) -> &'a str {
        if self.head.form == TargetForm::Absolute && self.head.path.range().is_empty() {
            return "/";
        }
        std::str::from_utf8(&self.buf[self.head.path.range()]).unwrap_or_default()
    }

    /// Where the request is meant to go: the target's authority when it has one, else `Host`.
    pub fn authority(&self) -> Option<&'a str> {
        if self.head.authority.range().is_empty() {
            return self.host();
        }
        std::str::from_utf8(&self.buf[self.head.authority.range()]).ok()
    }

    /// The `Host` field, unless it is empty; checked to be a valid authority.
    pub fn host(&self) -> Option<&'a str> {
        self.get(Name::Host)
            .filter(|host| !host.is_empty())
            .and_then(|host| std::str::from_utf8(host).ok())
    }

    /// The first value of a known name.
    pub fn get(&self, name: Name) -> Option<&'a [u8]> {
        self.head
            .fields
            .find(name)
            .map(|field| &self.buf[field.value.range()])
    }

    /// The first value of any name, compared without case.
    pub fn get_named(&self, name: &str) -> Option<&'a [u8]> {
        self.fields()
            .find(|field| field.name.eq_ignore_ascii_case(name.as_bytes()))
            .map(|field| field.value)
    }

    pub fn fields(&self) -> Fields<'a> {
        Fields {
            buf: self.buf,
            list: self.head.fields.list.iter(),
        }
    }
}

/// Before the request line at most one CRLF (RFC 9112 2.2); the parser below would skip any number, and bare ones.
fn check_leading(buf: &[u8]) -> Result<(), HeadError> {
    match buf {
        [b'\n', ..] | [b'\r', b'\n', b'\r' | b'\n', ..] => Err(HeadError::StartLine),
        [b'\r', other, ..] if *other != b'\n' => Err(HeadError::StartLine),
        _ => Ok(()),
    }
}

fn refusal(error: httparse::Error, parsed: &httparse::Request<'_, '_>, buf: &[u8]) -> HeadError {
    match error {
        httparse::Error::Token if parsed.method.is_none() => HeadError::Method,
        httparse::Error::Token => HeadError::Target,
        httparse::Error::Version if looks_like_version(buf) => HeadError::Version,
        httparse::Error::TooManyHeaders => HeadError::TooManyFields,
        httparse::Error::HeaderName => HeadError::FieldName,
        httparse::Error::HeaderValue => HeadError::FieldValue,
        httparse::Error::NewLine => HeadError::LineEnding,
        httparse::Error::Version | httparse::Error::Status => HeadError::StartLine,
    }
}

/// A well-formed `HTTP/x.y` we do not speak earns 505, anything else 400.
fn looks_like_version(buf: &[u8]) -> bool {
    let line = buf.trim_ascii_start();
    let line = &line[..memchr::memchr2(b'\r', b'\n', line).unwrap_or(line.len())];
    let word = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    matches!(word, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit())
}

/// Equal without case; a port that is the scheme's own may be left out on either side.
fn same_authority(host: &[u8], authority: &[u8], default_port: &[u8]) -> bool {
    if host.eq_ignore_ascii_case(authority) {
        return true;
    }
    let strip = |name: &'_ [u8]| -> usize {
        if target::authority(name) == Ok(Port::Given)
            && !default_port.is_empty()
            && name.ends_with(default_port)
        {
            name.len() - default_port.len()
        } else {
            name.len()
        }
    };
    host[..strip(host)].eq_ignore_ascii_case(&authority[..strip(authority)])
}

#[cfg(test)]
mod tests;
