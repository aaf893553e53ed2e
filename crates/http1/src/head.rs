//! What requests and responses share: limits, offsets of fields into the buffer, and the one pass that checks line ends,
//! recognises names and gathers what framing and persistence need.

use crate::error::HeadError;
use crate::framing::{self, Coding};
use crate::name::{Name, NameSet};

/// The most fields a head may have, whatever the limits say (they live on the stack while parsing).
pub(crate) const MAX_FIELDS: usize = 256;

/// What a head may cost and require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a head, start line and blank line included.
    pub head_bytes: usize,
    /// Most fields; 256 is the ceiling.
    pub fields: usize,
    /// Whether an HTTP/1.1 request without `Host` is refused. A transparent proxy need not: it routes by address.
    pub require_host: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 64 * 1024,
            fields: MAX_FIELDS,
            require_host: false,
        }
    }
}

/// Whether a head is there as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Complete,
    /// More bytes are needed; call again with the same bytes and more behind them.
    Partial,
}

/// The protocol version of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    Http10,
    #[default]
    Http11,
}

impl Version {
    pub(crate) fn from_minor(minor: Option<u8>) -> Self {
        if minor == Some(0) {
            Self::Http10
        } else {
            Self::Http11
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }

    pub fn as_http(self) -> http::Version {
        match self {
            Self::Http10 => http::Version::HTTP_10,
            Self::Http11 => http::Version::HTTP_11,
        }
    }
}

/// A range of the buffer in four-byte offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self {
            start: offset(start),
            end: offset(end),
        }
    }

    /// The span of `part`, which must be a slice of `buf`.
    pub(crate) fn of(buf: &[u8], part: &[u8]) -> Self {
        let start = part.as_ptr() as usize - buf.as_ptr() as usize;
        Self::new(start, start + part.len())
    }

    #[inline]
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(crate) fn shift(self, by: usize) -> Self {
        Self::new(self.start as usize + by, self.end as usize + by)
    }

    #[inline]
    pub(crate) fn start(self) -> usize {
        self.start as usize
    }

    #[inline]
    pub(crate) fn end(self) -> usize {
        self.end as usize
    }
}

#[inline]
fn offset(position: usize) -> u32 {
    u32::try_from(position).expect("a head is limited far below 4 GiB")
}

/// One field line as offsets: `name`, `value` (trimmed), and the whole line with its CRLF.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: Span,
    pub(crate) value: Span,
    pub(crate) line_end: u32,
    pub(crate) known: Name,
}

/// What the `Connection` lines say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionTokens {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: bool,
    /// Names other fields, which then are hop-by-hop too.
    pub(crate) nominates: bool,
}

/// All fields of a head, with what the pass over them found out.
#[derive(Debug, Default)]
pub(crate) struct FieldTable {
    pub(crate) list: Vec<Field>,
    pub(crate) seen: NameSet,
    pub(crate) content_length: Option<u64>,
    pub(crate) coding: Coding,
    pub(crate) connection: ConnectionTokens,
    pub(crate) h2c: bool,
    pub(crate) expect_continue: bool,
    /// End of the head, behind the blank line.
    pub(crate) head_end: usize,
    /// A `content-length` line that repeats an earlier one; left out when the head is written.
    pub(crate) repeated_length: bool,
}

/// Whose message it is: requests are judged more strictly.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Response,
}

