//! Two connections become a byte pipe: opaque streams, CONNECT and upgrades. Each direction lives
//! until its own end; an error ends both. 64 KB buffers are borrowed while bytes move.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    block::{BULK, Block},
    h1::Conn,
    io::{Stream, give_buffer},
};

/// Copies both ways until both ended.
pub async fn copy(client: Conn, server: Conn) {
    let (mut a, from_a, to_a) = client.into_parts();
    let (mut b, from_b, to_b) = server.into_parts();
    // Bytes already queued for a side go first.
    let mut up = Half::new([to_b, from_a]);
    let mut down = Half::new([to_a, from_b]);
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
    block: Block,
    state: State,
    unflushed: bool,
}

impl Half {
    fn new(first: [BytesMut; 2]) -> Self {
        let mut block = Block::default();
        for bytes in first {
            block.put(&bytes);
            give_buffer(bytes);
        }
        Self {
            block,
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
            while !self.block.is_empty() {
                let n = ready!(Pin::new(&mut *dst).poll_write(cx, self.block.filled()))?;
                if n == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.block.advance(n);
                self.unflushed = true;
            }
            match self.poll_fill(cx, src) {
                Poll::Ready(Ok(0)) => self.state = State::Closing,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    if self.unflushed {
                        ready!(Pin::new(&mut *dst).poll_flush(cx))?;
                        self.unflushed = false;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Reads into the empty block; an idle half holds no memory.
    fn poll_fill(&mut self, cx: &mut Context<'_>, src: &mut Stream) -> Poll<io::Result<usize>> {
        self.block.reserve(BULK);
        let mut buf = ReadBuf::new(&mut self.block.spare_mut()[..BULK]);
        let result = Pin::new(src).poll_read(cx, &mut buf);
        let n = buf.filled().len();
        self.block.extend(n);
        self.block.rest();
        result.map_ok(|()| n)
    }
}
