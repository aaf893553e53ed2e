//! An HTTP/2 client of a test.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::net::SocketAddr;

use bytes::Bytes;
use h2::{PingPong, client::SendRequest};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;

/// A client connection.
pub async fn connect(addr: SocketAddr) -> SendRequest<Bytes> {
    let io = TcpStream::connect(addr).await.expect("connects");
    let (send, connection) = h2::client::handshake(io).await.expect("handshakes");
    linkerd_runtime::spawn("client", async move {
        let _ = connection.await;
    });
    send.ready().await.expect("ready")
}

/// A client connection from an address of its own, and when it has ended.
pub async fn connect_from(
    from: std::net::Ipv4Addr,
    addr: SocketAddr,
) -> (SendRequest<Bytes>, tokio::task::JoinHandle<()>) {
    let (send, _, closed) = connect_with_pings(from, addr).await;
    (send, closed)
}

/// The same, and its pings.
pub async fn connect_with_pings(
    from: std::net::Ipv4Addr,
    addr: SocketAddr,
) -> (SendRequest<Bytes>, PingPong, tokio::task::JoinHandle<()>) {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    let from: SocketAddr = (from, 0).into();
    socket.bind(from).expect("an address of ours");
    let io = socket.connect(addr).await.expect("connects");
    let (send, mut connection) = h2::client::handshake(io).await.expect("handshakes");
    let pings = connection.ping_pong().expect("taken once");
    let closed = linkerd_runtime::spawn("client", async move {
        let _ = connection.await;
    });
    (send.ready().await.expect("ready"), pings, closed)
}

/// A whole answer.
pub struct Got {
    pub head: Response<()>,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

/// Sends a request with its body in pieces and reads the whole answer.
pub async fn call(
    send: &mut SendRequest<Bytes>,
    request: Request<()>,
    body: &[Bytes],
) -> Result<Got, h2::Error> {
    let (response, mut stream) = send.send_request(request, body.is_empty())?;
    for (n, piece) in body.iter().enumerate() {
        let mut piece = piece.clone();
        while !piece.is_empty() {
            stream.reserve_capacity(piece.len());
            let granted = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
            let granted = granted.expect("open")?;
            let part = piece.split_to(granted.min(piece.len()));
            let end = piece.is_empty() && n + 1 == body.len();
            stream.send_data(part, end)?;
        }
    }
    let (parts, mut recv) = response.await?.into_parts();
    let mut got = Vec::new();
    while let Some(data) = recv.data().await {
        let data = data?;
        let _ = recv.flow_control().release_capacity(data.len());
        got.extend(&data);
    }
    let trailers = recv.trailers().await?;
    Ok(Got {
        head: Response::from_parts(parts, ()),
        body: got,
        trailers,
    })
}