impl FieldTable {
    /// Takes over what `httparse` found. `headers` point into `buf`; the head ends at `head_end`.
    pub(crate) fn fill(
        &mut self,
        buf: &[u8],
        headers: &[httparse::Header<'_>],
        head_end: usize,
        side: Side,
    ) -> Result<(), HeadError> {
        self.reset(head_end);
        let first = headers.first().map_or(head_end - 2, |header| {
            Span::of(buf, header.name.as_bytes()).start()
        });
        check_crlf(buf, first)?;
        check_crlf(buf, head_end)?;
        for (index, header) in headers.iter().enumerate() {
            let name = Span::of(buf, header.name.as_bytes());
            let value = if header.value.is_empty() {
                Span::new(name.end() + 1, name.end() + 1)
            } else {
                Span::of(buf, header.value)
            };
            let line_end = match headers.get(index + 1) {
                Some(next) => Span::of(buf, next.name.as_bytes()).start(),
                None => head_end - 2,
            };
            check_crlf(buf, line_end)?;
            let known = Name::of(header.name.as_bytes());
            if known != Name::Other {
                self.note(known, header.value, side)?;
            }
            self.list.push(Field {
                name,
                value,
                line_end: offset(line_end),
                known,
            });
        }
        if self.coding == Coding::Chunked && self.content_length.is_some() {
            return Err(HeadError::LengthAndCoding);
        }
        Ok(())
    }

    fn reset(&mut self, head_end: usize) {
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        *self = Self {
            list,
            head_end,
            ..Self::default()
        };
    }

    fn note(&mut self, known: Name, value: &[u8], side: Side) -> Result<(), HeadError> {
        let repeated = self.seen.contains(known);
        self.seen = self.seen.with(known);
        match known {
            Name::Host if repeated => return Err(HeadError::Host),
            Name::ContentLength => {
                let length = framing::content_length(value)?;
                if repeated && (side == Side::Request || self.content_length != Some(length)) {
                    return Err(HeadError::ContentLength);
                }
                self.repeated_length = repeated;
                self.content_length = Some(length);
            }
            Name::TransferEncoding => {
                if repeated {
                    return Err(HeadError::TransferEncoding);
                }
                self.coding = framing::transfer_encoding(value, side)?;
            }
            // Some read such a line as if it were not there, others read the words in it.
            Name::Connection if !value.is_ascii() => return Err(HeadError::FieldValue),
            Name::Connection => self.note_connection(value),
            Name::Upgrade => {
                self.h2c |= tokens(value).any(|token| token.eq_ignore_ascii_case(b"h2c"))
            }
            Name::Expect => self.expect_continue |= value.eq_ignore_ascii_case(b"100-continue"),
            _ => {}
        }
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) {
        for token in tokens(value) {
            if token.eq_ignore_ascii_case(b"close") {
                self.connection.close = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                self.connection.keep_alive = true;
            } else if token.eq_ignore_ascii_case(b"upgrade") {
                self.connection.upgrade = true;
            } else {
                self.connection.nominates = true;
            }
        }
    }

    pub(crate) fn find(&self, name: Name) -> Option<&Field> {
        if !self.seen.contains(name) {
            return None;
        }
        self.list.iter().find(|field| field.known == name)
    }

    /// Whether a `Connection` line makes this field hop-by-hop.
    pub(crate) fn nominated(&self, buf: &[u8], field: &Field) -> bool {
        if !self.connection.nominates || NameSet::NEVER_NOMINATED.contains(field.known) {
            return false;
        }
        let name = &buf[field.name.range()];
        self.list
            .iter()
            .filter(|line| line.known == Name::Connection)
            .any(|line| {
                tokens(&buf[line.value.range()]).any(|token| token.eq_ignore_ascii_case(name))
            })
    }

    /// Whether the connection may be used again after this message, as far as its own words go.
    pub(crate) fn keep_alive(&self, version: Version) -> bool {
        match version {
            Version::Http11 => !self.connection.close,
            Version::Http10 => self.connection.keep_alive && !self.connection.close,
        }
    }

    pub(crate) fn upgrade(&self, version: Version) -> bool {
        version == Version::Http11
            && self.connection.upgrade
            && self.seen.contains(Name::Upgrade)
            && !self.h2c
    }
}

/// The line before `position` must end in CRLF. A CR elsewhere is no field byte, so looking at two bytes is enough.
fn check_crlf(buf: &[u8], position: usize) -> Result<(), HeadError> {
    if position >= 2 && &buf[position - 2..position] == b"\r\n" {
        Ok(())
    } else {
        Err(HeadError::LineEnding)
    }
}

/// The elements of a comma-separated list, trimmed, empty ones left out.
pub(crate) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

/// One field as the reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldView<'a> {
    pub known: Name,
    pub name: &'a [u8],
    pub value: &'a [u8],
}

/// Iterates over all fields in the order they came.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    pub(crate) buf: &'a [u8],
    pub(crate) list: std::slice::Iter<'a, Field>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = FieldView<'a>;

    fn next(&mut self) -> Option<FieldView<'a>> {
        let field = self.list.next()?;
        Some(FieldView {
            known: field.known,
            name: &self.buf[field.name.range()],
            value: &self.buf[field.value.range()],
        })
    }
}

/// Remembers how far an incomplete head was searched for its end, so that a head that comes in many small pieces
/// is not parsed from the start each time.
#[derive(Debug, Default)]
pub(crate) struct EndSearch {
    searched: usize,
}

impl EndSearch {
    /// False while the bytes are known to hold no blank line.
    pub(crate) fn worth_parsing(&mut self, buf: &[u8]) -> bool {
        if self.searched == 0 || buf.len() < self.searched {
            return true;
        }
        let from = self.searched.saturating_sub(3);
        let found = memchr::memchr_iter(b'\n', &buf[from..])
            .any(|at| matches!(&buf[from + at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]));
        if !found {
            self.searched = buf.len();
        }
        found
    }

    /// The head is not complete yet.
    pub(crate) fn incomplete(&mut self, buf: &[u8], limits: &Limits) -> Result<Status, HeadError> {
        self.searched = buf.len();
        if buf.len() < limits.head_bytes {
            return Ok(Status::Partial);
        }
        self.restart();
        if memchr::memchr(b'\n', buf.trim_ascii_start()).is_none() {
            return Err(HeadError::TargetTooLong);
        }
        Err(HeadError::TooLarge)
    }

    pub(crate) fn restart(&mut self) {
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_elements_are_trimmed_and_never_empty() {
        let all: Vec<&[u8]> = tokens(b" a,\tb ,, c,").collect();
        assert_eq!(all, [b"a", b"b", b"c"]);
    }

    #[test]
    fn a_head_in_pieces_is_searched_once() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut search = EndSearch::default();
        assert!(search.worth_parsing(&head[..1]));
        for length in 1..head.len() {
            assert!(
                length == 1 || !search.worth_parsing(&head[..length]),
                "{length}"
            );
            assert_eq!(
                search.incomplete(&head[..length], &Limits::default()),
                Ok(Status::Partial)
            );
        }
        assert!(search.worth_parsing(head));
        search.searched = 16;
        assert!(
            search.worth_parsing(b"GET / HTTP/1.1\nHost: a\n\n"),
            "bare line feeds end a head too, to be refused"
        );
    }
}
