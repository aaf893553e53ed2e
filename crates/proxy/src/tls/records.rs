//! One side of a TLS session as a pure machine on rustls' unbuffered API: ciphertext goes in and
//! comes out by way of blocks, payload by way of the caller's buffers. Nothing here does I/O.

use rustls::{
    CommonState, Error,
    client::{ClientConnectionData, UnbufferedClientConnection},
    server::{ServerConnectionData, UnbufferedServerConnection},
    unbuffered::{
        ConnectionState, EncodeError, EncodeTlsData, EncryptError, ReadTraffic, UnbufferedStatus,
        WriteTraffic,
    },
};
use tokio::io::ReadBuf;

use crate::block::{BULK, Block};

/// What a record of TLS 1.3 adds in front of its payload, and behind it: its type and the tag.
const RECORD_HEADER: usize = 5;
const RECORD_TRAILER: usize = 17;

/// Which end of the session we are.
pub trait Side {
    /// As rustls tells them apart.
    type Data;

    /// The next thing to be done about what has come in.
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// What was agreed on.
    fn state(&self) -> &CommonState;
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn state(&self) -> &CommonState {
        self
    }
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn state(&self) -> &CommonState {
        self
    }
}

/// A session and its records on their way.
#[derive(Debug)]
pub(super) struct Records<S> {
    side: S,
    /// Ciphertext that came and is not decrypted.
    pub(super) incoming: Block,
    /// Ciphertext to be sent.
    pub(super) outgoing: Block,
    /// Payload decrypted before somebody had room for it.
    plain: Block,
    ended: bool,
    closed: bool,
}

/// What to do with a session that accepts payload.
enum Send<'a> {
    Payload(&'a [u8]),
    Close,
}

impl<S: Side> Records<S> {
    /// A session before its handshake.
    pub(super) fn new(side: S) -> Self {
        Self {
            side,
            incoming: Block::default(),
            outgoing: Block::default(),
            plain: Block::default(),
            ended: false,
            closed: false,
        }
    }

    /// What was agreed on.
    pub(super) fn state(&self) -> &CommonState {
        self.side.state()
    }

    /// Whether the peer has said that it will send no more.
    pub(super) fn is_ended(&self) -> bool {
        self.ended && self.plain.is_empty()
    }

    /// Whether nothing can be decrypted before more comes in.
    pub(super) fn is_drained(&self) -> bool {
        self.incoming.is_empty() && self.plain.is_empty()
    }

    /// Decrypts what is there into `out`, as many records as fit. During the handshake `out` has no
    /// room: payload that came along is kept.
    pub(super) fn decrypt(&mut self, out: &mut ReadBuf<'_>) -> Result<(), Error> {
        let before = out.filled().len();
        if !self.plain.is_empty() {
            let n = self.plain.len().min(out.remaining());
            out.put_slice(&self.plain.filled()[..n]);
            self.plain.advance(n);
            self.plain.rest();
        }
        loop {
            // Who has got something can go on with it; only a whole record that fits adds to it.
            if out.filled().len() > before && !self.next_record_fits(out.remaining()) {
                return Ok(());
            }
            let UnbufferedStatus { mut discard, state } =
                self.side.process(self.incoming.filled_mut());
            let more = match state {
                Ok(ConnectionState::ReadTraffic(traffic)) => {
                    discard += take_payload(traffic, out, &mut self.plain)?;
                    true
                }
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    encode(data, &mut self.outgoing);
                    true
                }
                Ok(ConnectionState::TransmitTlsData(sent)) => {
                    // It is in `outgoing`, and leaves with whatever is sent next.
                    sent.done();
                    true
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    self.ended = true;
                    false
                }
                Ok(_) => false,
                Err(error) => {
                    self.incoming.advance(discard);
                    self.last_words();
                    return Err(error);
                }
            };
            self.incoming.advance(discard);
            if !more {
                return Ok(());
            }
        }
    }

    /// Encrypts payload, at most [`BULK`] bytes of it, and says how much.
    pub(super) fn encrypt(&mut self, payload: &[u8]) -> Result<usize, Error> {
        let n = payload.len().min(BULK);
        self.send(&Send::Payload(&payload[..n]))?;
        Ok(n)
    }

    /// Says that we will send no more; once.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        if self.closed {
            return Ok(());
        }
        self.closed = true;
        self.send(&Send::Close)
    }

    fn send(&mut self, what: &Send<'_>) -> Result<(), Error> {
        loop {
            // Records that wait to be decrypted come first: the session looks at them in order.
            let UnbufferedStatus { mut discard, state } =
                self.side.process(self.incoming.filled_mut());
            let done = match state {
                Ok(ConnectionState::WriteTraffic(traffic)) => {
                    write(traffic, what, &mut self.outgoing)?;
                    true
                }
                Ok(ConnectionState::ReadTraffic(traffic)) => {
                    let mut nowhere = ReadBuf::new(&mut []);
                    discard += take_payload(traffic, &mut nowhere, &mut self.plain)?;
                    false
                }
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    encode(data, &mut self.outgoing);
                    false
                }
                Ok(ConnectionState::TransmitTlsData(sent)) => {
                    sent.done();
                    false
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.ended = true;
                    false
                }
                Ok(ConnectionState::Closed) if matches!(what, Send::Close) => true,
                Ok(_) => return Err(Error::General("the session takes no payload".to_owned())),
                Err(error) => {
                    self.incoming.advance(discard);
                    self.last_words();
                    return Err(error);
                }
            };
            self.incoming.advance(discard);
            if done {
                return Ok(());
            }
        }
    }

    /// The alert that tells the peer why the session failed, if there is one.
    fn last_words(&mut self) {
        let status = self.side.process(self.incoming.filled_mut());
        if let Ok(ConnectionState::EncodeTlsData(data)) = status.state {
            encode(data, &mut self.outgoing);
        }
    }

    /// Whether the next record is all there and its payload has room.
    fn next_record_fits(&self, room: usize) -> bool {
        let bytes = self.incoming.filled();
        let Some(&[_, _, _, high, low]) = bytes.first_chunk() else {
            return false;
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        bytes.len() >= RECORD_HEADER + len && len <= room + RECORD_TRAILER
    }
}

