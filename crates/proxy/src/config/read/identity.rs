//! Who the proxy is, and who certifies that.

use std::path::PathBuf;

use super::{
    super::{
        Identity, IdentitySource, env,
        value::{self, Malformed},
    },
    Reader, SECOND,
};
use crate::control::identity::TokenFile;

impl Reader<'_> {
    pub(super) fn identity(&mut self) -> Option<Identity> {
        if self
            .text(env::IDENTITY_DISABLED)
            .is_some_and(|v| !v.is_empty())
        {
            self.mistakes.push(format!(
                "{} is no longer supported: identity must be enabled",
                env::IDENTITY_DISABLED
            ));
        }
        let dns = |s: &str| {
            if value::is_dns_name(s) {
                Ok(s.to_owned())
            } else {
                Err(Malformed::Identity)
            }
        };
        let local = self.get(env::IDENTITY_LOCAL_NAME, dns);
        let id = self.get(env::IDENTITY_SERVER_ID, value::identity);
        let server_name = self.get(env::IDENTITY_SERVER_NAME, dns);
        // One name for both wins over one for each.
        let (id, server_name) = match local {
            Some(name) => (Some(name.clone()), Some(name)),
            None => (id, server_name),
        };
        for (name, missing) in [
            (env::IDENTITY_SERVER_ID, id.is_none()),
            (env::IDENTITY_SERVER_NAME, server_name.is_none()),
        ] {
            if missing
                && self.env.get(name).is_none()
                && self.env.get(env::IDENTITY_LOCAL_NAME).is_none()
            {
                self.mistakes.push(format!("{name} is required"));
            }
        }
        let trust_anchors = self.required(env::IDENTITY_TRUST_ANCHORS).filter(|pem| {
            let empty = pem.trim().is_empty();
            if empty {
                self.mistakes
                    .push(format!("{} must not be empty", env::IDENTITY_TRUST_ANCHORS));
            }
            !empty
        });
        let spire = match self.text(env::IDENTITY_SPIRE_WORKLOAD_API_ADDRESS) {
            Some(addr) => Some(addr),
            None => self.text(env::IDENTITY_SPIRE_SOCKET),
        };
        let source = match spire {
            Some(addr) => {
                let socket = addr.strip_prefix("unix:").unwrap_or(&addr);
                let socket = PathBuf::from(socket.strip_prefix("//").unwrap_or(socket));
                if id.as_deref().is_some_and(|id| !id.starts_with("spiffe://")) {
                    self.mistakes
                        .push("spire identity requires a SPIFFE TLS Id".into());
                }
                let backoff = self.backoff(
                    [
                        env::IDENTITY_SPIRE_EXP_BACKOFF_MIN,
                        env::IDENTITY_SPIRE_EXP_BACKOFF_MAX,
                        env::IDENTITY_SPIRE_EXP_BACKOFF_JITTER,
                    ],
                    SECOND,
                );
                IdentitySource::Spire { socket, backoff }
            }
            None => {
                if id.is_some() && server_name.is_some() && id != server_name {
                    self.mistakes.push(
                        "linkerd identity requires a TLS Id and server name to be the same".into(),
                    );
                }
                let dir = self.required(env::IDENTITY_DIR);
                let token_file = self.required(env::IDENTITY_TOKEN_FILE);
                if let Some(Err(error)) = token_file.clone().map(|f| TokenFile::open(f.into())) {
                    let name = env::IDENTITY_TOKEN_FILE;
                    self.mistakes.push(format!("{name} is not usable: {error}"));
                }
                let min_refresh = self.duration(env::IDENTITY_MIN_REFRESH, 10 * SECOND);
                let max_refresh = self.duration(env::IDENTITY_MAX_REFRESH, 86_400 * SECOND);
                IdentitySource::Linkerd {
                    dir: dir?.into(),
                    token_file: token_file?.into(),
                    min_refresh,
                    max_refresh,
                }
            }
        };
        let resumption = !self.boolean(env::TLS_RESUMPTION_DISABLED);
        Some(Identity {
            id: id?,
            server_name: server_name?,
            trust_anchors: trust_anchors?,
            resumption,
            source,
        })
    }
}
