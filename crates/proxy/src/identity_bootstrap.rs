//! The private key and the signing request a proxy starts with. They live as `key.p8` and `csr.der`
//! in the identity directory, where Linkerd's own helper and proxy expect them.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use linkerd_core::identity::{Id, InvalidId};
use linkerd_tls::{
    Key, KeyError, SigningRequest, TrustAnchors,
    file::{self, FileError},
};

const KEY_FILE: &str = "key.p8";
const REQUEST_FILE: &str = "csr.der";
/// Ours alone: the anchors as they were last told, newer than those the pod was made with.
const ANCHORS_FILE: &str = "trust-anchors.pem";

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("{} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{0:?} is not a name to ask a certificate for")]
    Name(String, #[source] InvalidId),
    #[error("cannot write {}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Read(#[from] FileError),
    #[error("key generation failed")]
    Key(#[from] KeyError),
}

/// What certification starts from.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub key: Key,
    /// DER PKCS#10.
    pub csr: Vec<u8>,
}

/// Makes a new key and request for `name` and writes both into `dir`, replacing what is there.
pub fn bootstrap(dir: &Path, name: &str) -> Result<Credentials, BootstrapError> {
    if !dir.is_dir() {
        return Err(BootstrapError::NotADirectory(dir.to_owned()));
    }
    Id::parse_dns(name).map_err(|error| BootstrapError::Name(name.to_owned(), error))?;
    let key = Key::generate()?;
    let csr = SigningRequest::create(name, &key)?;
    write(&dir.join(KEY_FILE), &key.to_pkcs8_der()?)?;
    write(&dir.join(REQUEST_FILE), &csr)?;
    Ok(Credentials { key, csr })
}

/// Takes the files a helper has left, when they are good for `name`; otherwise makes new ones.
pub fn load_or_bootstrap(dir: &Path, name: &str) -> Result<Credentials, BootstrapError> {
    match load(dir, name)? {
        Some(credentials) => Ok(credentials),
        None => bootstrap(dir, name),
    }
}

/// `None` when a file is missing or not good for `name`.
fn load(dir: &Path, name: &str) -> Result<Option<Credentials>, BootstrapError> {
    let (key_path, csr_path) = (dir.join(KEY_FILE), dir.join(REQUEST_FILE));
    if !key_path.exists() || !csr_path.exists() {
        return Ok(None);
    }
    let csr = file::read(&csr_path)?;
    let Ok(key) = Key::from_der(&file::read(&key_path)?) else {
        return Ok(None);
    };
    let good = SigningRequest::from_der(&csr).is_ok_and(|request| {
        request.check_names(name).is_ok()
            && request.is_for(&key)
            && request.verify_signature().is_ok()
    });
    Ok(good.then_some(Credentials { key, csr }))
}

/// Keeps the anchors for the next start in the same pod, whose directory outlives its containers.
pub fn save_anchors(dir: &Path, anchors: &TrustAnchors) -> Result<(), BootstrapError> {
    write(&dir.join(ANCHORS_FILE), anchors.to_pem().as_bytes())
}

/// The anchors kept by [`save_anchors`], if they are there and any is valid.
pub fn saved_anchors(dir: &Path) -> Option<TrustAnchors> {
    let path = dir.join(ANCHORS_FILE);
    if !path.exists() {
        return None;
    }
    let text = file::read(&path).ok()?;
    let anchors = TrustAnchors::from_pem(ANCHORS_FILE, &text).ok()?;
    let valid = anchors.check_validity(std::time::SystemTime::now());
    valid.is_ok().then_some(anchors)
}

/// Writes so that no reader ever sees half a file and nobody else sees any of it.
fn write(path: &Path, bytes: &[u8]) -> Result<(), BootstrapError> {
    let partial = path.with_extension("tmp");
    let attempt = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    attempt().map_err(|source| BootstrapError::Write {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "web.ns.serviceaccount.identity.linkerd.cluster.local";

    #[test]
    fn writes_linkerds_two_files() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let made = bootstrap(dir.path(), NAME).expect("bootstraps");
        for file in [KEY_FILE, REQUEST_FILE] {
            let mode = fs::metadata(dir.path().join(file))
                .expect("exists")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        assert_eq!(
            fs::read_dir(dir.path()).expect("lists").count(),
            2,
            "nothing else is left"
        );
        let loaded = load_or_bootstrap(dir.path(), NAME).expect("loads");
        assert_eq!(loaded.csr, made.csr, "existing files are kept");
        let again = bootstrap(dir.path(), NAME).expect("bootstraps");
        assert_ne!(again.csr, made.csr, "the helper overwrites");
    }

    #[test]
    fn files_that_are_no_good_are_replaced() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path();
        let original = bootstrap(path, NAME).expect("bootstraps").csr;
        let same = |name: &str| load_or_bootstrap(path, name).expect("loads").csr == original;
        assert!(same(NAME));
        assert!(
            !same("other.ns.serviceaccount.identity.linkerd.cluster.local"),
            "another name"
        );
        let other = Key::generate()
            .expect("a key")
            .to_pkcs8_der()
            .expect("encodes");
        fs::write(path.join(KEY_FILE), other).expect("writes");
        assert!(!same(NAME), "another key");
        fs::write(path.join(REQUEST_FILE), b"garbage").expect("writes");
        assert!(!same(NAME), "garbage");
    }

    #[test]
    fn anchors_are_kept_for_the_next_start() {
        use linkerd_tls::issuer::generate::Authority;
        let dir = tempfile::tempdir().expect("temporary directory");
        assert!(saved_anchors(dir.path()).is_none());
        let now = std::time::SystemTime::now();
        let ca = Authority::for_install("linkerd", "cluster.local", now).expect("a CA");
        let anchors = TrustAnchors::from_certificates(vec![ca.certificate]).expect("anchors");
        save_anchors(dir.path(), &anchors).expect("writes");
        assert_eq!(saved_anchors(dir.path()), Some(anchors));
        fs::write(dir.path().join(ANCHORS_FILE), b"garbage").expect("writes");
        assert!(saved_anchors(dir.path()).is_none(), "garbage is not used");
    }

    #[test]
    fn refuses_bad_places_and_names() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let missing = dir.path().join("missing");
        assert!(matches!(
            bootstrap(&missing, NAME),
            Err(BootstrapError::NotADirectory(_))
        ));
        for name in ["", "web.", "spiffe://td/a", "*.example"] {
            assert!(
                matches!(bootstrap(dir.path(), name), Err(BootstrapError::Name(..))),
                "{name}"
            );
        }
    }
}