/// Moves decrypted payload to `out`, and to `rest` what does not fit.
fn take_payload<D>(
    mut traffic: ReadTraffic<'_, '_, D>,
    out: &mut ReadBuf<'_>,
    rest: &mut Block,
) -> Result<usize, Error> {
    let mut discard = 0;
    while let Some(record) = traffic.next_record() {
        let record = record?;
        discard += record.discard;
        // What came earlier must leave earlier.
        let n = if rest.is_empty() {
            record.payload.len().min(out.remaining())
        } else {
            0
        };
        out.put_slice(&record.payload[..n]);
        if n < record.payload.len() {
            rest.put(&record.payload[n..]);
        }
    }
    Ok(discard)
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, outgoing: &mut Block) {
    loop {
        match data.encode(outgoing.spare_mut()) {
            Ok(n) => return outgoing.extend(n),
            Err(EncodeError::InsufficientSize(size)) => outgoing.reserve(size.required_size),
            Err(EncodeError::AlreadyEncoded) => return,
        }
    }
}

fn write<D>(
    mut traffic: WriteTraffic<'_, D>,
    what: &Send<'_>,
    outgoing: &mut Block,
) -> Result<(), Error> {
    loop {
        let spare = outgoing.spare_mut();
        let result = match what {
            Send::Payload(payload) => traffic.encrypt(payload, spare),
            Send::Close => traffic.queue_close_notify(spare),
        };
        match result {
            Ok(n) => {
                outgoing.extend(n);
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(size)) => outgoing.reserve(size.required_size),
            Err(EncryptError::EncryptExhausted) => return Err(Error::EncryptError),
        }
    }
}

#[cfg(test)]
mod tests {
    use linkerd_core::identity::Id;
    use linkerd_testkit::ca::{Ca, identity};
    use linkerd_tls::{Alpn, Key, Local, Peer, Snapshot, Store, TrustAnchors};

    use rustls::HandshakeKind;

    use super::*;

    type Client = Records<UnbufferedClientConnection>;
    type Server = Records<UnbufferedServerConnection>;

    fn store(ca: &Ca, name: &str, resumption: bool) -> Store {
        let anchors = TrustAnchors::from_pem("test", ca.pem().as_bytes()).expect("anchors");
        let mut store = Store::new(anchors, Local::new(Id::parse(name).expect("valid")));
        if !resumption {
            store = store.without_resumption();
        }
        let leaf = ca.leaf(name);
        let key = Key::from_der(leaf.key.secret_der()).expect("a key");
        store.publish(leaf.chain, &key).expect("publishes");
        store
    }

