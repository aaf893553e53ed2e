//! Which replica may write: a Lease object, claimed and renewed by one holder at a time.
//!
//! [`Candidate::run`] loops for ever; others ask the [`Leadership`] it feeds. A holder that cannot
//! renew stops being leader when its lease runs out, whether or not the API server answers.
//! Whether somebody else's lease has run out is judged by the local clock since the lease was
//! last seen to change, so clocks that disagree do no harm.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use linkerd_runtime::drain;
use serde_json::json;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

/// How often a release is tried against writes of others.
const RELEASE_TRIES: usize = 3;

/// What a lease is called and how long it lasts.
#[derive(Clone, Debug)]
pub struct Params {
    pub namespace: String,
    pub name: String,
    /// This replica, usually the pod's name.
    pub identity: String,
    pub field_manager: String,
    pub labels: BTreeMap<String, String>,
    pub owner: Option<OwnerReference>,
    pub duration: Duration,
    /// How long after a renewal the next one is tried.
    pub renew_after: Duration,
    /// Pause after a failure, and between looks at somebody else's lease.
    pub retry: Duration,
}

/// Takes part in the election.
#[derive(Debug)]
pub struct Candidate {
    api: Api<Lease>,
    params: Params,
    seen: Option<Seen>,
    until: watch::Sender<Option<Instant>>,
}

/// The outcome of the election as this replica knows it.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

/// The task that writes under the lease ended although nobody told it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("whoever writes under the lease ended")]
pub struct WriterEnded;

/// A version of the lease and when it was first seen.
#[derive(Clone, Debug)]
struct Seen {
    version: String,
    since: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Write our name into the lease; the number of transitions grows if it was not there.
    Claim { transitions: i32 },
    /// It is another's for at least this long.
    Wait(Duration),
}

// === impl Leadership ===

impl Leadership {
    /// A claim that never ends, for processes that run alone and for tests.
    pub fn always() -> Self {
        let forever = Instant::now() + Duration::from_secs(100 * 365 * 24 * 3600);
        Self(watch::channel(Some(forever)).1)
    }

    pub fn never() -> Self {
        Self(watch::channel(None).1)
    }

    /// Held until the time somebody else says, for tests.
    pub fn held_until(until: watch::Receiver<Option<Instant>>) -> Self {
        Self(until)
    }

    pub fn is_held(&self) -> bool {
        self.0.borrow().is_some_and(|until| until > Instant::now())
    }

