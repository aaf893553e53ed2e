//! Sockets: listeners that workers share by SO_REUSEPORT, options, and the original destination of a
//! redirected connection. Everything else in the proxy sees [`Accepted`] and connected streams.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::config::SocketOptions;

/// What std uses; the configuration may ask for another.
const BACKLOG: u32 = 1024;

/// A connection as it was accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The stream, options set.
    pub io: TcpStream,
    /// Who connected.
    pub client: SocketAddr,
    /// Where the client wanted to go.
    pub orig_dst: SocketAddr,
}

/// Where the original destination comes from: the kernel, or a test.
#[derive(Clone)]
pub enum OrigDst {
    /// `SO_ORIGINAL_DST` / `IP6T_SO_ORIGINAL_DST`.
    Kernel,
    /// As a function of the accepted stream.
    Given(Arc<DstOf>),
}

/// Tells the destination of a stream.
pub type DstOf = dyn Fn(&TcpStream) -> io::Result<SocketAddr> + Send + Sync;

impl fmt::Debug for OrigDst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("Kernel"),
            Self::Given(_) => f.write_str("Given"),
        }
    }
}

impl OrigDst {
    /// Every connection is meant for one address.
    pub fn fixed(addr: SocketAddr) -> Self {
        Self::Given(Arc::new(move |_| Ok(addr)))
    }

    fn of(&self, io: &TcpStream, client: IpAddr) -> io::Result<SocketAddr> {
        match self {
            Self::Given(f) => f(io),
            Self::Kernel => {
                let socket = SockRef::from(io);
                let addr = if client.is_ipv4() {
                    socket.original_dst_v4()?
                } else {
                    socket.original_dst_v6()?
                };
                addr.as_socket()
                    .map(canonical)
                    .ok_or_else(|| io::Error::other("original destination is not an IP address"))
            }
        }
    }
}

/// Binds a listener that other workers may bind too.
pub fn bind(addr: SocketAddr, backlog: Option<u32>) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if addr.ip() == IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    let backlog = backlog.unwrap_or(BACKLOG).min(i32::MAX.unsigned_abs());
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Accepts one connection, sets its options and finds its original destination.
pub async fn accept(
    listener: &TcpListener,
    options: SocketOptions,
    orig_dst: &OrigDst,
) -> io::Result<Result<Accepted, Refused>> {
    let (io, client) = listener.accept().await?;
    let client = canonical(client);
    Ok(set_options(&io, options)
        .and_then(|()| orig_dst.of(&io, client.ip()))
        .map(|orig_dst| Accepted {
            io,
            client,
            orig_dst,
        })
        .map_err(|error| Refused { client, error }))
}

/// An accepted connection that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("connection of {client} cannot be served")]
pub struct Refused {
    /// Who connected.
    pub client: SocketAddr,
    /// Why.
    #[source]
    pub error: io::Error,
}

/// Opens a connection with the options set.
pub async fn connect(addr: SocketAddr, options: SocketOptions) -> io::Result<TcpStream> {
    let io = TcpStream::connect(addr).await?;
    set_options(&io, options)?;
    Ok(io)
}

fn set_options(io: &TcpStream, options: SocketOptions) -> io::Result<()> {
    io.set_nodelay(true)?;
    let socket = SockRef::from(io);
    match options.keepalive {
        Some(idle) => socket
            .set_tcp_keepalive(&TcpKeepalive::new().with_time(idle.max(Duration::from_secs(1))))?,
        None => socket.set_keepalive(true)?,
    }
    if let Some(timeout) = options.user_timeout {
        socket.set_tcp_user_timeout(Some(timeout))?;
    }
    Ok(())
}

/// IPv4-mapped IPv6 addresses become IPv4.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Accept errors that are about one connection and not about the listener.
pub fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_workers_share_a_port() {
        let first = bind(([127, 0, 0, 1], 0).into(), None).expect("binds");
        let addr = first.local_addr().expect("bound");
        let second = bind(addr, Some(16)).expect("binds again");
        assert_eq!(second.local_addr().expect("bound"), addr);
    }

    #[tokio::test]
    async fn accepted_connections_have_their_options() {
        let listener = bind(([127, 0, 0, 1], 0).into(), None).expect("binds");
        let addr = listener.local_addr().expect("bound");
        let listener = TcpListener::from_std(listener).expect("registers");
        let options = SocketOptions {
            keepalive: Some(Duration::from_secs(10)),
            user_timeout: Some(Duration::from_secs(30)),
        };
        let want = "192.0.2.1:80".parse().expect("constant");
        let orig_dst = OrigDst::fixed(want);
        let (accepted, client) = tokio::join!(
            accept(&listener, options, &orig_dst),
            TcpStream::connect(addr)
        );
        let accepted = accepted.expect("accepts").expect("has a destination");
        assert_eq!(accepted.orig_dst, want);
        assert_eq!(
            accepted.client,
            client.expect("connects").local_addr().expect("bound")
        );
        assert!(accepted.io.nodelay().expect("option"));
        let socket = SockRef::from(&accepted.io);
        assert!(socket.keepalive().expect("option"));
        assert_eq!(
            socket.tcp_user_timeout().expect("option"),
            Some(Duration::from_secs(30))
        );
    }

    #[tokio::test]
    async fn without_redirection_the_kernel_knows_no_destination() {
        let listener = bind(([127, 0, 0, 1], 0).into(), None).expect("binds");
        let addr = listener.local_addr().expect("bound");
        let listener = TcpListener::from_std(listener).expect("registers");
        let (accepted, _client) = tokio::join!(
            accept(&listener, SocketOptions::default(), &OrigDst::Kernel),
            TcpStream::connect(addr)
        );
        // Without connection tracking the option does not exist; with it, it is the listener itself.
        if let Ok(accepted) = accepted.expect("accepts") {
            assert_eq!(accepted.orig_dst, addr);
        }
    }
}
