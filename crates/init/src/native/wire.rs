//! Netlink framing: writing messages and attributes, reading the kernel's answers.
//! Reading is bounded: every length is checked against what is there, nothing panics, nothing recurses.

/// Message and attribute numbers of the kernel's nf_tables interface.
pub mod nft {
    pub const SUBSYSTEM: u16 = 10;
    pub const NEW_TABLE: u8 = 0;
    pub const DEL_TABLE: u8 = 2;
    pub const NEW_CHAIN: u8 = 3;
    pub const GET_CHAIN: u8 = 4;
    pub const DEL_CHAIN: u8 = 5;
    pub const NEW_RULE: u8 = 6;
    pub const GET_RULE: u8 = 7;
    pub const DEL_RULE: u8 = 8;
    pub const NEW_SET: u8 = 9;
    pub const NEW_SET_ELEM: u8 = 12;
    pub const GET_SET_ELEM: u8 = 13;
}

pub const BATCH_BEGIN: u16 = 16;
pub const BATCH_END: u16 = 17;
pub const MSG_ERROR: u16 = 2;
pub const MSG_DONE: u16 = 3;

pub const F_REQUEST: u16 = 0x1;
pub const F_ACK: u16 = 0x4;
pub const F_DUMP_INTERRUPTED: u16 = 0x10;
pub const F_DUMP: u16 = 0x300;
pub const F_CREATE: u16 = 0x400;
pub const F_APPEND: u16 = 0x800;

const HEADER: usize = 16;
const GENERIC: usize = 4;
const NESTED: u16 = 0x8000;
/// The two top bits of an attribute's type are flags.
const TYPE_MASK: u16 = 0x3fff;

/// Appends messages to one buffer.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

/// Writes the attributes of one message.
#[derive(Debug)]
pub struct Attrs<'a> {
    bytes: &'a mut Vec<u8>,
}

/// One message as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub seq: u32,
    pub body: &'a [u8],
}

/// One attribute as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr<'a> {
    pub kind: u16,
    pub value: &'a [u8],
}

// === impl Writer ===

impl Writer {
    /// An nf_tables message.
    pub fn nft(
        &mut self,
        msg: u8,
        family: u8,
        flags: u16,
        seq: u32,
        fill: impl FnOnce(&mut Attrs<'_>),
    ) {
        self.message(
            nft::SUBSYSTEM << 8 | u16::from(msg),
            family,
            0,
            flags,
            seq,
            fill,
        );
    }

    /// The frame of a transaction: `BATCH_BEGIN` or `BATCH_END`.
    pub fn batch(&mut self, kind: u16, seq: u32) {
        self.message(kind, 0, nft::SUBSYSTEM, 0, seq, |_| {});
    }

    fn message(
        &mut self,
        kind: u16,
        family: u8,
        resource: u16,
        flags: u16,
        seq: u32,
        fill: impl FnOnce(&mut Attrs<'_>),
    ) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes
            .extend_from_slice(&(flags | F_REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&seq.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&[family, 0]);
        self.bytes.extend_from_slice(&resource.to_be_bytes());
        fill(&mut Attrs {
            bytes: &mut self.bytes,
        });
        let len = u32::try_from(self.bytes.len() - start).expect("a message is far below 4 GiB");
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Asks for an acknowledgement of the message that starts at `start`.
    pub fn acknowledge(&mut self, start: usize) {
        if let Some(flags) = self.bytes.get_mut(start + 6..start + 8) {
            let value = u16::from_ne_bytes([flags[0], flags[1]]) | F_ACK;
            flags.copy_from_slice(&value.to_ne_bytes());
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

// === impl Attrs ===

impl Attrs<'_> {
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        let start = self.open(kind);
        self.bytes.extend_from_slice(value);
        self.close(start);
    }

    pub fn u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    pub fn u64(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_be_bytes());
    }

    /// A string with its terminator.
    pub fn text(&mut self, kind: u16, value: &str) {
        let start = self.open(kind);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.close(start);
    }

    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attrs<'_>)) {
        let start = self.open(kind | NESTED);
        fill(&mut Attrs { bytes: self.bytes });
        self.close(start);
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn close(&mut self, start: usize) {
        let len = u16::try_from(self.bytes.len() - start)
            .expect("attributes are split before they reach 64 KiB");
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}

// === impl Message ===

impl<'a> Message<'a> {
    /// The attributes behind the nf_tables header; none when the body is too short.
    pub fn attrs(self) -> impl Iterator<Item = Attr<'a>> {
        attrs(self.body.get(GENERIC..).unwrap_or_default())
    }

    /// The address family byte.
    pub fn family(self) -> Option<u8> {
        self.body.first().copied()
    }

    /// The error number of an error message: 0 is an acknowledgement.
    pub fn errno(self) -> Option<i32> {
        let bytes = self.body.get(..4)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?).wrapping_neg())
    }
}

// === impl Attr ===

impl<'a> Attr<'a> {
    pub fn nested(self) -> impl Iterator<Item = Attr<'a>> {
        attrs(self.value)
    }

