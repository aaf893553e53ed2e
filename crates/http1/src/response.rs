//! Response heads: parsed once into offsets; the request's method decides, with the status, whether a body follows.

use std::mem::MaybeUninit;

use crate::error::HeadError;
use crate::framing::{Coding, Framing};
use crate::head::{EndSearch, FieldTable, Fields, Limits, MAX_FIELDS, Side, Span, Status, Version};
use crate::name::{Name, NameSet};
use crate::request::Method;

/// A parsed response head. Holds no bytes: [`ResponseHead::view`] pairs it with the buffer it was parsed from.
/// Keep one per connection and parse into it again and again.
#[derive(Debug, Default)]
pub struct ResponseHead {
    pub(crate) fields: FieldTable,
    pub(crate) reason: Span,
    status: u16,
    version: Version,
    framing: Framing,
    search: EndSearch,
}

impl ResponseHead {
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the head at the start of `buf`, the answer to a request with `method`.
    /// Interim answers (see [`ResponseHead::interim`]) are followed by another head.
    pub fn parse(
        &mut self,
        buf: &[u8],
        limits: &Limits,
        method: Method,
    ) -> Result<Status, HeadError> {
        if !self.search.worth_parsing(buf) {
            return self.search.incomplete(buf, limits);
        }
        if matches!(buf.first(), Some(b'\r' | b'\n')) {
            return Err(HeadError::StartLine);
        }
        let mut slots = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_FIELDS];
        let slots = &mut slots[..limits.fields.min(MAX_FIELDS)];
        let mut parsed = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let end = match config.parse_response_with_uninit_headers(&mut parsed, buf, slots) {
            Ok(httparse::Status::Complete(end)) => end,
            Ok(httparse::Status::Partial) => return self.search.incomplete(buf, limits),
            Err(error) => {
                self.search.restart();
                return Err(refusal(error));
            }
        };
        self.search.restart();
        if end > limits.head_bytes {
            return Err(HeadError::TooLarge);
        }
        self.version = Version::from_minor(parsed.version);
        self.status = parsed
            .code
            .filter(|code| (100..=999).contains(code))
            .ok_or(HeadError::Status)?;
        // `httparse` gives an empty reason for one it cannot show as text; the bytes themselves are taken from the line.
        self.fields.fill(buf, parsed.headers, end, Side::Response)?;
        let line_end = self
            .fields
            .list
            .first()
            .map_or(end - 2, |field| field.name.start())
            - 2;
        let reason_start = "HTTP/1.1 200 ".len().min(line_end);
        self.reason = Span::new(reason_start, line_end);
        self.judge_framing(method)?;
        Ok(Status::Complete)
    }

    fn judge_framing(&mut self, method: Method) -> Result<(), HeadError> {
        if self.fields.coding == Coding::Chunked && self.version == Version::Http10 {
            return Err(HeadError::TransferEncoding);
        }
        self.framing = match (self.status, method) {
            (101, _) => Framing::Tunnel,
            (200..=299, Method::Connect) => Framing::Tunnel,
            (100..=199 | 204 | 304, _) | (_, Method::Head) => Framing::None,
            _ => match (self.fields.coding, self.fields.content_length) {
                (Coding::Chunked, _) => Framing::Chunked,
                (Coding::Absent, Some(0)) => Framing::None,
                (Coding::Absent, Some(length)) => Framing::Length(length),
                (Coding::Absent, None) => Framing::UntilClose,
            },
        };
        Ok(())
    }

    /// Bytes of the head, blank line included: where the body begins.
    #[expect(clippy::len_without_is_empty, reason = "a parsed head is never empty")]
    pub fn len(&self) -> usize {
        self.fields.head_end
    }

    pub fn status(&self) -> u16 {
        self.status
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// How the response's body is delimited.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// A 1xx that another head follows; 101 is final.
    pub fn interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// Whether the server lets its connection be used again once the body is complete.
    pub fn reusable(&self) -> bool {
        self.fields.keep_alive(self.version)
            && !matches!(self.framing, Framing::UntilClose | Framing::Tunnel)
    }

    /// Which known names occur.
    pub fn seen(&self) -> NameSet {
        self.fields.seen
    }

    /// The head together with the bytes it was parsed from.
    pub fn view<'a>(&'a self, buf: &'a [u8]) -> ResponseView<'a> {
        ResponseView { head: self, buf }
    }
}

/// A response head with its bytes.
#[derive(Clone, Copy, Debug)]
pub struct ResponseView<'a> {
    pub(crate) head: &'a ResponseHead,
    pub(crate) buf: &'a [u8],
}

impl<'a> ResponseView<'a> {
    pub fn head(&self) -> &'a ResponseHead {
        self.head
    }

    pub fn reason(&self) -> &'a [u8] {
        &self.buf[self.head.reason.range()]
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

fn refusal(error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::Version => HeadError::Version,
        httparse::Error::TooManyHeaders => HeadError::TooManyFields,
        httparse::Error::HeaderName => HeadError::FieldName,
        httparse::Error::HeaderValue => HeadError::FieldValue,
        httparse::Error::NewLine => HeadError::LineEnding,
        httparse::Error::Status => HeadError::Status,
        httparse::Error::Token => HeadError::StartLine,
    }
}

#[cfg(test)]
mod tests;
