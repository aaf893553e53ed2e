//! Reads response bytes with hyper's client and says what it saw.

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What one final response means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

/// The response hyper reads from `bytes`, after which the connection closes.
pub(crate) fn read(bytes: &[u8], method: &str) -> Option<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (client, mut server) = tokio::io::duplex(1 << 20);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client))
            .await
            .ok()?;
        let request = hyper::Request::builder()
            .method(method)
            .uri("/")
            .header("host", "a")
            .body(Empty::<Bytes>::new())
            .ok()?;
        let exchange = async {
            let response = sender.send_request(request).await.ok()?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.ok()?.to_bytes().to_vec();
            let mut fields: Vec<_> = parts
                .headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                .collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Some(Answer {
                status: parts.status.as_u16(),
                fields,
                body,
            })
        };
        let origin = async {
            let mut request = [0; 1024];
            let _head = server.read(&mut request).await;
            let _sent = server.write_all(bytes).await;
            drop(server);
        };
        let drive = async {
            let _ended = connection.await;
            std::future::pending::<()>().await
        };
        tokio::select! {
            (answer, ()) = async { tokio::join!(exchange, origin) } => answer,
            () = drive => None,
        }
    })
}