    pub fn u32(self) -> Option<u32> {
        Some(u32::from_be_bytes(self.value.try_into().ok()?))
    }

    pub fn u64(self) -> Option<u64> {
        Some(u64::from_be_bytes(self.value.try_into().ok()?))
    }

    /// The text up to its terminator.
    pub fn text(self) -> Option<&'a str> {
        let end = self.value.iter().position(|b| *b == 0);
        std::str::from_utf8(&self.value[..end.unwrap_or(self.value.len())]).ok()
    }
}

/// The messages of one datagram; stops at the first that does not fit.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.get(..HEADER)?;
        let len = usize::try_from(u32::from_ne_bytes(header[..4].try_into().ok()?)).ok()?;
        let body = bytes.get(HEADER..len)?;
        let message = Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            seq: u32::from_ne_bytes(header[8..12].try_into().ok()?),
            body,
        };
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes of a stretch of bytes; stops at the first that does not fit.
pub fn attrs(mut bytes: &[u8]) -> impl Iterator<Item = Attr<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.get(..4)?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = bytes.get(4..len)?;
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Attr { kind, value })
    })
}

/// The first attribute of a kind.
pub fn find<'a>(mut list: impl Iterator<Item = Attr<'a>>, kind: u16) -> Option<Attr<'a>> {
    list.find(|attr| attr.kind == kind)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn written_messages_are_read_back() {
        let mut writer = Writer::default();
        writer.batch(BATCH_BEGIN, 1);
        writer.nft(nft::NEW_TABLE, 2, F_ACK, 7, |attrs| {
            attrs.text(1, "nat");
            attrs.nest(2, |inner| inner.u32(5, 0xdead_beef));
        });
        let list: Vec<Message<'_>> = messages(writer.bytes()).collect();
        assert_eq!(list.len(), 2);
        assert_eq!((list[0].kind, list[0].seq), (BATCH_BEGIN, 1));
        assert_eq!((list[1].kind, list[1].seq), (0x0a00, 7));
        assert_eq!(list[1].flags, F_ACK | F_REQUEST);
        assert_eq!(list[1].family(), Some(2));
        let all: Vec<Attr<'_>> = list[1].attrs().collect();
        assert_eq!(all[0].text(), Some("nat"));
        let inner: Vec<Attr<'_>> = all[1].nested().collect();
        assert_eq!(inner[0].u32(), Some(0xdead_beef));
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        for bytes in [
            &[][..],
            &[0; 15],
            &[0; 16],                                                  // length 0
            &[255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], // longer than what is there
        ] {
            assert_eq!(messages(bytes).count(), 0, "{bytes:?}");
        }
        for bytes in [
            &[][..],
            &[3, 0, 1, 0],
            &[9, 0, 1, 0, 1, 2, 3, 4],
            &[0, 0, 0, 0],
        ] {
            assert_eq!(attrs(bytes).count(), 0, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for message in messages(&bytes) {
                let _ = message.errno();
                for attr in message.attrs() {
                    let _ = (attr.u32(), attr.u64(), attr.text());
                    prop_assert!(attr.nested().count() <= bytes.len());
                }
            }
        }
    }
}
