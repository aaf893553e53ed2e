//! Fixed pieces of memory, borrowed from the worker only while bytes are in them: records on either
//! side of TLS, bytes of a tunnel, frames gathered for one send. Emptied, a block starts at its front
//! again, so that moving bytes through it neither allocates nor shifts.

use std::cell::RefCell;

/// Room for a head or a small record.
pub const SMALL: usize = 8 * 1024;
/// Payload moved at once while bulk bytes flow.
pub const BULK: usize = 128 * 1024;
/// [`BULK`] bytes of payload as TLS records, behind a little that was left over.
pub const LARGE: usize = BULK + SMALL;

/// Blocks kept per worker.
const SMALL_KEPT: usize = 64;
const LARGE_KEPT: usize = 16;

#[derive(Debug)]
struct Pool {
    small: Shelf,
    large: Shelf,
}

/// Blocks of one size.
#[derive(Debug)]
struct Shelf {
    blocks: Vec<Box<[u8]>>,
    /// How few there were at one time since the last sweep: so many were not needed.
    least: usize,
}

impl Shelf {
    const EMPTY: Self = Self {
        blocks: Vec::new(),
        least: 0,
    };

    fn pop(&mut self) -> Option<Box<[u8]>> {
        let block = self.blocks.pop();
        self.least = self.least.min(self.blocks.len());
        block
    }

    /// Frees what nobody has wanted since the last time.
    fn sweep(&mut self) {
        self.blocks.drain(..self.least);
        self.least = self.blocks.len();
        if self.blocks.is_empty() {
            self.blocks = Vec::new();
        }
    }
}

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool { small: Shelf::EMPTY, large: Shelf::EMPTY })
    };
}

/// Frees the blocks of this worker that nobody has wanted since the last sweep.
pub fn sweep() {
    POOL.with_borrow_mut(|pool| {
        pool.small.sweep();
        pool.large.sweep();
    });
}

/// Bytes between a front and an end; holds memory only when it was asked for room.
#[derive(Debug, Default)]
pub struct Block {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Block {
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// How much is in it.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// What is in it.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// What is in it, to be changed in place.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Takes bytes off the front.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len(), "more than there is");
        self.start += n;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room behind what is in it; see [`Block::reserve`].
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Takes in bytes that were written into the room.
    pub fn extend(&mut self, n: usize) {
        assert!(n <= self.bytes.len() - self.end, "more than there is room");
        self.end += n;
    }

    /// Puts bytes behind what is in it, with room made for them.
    pub fn put(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.spare_mut()[..bytes.len()].copy_from_slice(bytes);
        self.extend(bytes.len());
    }

    /// Makes room for at least so much more: at the end, by moving what is there to the front, or in
    /// a larger block.
    pub fn reserve(&mut self, more: usize) {
        if self.bytes.len() - self.end >= more {
            return;
        }
        let len = self.len();
        if self.bytes.len() - len >= more {
            self.bytes.copy_within(self.start..self.end, 0);
        } else {
            let mut bytes = take(len + more);
            bytes[..len].copy_from_slice(self.filled());
            give(std::mem::replace(&mut self.bytes, bytes));
        }
        (self.start, self.end) = (0, len);
    }

    /// Gives the memory back if nothing is in it.
    pub fn rest(&mut self) {
        if self.is_empty() && !self.bytes.is_empty() {
            give(std::mem::take(&mut self.bytes));
            (self.start, self.end) = (0, 0);
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.bytes));
    }
}

fn take(size: usize) -> Box<[u8]> {
    let (kept, size) = POOL.with_borrow_mut(|pool| {
        if size <= SMALL {
            (pool.small.pop(), SMALL)
        } else if size <= LARGE {
            (pool.large.pop(), LARGE)
        } else {
            (None, size)
        }
    });
    kept.unwrap_or_else(|| vec![0; size].into_boxed_slice())
}

fn give(bytes: Box<[u8]>) {
    // The pool is gone when the thread ends before its connections do.
    let _ = POOL.try_with(|pool| {
        let pool = &mut *pool.borrow_mut();
        let (list, max) = match bytes.len() {
            SMALL => (&mut pool.small, SMALL_KEPT),
            LARGE => (&mut pool.large, LARGE_KEPT),
            _ => return,
        };
        if list.blocks.len() < max {
            list.blocks.push(bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in() {
        let mut block = Block::default();
        let data: Vec<u8> = (0..=255).cycle().take(200_000).collect();
        let (mut went, mut came) = (0, Vec::new());
        // Uneven steps, so that the front, the middle and the end all meet the edge of the memory.
        for step in 1.. {
            let n = (step * 613 % 9_001).min(data.len() - went);
            block.put(&data[went..went + n]);
            went += n;
            let n = (step * 389 % 9_001).min(block.len());
            came.extend_from_slice(&block.filled()[..n]);
            block.advance(n);
            if went == data.len() && block.is_empty() {
                break;
            }
        }
        assert!(came == data, "bytes were lost or changed");
    }

    #[test]
    fn memory_is_borrowed_only_while_it_holds_bytes() {
        let mut block = Block::default();
        assert_eq!(block.bytes.len(), 0);
        block.put(b"abc");
        assert_eq!(block.bytes.len(), SMALL);
        block.rest();
        assert_eq!(block.filled(), b"abc", "what holds bytes stays");
        let at = block.bytes.as_ptr();
        block.advance(3);
        block.rest();
        assert_eq!(block.bytes.len(), 0);
        block.put(b"again");
        assert_eq!(block.bytes.as_ptr(), at, "the same memory comes back");
        block.reserve(BULK);
        assert_eq!(block.bytes.len(), LARGE);
        assert_eq!(block.filled(), b"again");
    }

    #[test]
    fn blocks_that_are_not_needed_are_freed() {
        let held = |n: usize| -> Vec<Block> {
            let mut blocks: Vec<Block> = (0..n).map(|_| Block::default()).collect();
            blocks.iter_mut().for_each(|block| block.put(b"abc"));
            blocks
        };
        let kept = || POOL.with_borrow(|pool| pool.small.blocks.len());
        drop(held(10));
        assert_eq!(kept(), 10);
        sweep();
        assert_eq!(kept(), 10, "all of them were in use since the last sweep");
        drop(held(3));
        sweep();
        assert_eq!(kept(), 3);
        sweep();
        assert_eq!(kept(), 0);
        drop(held(1));
        assert_eq!(kept(), 1, "and it goes on");
    }

    #[test]
    fn what_is_left_moves_to_the_front_before_more_memory_is_taken() {
        let mut block = Block::default();
        block.put(&[7; SMALL]);
        block.advance(SMALL - 10);
        block.reserve(SMALL - 10);
        assert_eq!(block.bytes.len(), SMALL);
        assert_eq!(block.filled(), [7; 10]);
        block.reserve(SMALL);
        assert_eq!(block.bytes.len(), LARGE);
    }
}
