//! Two connections become a byte pipe: opaque streams, CONNECT and upgrades. Each direction lives
//! until its own end; an error ends both. 64 KB buffers are borrowed while bytes move.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWrite;
use tokio_util::io::poll_read_buf;

use crate::{h1::Conn, io::Stream};

const BULK: usize = 64 * 1024;
const POOLED: usize = 16;

thread_local! {
    static POOL: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Copies both ways until both ended.
pub async fn copy(client: Conn, server: Conn) {
    let (mut a, from_a, to_a) = client.into_parts();
    let (mut b, from_b, to_b) = server.into_parts();
    // Bytes already queued for a side go first.
    let mut up = Half::new(to_b, from_a);
    let mut down = Half::new(to_a, from_b);
    std::future::poll_fn(|cx| {
        let up = up.poll(cx, &mut a, &mut b);
        let down = down.poll(cx, &mut b, &mut a);
        match (up, down) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => {
                tracing::debug!(%error, "Tunnel failed");
                Poll::Ready(())
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
}

enum State {
    Moving,
    Closing,
    Done,
}

struct Half {
    buf: BytesMut,
    state: State,
    unflushed: bool,
}

impl Half {
    fn new(mut queued: BytesMut, read: BytesMut) -> Self {
        queued.extend_from_slice(&read);
        Self {
            buf: queued,
            state: State::Moving,
            unflushed: false,
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        src: &mut Stream,
        dst: &mut Stream,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.state {
                State::Done => return Poll::Ready(Ok(())),
                State::Closing => {
                    ready!(Pin::new(&mut *dst).poll_shutdown(cx))?;
                    self.state = State::Done;
                    continue;
                }
                State::Moving => {}
            }
            while !self.buf.is_empty() {
                let n = ready!(Pin::new(&mut *dst).poll_write(cx, &self.buf))?;
                if n == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.buf.advance(n);
                self.unflushed = true;
            }
            if self.buf.capacity() < BULK {
                self.buf = POOL
                    .with_borrow_mut(Vec::pop)
                    .unwrap_or_else(|| BytesMut::with_capacity(BULK));
            }
            match poll_read_buf(Pin::new(&mut *src), cx, &mut self.buf) {
                Poll::Ready(Ok(0)) => {
                    self.rest();
                    self.state = State::Closing;
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.rest();
                    if self.unflushed {
                        ready!(Pin::new(&mut *dst).poll_flush(cx))?;
                        self.unflushed = false;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// An idle half holds no buffer.
    fn rest(&mut self) {
        let mut buf = std::mem::take(&mut self.buf);
        buf.clear();
        if buf.try_reclaim(BULK) && buf.capacity() <= 2 * BULK {
            POOL.with_borrow_mut(|pool| {
                if pool.len() < POOLED {
                    pool.push(buf);
                }
            });
        }
    }
}
