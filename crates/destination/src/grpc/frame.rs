//! gRPC framing. A message is encoded with its prefix once, and every stream hands the same bytes
//! to the transport: nothing is copied per client, and a quiet stream holds no buffer.

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{self, BoxStream, StreamExt};
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use http_body::{Body as HttpBody, Frame};
use http_body_util::{BodyExt, Limited, StreamBody};
use linkerd_api::proto::destination::GetDestination;
use prost::Message;
use tonic::{Status, body::Body, codegen::StdError};

/// Flag and length in front of a message.
pub(crate) const PREFIX: usize = 5;
/// Longer than any name and token.
const MAX_REQUEST: usize = 64 * 1024;

/// Encodes a message with its prefix.
pub(crate) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).expect("a message is far below four gigabytes"));
    message
        .encode(&mut bytes)
        .expect("there is room for the message");
    bytes.freeze()
}

/// Reads the one message of a request.
pub(crate) async fn read<B>(body: B) -> Result<GetDestination, Status>
where
    B: HttpBody,
    B::Data: Send,
    B::Error: Into<StdError>,
{
    let body = Limited::new(body, MAX_REQUEST).collect().await;
    let bytes = body
        .map_err(|error| Status::internal(error.to_string()))?
        .to_bytes();
    let Some((prefix, message)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(Status::internal("Missing request message."));
    };
    let [flag, length @ ..] = prefix;
    if *flag != 0 {
        return Err(Status::unimplemented(
            "compressed requests are not supported",
        ));
    }
    if usize::try_from(u32::from_be_bytes(*length)) != Ok(message.len()) {
        return Err(Status::internal("the request is not one message"));
    }
    GetDestination::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// A response whose messages are already framed; it ends well.
pub(crate) fn respond(messages: BoxStream<'static, Bytes>) -> http::Response<Body> {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    let end = stream::once(std::future::ready(Frame::trailers(trailers)));
    let frames = messages.map(Frame::data).chain(end).map(Ok::<_, Status>);
    let mut response = http::Response::new(Body::new(StreamBody::new(frames)));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn requests_are_read_or_refused() {
        let request = GetDestination {
            path: "web".to_owned(),
            ..GetDestination::default()
        };
        let good = frame(&request);
        assert_eq!(
            read(Full::new(good.clone())).await.expect("a request"),
            request
        );
        let mut compressed = good.to_vec();
        compressed[0] = 1;
        let mut cut = good.to_vec();
        cut.pop();
        let mut two = good.to_vec();
        two.extend_from_slice(&good);
        for (name, bytes, code) in [
            ("nothing", Vec::new(), Code::Internal),
            ("half a prefix", vec![0, 0], Code::Internal),
            ("cut", cut, Code::Internal),
            ("two", two, Code::Internal),
            ("compressed", compressed, Code::Unimplemented),
            ("not protobuf", vec![0, 0, 0, 0, 1, 0xff], Code::Internal),
            ("too long", vec![0; MAX_REQUEST + 1], Code::Internal),
        ] {
            let refused = read(Full::new(Bytes::from(bytes))).await.expect_err(name);
            assert_eq!(refused.code(), code, "{name}");
        }
    }
}
