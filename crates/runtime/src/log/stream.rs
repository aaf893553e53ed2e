//! Live readers of the log, each with a filter of its own. A reader has a bounded queue: when it is
//! slow it loses lines and is told how many. Without readers nothing here is ever run.

use std::cell::Cell;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer;
use tracing_subscriber::registry::LookupSpan;

use super::{Directives, Error, Handle};

/// Readers at a time.
const MAX_READERS: usize = 4;
/// Lines that wait for a reader.
const MAX_LINES: usize = 512;
/// A longer line is lost.
const MAX_LINE: usize = 8 * 1024;

/// One reader, as the logging side sees it.
#[derive(Debug)]
pub(super) struct Reader {
    id: u64,
    pub(super) wants: Directives,
    lines: mpsc::Sender<Bytes>,
    lost: AtomicU64,
}

/// The lines of one reader, one JSON object each. Dropping it ends the reading.
#[derive(Debug)]
pub struct Lines {
    id: u64,
    lines: mpsc::Receiver<Bytes>,
    handle: Handle,
}

/// Fields of a span, as the inside of a JSON object; kept in the span.
struct SpanFields(String);

thread_local! {
    static UNHEARD: Cell<bool> = const { Cell::new(false) };
}

/// What `f` logs is not told to readers. Sending them a line must not make the next one.
pub(crate) fn unheard<T>(f: impl FnOnce() -> T) -> T {
    /// Also when `f` panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            UNHEARD.set(self.0);
        }
    }
    let _restore = Restore(UNHEARD.replace(true));
    f()
}

impl Handle {
    /// Starts to read what `filter` asks for, whatever the filter of the process is.
    pub fn listen(&self, filter: &str) -> Result<Lines, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let wants = super::parse(filter)?;
        let id = NEXT.fetch_add(1, Relaxed);
        let (sender, lines) = mpsc::channel(MAX_LINES);
        let reader = Reader {
            id,
            wants,
            lines: sender,
            lost: AtomicU64::new(0),
        };
        let mut taken = false;
        self.filter
            .modify(|filter| {
                if filter.readers.len() < MAX_READERS {
                    filter.readers.push(reader);
                    taken = true;
                }
            })
            .map_err(Error::Gone)?;
        if !taken {
            return Err(Error::Readers);
        }
        let handle = self.clone();
        Ok(Lines { id, lines, handle })
    }
}

impl Lines {
    /// The next line, with its line feed.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.lines.poll_recv(cx)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // Fails only when logging has ended.
        let _ = self
            .handle
            .filter
            .modify(|filter| filter.readers.retain(|reader| reader.id != self.id));
    }
}

/// Tells an event to the readers that want it.
pub(super) fn tell<S>(readers: &[Reader], event: &Event<'_>, context: &layer::Context<'_, S>)
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    if UNHEARD.get() {
        return;
    }
    let mut text = None;
    for reader in readers {
        if reader.wants.want(event.metadata(), context) {
            let text = text.get_or_insert_with(|| line(event, context));
            reader.offer(text);
        }
    }
}

/// Keeps the fields of a span for the lines within it.
pub(super) fn span<S>(attributes: &Attributes<'_>, id: &Id, context: &layer::Context<'_, S>)
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    let mut fields = Fields::default();
    attributes.record(&mut fields);
    if let Some(span) = context.span(id) {
        span.extensions_mut().replace(SpanFields(fields.0));
    }
}

/// Adds what a span learned later.
pub(super) fn record<S>(values: &Record<'_>, id: &Id, context: &layer::Context<'_, S>)
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    let Some(span) = context.span(id) else { return };
    let mut extensions = span.extensions_mut();
    if let Some(SpanFields(known)) = extensions.get_mut::<SpanFields>()
        && known.len() < MAX_LINE
    {
        let mut fields = Fields(std::mem::take(known));
        values.record(&mut fields);
        *known = fields.0;
    }
}

impl Reader {
    fn offer(&self, text: &str) {
        let lost = self.lost.load(Relaxed);
        let line = match lost {
            _ if text.len() > MAX_LINE => None,
            0 => Some(format!("{{{text}}}\n")),
            lost => Some(format!("{{\"dropped_logs\":{lost},{text}}}\n")),
        };
        // Counts of several threads at once may be off by a few; lines are not.
        match line.map(|line| self.lines.try_send(line.into())) {
            Some(Ok(())) => self.lost.fetch_sub(lost, Relaxed),
            _ => self.lost.fetch_add(1, Relaxed),
        };
    }
}

/// The inside of the object that an event is.
fn line<S>(event: &Event<'_>, context: &layer::Context<'_, S>) -> String
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    let mut out = String::with_capacity(512);
    // A string takes all that is written.
    let _ = write_line(&mut out, event, context);
    out
}

