//! Writes statuses while the lease is held: on changes at once, and every ten seconds in case
//! something was lost. An object is written again only if what it should say has changed.

use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch as Body, PatchParams},
};
use linkerd_k8s::{Key, lease::Leadership};
use linkerd_runtime::{drain, ready::Readiness};
use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, histogram::Histogram},
    registry::Registry,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};
use tokio::time::Instant;

use super::{CONTROLLER_NAME, Patch};
use crate::index::Index;

const TICK: Duration = Duration::from_secs(10);
/// How long to gather changes before statuses are computed.
const GATHER: Duration = Duration::from_millis(50);
/// How many objects are written at once; each object is written by one of them at a time.
const CONCURRENCY: usize = 8;

/// What is counted.
#[derive(Clone, Debug)]
pub struct Metrics {
    patches: Counter,
    errors: Counter,
    timeouts: Counter,
    seconds: Histogram,
    enqueues: Counter,
    dequeues: Counter,
    drops: Counter,
    overflows: Counter,
}

/// Writes statuses.
pub struct Writer {
    index: Arc<Mutex<Index>>,
    client: Client,
    leadership: Leadership,
    drain: drain::Watch,
    timeout: Duration,
    metrics: Metrics,
    listed: Readiness,
    /// What was written and not yet seen in the index.
    written: BTreeMap<(&'static str, &'static str, Key), (Value, Instant)>,
}

impl Metrics {
    /// Registers the counters.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::unregistered();
        let status = registry.sub_registry_with_prefix("resource_status");
        status.register("patches", "Statuses written", metrics.patches.clone());
        status.register(
            "patch_api_errors",
            "Statuses the API server refused",
            metrics.errors.clone(),
        );
        status.register(
            "patch_timeouts",
            "Statuses not written in time",
            metrics.timeouts.clone(),
        );
        status.register(
            "patch_duration_seconds",
            "How long writing took",
            metrics.seconds.clone(),
        );
        status.register(
            "patch_enqueues",
            "Statuses found to be written",
            metrics.enqueues.clone(),
        );
        status.register(
            "patch_dequeues",
            "Statuses taken up for writing",
            metrics.dequeues.clone(),
        );
        status.register(
            "patch_drops",
            "Statuses left to the next holder of the lease",
            metrics.drops.clone(),
        );
        status.register(
            "patch_enqueue_overflows",
            "Always zero: what is to be written is computed when it can be, not queued",
            metrics.overflows.clone(),
        );
        metrics
    }

    /// Counters nobody reads.
    pub fn unregistered() -> Self {
        Self {
            patches: Counter::default(),
            errors: Counter::default(),
            timeouts: Counter::default(),
            enqueues: Counter::default(),
            dequeues: Counter::default(),
            drops: Counter::default(),
            overflows: Counter::default(),
            seconds: Histogram::new([0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]),
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("leadership", &self.leadership)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// Writes what the index finds, while leadership is held.
    pub fn new(
        index: Arc<Mutex<Index>>,
        client: Client,
        leadership: Leadership,
        drain: drain::Watch,
        timeout: Duration,
        metrics: Metrics,
    ) -> Self {
        Self {
            index,
            client,
            leadership,
            drain,
            timeout,
            metrics,
            listed: Readiness::new(),
            written: BTreeMap::new(),
        }
    }

    /// Writes only once everything has been listed: a route whose Service is not known yet would
    /// be told that there is none.
    #[must_use]
    pub fn when_listed(self, listed: Readiness) -> Self {
        Self { listed, ..self }
    }

    /// Runs until the process drains. Patches under way then are carried out, no new ones begin:
    /// once it has ended the lease may be let go.
    pub async fn run(mut self) {
        let mut drain = self.drain.clone();
        let mut changes = self.index.lock().status_changes();
        tokio::select! {
            () = self.listed.ready() => {}
            () = drain.signaled() => return,
        }
        while !drain.is_draining() {
            if !self.leadership.is_held() {
                tokio::select! {
                    () = self.leadership.acquired() => {}
                    () = drain.signaled() => return,
                }
                // Whoever led before may have missed something.
                changes.mark_changed();
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(TICK) => {}
                () = drain.signaled() => return,
            }
            tokio::time::sleep(GATHER).await;
            changes.mark_unchanged();
            self.write().await;
        }
    }

    async fn write(&mut self) {
        let now = k8s_openapi::jiff::Timestamp::now();
        let patches = self.index.lock().status_patches(now);
        let started = Instant::now();
        let mut due = Vec::new();
        let mut still_unseen = BTreeMap::new();
        for patch in patches {
            let id = (patch.group, patch.kind, patch.key.clone());
            let said = without_times(patch.status.clone());
            match self.written.remove(&id) {
                Some((before, at)) if before == said && at.elapsed() < TICK => {
                    still_unseen.insert(id, (before, at));
                }
                _ => {
                    still_unseen.insert(id, (said, started));
                    due.push(patch);
                }
            }
        }
        self.written = still_unseen;
        self.metrics
            .enqueues
            .inc_by(u64::try_from(due.len()).unwrap_or(u64::MAX));
        let failed: Vec<_> = stream::iter(due)
            .map(|patch| {
                let this = &*self;
                async move {
                    (!this.patch(&patch).await).then_some((patch.group, patch.kind, patch.key))
                }
            })
            .buffer_unordered(CONCURRENCY)
            .filter_map(std::future::ready)
            .collect()
            .await;
        for id in failed {
            self.written.remove(&id);
        }
    }

    async fn patch(&self, patch: &Patch) -> bool {
        if !self.leadership.is_held() || self.drain.is_draining() {
            self.metrics.drops.inc();
            return false;
        }
        self.metrics.dequeues.inc();
        let resource = ApiResource {
            group: patch.group.to_owned(),
            version: patch.version.to_owned(),
            api_version: format!("{}/{}", patch.group, patch.version),
            kind: patch.kind.to_owned(),
            plural: patch.plural.to_owned(),
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &patch.key.namespace, &resource);
        let body = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": patch.key.name,
            "status": patch.status,
        });
        let params = PatchParams {
            field_manager: Some(CONTROLLER_NAME.to_owned()),
            ..PatchParams::default()
        };
        let started = Instant::now();
        let body = Body::Merge(body);
        let written = api.patch_status(&patch.key.name, &params, &body);
        let result = tokio::time::timeout(self.timeout, written).await;
        self.metrics
            .seconds
            .observe(started.elapsed().as_secs_f64());
        match result {
            Ok(Ok(_)) => {
                self.metrics.patches.inc();
                true
            }
            Ok(Err(error)) => {
                self.metrics.errors.inc();
                tracing::warn!(kind = patch.kind, object = %patch.key, %error, "Could not write a status");
                false
            }
            Err(_) => {
                self.metrics.timeouts.inc();
                tracing::warn!(kind = patch.kind, object = %patch.key, "Writing a status timed out");
                false
            }
        }
    }
}

fn without_times(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.shift_remove("lastTransitionTime");
            for field in fields.values_mut() {
                *field = without_times(field.take());
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = without_times(item.take());
            }
        }
        _ => {}
    }
    value
}

#[cfg(test)]
mod tests;
