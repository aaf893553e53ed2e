//! The plain TCP side of the echo.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How a TCP echo treats each connection.
#[derive(Clone, Debug, Default)]
pub struct Behavior {
    /// Sent before anything is read, as databases and mail servers do.
    pub greeting: Bytes,
    /// Waited before each answer.
    pub delay: Duration,
    /// Ends the connection after so many bytes, orderly.
    pub close_after: Option<usize>,
    /// Ends the connection after so many bytes with a reset.
    pub reset_after: Option<usize>,
    /// Ends its own side after so many bytes but goes on reading.
    pub half_close_after: Option<usize>,
}

pub(super) async fn serve(mut stream: TcpStream, behavior: Arc<Behavior>) {
    if behavior.reset_after.is_some() {
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
    // A client that leaves is not the echo's trouble; the test sees what it sees.
    let _: io::Result<()> = talk(&mut stream, &behavior).await;
}

async fn talk(stream: &mut TcpStream, behavior: &Behavior) -> io::Result<()> {
    let limit = behavior
        .close_after
        .or(behavior.reset_after)
        .or(behavior.half_close_after);
    stream.write_all(&behavior.greeting).await?;
    let mut buffer = vec![0; 64 * 1024];
    let mut echoed = 0;
    loop {
        let left = limit.map_or(buffer.len(), |limit| (limit - echoed).min(buffer.len()));
        if left == 0 {
            break;
        }
        let read = stream.read(&mut buffer[..left]).await?;
        if read == 0 {
            return stream.shutdown().await;
        }
        tokio::time::sleep(behavior.delay).await;
        stream.write_all(&buffer[..read]).await?;
        echoed += read;
    }
    if behavior.half_close_after.is_some() {
        stream.shutdown().await?;
        while stream.read(&mut buffer).await? > 0 {}
    }
    Ok(())
}
