//! Logs on standard output, plain or JSON, with a filter that can be changed while running.
//! A statement the filter rejects costs one load: the decision is kept at its call site.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

mod stream;

pub use self::stream::Lines;
pub(crate) use self::stream::unheard;

/// The shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Seconds since start, level, thread, spans with their fields, target, message.
    #[default]
    Plain,
    /// One object a line: `timestamp`, `level`, `fields`, `target`, `spans`, `threadId`.
    Json,
}

/// Reads and changes the filter of the running process.
#[derive(Clone, Debug)]
pub struct Handle {
    filter: reload::Handle<Filter, Registry>,
    current: Arc<Mutex<String>>,
}

/// What the process logs, and what its readers want besides. One layer and not several of them:
/// a pair below a registry asks again about each statement that its inner half has rejected for good.
#[derive(Debug)]
struct Filter {
    own: Directives,
    readers: Vec<stream::Reader>,
}

/// A filter, and on top of it the fields nothing may show.
#[derive(Debug)]
struct Directives {
    directives: EnvFilter,
    hidden: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid log filter {filter:?}: {source}")]
    Filter {
        filter: String,
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("unknown log format {0:?}: expected plain or json")]
    Format(String),
    #[error("logging is already set up")]
    Installed(#[source] tracing_subscriber::util::TryInitError),
    #[error("logging has ended")]
    Gone(#[source] reload::Error),
    #[error("too many readers of the log")]
    Readers,
}

/// Time since the process set up its logs, as `[     0.012345s]`.
struct Uptime(Instant);

/// Sends the logs of the whole process to standard output. `off` silences all of them.
pub fn init(format: Format, filter: &str) -> Result<Handle, Error> {
    let (subscriber, handle) = build(format, filter, io::stdout)?;
    subscriber.try_init().map_err(Error::Installed)?;
    Ok(handle)
}

fn build<W>(
    format: Format,
    filter: &str,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, Handle), Error>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (layer, handle) = reload::Layer::new(Filter {
        own: parse(filter)?,
        readers: Vec::new(),
    });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(false)
        .with_thread_ids(true)
        .log_internal_errors(false);
    let lines = match format {
        Format::Plain => lines.with_timer(Uptime(Instant::now())).boxed(),
        Format::Json => lines
            .json()
            .with_span_list(true)
            .with_current_span(false)
            .boxed(),
    };
    let handle = Handle {
        filter: handle,
        current: Arc::new(Mutex::new(filter.trim().to_owned())),
    };
    Ok((Registry::default().with(layer).with(lines), handle))
}

fn parse(filter: &str) -> Result<Directives, Error> {
    let directives = EnvFilter::try_new(filter.trim()).map_err(|source| Error::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    Ok(Directives {
        directives,
        hidden: hidden_fields(filter),
    })
}

/// The fields of `[{field}]=off` directives. `EnvFilter` lets any directive with a target win
/// over these; the chart adds them so that headers are never logged, whatever else is.
fn hidden_fields(filter: &str) -> Vec<String> {
    filter
        .split(',')
        .filter_map(|directive| {
            let field = directive.trim().strip_prefix("[{")?;
            let field = field.strip_suffix("}]=off")?;
            (!field.contains(['=', '}'])).then(|| field.to_owned())
        })
        .collect()
}

// === impl Directives ===

impl Directives {
    fn hides(&self, metadata: &Metadata<'_>) -> bool {
        let fields = metadata.fields();
        self.hidden
            .iter()
            .any(|field| fields.field(field.as_str()).is_some())
    }

    fn interest<S: Subscriber>(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.hides(metadata) {
            return Interest::never();
        }
        Layer::<S>::register_callsite(&self.directives, metadata)
    }

    fn want<S: Subscriber>(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        !self.hides(metadata) && self.directives.enabled(metadata, context.clone())
    }
}

// === impl Filter ===

impl Filter {
    fn all(&self) -> impl Iterator<Item = &EnvFilter> {
        let readers = self.readers.iter().map(|reader| &reader.wants);
        std::iter::once(&self.own)
            .chain(readers)
            .map(|wants| &wants.directives)
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Filter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // What the process hides, it hides from everybody.
        if self.own.hides(metadata) {
            return Interest::never();
        }
        let own = self.own.interest::<S>(metadata);
        self.readers.iter().fold(own, |interest, reader| {
            let theirs = reader.wants.interest::<S>(metadata);
            let same = (interest.is_always() && theirs.is_always())
                || (interest.is_never() && theirs.is_never());
            if same {
                interest
            } else {
                Interest::sometimes()
            }
        })
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        !self.own.hides(metadata)
            && (self.own.want(metadata, &context)
                || self
                    .readers
                    .iter()
                    .any(|reader| reader.wants.want(metadata, &context)))
    }

    /// Who reads is told here, and only what the process itself wants goes on to its own log.
    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        if self.readers.is_empty() {
            return true;
        }
        stream::tell(&self.readers, event, &context);
        self.own.want(event.metadata(), &context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // The filter that wants most.
        self.all()
            .map(Layer::<S>::max_level_hint)
            .reduce(|most, hint| Some(most?.max(hint?)))
            .flatten()
    }

    // Directives about spans follow these.

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if !self.readers.is_empty() {
            stream::span(attributes, id, &context);
        }
        for directives in self.all() {
            directives.on_new_span(attributes, id, context.clone());
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if !self.readers.is_empty() {
            stream::record(values, id, &context);
        }
        for directives in self.all() {
            Layer::on_record(directives, id, values, context.clone());
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        for directives in self.all() {
            directives.on_enter(id, context.clone());
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        for directives in self.all() {
            directives.on_exit(id, context.clone());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        for directives in self.all() {
            directives.on_close(id.clone(), context.clone());
        }
    }
}

// === impl Handle ===

impl Handle {
    /// The filter as it was last set.
    pub fn current(&self) -> String {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces the filter; an invalid one changes nothing.
    pub fn set(&self, filter: &str) -> Result<(), Error> {
        let parsed = parse(filter)?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        self.filter
            .modify(|filter| filter.own = parsed)
            .map_err(Error::Gone)?;
        *current = filter.trim().to_owned();
        Ok(())
    }
}

// === impl Format ===

impl std::str::FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name.trim().to_ascii_lowercase().as_str() {
            "plain" => Ok(Self::Plain),
            "json" => Ok(Self::Json),
            _ => Err(Error::Format(name.to_owned())),
        }
    }
}

// === impl Uptime ===

impl FormatTime for Uptime {
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        let since = self.0.elapsed();
        write!(
            line,
            "[{:>6}.{:06}s]",
            since.as_secs(),
            since.subsec_micros()
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A subscriber nobody writes to, and its handle.
    pub(crate) fn built(filter: &str) -> (impl Subscriber + Send + Sync, Handle) {
        build(Format::Plain, filter, io::sink).expect("parses")
    }

    /// What was logged, shared between the subscriber and the test.
    #[derive(Clone, Default)]
    pub(super) struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        pub(super) fn take(&self) -> String {
            let bytes = std::mem::take(&mut *self.0.lock().expect("not poisoned"));
            String::from_utf8(bytes).expect("logs are text")
        }
    }

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .expect("not poisoned")
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    pub(super) fn logged(format: Format, filter: &str, with: impl FnOnce(&Lines, &Handle)) {
        let lines = Lines::default();
        let writer = lines.clone();
        let (subscriber, handle) =
            build(format, filter, move || writer.clone()).expect("filter parses");
        tracing::subscriber::with_default(subscriber, || with(&lines, &handle));
    }

    #[test]
    fn a_plain_line_has_uptime_level_thread_spans_target_and_message() {
        logged(Format::Plain, "info", |lines, _| {
            let span = tracing::info_span!("inbound", port = 8080);
            span.in_scope(|| tracing::info!(target: "linkerd_app", id = "a", "Certified identity"));
            let line = lines.take();
            let (time, rest) = line.split_at("[     0.000000s]".len());
            assert!(
                time.starts_with("[     0.") && time.ends_with("s]"),
                "{time}"
            );
            let rest = rest.split_once("ThreadId(").expect("a thread id");
            assert_eq!(rest.0, "  INFO ");
            let after = rest.1.split_once(") ").expect("the end of the thread id").1;
            assert_eq!(
                after,
                "inbound{port=8080}: linkerd_app: Certified identity id=\"a\"\n"
            );
        });
    }

    #[test]
    fn a_json_line_is_one_object() {
        logged(Format::Json, "info", |lines, _| {
            let span = tracing::info_span!("inbound", port = 8080);
            span.in_scope(|| tracing::info!(target: "linkerd_app", id = "a", "Certified identity"));
            let line: serde_json::Value =
                serde_json::from_str(&lines.take()).expect("a line is JSON");
            assert_eq!(line["level"], "INFO");
            assert_eq!(line["target"], "linkerd_app");
            assert_eq!(line["fields"]["message"], "Certified identity");
            assert_eq!(line["fields"]["id"], "a");
            assert_eq!(line["spans"][0]["name"], "inbound");
            assert_eq!(line["spans"][0]["port"], 8080);
            assert!(
                line["threadId"].is_string() && line["timestamp"].is_string(),
                "{line}"
            );
        });
    }

    #[test]
    fn the_filter_changes_while_running() {
        logged(Format::Plain, "off", |lines, handle| {
            assert_eq!(handle.current(), "off");
            tracing::error!("unseen");
            assert_eq!(lines.take(), "");

            handle.set("warn,linkerd=debug").expect("filter parses");
            assert_eq!(handle.current(), "warn,linkerd=debug");
            tracing::debug!(target: "linkerd_proxy::outbound", "seen");
            tracing::debug!(target: "hyper", "unseen");
            assert!(lines.take().ends_with("linkerd_proxy::outbound: seen\n"));

            let error = handle.set("linkerd=loud").expect_err("no such level");
            assert!(
                error.to_string().starts_with("invalid log filter"),
                "{error}"
            );
            assert_eq!(handle.current(), "warn,linkerd=debug");
        });
    }

    #[test]
    fn what_no_directive_asks_for_is_rejected_by_its_level_alone() {
        for (filter, want) in [
            ("off", LevelFilter::OFF),
            ("warn", LevelFilter::WARN),
            (
                "warn,linkerd=info,[{headers}]=off,[{request}]=off",
                LevelFilter::INFO,
            ),
        ] {
            let (subscriber, _handle) = build(Format::Plain, filter, io::sink).expect("parses");
            assert_eq!(subscriber.max_level_hint(), Some(want), "{filter}");
        }
    }

    #[test]
    fn the_suffix_of_the_chart_hides_headers() {
        let filter = "warn,linkerd=debug,hyper=error,[{headers}]=off,[{request}]=off";
        logged(Format::Plain, filter, |lines, handle| {
            tracing::info!(target: "linkerd", headers = "secret", "unseen");
            tracing::debug!(target: "linkerd", request = "secret", "unseen");
            assert_eq!(lines.take(), "");
            tracing::info!(target: "linkerd", "seen");
            assert!(lines.take().ends_with("linkerd: seen\n"));

            handle.set("linkerd=info").expect("filter parses");
            tracing::info!(target: "linkerd", headers = "asked for", "seen");
            assert!(lines.take().ends_with("seen headers=\"asked for\"\n"));
        });
    }
}
