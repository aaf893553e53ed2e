//! The access log of inbound HTTP: one line per request, in Apache's form or as JSON. Lines go to a
//! thread of their own; when it cannot keep up, lines are dropped and the log says how many.

use std::{
    fmt::Write as _,
    io::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Head, Source};
use crate::config::AccessLog;

/// Lines that may wait for the writer.
const QUEUE: usize = 8 * 1024;

/// Where lines go; clones share it.
#[derive(Clone, Debug)]
pub struct Log {
    format: AccessLog,
    lines: SyncSender<String>,
    dropped: Arc<AtomicU64>,
}

/// What is known when a request comes in.
#[derive(Clone, Debug)]
pub struct Entry {
    client: SocketAddr,
    client_id: String,
    at: SystemTime,
    method: String,
    target: String,
    version: &'static str,
    trace_id: String,
    request_bytes: String,
    user_agent: String,
    host: String,
}

/// What is known when it has been answered, or will not be.
#[derive(Clone, Debug)]
pub struct Done {
    /// Status of the answer.
    pub status: Option<u16>,
    /// Its `content-length`.
    pub response_bytes: Option<String>,
    /// Until its head.
    pub total: Duration,
    /// Of that, in our own code.
    pub processing: Duration,
}

impl Log {
    /// Starts the thread that writes.
    pub fn start(format: AccessLog, to: Box<dyn Write + Send>) -> std::io::Result<Self> {
        let (lines, queue) = sync_channel(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        let lost = dropped.clone();
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_lines(&queue, &lost, to))?;
        Ok(Self {
            format,
            lines,
            dropped,
        })
    }

    /// Queues a line; never waits.
    pub fn write(&self, entry: &Entry, done: &Done) {
        if self.lines.try_send(entry.line(self.format, done)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Ends when every worker is gone.
fn write_lines(queue: &Receiver<String>, lost: &AtomicU64, to: Box<dyn Write + Send>) {
    let mut out = std::io::BufWriter::new(to);
    while let Ok(mut line) = queue.recv() {
        loop {
            // A reader that went away is no reason to stop answering requests.
            let _ = out.write_all(line.as_bytes());
            line = match queue.try_recv() {
                Ok(line) => line,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            };
        }
        let _ = out.flush();
        let dropped = lost.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "The access log cannot keep up");
        }
    }
}

/// Headers that may carry a trace id, best first.
const TRACE_IDS: [&str; 3] = ["x-b3-traceid", "x-request-id", "x-amzn-trace-id"];

impl Entry {
    /// Takes down a request.
    pub fn new(head: &impl Head, source: Source<'_>, at: SystemTime) -> Self {
        let header = |name| head.first(name).unwrap_or_default();
        Self {
            client: source.addr,
            client_id: source.id().unwrap_or("-").to_owned(),
            at,
            method: head.method().to_owned(),
            target: head.target(),
            version: head.version(),
            trace_id: TRACE_IDS
                .iter()
                .find_map(|name| head.first(name))
                .unwrap_or_default(),
            request_bytes: header("content-length"),
            user_agent: header("user-agent"),
            host: header("host"),
        }
    }

    /// The line, its end included.
    pub fn line(&self, format: AccessLog, done: &Done) -> String {
        match format {
            AccessLog::Apache => self.apache(done),
            AccessLog::Json => self.json(done),
        }
    }

    fn apache(&self, done: &Done) -> String {
        let mut line = format!(
            "{} {} - [{}] \"",
            self.client,
            self.client_id,
            Rfc3339(self.at)
        );
        for part in [&self.method, " ", &self.target, " "] {
            put_escaped(&mut line, part);
        }
        let _ = match done.status {
            Some(status) => writeln!(line, "{}\" {status}", self.version),
            None => writeln!(line, "{}\" -", self.version),
        };
        line
    }

    fn json(&self, done: &Done) -> String {
        let mut line = String::from("{");
        let mut put = |name: &str, value: &str| {
            if line.len() > 1 {
                line.push(',');
            }
            crate::admin::put_json(&mut line, name);
            line.push(':');
            // The status is the only number that is written as one.
            if name == "status" {
                line.push_str(value);
            } else {
                crate::admin::put_json(&mut line, value);
            }
        };
        put("client.addr", &self.client.to_string());
        put("client.id", &self.client_id);
        put("host", &self.host);
        put("method", &self.method);
        put("processing_ns", &done.processing.as_nanos().to_string());
        put("request_bytes", &self.request_bytes);
        if let Some(bytes) = &done.response_bytes {
            put("response_bytes", bytes);
        }
        if let Some(status) = done.status {
            put("status", &status.to_string());
        }
        put("timestamp", &Rfc3339(self.at).to_string());
        put("total_ns", &done.total.as_nanos().to_string());
        put("trace_id", &self.trace_id);
        put("uri", &self.target);
        put("user_agent", &self.user_agent);
        put("version", self.version);
        line.push_str("}\n");
        line
    }
}

/// What a client sent must not end a line or a quoted part of it.
fn put_escaped(line: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                line.push('\\');
                line.push(c);
            }
            c if c.is_control() => {
                let _ = write!(line, "\\x{:02x}", u32::from(c));
            }
            c => line.push(c),
        }
    }
}