fn write_line<S>(
    out: &mut String,
    event: &Event<'_>,
    context: &layer::Context<'_, S>,
) -> fmt::Result
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    out.push_str("\"timestamp\":\"");
    SystemTime.format_time(&mut Writer::new(out))?;
    let metadata = event.metadata();
    let mut fields = Fields::default();
    event.record(&mut fields);
    let thread = format!("{:?}", std::thread::current().id());
    write!(
        out,
        "\",\"level\":\"{}\",\"fields\":{{{}}},\"target\":{},\"spans\":[",
        metadata.level(),
        fields.0,
        text(metadata.target()),
    )?;
    let spans = context.event_scope(event).into_iter();
    for (at, span) in spans.flat_map(|scope| scope.from_root()).enumerate() {
        let comma = if at == 0 { "" } else { "," };
        write!(out, "{comma}{{\"name\":{}", text(span.name()))?;
        match span.extensions().get::<SpanFields>() {
            Some(SpanFields(known)) if !known.is_empty() => write!(out, ",{known}}}")?,
            _ => out.push('}'),
        }
    }
    write!(out, "],\"threadId\":{}", text(&thread))
}

/// A JSON string.
fn text(text: &str) -> serde_json::Value {
    text.into()
}

/// Fields, as the inside of a JSON object.
#[derive(Default)]
struct Fields(String);

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<serde_json::Value>) {
        let comma = if self.0.is_empty() { "" } else { "," };
        let (name, value) = (text(field.name()), value.into());
        // A string takes all that is written.
        let _ = write!(self.0, "{comma}{name}:{value}");
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::log::{Format, tests::logged};

    fn next(lines: &mut Lines) -> Option<serde_json::Value> {
        let mut cx = Context::from_waker(Waker::noop());
        match lines.poll_next(&mut cx) {
            Poll::Ready(Some(line)) => {
                assert_eq!(line.last(), Some(&b'\n'));
                Some(serde_json::from_slice(&line).expect("a line is JSON"))
            }
            _ => None,
        }
    }

    #[test]
    fn readers_have_filters_of_their_own_and_the_process_keeps_its_own() {
        logged(Format::Plain, "warn", |stdout, handle| {
            tracing::debug!(target: "linkerd", "before");
            let mut debug = handle.listen("linkerd=debug").expect("a reader");
            let mut warn = handle.listen("warn").expect("a reader");
            let span = tracing::debug_span!(target: "linkerd", "inbound", port = 8080);
            span.in_scope(|| {
                tracing::debug!(target: "linkerd", id = "a\"b", share = 0.5, on = true, "seen");
            });
            tracing::debug!(target: "hyper", "asked for by nobody");
            assert_eq!(stdout.take(), "", "the process does not want them");
            let line = next(&mut debug).expect("a line");
            assert_eq!(line["level"], "DEBUG");
            assert_eq!(line["target"], "linkerd");
            assert_eq!(
                line["fields"],
                serde_json::json!({"message": "seen", "id": "a\"b", "share": 0.5, "on": true})
            );
            assert_eq!(
                line["spans"],
                serde_json::json!([{"name": "inbound", "port": 8080}])
            );
            assert!(
                line["threadId"].is_string() && line["timestamp"].is_string(),
                "{line}"
            );
            assert_eq!(next(&mut debug), None);
            assert_eq!(next(&mut warn), None);

            tracing::warn!(target: "hyper", "seen");
            assert!(stdout.take().ends_with("hyper: seen\n"));
            assert!(next(&mut warn).is_some());
            assert_eq!(next(&mut debug), None);

            handle.set("off").expect("parses");
            tracing::warn!(target: "hyper", "seen");
            assert!(next(&mut warn).is_some(), "readers outlive a new filter");
            drop((debug, warn));
            tracing::error!(target: "linkerd", "nobody is left");
            assert_eq!(stdout.take(), "");
        });
    }

    #[test]
    fn a_slow_reader_loses_lines_and_is_told() {
        logged(Format::Plain, "off", |_, handle| {
            let mut slow = handle.listen("info").expect("a reader");
            for _ in 0..MAX_LINES + 3 {
                tracing::info!("a line");
            }
            tracing::info!("{}", "x".repeat(MAX_LINE));
            for at in 0..MAX_LINES {
                let line = next(&mut slow).expect("a line");
                assert!(line.get("dropped_logs").is_none(), "{at}: {line}");
            }
            assert_eq!(next(&mut slow), None);
            tracing::info!("another");
            tracing::info!("and another");
            assert_eq!(next(&mut slow).expect("a line")["dropped_logs"], 4);
            let line = next(&mut slow).expect("a line");
            assert!(line.get("dropped_logs").is_none(), "{line}");
        });
    }

    #[test]
    fn readers_are_few_and_do_not_hear_themselves_or_what_is_hidden() {
        let filter = "warn,[{headers}]=off";
        logged(Format::Plain, filter, |_, handle| {
            let bad = handle.listen("linkerd=loud").expect_err("no such level");
            assert!(matches!(bad, Error::Filter { .. }), "{bad}");
            let mut readers: Vec<_> = (0..MAX_READERS)
                .map(|_| handle.listen("trace").expect("a reader"))
                .collect();
            assert!(matches!(handle.listen("trace"), Err(Error::Readers)));
            unheard(|| tracing::info!("sending a line"));
            tracing::info!(headers = "secret", "unseen");
            for reader in &mut readers {
                assert_eq!(next(reader), None);
            }
            readers.pop();
            assert!(handle.listen("trace").is_ok(), "there is room again");
        });
    }
}
