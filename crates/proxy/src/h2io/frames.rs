//! Follows the frames a peer sends, by their heads alone, to know when it has begun something that must
//! be finished before anything else can be said: a header block, or a frame other than DATA. Pure; bytes
//! come in as they were read.

/// The head of every frame.
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Where a peer is in what it says.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Bytes to come before the next head.
    skip: usize,
    /// Whether those are not to be waited for: the preface, and bodies.
    patient: bool,
    /// A head of which a part is there.
    head: [u8; HEAD],
    filled: usize,
    /// A header block was begun and not ended.
    block: bool,
    begun: u32,
}

impl Frames {
    /// A peer whose first words, of so many bytes, are not a frame.
    pub(super) fn after(preface: usize) -> Self {
        Self {
            skip: preface,
            patient: true,
            ..Self::default()
        }
    }

    /// Takes what was read.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        loop {
            let n = self.skip.min(bytes.len());
            self.skip -= n;
            bytes = &bytes[n..];
            if bytes.is_empty() {
                return;
            }
            if self.filled == 0 && !self.block {
                self.begun = self.begun.wrapping_add(1);
            }
            if self.filled == 0
                && let Some((head, rest)) = bytes.split_first_chunk()
            {
                bytes = rest;
                self.frame(*head);
                continue;
            }
            let n = (HEAD - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
            self.filled += n;
            bytes = &bytes[n..];
            if self.filled == HEAD {
                self.filled = 0;
                self.frame(self.head);
            }
        }
    }

    fn frame(&mut self, [a, b, c, kind, flags, ..]: [u8; HEAD]) {
        self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.patient = kind == DATA;
        if matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
            self.block = flags & END_HEADERS == 0;
        }
    }

    /// The number of what was begun last, if it is not finished and nothing else can come before it is.
    pub(super) fn unfinished(&self) -> Option<u32> {
        let inside = self.block || self.filled > 0 || (self.skip > 0 && !self.patient);
        inside.then_some(self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let length = u32::try_from(length).expect("short").to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(
            HEAD + usize::from(length[3]) + (usize::from(length[2]) << 8),
            7,
        );
        frame
    }

    #[test]
    fn what_is_waited_for() {
        let whole = |kind, flags| frame(kind, flags, 300);
        let part = |kind, flags| frame(kind, flags, 300)[..100].to_vec();
        let (end, none) = (END_HEADERS, 0);
        for (name, bytes, waits) in [
            ("nothing", vec![], false),
            ("a whole head", whole(HEADERS, end), false),
            ("a part of a head", part(HEADERS, end), true),
            ("a head to be continued", whole(HEADERS, none), true),
            (
                "a head, continued",
                [whole(HEADERS, none), whole(CONTINUATION, end)].concat(),
                false,
            ),
            (
                "a head, continued in part",
                [whole(HEADERS, none), part(CONTINUATION, end)].concat(),
                true,
            ),
            (
                "a head that does not end",
                [whole(HEADERS, none), whole(CONTINUATION, none)].concat(),
                true,
            ),
            ("a promise to be continued", whole(PUSH_PROMISE, none), true),
            ("whole data", whole(DATA, none), false),
            ("a part of data", part(DATA, none), false),
            ("an empty frame", frame(4, 1, 0), false),
            ("a part of another frame", part(6, none), true),
            ("a part of the head of a frame", vec![0, 0, 8, 6], true),
            (
                "data behind a head",
                [whole(HEADERS, end), part(DATA, none)].concat(),
                false,
            ),
        ] {
            for preface in [0, 24] {
                let bytes = [vec![b'P'; preface], bytes.clone()].concat();
                for piece in [1, 2, 8, 9, 10, 255, 4096] {
                    let mut frames = Frames::after(preface);
                    for part in bytes.chunks(piece) {
                        frames.follow(part);
                    }
                    let got = frames.unfinished().is_some();
                    assert_eq!(got, waits, "{name}, {preface}, by {piece}");
                }
            }
        }
    }

    #[test]
    fn one_after_the_other_is_not_one_that_lasts() {
        let mut frames = Frames::after(0);
        let head = frame(HEADERS, END_HEADERS, 100);
        frames.follow(&head[..50]);
        let first = frames.unfinished().expect("a part");
        frames.follow(&head[50..60]);
        assert_eq!(frames.unfinished(), Some(first), "the same one");
        frames.follow(&head[60..]);
        assert_eq!(frames.unfinished(), None);
        frames.follow(&[&head[..], &head[..20]].concat());
        let next = frames.unfinished().expect("a part of another");
        assert_ne!(next, first);
        let open = frame(HEADERS, 0, 10);
        frames.follow(&[&head[20..], &open].concat());
        let block = frames.unfinished().expect("a block");
        frames.follow(&frame(CONTINUATION, 0, 10));
        assert_eq!(frames.unfinished(), Some(block), "as long as it goes on");
    }
}