    fn pair() -> (Client, Server) {
        let (ca, name) = (Ca::root("root.linkerd.cluster.local"), identity("a", "b"));
        let ours = store(&ca, &name, true).snapshot();
        let peer = Peer::new(Id::parse(&name).expect("valid"), None).expect("a peer");
        pair_of(&ours, &peer)
    }

    fn pair_of(ours: &Snapshot, peer: &Peer) -> (Client, Server) {
        let config = peer.client_config(ours, Alpn::TransportHeader);
        let client = UnbufferedClientConnection::new(config, peer.server_name()).expect("client");
        let config = ours
            .server_config(Alpn::TransportHeader)
            .expect("certified");
        let server = UnbufferedServerConnection::new(config).expect("server");
        (Records::new(client), Records::new(server))
    }

    /// Moves at most `n` bytes of ciphertext over.
    fn carry<A: Side, B: Side>(from: &mut Records<A>, to: &mut Records<B>, n: usize) -> bool {
        let n = n.min(from.outgoing.len());
        to.incoming.put(&from.outgoing.filled()[..n]);
        from.outgoing.advance(n);
        n > 0
    }

    /// Everything that can be read, by way of a buffer of `room` bytes.
    fn read<S: Side>(records: &mut Records<S>, room: usize) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let mut buf = vec![0; room];
            let mut buf = ReadBuf::new(&mut buf);
            records.decrypt(&mut buf).expect("decrypts");
            if buf.filled().is_empty() {
                return all;
            }
            all.extend_from_slice(buf.filled());
        }
    }

    fn shake(client: &mut Client, server: &mut Server, piece: usize) {
        for _ in 0..100_000 {
            client.decrypt(&mut ReadBuf::new(&mut [])).expect("client");
            server.decrypt(&mut ReadBuf::new(&mut [])).expect("server");
            let moved = carry(client, server, piece) | carry(server, client, piece);
            if !moved && !client.state().is_handshaking() && !server.state().is_handshaking() {
                return;
            }
        }
        panic!("the handshake does not end");
    }

    fn noise(len: usize) -> Vec<u8> {
        (0u32..)
            .map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0])
            .take(len)
            .collect()
    }

    #[test]
    fn bytes_arrive_whatever_the_pieces() {
        for (name, piece, room, len) in [
            ("byte by byte", 1, 1, 300),
            ("small pieces", 7, 64 * 1024, 5_000),
            ("small rooms", 100_000, 11, 40_000),
            ("bulk", 64 * 1024, 64 * 1024, 300_000),
            ("odd bulk", 50_001, 20_000, 300_000),
        ] {
            let (mut client, mut server) = pair();
            shake(&mut client, &mut server, piece);
            let data = noise(len);
            let (mut up, mut down) = (Vec::new(), Vec::new());
            let (mut sent_up, mut sent_down) = (0, 0);
            while up.len() < len || down.len() < len {
                if sent_up < len && client.outgoing.is_empty() {
                    sent_up += client.encrypt(&data[sent_up..]).expect("encrypts");
                }
                if sent_down < len && server.outgoing.is_empty() {
                    sent_down += server.encrypt(&data[sent_down..]).expect("encrypts");
                }
                carry(&mut client, &mut server, piece);
                carry(&mut server, &mut client, piece);
                up.extend(read(&mut server, room));
                down.extend(read(&mut client, room));
            }
            assert!(up == data && down == data, "{name}");
        }
    }

    #[test]
    fn bytes_that_come_with_the_end_of_the_handshake_are_kept() {
        let (mut client, mut server) = pair();
        client.decrypt(&mut ReadBuf::new(&mut [])).expect("hello");
        carry(&mut client, &mut server, usize::MAX);
        server.decrypt(&mut ReadBuf::new(&mut [])).expect("answer");
        carry(&mut server, &mut client, usize::MAX);
        client.decrypt(&mut ReadBuf::new(&mut [])).expect("finish");
        assert!(!client.state().is_handshaking());
        assert!(!client.outgoing.is_empty(), "the last flight waits");
        client.encrypt(b"first").expect("encrypts");
        carry(&mut client, &mut server, usize::MAX);
        // As in a handshake, where there is no room for payload.
        server.decrypt(&mut ReadBuf::new(&mut [])).expect("finish");
        assert!(!server.state().is_handshaking());
        assert!(!server.is_drained());
        assert_eq!(read(&mut server, 100), b"first");
    }

    #[test]
    fn a_read_takes_every_record_that_fits() {
        let (mut client, mut server) = pair();
        shake(&mut client, &mut server, usize::MAX);
        let data = noise(BULK);
        client.encrypt(&data).expect("encrypts");
        carry(&mut client, &mut server, usize::MAX);
        let mut buf = vec![0; BULK];
        let mut buf = ReadBuf::new(&mut buf);
        server.decrypt(&mut buf).expect("decrypts");
        assert_eq!(buf.filled().len(), BULK, "all four records at once");
        assert!(server.is_drained());
    }

    #[test]
    fn an_end_comes_after_the_bytes_before_it() {
        let (mut client, mut server) = pair();
        shake(&mut client, &mut server, usize::MAX);
        client.encrypt(b"bye").expect("encrypts");
        client.close().expect("closes");
        client.close().expect("closes once");
        carry(&mut client, &mut server, usize::MAX);
        assert!(!server.is_ended());
        assert_eq!(read(&mut server, 2), b"bye");
        assert!(server.is_ended());
        // The other direction lives on.
        server.encrypt(b"still here").expect("encrypts");
        server.close().expect("closes");
        carry(&mut server, &mut client, usize::MAX);
        assert_eq!(read(&mut client, 100), b"still here");
        assert!(client.is_ended());
        assert!(client.encrypt(b"too late").is_err());
    }

    #[test]
    fn an_end_is_seen_by_one_who_only_writes() {
        let (mut client, mut server) = pair();
        shake(&mut client, &mut server, usize::MAX);
        client.encrypt(b"bye").expect("encrypts");
        client.close().expect("closes");
        carry(&mut client, &mut server, usize::MAX);
        server.encrypt(b"x").expect("encrypts");
        assert!(!server.is_ended(), "there is something to read first");
        assert_eq!(read(&mut server, 100), b"bye");
        assert!(server.is_ended());
    }

    #[test]
    fn sessions_are_resumed_unless_that_is_switched_off() {
        let (ca, name) = (Ca::root("root.linkerd.cluster.local"), identity("a", "b"));
        for (resumption, want) in [(true, HandshakeKind::Resumed), (false, HandshakeKind::Full)] {
            let ours = store(&ca, &name, resumption).snapshot();
            let peer = Peer::new(Id::parse(&name).expect("valid"), None).expect("a peer");
            for want in [HandshakeKind::Full, want, want] {
                let (mut client, mut server) = pair_of(&ours, &peer);
                shake(&mut client, &mut server, usize::MAX);
                assert_eq!(client.state().handshake_kind(), Some(want), "{resumption}");
                assert_eq!(server.state().handshake_kind(), Some(want), "{resumption}");
            }
        }
    }

    #[test]
    fn keys_are_renewed_on_the_way() {
        let (mut client, mut server) = pair();
        shake(&mut client, &mut server, usize::MAX);
        for round in 0..3 {
            match client.side.process(&mut []).state {
                Ok(ConnectionState::WriteTraffic(traffic)) => {
                    traffic.refresh_traffic_keys().expect("TLS 1.3 can");
                }
                other => panic!("{other:?}"),
            }
            client.encrypt(b"ping").expect("encrypts");
            carry(&mut client, &mut server, usize::MAX);
            assert_eq!(read(&mut server, 100), b"ping", "round {round}");
            server.encrypt(b"pong").expect("encrypts");
            carry(&mut server, &mut client, usize::MAX);
            assert_eq!(read(&mut client, 100), b"pong", "round {round}");
        }
    }

    #[test]
    fn a_changed_record_fails_and_the_peer_is_told() {
        let (mut client, mut server) = pair();
        shake(&mut client, &mut server, usize::MAX);
        client.encrypt(b"data").expect("encrypts");
        let last = client.outgoing.len() - 1;
        client.outgoing.filled_mut()[last] ^= 1;
        carry(&mut client, &mut server, usize::MAX);
        let mut buf = [0; 100];
        let failed = server.decrypt(&mut ReadBuf::new(&mut buf));
        assert_eq!(failed, Err(Error::DecryptError));
        assert!(!server.outgoing.is_empty(), "an alert");
        carry(&mut server, &mut client, usize::MAX);
        let told = client.decrypt(&mut ReadBuf::new(&mut buf));
        assert!(matches!(told, Err(Error::AlertReceived(_))), "{told:?}");
    }
}
