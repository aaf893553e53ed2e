//! The name a proxy gives its workload: JSON, or the older `<ns>:<pod>`.

use serde::Deserialize;
use tonic::Status;

use crate::index::workload::WorkloadId;

#[derive(Deserialize)]
struct Token {
    ns: String,
    pod: Option<String>,
    external_workload: Option<String>,
}

/// Reads the workload.
pub(super) fn workload(text: &str) -> Result<WorkloadId, Status> {
    let invalid = || Status::invalid_argument(format!("Invalid workload: {text}"));
    let id = if text.trim_start().starts_with('{') {
        let token: Token = serde_json::from_str(text).map_err(|_| invalid())?;
        match (token.pod, token.external_workload) {
            (Some(pod), None) => WorkloadId::pod(token.ns, pod),
            (None, Some(external)) => WorkloadId::external(token.ns, external),
            _ => return Err(invalid()),
        }
    } else {
        let (namespace, pod) = text.split_once(':').ok_or_else(invalid)?;
        WorkloadId::pod(namespace, pod)
    };
    if id.namespace.is_empty() || id.name.is_empty() {
        return Err(invalid());
    }
    Ok(id)
}

/// Reads a port number.
pub(super) fn port(number: u32) -> Result<u16, Status> {
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Status::invalid_argument(format!("Invalid port: {number}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens() {
        for (name, text, expected) in [
            (
                "pod",
                r#"{"ns":"a","pod":"b"}"#,
                Some(WorkloadId::pod("a", "b")),
            ),
            (
                "more fields",
                r#"{"ns":"a","pod":"b","nodeName":"n"}"#,
                Some(WorkloadId::pod("a", "b")),
            ),
            (
                "external",
                r#"{"ns":"a","external_workload":"b"}"#,
                Some(WorkloadId::external("a", "b")),
            ),
            ("legacy", "a:b", Some(WorkloadId::pod("a", "b"))),
            ("empty", "", None),
            ("no colon", "ab", None),
            ("no namespace", ":b", None),
            ("no name", "a:", None),
            ("neither", r#"{"ns":"a"}"#, None),
            (
                "both",
                r#"{"ns":"a","pod":"b","external_workload":"c"}"#,
                None,
            ),
            ("not json", "{", None),
        ] {
            match (workload(text), expected) {
                (Ok(found), Some(expected)) => assert_eq!(found, expected, "{name}"),
                (Err(status), None) => {
                    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{name}");
                    assert_eq!(
                        status.message(),
                        format!("Invalid workload: {text}"),
                        "{name}"
                    );
                }
                (found, expected) => panic!("{name}: {found:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn ports() {
        for (number, expected) in [(0, None), (1, Some(1)), (65535, Some(65535)), (65536, None)] {
            let found = port(number);
            assert_eq!(found.as_ref().ok().copied(), expected);
            if let Err(status) = found {
                assert_eq!(status.message(), format!("Invalid port: {number}"));
            }
        }
    }
}