/// A time in UTC, to the nanosecond.
struct Rfc3339(SystemTime);

impl std::fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let nanos = since.subsec_nanos();
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z"
        )
    }
}

/// Year, month and day of a day since 1970, by the Gregorian rules. Years are counted from March, so
/// that a leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use linkerd_core::identity::Id;

    use super::*;
    use crate::policy::server::ClientTls;

    fn entry(id: Option<&str>, headers: &[(&str, &str)]) -> Entry {
        let mut request = http::Request::builder()
            .method("POST")
            .uri("http://web:7000/books?a=1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let tls = id.map(|id| ClientTls::Mesh(Some(Id::parse(id).expect("a name"))));
        let source = Source {
            addr: ([10, 42, 0, 63], 51160).into(),
            tls: tls.as_ref(),
        };
        let at = UNIX_EPOCH + Duration::new(1_661_286_500, 71_809_491);
        Entry::new(&request.body(()).expect("valid"), source, at)
    }

    fn done(status: Option<u16>, bytes: Option<&str>) -> Done {
        Done {
            status,
            response_bytes: bytes.map(str::to_owned),
            total: Duration::from_nanos(14_441_135),
            processing: Duration::from_nanos(39_826),
        }
    }

    #[test]
    fn apache_lines() {
        let id = Some("traffic.ns.serviceaccount.identity.linkerd.cluster.local");
        for (name, entry, done, want) in [
            (
                "meshed",
                entry(id, &[]),
                done(Some(303), None),
                "10.42.0.63:51160 traffic.ns.serviceaccount.identity.linkerd.cluster.local - \
                 [2022-08-23T20:28:20.071809491Z] \"POST http://web:7000/books?a=1 HTTP/2.0\" 303\n",
            ),
            (
                "plain",
                entry(None, &[]),
                done(Some(200), Some("5")),
                "10.42.0.63:51160 - - [2022-08-23T20:28:20.071809491Z] \
                 \"POST http://web:7000/books?a=1 HTTP/2.0\" 200\n",
            ),
            (
                "no answer",
                entry(None, &[]),
                done(None, None),
                "10.42.0.63:51160 - - [2022-08-23T20:28:20.071809491Z] \
                 \"POST http://web:7000/books?a=1 HTTP/2.0\" -\n",
            ),
        ] {
            assert_eq!(entry.line(AccessLog::Apache, &done), want, "{name}");
        }
    }

    #[test]
    fn json_lines() {
        let headers = [
            ("content-length", "12"),
            ("user-agent", "curl/8 \"x\""),
            ("host", "web:7000"),
            ("x-request-id", "r1"),
            ("x-b3-traceid", "b3"),
        ];
        assert_eq!(
            entry(Some("id.ns"), &headers).line(AccessLog::Json, &done(Some(200), Some("19627"))),
            "{\"client.addr\":\"10.42.0.63:51160\",\"client.id\":\"id.ns\",\"host\":\"web:7000\",\
             \"method\":\"POST\",\"processing_ns\":\"39826\",\"request_bytes\":\"12\",\
             \"response_bytes\":\"19627\",\"status\":200,\
             \"timestamp\":\"2022-08-23T20:28:20.071809491Z\",\"total_ns\":\"14441135\",\
             \"trace_id\":\"b3\",\"uri\":\"http://web:7000/books?a=1\",\
             \"user_agent\":\"curl/8 \\\"x\\\"\",\"version\":\"HTTP/2.0\"}\n"
        );
        assert_eq!(
            entry(None, &[]).line(AccessLog::Json, &done(None, None)),
            "{\"client.addr\":\"10.42.0.63:51160\",\"client.id\":\"-\",\"host\":\"\",\
             \"method\":\"POST\",\"processing_ns\":\"39826\",\"request_bytes\":\"\",\
             \"timestamp\":\"2022-08-23T20:28:20.071809491Z\",\"total_ns\":\"14441135\",\
             \"trace_id\":\"\",\"uri\":\"http://web:7000/books?a=1\",\
             \"user_agent\":\"\",\"version\":\"HTTP/2.0\"}\n"
        );
    }

    #[test]
    fn a_client_cannot_forge_a_line() {
        let mut line = String::new();
        put_escaped(&mut line, "/a\" 200\n\\");
        assert_eq!(line, "/a\\\" 200\\x0a\\\\");
    }

    #[test]
    fn times() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000000Z"),
            (4_102_444_800, "2100-01-01T00:00:00.000000000Z"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(Rfc3339(at).to_string(), want);
        }
    }
}
