//! The issuer and the trust anchors in use, and their reload from disk. New files are tried before
//! they replace anything: whatever does not load or is not trusted is refused, and the old issuer
//! keeps serving.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwapOption;
use linkerd_tls::{
    AnchorsError, CertificateError, Issuer, IssuerError, TrustAnchors, TrustedPeriod,
    file::{self, FileError},
};

use tokio::sync::watch;

use crate::events::Recorder;

/// A refused update may become good by itself, for instance when its validity begins.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Where issuer and anchors are mounted.
#[derive(Debug, Clone)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub anchors: PathBuf,
}

/// The bundle as the API server has it, ahead of the mounted file.
#[derive(Debug)]
pub struct LiveAnchors {
    /// What it is called in errors.
    pub origin: String,
    /// `None` while it cannot be read; then the file counts.
    pub text: watch::Receiver<Option<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{error}: {source}", error = .0, source = source_text(.0))]
    File(#[from] FileError),
    #[error("{}: {}", .0.origin, .0.source)]
    Anchors(#[from] AnchorsError),
    #[error(transparent)]
    Issuer(#[from] IssuerError),
    #[error("{file}: no trust anchor is valid: {source}")]
    AnchorsNotValid {
        file: String,
        source: CertificateError,
    },
}

fn source_text(error: &dyn std::error::Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}

/// An issuer that is trusted by the anchors beside it.
#[derive(Debug)]
pub struct Current {
    pub issuer: Issuer,
    pub anchors: TrustAnchors,
    pub period: TrustedPeriod,
}

impl Current {
    fn new(
        issuer: Issuer,
        anchors: TrustAnchors,
        name: &str,
        now: SystemTime,
    ) -> Result<Self, IssuerError> {
        let period = issuer.verify(&anchors, name, now)?;
        Ok(Self {
            issuer,
            anchors,
            period,
        })
    }

    fn same_issuer(&self, issuer: &Issuer) -> bool {
        let ders = |i: &Issuer| i.chain().iter().map(|c| c.der.clone()).collect::<Vec<_>>();
        ders(&self.issuer) == ders(issuer)
    }
}

/// Holds what is in use; reading takes no lock.
#[derive(Debug, Default)]
pub struct Authority {
    current: ArcSwapOption<Current>,
    /// Milliseconds until every proxy has asked for the anchors once more.
    round: AtomicU64,
}

impl Authority {
    /// Loads everything once; any failure is final. `name` is an identity the issuer must be able
    /// to certify.
    pub fn load(files: Files, name: &str) -> Result<(Self, Reload), LoadError> {
        let paths = vec![
            files.certificate.clone(),
            files.key.clone(),
            files.anchors.clone(),
        ];
        let watch = file::Watch::new(paths);
        let now = SystemTime::now();
        let (issuer, anchors) = (read_issuer(&files)?, read_anchors(&files, now)?);
        let current = Current::new(issuer, anchors, name, now)?;
        let settling = Settling::new(&current.anchors);
        let authority = Self::default();
        authority.current.store(Some(Arc::new(current)));
        let reload = Reload {
            files,
            watch,
            name: name.to_owned(),
            live: None,
            settling,
            reported: Refused::default(),
            retry: None,
        };
        Ok((authority, reload))
    }

    /// Remembers how long a round of all proxies takes.
    pub(crate) fn set_round(&self, round: Duration) {
        let millis = u64::try_from(round.as_millis()).unwrap_or(u64::MAX);
        self.round.store(millis, Ordering::Relaxed);
    }

    fn round(&self) -> Duration {
        Duration::from_millis(self.round.load(Ordering::Relaxed))
    }

    /// What is in use now; keep it for one request.
    pub fn current(&self) -> Option<Arc<Current>> {
        self.current.load_full()
    }
}

fn read_issuer(files: &Files) -> Result<Issuer, LoadError> {
    let certificate = file::read(&files.certificate)?;
    let key = file::read(&files.key)?;
    Ok(Issuer::from_pem_on_any_curve(
        (&files.certificate.to_string_lossy(), &certificate),
        (&files.key.to_string_lossy(), &key),
    )?)
}

fn read_anchors(files: &Files, now: SystemTime) -> Result<TrustAnchors, LoadError> {
    let file = files.anchors.to_string_lossy();
    check_anchors(&file, &file::read(&files.anchors)?, now)
}

fn check_anchors(file: &str, pem: &[u8], now: SystemTime) -> Result<TrustAnchors, LoadError> {
    let anchors = TrustAnchors::from_pem(file, pem)?;
    anchors
        .check_validity(now)
        .map_err(|source| LoadError::AnchorsNotValid {
            file: file.to_owned(),
            source,
        })?;
    Ok(anchors)
}

/// Why parts of the files on disk are not in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Refused {
    issuer: Option<String>,
    anchors: Option<String>,
}

/// Looks at the files and replaces what is in use. One owner.
#[derive(Debug)]
pub struct Reload {
    files: Files,
    watch: file::Watch,
    name: String,
    live: Option<LiveAnchors>,
    settling: Settling,
    /// Refusals already told; the same one is told once.
    reported: Refused,
    retry: Option<Instant>,
}

impl Reload {
    /// Takes the anchors from `live` whenever it has any.
    pub fn prefer(&mut self, live: LiveAnchors) {
        self.live = Some(live);
    }

    /// A new issuer waits until the anchor it needs has been in force for so long, and for three
    /// rounds of the proxies: whoever has its certificate must be believed by everybody.
    pub fn settle_for(&mut self, time: Duration) {
        self.settling.time = time;
    }

    /// Polls for ever.
    pub async fn run(&mut self, authority: &Authority, recorder: &Recorder, every: Duration) {
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.poll(authority, recorder);
        }
    }

    /// One look; reloads when a file changed, or when a refused update is due for another try.
    pub fn poll(&mut self, authority: &Authority, recorder: &Recorder) {
        let due = self.retry.is_some_and(|at| Instant::now() >= at);
        let live = self
            .live
            .as_ref()
            .is_some_and(|live| live.text.has_changed().unwrap_or(false));
        if self.watch.changed() || live || due {
            self.reload(authority, recorder);
        }
    }

    fn reload(&mut self, authority: &Authority, recorder: &Recorder) {
        let now = SystemTime::now();
        let Some(current) = authority.current() else {
            return;
        };
        let (issuer, anchors) = (read_issuer(&self.files), self.read_anchors(now));
        let (next, refused) = choose(&current, issuer, anchors, &self.name, now);
        let mut settled_at = None;
        if let Some(next) = next {
            let (next, until) =
                self.settling
                    .hold_back(&current, next, authority.round(), &self.name, now);
            settled_at = until;
            if !current.same_issuer(&next.issuer) {
                let certificate = next.issuer.certificate();
                tracing::info!(
                    subject = certificate.subject,
                    days_left = certificate.days_left(now),
                    "Updated identity issuer"
                );
                recorder.issuer_updated();
            }
            if current.anchors != next.anchors {
                let count = next.anchors.certificates().len();
                tracing::info!(count, "Updated identity trust anchors");
                recorder.anchors_updated();
            }
            authority.current.store(Some(Arc::new(next)));
        }
        self.report(refused, recorder);
        self.retry = settled_at.or(self.retry);
    }

    fn read_anchors(&mut self, now: SystemTime) -> Result<TrustAnchors, LoadError> {
        if let Some(live) = &mut self.live {
            let text = live.text.borrow_and_update();
            if let Some(text) = text.as_deref() {
                return check_anchors(&live.origin, text.as_bytes(), now);
            }
        }
        read_anchors(&self.files, now)
    }

    fn report(&mut self, refused: Refused, recorder: &Recorder) {
        if let Some(error) = &refused.issuer
            && refused.issuer != self.reported.issuer
        {
            tracing::warn!(%error, "Skipping issuer update as certs could not be read from disk");
            recorder.issuer_skipped(error);
        }
        if let Some(error) = &refused.anchors
            && refused.anchors != self.reported.anchors
        {
            tracing::warn!(%error, "Skipping trust anchor update");
            recorder.anchors_skipped(error);
        }
        self.retry = (refused != Refused::default()).then(|| Instant::now() + RETRY_INTERVAL);
        self.reported = refused;
    }
}

/// Since when each anchor is in force.
#[derive(Debug)]
struct Settling {
    time: Duration,
    /// By fingerprint; `None` means since before we started.
    since: Vec<(String, Option<Instant>)>,
    told: bool,
}

impl Settling {
    fn new(anchors: &TrustAnchors) -> Self {
        let known = anchors.certificates().iter().map(|c| (c.sha256(), None));
        Self {
            time: Duration::ZERO,
            since: known.collect(),
            told: false,
        }
    }

