//! A request stays with its HTTP/1 client until a byte of the answer has left for it. Before that, an
//! answer that turns out to be broken can be taken back.

use crate::h1::Conn;

/// A request whose bytes are still in its client's buffer, or kept beside it.
#[derive(Debug)]
pub(super) struct Held {
    /// Bytes at the front of the buffer.
    bytes: usize,
    /// Where the answer begins, once it was queued, among all bytes written to the client.
    answer: Option<u64>,
}

impl Held {
    /// The first `bytes` of the client's buffer are the request; 0 when it is used up as it arrives.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            bytes,
            answer: None,
        }
    }

    /// Bytes of the client's buffer that are the request.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The head of the answer will be queued next.
    pub(super) fn answer(&mut self, client: &Conn) {
        self.answer = Some(client.written() + client.wbuf.len() as u64);
    }

    /// Lets go of the request if the answer is on its way.
    pub(super) fn settle(&mut self, client: &mut Conn) {
        if self.answer.is_some_and(|start| client.written() > start) {
            self.finish(client);
        }
    }

    /// Lets go of the request.
    pub(super) fn finish(&mut self, client: &mut Conn) {
        client.forget();
        client.used(std::mem::take(&mut self.bytes));
        self.answer = None;
    }

    /// Takes an answer back that the client has not seen anything of; whether there was one.
    pub(super) fn take_back(&mut self, client: &mut Conn) -> bool {
        let Some(start) = self.answer.take() else {
            return false;
        };
        let before = start.checked_sub(client.written());
        let Some(before) = before.and_then(|n| usize::try_from(n).ok()) else {
            return false;
        };
        client.wbuf.truncate(before);
        true
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::io::Stream;

    async fn client() -> (Conn, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let addr = listener.local_addr().expect("bound");
        let peer = TcpStream::connect(addr).await.expect("connects");
        let (io, _) = listener.accept().await.expect("accepts");
        let rbuf = BytesMut::from("request and next");
        (Conn::with_prefix(Stream::tcp(io), rbuf), peer)
    }

    #[tokio::test]
    async fn an_unseen_answer_is_taken_back_and_a_seen_one_is_not() {
        let (mut conn, _peer) = client().await;
        let mut held = Held::new("request".len());
        conn.queue(b"interim");
        held.answer(&conn);
        conn.queue(b"answer");
        held.settle(&mut conn);
        assert_eq!(held.len(), 7, "nothing has left");
        assert!(held.take_back(&mut conn));
        assert_eq!(conn.wbuf, "interim", "what came before it stays");
        assert_eq!(conn.rbuf, "request and next");

        conn.send().await.expect("sends");
        held.answer(&conn);
        conn.queue(b"answer");
        conn.send().await.expect("sends");
        held.settle(&mut conn);
        assert_eq!((held.len(), &conn.rbuf[..]), (0, &b" and next"[..]));
        assert!(!held.take_back(&mut conn), "too late");
    }
}