    /// Ends when the lease is held.
    pub async fn acquired(&mut self) {
        while !self.is_held() {
            if self.0.changed().await.is_err() {
                // Nobody claims any more: it will never be held.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ends when the lease is not held any more.
    pub async fn lost(&mut self) {
        loop {
            let until = *self.0.borrow_and_update();
            let Some(until) = until else { return };
            tokio::select! {
                () = tokio::time::sleep_until(until) => if !self.is_held() { return },
                changed = self.0.changed() => if changed.is_err() {
                    tokio::time::sleep_until(until).await;
                    return;
                },
            }
        }
    }
}

// === impl Candidate ===

impl Candidate {
    pub fn new(client: Client, params: Params) -> (Self, Leadership) {
        let api = Api::namespaced(client, &params.namespace);
        let (until, leadership) = watch::channel(None);
        (
            Self {
                api,
                params,
                seen: None,
                until,
            },
            Leadership(leadership),
        )
    }

    /// Claims, renews and waits for ever.
    pub async fn run(mut self) {
        self.contend().await;
    }

    async fn contend(&mut self) {
        // An API server that neither answers nor hangs up does not keep us from asking again.
        let patience = self.params.duration / 3;
        loop {
            let pause = match timeout(patience, self.round()).await {
                Ok(Ok(pause)) => pause,
                Ok(Err(error)) => {
                    warn!(lease = %self.params.name, %error, "Could not claim the lease");
                    self.params.retry
                }
                Err(_) => {
                    warn!(lease = %self.params.name, "The lease could not be claimed in time");
                    self.params.retry
                }
            };
            sleep(pause).await;
        }
    }

    /// [`Candidate::run`] until the process drains, for a `writer` that stops by itself then. The
    /// lease is let go when the writer has ended or `patience` has passed, not before: another
    /// replica may write from that moment on. A writer that ends before is an error: a lease held
    /// for nobody would keep the other replicas from writing.
    pub async fn run_for(
        mut self,
        mut writer: JoinHandle<()>,
        mut drain: drain::Watch,
        patience: Duration,
    ) -> Result<(), WriterEnded> {
        let written = async {
            tokio::select! {
                ended = &mut writer => {
                    if let Err(error) = &ended {
                        warn!(%error, "The writer failed");
                    }
                    return if drain.is_draining() { ended.map_err(|_| WriterEnded) } else { Err(WriterEnded) };
                }
                () = drain.signaled() => {}
            }
            match timeout(patience, &mut writer).await {
                Ok(ended) => ended.map_err(|_| WriterEnded),
                Err(_) => {
                    writer.abort();
                    Ok(())
                }
            }
        };
        let outcome = tokio::select! {
            outcome = written => outcome,
            () = self.contend() => unreachable!("the election has no end"),
        };
        match timeout(patience, self.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                info!(lease = %self.params.name, %error, "Could not release the lease: it runs out by itself");
            }
            Err(_) => {
                info!(lease = %self.params.name, "Could not release the lease in time: it runs out by itself");
            }
        }
        outcome
    }

    /// One look at the lease and, when it is free or ours, one write. Answers how long to wait.
    async fn round(&mut self) -> Result<Duration, kube::Error> {
        let lease = match self.api.get_opt(&self.params.name).await? {
            Some(lease) => lease,
            None => match self.create().await {
                Ok(lease) => lease,
                // Another replica was faster.
                Err(kube::Error::Api(status)) if status.code == 409 => return Ok(Duration::ZERO),
                Err(error) => return Err(error),
            },
        };
        let now = Instant::now();
        let since = self.see(
            lease.metadata.resource_version.clone().unwrap_or_default(),
            now,
        );
        let spec = lease.spec.clone().unwrap_or_default();
        match decide(&spec, &self.params.identity, now.duration_since(since)) {
            Step::Claim { transitions } => self.claim(&lease, transitions, now).await,
            Step::Wait(pause) => {
                self.lead(None);
                Ok(pause.min(self.params.retry.max(Duration::from_millis(100))))
            }
        }
    }

    /// Remembers the version and answers since when it has been the newest.
    fn see(&mut self, version: String, now: Instant) -> Instant {
        match &self.seen {
            Some(seen) if seen.version == version => seen.since,
            _ => {
                self.seen = Some(Seen {
                    version,
                    since: now,
                });
                now
            }
        }
    }

    async fn create(&self) -> Result<Lease, kube::Error> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.params.name.clone()),
                namespace: Some(self.params.namespace.clone()),
                labels: Some(self.params.labels.clone()),
                owner_references: self.params.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: None,
        };
        let params = PostParams {
            field_manager: Some(self.params.field_manager.clone()),
            ..PostParams::default()
        };
        self.api.create(&params, &lease).await
    }

    async fn claim(
        &mut self,
        lease: &Lease,
        transitions: i32,
        now: Instant,
    ) -> Result<Duration, kube::Error> {
        let spec = lease.spec.clone().unwrap_or_default();
        let ours = spec.holder_identity.as_deref() == Some(self.params.identity.as_str());
        let written = micro_time();
        let acquired = spec
            .acquire_time
            .filter(|_| ours)
            .unwrap_or_else(|| written.clone());
        let patch = json!({
            "metadata": {"resourceVersion": lease.metadata.resource_version},
            "spec": {
                "holderIdentity": self.params.identity,
                "leaseDurationSeconds": self.params.duration.as_secs(),
                "acquireTime": acquired,
                "renewTime": written,
                "leaseTransitions": transitions,
            },
        });
        match self.patch(&patch).await {
            Ok(lease) => {
                self.see(
                    lease.metadata.resource_version.unwrap_or_default(),
                    Instant::now(),
                );
                self.lead(Some(now + self.params.duration));
                Ok(self.params.renew_after)
            }
            // Somebody wrote in between: look again.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Duration::from_millis(10)),
            Err(error) => Err(error),
        }
    }

    /// Looks before it writes: a claim that was under way when the end came may have been
    /// written without us knowing its version.
    async fn release(&mut self) -> Result<(), kube::Error> {
        self.lead(None);
        for _ in 0..RELEASE_TRIES {
            let Some(lease) = self.api.get_opt(&self.params.name).await? else {
                return Ok(());
            };
            let holder = lease.spec.and_then(|spec| spec.holder_identity);
            if holder.as_deref() != Some(self.params.identity.as_str()) {
                return Ok(());
            }
            let patch = json!({
                "metadata": {"resourceVersion": lease.metadata.resource_version},
                "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": micro_time()},
            });
            match self.patch(&patch).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                written => return written.map(drop),
            }
        }
        Ok(())
    }

    async fn patch(&self, patch: &serde_json::Value) -> Result<Lease, kube::Error> {
        let params = PatchParams {
            field_manager: Some(self.params.field_manager.clone()),
            ..PatchParams::default()
        };
        self.api
            .patch(&self.params.name, &params, &Patch::Merge(patch))
            .await
    }

    fn lead(&self, until: Option<Instant>) {
        let led = Leadership(self.until.subscribe()).is_held();
        let leads = until.is_some();
        if led != leads {
            info!(lease = %self.params.name, leader = leads, "Leadership changed");
        }
        self.until
            .send_if_modified(|current| std::mem::replace(current, until) != until);
    }
}

