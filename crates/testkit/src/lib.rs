//! Test-only: namespaces, certificate authorities, echo servers, waiting for conditions.
