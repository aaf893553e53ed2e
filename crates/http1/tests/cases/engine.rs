//! Reads a whole request with the engine, head and body, and says what it means.

use linkerd_http1::{Body, Limits, RequestHead, Status};

/// What one request means, however it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub method: String,
    /// Authority (absolute and authority form only), then path and query.
    pub target: (Option<String>, String),
    pub http11: bool,
    /// Lower-case names with values; those of one name in order, names sorted.
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, Vec<u8>)>,
    pub keep_alive: bool,
}

/// A refusal by its label, or that the bytes end too early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Refused(&'static str),
    Incomplete,
}

/// Reads the request at the start of `bytes`; gives its meaning and how many bytes it took.
pub(crate) fn read(bytes: &[u8]) -> Result<(Meaning, usize), Failure> {
    let mut head = RequestHead::new();
    match head.parse(bytes, &Limits::default()) {
        Ok(Status::Complete) => {}
        Ok(Status::Partial) => return Err(Failure::Incomplete),
        Err(error) => return Err(Failure::Refused(error.label())),
    }
    let mut body = Body::new(head.framing());
    let (mut at, mut data) = (head.len(), Vec::new());
    while !body.is_done() {
        if at == bytes.len() {
            return Err(Failure::Incomplete);
        }
        let step = body
            .decode(&bytes[at..])
            .map_err(|error| Failure::Refused(error.label()))?;
        data.extend_from_slice(&bytes[at..][step.data]);
        at += step.take;
    }
    let view = head.view(bytes);
    let own_authority = view.target().contains("://") && !view.target().starts_with('/')
        || view.method() == "CONNECT";
    let mut fields: Vec<_> = view
        .fields()
        .map(|field| {
            (
                String::from_utf8_lossy(field.name).to_lowercase(),
                field.value.to_vec(),
            )
        })
        .collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    let mut path = view.path_and_query().to_owned();
    if path.starts_with('?') {
        path.insert(0, '/');
    }
    let trailers = body.trailers().unwrap_or_default();
    let meaning = Meaning {
        method: view.method().to_owned(),
        target: (
            view.authority()
                .filter(|_| own_authority)
                .map(str::to_owned),
            path,
        ),
        http11: head.version() == linkerd_http1::Version::Http11,
        fields,
        body: data,
        trailers: trailers
            .iter()
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect(),
        keep_alive: head.keep_alive(),
    };
    Ok((meaning, at))
}