/// What to do about a lease that has not changed for `unchanged`.
fn decide(spec: &LeaseSpec, identity: &str, unchanged: Duration) -> Step {
    let transitions = spec.lease_transitions.unwrap_or(0);
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder == identity {
        return Step::Claim { transitions };
    }
    let lasts = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
    match Duration::from_secs(lasts).checked_sub(unchanged) {
        Some(left) if !holder.is_empty() && !left.is_zero() => Step::Wait(left),
        _ => Step::Claim {
            transitions: transitions.saturating_add(i32::from(!holder.is_empty())),
        },
    }
}

fn micro_time() -> MicroTime {
    MicroTime(k8s_openapi::jiff::Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(holder: &str, seconds: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(4),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn decides() {
        let seconds = Duration::from_secs;
        for (name, spec, unchanged, expected) in [
            (
                "never held",
                LeaseSpec::default(),
                seconds(0),
                Step::Claim { transitions: 0 },
            ),
            (
                "ours",
                held("me", 30),
                seconds(5),
                Step::Claim { transitions: 4 },
            ),
            (
                "ours, run out",
                held("me", 30),
                seconds(90),
                Step::Claim { transitions: 4 },
            ),
            (
                "another's",
                held("other", 30),
                seconds(10),
                Step::Wait(seconds(20)),
            ),
            (
                "another's, run out",
                held("other", 30),
                seconds(30),
                Step::Claim { transitions: 5 },
            ),
            (
                "released",
                held("", 1),
                seconds(0),
                Step::Claim { transitions: 4 },
            ),
        ] {
            assert_eq!(decide(&spec, "me", unchanged), expected, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_not_renewed_runs_out() {
        let (until, receiver) = watch::channel(None);
        let mut leadership = Leadership(receiver);
        assert!(!leadership.is_held());
        until.send_replace(Some(Instant::now() + Duration::from_secs(30)));
        leadership.acquired().await;
        assert!(leadership.is_held());
        leadership.lost().await;
        assert!(!leadership.is_held());
    }
}
