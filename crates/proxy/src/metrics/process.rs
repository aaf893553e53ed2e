//! What the process runs on: the runtimes of its threads and its TLS library.

use std::fmt::{self, Write};

use tokio::runtime::RuntimeMetrics;

use super::Labels;

/// The runtimes of all threads.
#[derive(Debug, Default)]
pub struct Runtimes(Vec<RuntimeMetrics>);

impl Runtimes {
    /// Adds the runtime of one thread.
    pub fn add(&mut self, metrics: RuntimeMetrics) {
        self.0.push(metrics);
    }

    /// Writes their sums.
    pub fn write(&self, out: &mut String) -> fmt::Result {
        let sum = |f: &dyn Fn(&RuntimeMetrics) -> u64| self.0.iter().map(f).sum::<u64>();
        let parks = sum(&|m| m.worker_park_count(0));
        let busy: f64 = self
            .0
            .iter()
            .map(|m| m.worker_total_busy_duration(0).as_secs_f64())
            .sum();
        let rows: [(&str, &str, &str, u64); 14] = [
            (
                "workers",
                "gauge",
                "Threads that run tasks.",
                sum(&|m| m.num_workers() as u64),
            ),
            (
                "injection_queue_depth",
                "gauge",
                "Tasks waiting to be taken by a thread.",
                sum(&|m| m.global_queue_depth() as u64),
            ),
            (
                "alive_tasks",
                "gauge",
                "Tasks that have not ended.",
                sum(&|m| m.num_alive_tasks() as u64),
            ),
            (
                "park_total",
                "counter",
                "Times a thread went to sleep.",
                parks,
            ),
            (
                "local_queue_depth",
                "gauge",
                "Tasks waiting in queues of single threads. Not told by the runtime: 0.",
                0,
            ),
            // Every thread has a runtime of its own: there is nobody to take tasks from.
            (
                "steal_total",
                "counter",
                "Tasks taken from other threads.",
                0,
            ),
            (
                "steal_operations_total",
                "counter",
                "Times tasks were taken from other threads.",
                0,
            ),
            (
                "overflow_total",
                "counter",
                "Times a thread gave tasks away.",
                0,
            ),
            (
                "noop_total",
                "counter",
                "Times a thread woke up for nothing. Not told by the runtime: 0.",
                0,
            ),
            (
                "remote_schedule_total",
                "counter",
                "Tasks woken from outside the runtime. Not told by the runtime: 0.",
                0,
            ),
            (
                "local_schedule_total",
                "counter",
                "Tasks woken from inside the runtime. Not told by the runtime: 0.",
                0,
            ),
            (
                "polls_total",
                "counter",
                "Times tasks were run. Not told by the runtime: 0.",
                0,
            ),
            (
                "budget_forced_yield_total",
                "counter",
                "Times a task was made to give way. Not told by the runtime: 0.",
                0,
            ),
            (
                "io_driver_ready_total",
                "counter",
                "Times sockets became ready. Not told by the runtime: 0.",
                0,
            ),
        ];
        for (name, kind, help, value) in rows {
            writeln!(out, "# HELP tokio_rt_{name} {help}")?;
            writeln!(out, "# TYPE tokio_rt_{name} {kind}")?;
            writeln!(out, "tokio_rt_{name} {value}")?;
        }
        writeln!(
            out,
            "# HELP tokio_rt_busy_seconds_total Time threads were busy."
        )?;
        writeln!(out, "# TYPE tokio_rt_busy_seconds_total counter")?;
        writeln!(out, "tokio_rt_busy_seconds_total {busy}")
    }
}

/// Writes what TLS offers.
pub fn write_rustls_info(out: &mut String) -> fmt::Result {
    let provider = linkerd_tls::provider();
    let join = |names: Vec<String>| names.join(",");
    let suites = provider.cipher_suites.iter();
    let suites = suites.map(|s| format!("{:?}", s.suite())).collect();
    let groups = provider.kx_groups.iter();
    let groups = groups.map(|g| format!("{:?}", g.name())).collect();
    let fips = provider.fips();
    let labels = Labels::default()
        .with("tls_suites", &join(suites))
        .with("tls_kx_groups", &join(groups))
        .with("tls_rand", "aws-lc-rs")
        .with("tls_key_provider", "aws-lc-rs")
        .show("tls_fips", fips)
        .finish();
    writeln!(out, "# HELP rustls_info What TLS offers.")?;
    writeln!(out, "# TYPE rustls_info gauge")?;
    writeln!(out, "rustls_info{{{labels}}} 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_counts() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let mut runtimes = Runtimes::default();
        runtimes.add(runtime.metrics());
        runtimes.add(runtime.metrics());
        let mut text = String::new();
        runtimes.write(&mut text).expect("writes");
        assert!(text.contains("\ntokio_rt_workers 2\n"), "{text}");
        let mut text = String::new();
        write_rustls_info(&mut text).expect("writes");
        assert!(text.contains("TLS13_AES_128_GCM_SHA256"), "{text}");
        assert!(text.contains("X25519"), "{text}");
    }
}
