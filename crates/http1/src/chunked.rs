//! The chunked coding as a state machine over bytes: finds where data and the message end, refuses whatever another
//! parser might read differently, and keeps the trailers.

use crate::error::BodyError;
use crate::name::Name;

/// Bytes all extensions of one body may have together.
const EXTENSION_LIMIT: u32 = 4 * 1024;
/// Bytes the trailers may have, blank line included.
const TRAILER_LIMIT: usize = 8 * 1024;
/// Digits a size may have, leading zeros included: more are nothing but an attempt at someone's integer parser.
const SIZE_DIGITS: u8 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first digit of a size.
    SizeStart,
    Size,
    /// Blanks behind a size, where no digit may follow.
    Padding,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the blank line.
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

#[derive(Debug)]
pub(crate) struct Chunked {
    state: State,
    /// The size being read, then the data bytes still to come.
    left: u64,
    digits: u8,
    extension: u32,
    trailers: Vec<u8>,
}

/// A step over some bytes: all of `take` is behind us, its last `data` bytes are payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) take: usize,
    pub(crate) data: usize,
}

impl Chunked {
    pub(crate) fn new() -> Self {
        Self {
            state: State::SizeStart,
            left: 0,
            digits: 0,
            extension: 0,
            trailers: Vec::new(),
        }
    }

    pub(crate) fn done(&self) -> bool {
        self.state == State::Done
    }

    /// The trailer section as it came, each line with its CRLF.
    pub(crate) fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Goes over framing up to and including the next run of data, or to the end of `bytes` or of the body.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> Result<Step, BodyError> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Done {
            if self.state == State::Data {
                let data = usize::try_from(self.left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len() - at);
                self.left -= data as u64;
                if self.left == 0 {
                    self.state = State::DataCr;
                }
                return Ok(Step {
                    take: at + data,
                    data,
                });
            }
            self.byte(bytes[at])?;
            at += 1;
        }
        Ok(Step { take: at, data: 0 })
    }

    fn byte(&mut self, byte: u8) -> Result<(), BodyError> {
        self.state = match (self.state, byte) {
            (State::SizeStart | State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.digit(byte)?
            }
            (State::Size | State::Padding, b'\r') => State::SizeLf,
            (State::Size | State::Padding, b' ' | b'\t') => {
                self.count_extension()?;
                State::Padding
            }
            (State::Size | State::Padding, b';') => {
                self.count_extension()?;
                State::Extension
            }
            (State::SizeStart | State::Size | State::Padding, _) => {
                return Err(BodyError::ChunkSize);
            }
            (State::Extension, b'\r') => State::SizeLf,
            (State::Extension, b'\t' | 0x20..=0x7e | 0x80..) => {
                self.count_extension()?;
                State::Extension
            }
            (State::Extension, _) => return Err(BodyError::ChunkExtension),
            (State::SizeLf, b'\n') if self.left == 0 => State::TrailerStart,
            (State::SizeLf, b'\n') => State::Data,
            (State::SizeLf, _) => return Err(BodyError::ChunkSize),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::SizeStart,
            (State::DataCr | State::DataLf, _) => return Err(BodyError::ChunkEnd),
            (State::TrailerStart, b'\r') => State::EndLf,
            (State::TrailerStart | State::Trailer | State::TrailerLf, _) => self.trailer(byte)?,
            (State::EndLf, b'\n') => {
                check_trailers(&self.trailers)?;
                State::Done
            }
            (State::EndLf, _) => return Err(BodyError::Trailer),
            (State::Data | State::Done, _) => unreachable!("step handles data and the end itself"),
        };
        Ok(())
    }

    fn digit(&mut self, byte: u8) -> Result<State, BodyError> {
        if self.state == State::SizeStart {
            (self.left, self.digits) = (0, 0);
        }
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            _ => (byte | 0x20) - b'a' + 10,
        };
        self.digits += 1;
        if self.digits > SIZE_DIGITS {
            return Err(BodyError::ChunkSize);
        }
        self.left = self.left * 16 + u64::from(digit);
        Ok(State::Size)
    }

    fn count_extension(&mut self) -> Result<(), BodyError> {
        self.extension += 1;
        if self.extension > EXTENSION_LIMIT {
            Err(BodyError::ChunkExtension)
        } else {
            Ok(())
        }
    }

    fn trailer(&mut self, byte: u8) -> Result<State, BodyError> {
        if self.trailers.len() >= TRAILER_LIMIT {
            return Err(BodyError::TrailerTooLarge);
        }
        self.trailers.push(byte);
        match (self.state, byte) {
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (State::TrailerLf, _) | (_, b'\n' | 0) => Err(BodyError::Trailer),
            (State::TrailerStart, b' ' | b'\t' | b':') => Err(BodyError::Trailer),
            (_, b'\r') => Ok(State::TrailerLf),
            _ => Ok(State::Trailer),
        }
    }
}

/// Trailers obey the rules of fields, and none of them may pretend to frame or route the message.
fn check_trailers(section: &[u8]) -> Result<(), BodyError> {
    if section.is_empty() {
        return Ok(());
    }
    each_trailer(section, |name, _| match Name::of(name) {
        Name::Host
        | Name::ContentLength
        | Name::TransferEncoding
        | Name::Connection
        | Name::Te
        | Name::Trailer => Err(BodyError::Trailer),
        _ => Ok(()),
    })
}

/// Calls `visit` with each name and value of a trailer section.
pub(crate) fn each_trailer(
    section: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), BodyError>,
) -> Result<(), BodyError> {
    let mut slots = [httparse::EMPTY_HEADER; 64];
    let mut whole = Vec::with_capacity(section.len() + 2);
    whole.extend_from_slice(section);
    whole.extend_from_slice(b"\r\n");
    match httparse::parse_headers(&whole, &mut slots) {
        Ok(httparse::Status::Complete((_, fields))) => fields
            .iter()
            .try_for_each(|field| visit(field.name.as_bytes(), field.value)),
        _ => Err(BodyError::Trailer),
    }
}
