//! Label lists, written once into the text that the exposition shows.

use std::{fmt::Write, net::SocketAddr, sync::Arc};

use crate::policy::{
    Meta,
    server::{ClientTls, NoTls},
};

/// A label list being written.
#[derive(Clone, Debug, Default)]
pub struct Labels(String);

impl Labels {
    /// Starts with the direction.
    pub fn direction(direction: &str) -> Self {
        Self::default().with("direction", direction)
    }

    /// Adds a label.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
        self.0.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                c => self.0.push(c),
            }
        }
        self.0.push('"');
        self
    }

    /// Adds a label whose value is printed.
    #[must_use]
    pub fn show(self, name: &str, value: impl std::fmt::Display) -> Self {
        let mut text = String::new();
        let _ = write!(text, "{value}");
        self.with(name, &text)
    }

    /// `target_addr`, `target_ip`, `target_port`.
    #[must_use]
    pub fn target(self, addr: SocketAddr) -> Self {
        self.show("target_addr", addr)
            .show("target_ip", addr.ip())
            .show("target_port", addr.port())
    }

    /// `tls` of an inbound connection, with what belongs to it.
    #[must_use]
    pub fn client_tls(self, tls: &ClientTls) -> Self {
        match tls {
            ClientTls::Mesh(Some(id)) => self.with("tls", "true").with("client_id", id.as_str()),
            ClientTls::Mesh(None) => self.with("tls", "true").with("client_id", ""),
            ClientTls::Opaque(sni) => self.with("tls", "opaque").with("sni", sni),
            ClientTls::Plain(reason) => {
                let reason = match reason {
                    NoTls::NotFromRemote => "no_tls_from_remote",
                    NoTls::PortSkipped => "port_skipped",
                    NoTls::Loopback => "loopback",
                };
                self.with("tls", "no_identity")
                    .with("no_tls_reason", reason)
            }
        }
    }

    /// `srv_group`, `srv_kind`, `srv_name`, `srv_port`.
    #[must_use]
    pub fn server(self, meta: &Meta, port: u16) -> Self {
        self.with("srv_group", meta.group())
            .with("srv_kind", meta.kind())
            .with("srv_name", meta.name())
            .show("srv_port", port)
    }

    /// Three labels with a prefix: group, kind, name.
    #[must_use]
    pub fn resource(self, prefix: &str, meta: &Meta) -> Self {
        self.with(&format!("{prefix}_group"), meta.group())
            .with(&format!("{prefix}_kind"), meta.kind())
            .with(&format!("{prefix}_name"), meta.name())
    }

    /// The longer form of outbound policy: with namespace.
    #[must_use]
    pub fn route(self, meta: &Meta) -> Self {
        self.with("route_group", meta.group())
            .with("route_kind", meta.kind())
            .with("route_namespace", meta.namespace())
            .with("route_name", meta.name())
    }

    /// The longest form: with port and section.
    #[must_use]
    pub fn referent(self, prefix: &str, meta: &Meta) -> Self {
        let port = meta.port().map(|p| p.to_string()).unwrap_or_default();
        self.with(&format!("{prefix}_group"), meta.group())
            .with(&format!("{prefix}_kind"), meta.kind())
            .with(&format!("{prefix}_namespace"), meta.namespace())
            .with(&format!("{prefix}_name"), meta.name())
            .with(&format!("{prefix}_port"), &port)
            .with(&format!("{prefix}_section_name"), meta.section())
    }

    /// The text, to be shared.
    pub fn finish(self) -> Arc<str> {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        let labels = Labels::direction("inbound").with("a", "x\"y\\z\n").finish();
        assert_eq!(&*labels, r#"direction="inbound",a="x\"y\\z\n""#);
    }
}