    /// `next`, or its anchors with the issuer in use until the moment that is returned too.
    fn hold_back(
        &mut self,
        current: &Current,
        next: Current,
        round: Duration,
        name: &str,
        now: SystemTime,
    ) -> (Current, Option<Instant>) {
        let tick = Instant::now();
        let certificates = next.anchors.certificates();
        let since = certificates.iter().map(|c| {
            let sha256 = c.sha256();
            let known = self.since.iter().find(|(known, _)| *known == sha256);
            let since = known.map_or(Some(tick), |(_, since)| *since);
            (sha256, since)
        });
        self.since = since.collect();
        let time = match self.time {
            Duration::ZERO => Duration::ZERO,
            time => time.max(round.saturating_mul(3)),
        };
        let until = |since: &Option<Instant>| since.map(|since| since + time);
        let settled = certificates
            .iter()
            .zip(&self.since)
            .filter(|(_, (_, since))| until(since).is_none_or(|until| until <= tick))
            .map(|(certificate, _)| certificate.clone())
            .collect();
        let settled = TrustAnchors::from_certificates(settled);
        let good = |anchors: &TrustAnchors, issuer: &Issuer| {
            Current::new(issuer.clone(), anchors.clone(), name, now).ok()
        };
        if current.same_issuer(&next.issuer)
            || settled.is_ok_and(|anchors| good(&anchors, &next.issuer).is_some())
        {
            self.told = false;
            return (next, None);
        }
        // Without the anchor of the issuer in use there is nothing to wait with.
        let Some(held) = good(&next.anchors, &current.issuer) else {
            return (next, None);
        };
        let pending = self.since.iter().filter_map(|(_, since)| until(since));
        let until = pending.filter(|until| *until > tick).min();
        if !std::mem::replace(&mut self.told, true) {
            tracing::info!(
                subject = next.issuer.certificate().subject,
                wait = ?until.map(|until| until - tick),
                "New identity issuer waits until its trust anchor is known everywhere"
            );
        }
        (held, until)
    }
}

/// Picks the newest combination that works. Secret and ConfigMap are swapped at different moments,
/// so each may be ahead of the other for a while. `None` leaves everything as it is.
fn choose(
    current: &Current,
    issuer: Result<Issuer, LoadError>,
    anchors: Result<TrustAnchors, LoadError>,
    name: &str,
    now: SystemTime,
) -> (Option<Current>, Refused) {
    let mut refused = Refused::default();
    let issuer = issuer
        .map_err(|error| refused.issuer = Some(error.to_string()))
        .ok();
    let anchors = anchors
        .map_err(|error| refused.anchors = Some(error.to_string()))
        .ok();
    let attempt = |issuer: &Issuer, anchors: &TrustAnchors| {
        Current::new(issuer.clone(), anchors.clone(), name, now).map_err(|error| error.to_string())
    };
    if let (Some(issuer), Some(anchors)) = (&issuer, &anchors) {
        match attempt(issuer, anchors) {
            Ok(both) => return (Some(both), refused),
            Err(error) => refused.issuer = Some(error),
        }
    }
    if let Some(anchors) = &anchors {
        match attempt(&current.issuer, anchors) {
            Ok(next) => return (Some(next), refused),
            Err(error) => refused.anchors = Some(error),
        }
    }
    if let Some(issuer) = &issuer {
        match attempt(issuer, &current.anchors) {
            Ok(next) => {
                refused.issuer = None;
                return (Some(next), refused);
            }
            Err(error) => refused.issuer = Some(error),
        }
    }
    (None, refused)
}

#[cfg(test)]
mod tests;
