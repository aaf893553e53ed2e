//! A TLS server whose certificate comes from two files, such as a webhook's mounted Secret, and is
//! exchanged without a restart when they change.

use crate::{
    file::{self, FileError, Watch},
    provider,
};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

#[derive(Debug, thiserror::Error)]
pub enum ServerFilesError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} holds no certificate", .0.display())]
    NoCertificate(PathBuf),
    #[error("{} holds no private key", .0.display())]
    NoKey(PathBuf),
    #[error("{} and {} do not make a TLS server", .certificate.display(), .key.display())]
    Unusable {
        certificate: PathBuf,
        key: PathBuf,
        source: rustls::Error,
    },
}

/// Certificate and key files with the configuration made from them.
#[derive(Debug)]
pub struct ServerFiles {
    certificate: PathBuf,
    key: PathBuf,
    watch: Mutex<Watch>,
    config: ArcSwap<ServerConfig>,
}

impl ServerFiles {
    pub fn load(certificate: PathBuf, key: PathBuf) -> Result<Self, ServerFilesError> {
        let watch = Watch::new(vec![certificate.clone(), key.clone()]);
        let config = ArcSwap::new(Arc::new(read(&certificate, &key)?));
        Ok(Self {
            certificate,
            key,
            watch: Mutex::new(watch),
            config,
        })
    }

    /// For the next handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Looks at the files; `true` when a new certificate took effect. A bad one leaves the old.
    pub fn refresh(&self) -> Result<bool, ServerFilesError> {
        if !self.watch.lock().changed() {
            return Ok(false);
        }
        self.config
            .store(Arc::new(read(&self.certificate, &self.key)?));
        Ok(true)
    }
}

fn read(certificate: &Path, key: &Path) -> Result<ServerConfig, ServerFilesError> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&file::read(certificate)?).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.ok_or_else(|| ServerFilesError::NoCertificate(certificate.to_owned()))?;
    let der = PrivateKeyDer::from_pem_slice(&file::read(key)?)
        .map_err(|_| ServerFilesError::NoKey(key.to_owned()))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13]);
    let config =
        builder.and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, der));
    let mut config = config.map_err(|source| ServerFilesError::Unusable {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issuer::generate::self_signed_server;
    use std::{
        fs,
        time::{Duration, SystemTime},
    };

    fn write(dir: &Path, name: &str) {
        let now = SystemTime::now();
        let (certificate, key) =
            self_signed_server(name, (now, now + Duration::from_secs(60))).expect("made");
        fs::write(dir.join("tls.crt"), certificate.to_pem()).expect("written");
        fs::write(dir.join("tls.key"), key.to_sec1_pem().expect("PEM")).expect("written");
    }

    #[test]
    fn a_new_certificate_takes_effect_and_a_bad_one_does_not() {
        let dir = tempfile::tempdir().expect("directory");
        let paths = || (dir.path().join("tls.crt"), dir.path().join("tls.key"));
        let (certificate, key) = paths();
        assert!(
            ServerFiles::load(certificate, key).is_err(),
            "nothing there yet"
        );
        write(dir.path(), "one.example");
        let (certificate, key) = paths();
        let files = ServerFiles::load(certificate, key).expect("loads");
        let first = files.config();
        assert!(!files.refresh().expect("unchanged"));
        write(dir.path(), "two.example");
        assert!(files.refresh().expect("changed"));
        let second = files.config();
        assert!(!Arc::ptr_eq(&first, &second));
        fs::write(dir.path().join("tls.crt"), "rubbish").expect("written");
        assert!(matches!(
            files.refresh(),
            Err(ServerFilesError::NoCertificate(_))
        ));
        assert!(Arc::ptr_eq(&second, &files.config()));
    }
}
