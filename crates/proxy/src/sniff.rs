//! Reads the first bytes of a connection until it is clear what they are, or the time is over. The
//! bytes stay in the connection's buffer.

use std::{
    io,
    task::Poll,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use crate::{detect, h1::Conn};

/// Why a connection cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum SniffError {
    /// It was closed before it said anything.
    #[error("socket closed before protocol detection")]
    Closed,
    /// It failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It said too little in time.
    #[error("detection timed out")]
    Timeout,
}

/// What a stream that may be TLS begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// A ClientHello, with the server name it asks for.
    Hello(Option<String>),
    /// Something else.
    NotTls,
}

/// How long a client may pause after bytes that do not begin a request, but could: a word without the
/// end of its line is all that many protocols send before they wait for an answer.
const PAUSE: Duration = Duration::from_millis(250);

/// Looks for HTTP. `More` means that the time is over: the bytes so far are not HTTP.
pub async fn http(conn: &mut Conn, limit: Duration) -> Result<detect::Http, SniffError> {
    let began = Instant::now();
    loop {
        match detect::http(&conn.rbuf) {
            detect::Http::More => {}
            verdict => return Ok(verdict),
        }
        let left = limit.saturating_sub(began.elapsed());
        let hurried = left > PAUSE && !conn.rbuf.is_empty() && !detect::begins_request(&conn.rbuf);
        let wait = if hurried { PAUSE } else { left };
        match timeout(wait, read(conn)).await {
            Ok(Ok(0)) if conn.rbuf.is_empty() => return Err(SniffError::Closed),
            Ok(Ok(0)) => return Ok(detect::Http::NotHttp),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) if hurried => return Ok(detect::Http::NotHttp),
            Err(_) => return Ok(detect::Http::More),
        }
    }
}

/// Looks for TLS.
pub async fn tls(conn: &mut Conn, limit: Duration) -> Result<Tls, SniffError> {
    let sniff = async {
        loop {
            match detect::tls(&conn.rbuf) {
                detect::Tls::Hello(sni) => return Ok(Tls::Hello(sni.map(str::to_owned))),
                detect::Tls::NotTls => return Ok(Tls::NotTls),
                detect::Tls::More => {}
            }
            if read(conn).await? == 0 {
                return if conn.rbuf.is_empty() {
                    Err(SniffError::Closed)
                } else {
                    Ok(Tls::NotTls)
                };
            }
        }
    };
    timeout(limit, sniff)
        .await
        .unwrap_or(Err(SniffError::Timeout))
}

/// Reads more; 0 is the end.
pub async fn read(conn: &mut Conn) -> io::Result<usize> {
    std::future::poll_fn(|cx| conn.poll_fill(cx)).await
}

/// Reads more, within a limit.
pub async fn more(conn: &mut Conn, limit: Duration) -> Result<(), SniffError> {
    match timeout(limit, read(conn)).await {
        Ok(Ok(0)) => Err(SniffError::Closed),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(SniffError::Timeout),
    }
}

/// How long a client may be silent before the server is asked whether it speaks first.
pub const SILENCE: Duration = Duration::from_millis(100);

/// Which side of two open connections speaks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The client; its bytes are to be looked at.
    Client,
    /// The server: its protocol is opaque to us.
    Server,
    /// Nobody within the limit.
    Nobody,
    /// Nobody, and the server has closed or failed: only the client can tell what it wants.
    Gone,
}

/// Waits for the first bytes of either side.
pub async fn first_speaker(
    client: &mut Conn,
    server: &mut Conn,
    limit: Duration,
) -> Result<Speaker, SniffError> {
    let race = std::future::poll_fn(|cx| {
        // A transport header must be there before the server can be.
        let _ = server.poll_send(cx);
        if let Poll::Ready(result) = client.poll_fill(cx) {
            return Poll::Ready(match result {
                Ok(0) => Err(SniffError::Closed),
                Ok(_) => Ok(Speaker::Client),
                Err(error) => Err(error.into()),
            });
        }
        match server.poll_fill(cx) {
            Poll::Ready(Ok(n)) if n > 0 => Poll::Ready(Ok(Speaker::Server)),
            Poll::Ready(_) => Poll::Ready(Ok(Speaker::Gone)),
            Poll::Pending => Poll::Pending,
        }
    });
    timeout(limit, race).await.unwrap_or(Ok(Speaker::Nobody))
}
