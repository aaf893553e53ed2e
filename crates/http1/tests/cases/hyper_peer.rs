//! Reads the same bytes with hyper's server and says what it saw, request by request.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;

use super::engine::Meaning;

/// All requests hyper serves from `bytes` before it stops; a request whose body failed ends the list.
/// `keep_alive` is not known to a service and left true.
pub(crate) fn serve(bytes: &[u8]) -> Vec<Meaning> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(bytes).await.expect("room for the request");
        client.shutdown().await.expect("a pipe can be shut");
        let record = Arc::clone(&seen);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let record = Arc::clone(&record);
            async move {
                let meaning = meaning(request).await;
                let status = if meaning
                    .as_ref()
                    .is_some_and(|meaning| meaning.method != "CONNECT")
                {
                    200
                } else {
                    400
                };
                record.lock().expect("one thread").extend(meaning);
                let answer = hyper::Response::builder()
                    .status(status)
                    .body(Empty::<Bytes>::new());
                Ok::<_, Infallible>(answer.expect("a plain answer"))
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(server), service);
        let _refused = connection.await;
    });
    let seen = seen.lock().expect("one thread");
    seen.clone()
}

async fn meaning(request: hyper::Request<Incoming>) -> Option<Meaning> {
    let (parts, body) = request.into_parts();
    let collected = body.collect().await.ok()?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let mut fields: Vec<_> = parts
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    // Displayed, a path has the slash that an absolute form may leave out before its query.
    let path = parts
        .uri
        .path_and_query()
        .map_or(String::new(), ToString::to_string);
    Some(Meaning {
        method: parts.method.to_string(),
        target: (
            parts.uri.authority().map(|authority| authority.to_string()),
            path,
        ),
        http11: parts.version == hyper::Version::HTTP_11,
        fields,
        body: collected.to_bytes().to_vec(),
        trailers: trailers
            .iter()
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect(),
        keep_alive: true,
    })
}
