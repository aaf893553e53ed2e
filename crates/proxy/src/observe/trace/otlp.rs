//! The part of OpenTelemetry's protocol that spans need, by field number.

use std::collections::HashMap;

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportRequest {
    /// Spans by where they come from.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// `ExportTraceServiceResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ExportResponse {}

/// Spans of one process.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResourceSpans {
    /// The process.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// Its spans.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// A process.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    /// What is known about it.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// Spans of one library.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScopeSpans {
    /// The library.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// Its spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

/// A library.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Scope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// One span.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Span {
    /// The trace, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// The span, 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// The span above it.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// What it is called.
    #[prost(string, tag = "5")]
    pub name: String,
    /// Which side it is.
    #[prost(enumeration = "SpanKind", tag = "6")]
    pub kind: i32,
    /// When it began.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// When it ended.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// What is known about it.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    /// How it ended.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
}

/// Which side a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum SpanKind {
    /// Not said.
    Unspecified = 0,
    /// Serving.
    Server = 2,
    /// Asking.
    Client = 3,
}

/// How a span ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    /// In words.
    #[prost(string, tag = "2")]
    pub message: String,
    /// In one of three.
    #[prost(enumeration = "StatusCode", tag = "3")]
    pub code: i32,
}

/// How a span ended, in one of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum StatusCode {
    /// Not said.
    Unset = 0,
    /// Well.
    Ok = 1,
    /// Badly.
    Error = 2,
}

/// One attribute.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AnyValue {
    /// Of one kind.
    #[prost(oneof = "Value", tags = "1, 3")]
    pub value: Option<Value>,
}

/// Kinds of values.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Value {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
    /// A number.
    #[prost(int64, tag = "3")]
    Number(i64),
}

impl KeyValue {
    /// A text.
    pub fn text(key: &str, value: impl Into<String>) -> Self {
        Self::new(key, Value::Text(value.into()))
    }

    /// A number.
    pub fn number(key: &str, value: i64) -> Self {
        Self::new(key, Value::Number(value))
    }

    fn new(key: &str, value: Value) -> Self {
        Self {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(value) }),
        }
    }

    /// The value as text.
    pub fn show(&self) -> String {
        match self.value.as_ref().and_then(|v| v.value.as_ref()) {
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Number(n)) => n.to_string(),
            None => String::new(),
        }
    }
}

impl Resource {
    /// Attributes by name, as text.
    pub fn by_name(&self) -> HashMap<&str, String> {
        let pairs = self.attributes.iter();
        pairs.map(|a| (a.key.as_str(), a.show())).collect()
    }
}
