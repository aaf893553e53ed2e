//! Messages are encoded once and shared by all streams, so the codec of a response only copies
//! bytes. Its buffers are small: thousands of streams are quiet most of the time.

use bytes::{Buf, BufMut, Bytes};
use linkerd_api::proto::destination::GetDestination;
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedCodec;

const BUFFER: usize = 512;
const YIELD_AT: usize = 32 * 1024;

impl Codec for SharedCodec {
    type Encode = Bytes;
    type Decode = GetDestination;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for SharedCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_AT)
    }
}

impl Decoder for SharedCodec {
    type Item = GetDestination;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<GetDestination>, Status> {
        let request = GetDestination::decode(buffer.copy_to_bytes(buffer.remaining()));
        request
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_AT)
    }
}
