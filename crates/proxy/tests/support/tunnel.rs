//! Mesh TLS for clients that speak plain text: every connection to a tunnel is carried to a proxy's
//! inbound port with an identity, from the address it came from.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::{net::SocketAddr, sync::Arc};

use linkerd_core::identity::Id;
use linkerd_proxy::transport_header::{Header, Session};
use linkerd_tls::{Alpn, HANDSHAKE_DEADLINE, Peer, Store};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpSocket, TcpStream},
    sync::oneshot,
};

/// A tunnel to one proxy; it ends when it is dropped.
pub struct Tunnel {
    pub addr: SocketAddr,
    _stop: oneshot::Sender<()>,
}

/// What is said inside TLS before the client's own bytes.
pub enum First {
    /// Nothing: the connection is to an ordinary port.
    Nothing,
    /// A transport header: the connection is direct.
    Header(Header),
    /// Nothing, though a transport header was agreed on.
    NoHeader,
}

impl First {
    pub fn header(port: u16, session: Option<Session>) -> Self {
        Self::Header(Header {
            port,
            name: None,
            session,
        })
    }

    pub fn gateway(port: u16, name: &str, session: Option<Session>) -> Self {
        Self::Header(Header {
            port,
            name: Some(name.to_owned()),
            session,
        })
    }
}

impl Tunnel {
    /// To the inbound port of a proxy with an identity, as the one whose store this is.
    pub fn new(inbound: SocketAddr, identity: &str, store: Arc<Store>, first: First) -> Self {
        let id = Id::parse(identity).expect("an identity");
        let peer = Arc::new(Peer::new(id, None).expect("a peer"));
        let (alpn, first) = match first {
            First::Nothing => (Alpn::None, Vec::new()),
            First::Header(header) => (Alpn::TransportHeader, header.encode().to_vec()),
            First::NoHeader => (Alpn::TransportHeader, Vec::new()),
        };
        let first = Arc::new(first);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        listener.set_nonblocking(true).expect("an option");
        let addr = listener.local_addr().expect("bound");
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).expect("the runtime takes it");
                let accept = async {
                    while let Ok((io, from)) = listener.accept().await {
                        let (peer, store, first) = (peer.clone(), store.clone(), first.clone());
                        linkerd_runtime::spawn("tunnel", async move {
                            let _ = carry(io, from, inbound, &peer, &store, alpn, &first).await;
                        });
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        Self { addr, _stop: stop }
    }
}

async fn carry(
    mut io: TcpStream,
    from: SocketAddr,
    to: SocketAddr,
    peer: &Peer,
    store: &Store,
    alpn: Alpn,
    first: &[u8],
) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from.ip(), 0).into())?;
    let tcp = socket.connect(to).await?;
    let snapshot = store.snapshot();
    let handshake = linkerd_tls::handshake::connect(tcp, peer, &snapshot, alpn, HANDSHAKE_DEADLINE);
    let mut tls = handshake.await.map_err(std::io::Error::other)?;
    tls.write_all(first).await?;
    tls.flush().await?;
    tokio::io::copy_bidirectional(&mut io, &mut tls).await?;
    Ok(())
}
