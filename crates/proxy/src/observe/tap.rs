//! Tap: requests shown to somebody who asked, as they happen. One [`Tap`] per call of `Observe`; a
//! request that matches is followed from its head to its end. While nobody taps, nothing is looked at.

pub mod matching;
pub mod server;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use linkerd_api::proto::{
    http_types,
    tap::{Eos, TapEvent, eos, tap_event},
};
use parking_lot::RwLock;
use tokio::sync::mpsc;

use self::matching::{Match, Subject};
use super::{Fields, Head};
use crate::metrics::http::Outcome;

/// Events that may wait for the one who taps; more are dropped.
const EVENTS: usize = 400;
/// Calls of `Observe` at once; more are refused.
const TAPS: usize = 64;

/// Everybody who taps now. Shared by all workers.
#[derive(Debug, Default)]
pub struct Taps {
    count: AtomicUsize,
    list: RwLock<Vec<Arc<Tap>>>,
    bases: AtomicU32,
    dropped: Arc<AtomicU64>,
}

/// One call of `Observe`.
#[derive(Debug)]
pub struct Tap {
    base: u32,
    matches: Match,
    headers: bool,
    /// Requests still to be shown.
    left: AtomicU32,
    streams: AtomicU64,
    events: mpsc::Sender<TapEvent>,
    dropped: Arc<AtomicU64>,
}

/// What is asked for.
#[derive(Debug)]
pub struct Wanted {
    /// Which requests.
    pub matches: Match,
    /// Whether their headers are shown.
    pub headers: bool,
    /// How many requests.
    pub limit: u32,
}

impl Taps {
    /// Whether anybody taps.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Begins a tap; `None` when there are too many.
    pub fn add(&self, wanted: Wanted) -> Option<(Weak<Tap>, mpsc::Receiver<TapEvent>)> {
        let mut list = self.list.write();
        if list.len() >= TAPS {
            return None;
        }
        let (events, receiver) = mpsc::channel(EVENTS);
        let tap = Arc::new(Tap {
            base: self.bases.fetch_add(1, Ordering::Relaxed),
            matches: wanted.matches,
            headers: wanted.headers,
            left: AtomicU32::new(wanted.limit),
            streams: AtomicU64::new(0),
            events,
            dropped: self.dropped.clone(),
        });
        list.push(tap.clone());
        self.count.store(list.len(), Ordering::Relaxed);
        Some((Arc::downgrade(&tap), receiver))
    }

    /// Events that nobody took in time.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Ends a tap. Requests it follows already are shown to their end.
    pub fn remove(&self, tap: &Arc<Tap>) {
        let mut list = self.list.write();
        list.retain(|t| !Arc::ptr_eq(t, tap));
        self.count.store(list.len(), Ordering::Relaxed);
    }

    /// The taps that take a request. Each takes no more than it was asked for.
    fn takers(&self, subject: &Subject<'_>) -> Vec<Arc<Tap>> {
        let mut spent = Vec::new();
        let takers = self
            .list
            .read()
            .iter()
            .filter(|tap| tap.matches.holds(subject))
            .filter(|tap| {
                let taken = tap
                    .left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
                if taken.is_ok_and(|before| before <= 1) {
                    spent.push(Arc::clone(tap));
                }
                taken.is_ok()
            })
            .cloned()
            .collect();
        for tap in &spent {
            self.remove(tap);
        }
        takers
    }
}

/// Labels of one end of a connection.
pub type Labels = HashMap<String, String>;

/// A request that somebody may want to see.
#[derive(Debug)]
pub struct Tapped {
    taps: Arc<Taps>,
    inbound: bool,
    source: SocketAddr,
    source_labels: Labels,
    route_labels: Labels,
    method: String,
    scheme: String,
    authority: String,
    path: String,
    /// With its query, of an HTTP/2 message: others have no pseudo-headers.
    target: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    streams: Vec<Stream>,
}

/// A request as one tap follows it.
#[derive(Debug)]
struct Stream {
    tap: Arc<Tap>,
    id: tap_event::http::StreamId,
    destination: SocketAddr,
    destination_labels: Labels,
    began: Instant,
    answered: Option<Instant>,
    bytes: u64,
    trailers: Vec<(String, Vec<u8>)>,
}

impl Tapped {
    /// Takes down a request's head.
    pub fn new(
        taps: Arc<Taps>,
        inbound: bool,
        source: SocketAddr,
        source_labels: Labels,
        head: &impl Head,
    ) -> Self {
        Self {
            taps,
            inbound,
            source,
            source_labels,
            route_labels: Labels::new(),
            method: head.method().to_owned(),
            scheme: head.scheme().to_owned(),
            authority: head.authority().unwrap_or_default().to_owned(),
            path: head.path().to_owned(),
            target: head.is_http2().then(|| match head.query() {
                Some(query) => format!("{}?{query}", head.path()),
                None => head.path().to_owned(),
            }),
            headers: lines(head),
            streams: Vec::new(),
        }
    }

    /// The route of a service profile that the request takes.
    pub fn routed(&mut self, labels: &[(String, String)]) {
        self.route_labels = labels.iter().cloned().collect();
    }

    /// The request goes to an endpoint; a second time when it is tried again.
    pub fn dispatched(&mut self, destination: SocketAddr, labels: &Labels, now: Instant) {
        self.ended(None, now);
        let takers = self.taps.takers(&Subject {
            source: self.source,
            destination,
            destination_labels: labels,
            route_labels: &self.route_labels,
            scheme: &self.scheme,
            method: &self.method,
            authority: &self.authority,
            path: &self.path,
        });
        for tap in takers {
            let id = tap_event::http::StreamId {
                base: tap.base,
                stream: tap.streams.fetch_add(1, Ordering::Relaxed),
            };
            let init = tap_event::http::RequestInit {
                id: Some(id),
                method: Some(method(&self.method)),
                scheme: Some(scheme(&self.scheme)),
                authority: self.authority.clone(),
                path: self.path.clone(),
                headers: tap.headers.then(|| match &self.target {
                    None => headers(&[], &self.headers),
                    Some(target) => {
                        let pseudo = [
                            (":method", &self.method),
                            (":scheme", &self.scheme),
                            (":authority", &self.authority),
                            (":path", target),
                        ];
                        let pseudo = pseudo.map(|(name, value)| (name, value.as_bytes()));
                        headers(&pseudo, &self.headers)
                    }
                }),
            };
            let stream = Stream {
                tap,
                id,
                destination,
                destination_labels: labels.clone(),
                began: now,
                answered: None,
                bytes: 0,
                trailers: Vec::new(),
            };
            self.show(&stream, tap_event::http::Event::RequestInit(init));
            self.streams.push(stream);
        }
    }

    /// The answer's head came.
    pub fn answered(&mut self, status: u16, fields: &impl Fields, now: Instant) {
        if self.streams.is_empty() {
            return;
        }
        let found = lines(fields);
        for stream in &mut self.streams {
            stream.answered = Some(now);
        }
        for stream in &self.streams {
            let status_text = status.to_string();
            let pseudo = [(":status", status_text.as_bytes())];
            let pseudo = if self.target.is_some() {
                &pseudo[..]
            } else {
                &[]
            };
            let init = tap_event::http::ResponseInit {
                id: Some(stream.id),
                since_request_init: since(stream.began, now),
                http_status: status.into(),
                headers: stream.tap.headers.then(|| headers(pseudo, &found)),
            };
            self.show(stream, tap_event::http::Event::ResponseInit(init));
        }
    }

    /// Bytes of the answer's body passed.
    pub fn body(&mut self, bytes: u64) {
        for stream in &mut self.streams {
            stream.bytes += bytes;
        }
    }

    /// The answer's trailers came.
    pub fn trailers(&mut self, trailers: &impl Fields) {
        for stream in self.streams.iter_mut().filter(|s| s.tap.headers) {
            stream.trailers = lines(trailers);
        }
    }

    /// The exchange is over; without an outcome it was given up.
    pub fn ended(&mut self, outcome: Option<Outcome>, now: Instant) {
        let end = match outcome {
            None => Some(eos::End::ResetErrorCode(h2::Reason::CANCEL.into())),
            Some(Outcome {
                grpc: Some(code), ..
            }) => Some(eos::End::GrpcStatusCode(code.into())),
            Some(Outcome { error: "", .. }) => None,
            Some(Outcome { error, .. }) => Some(eos::End::ResetErrorCode(reset(error).into())),
        };
        for stream in std::mem::take(&mut self.streams) {
            let done = tap_event::http::ResponseEnd {
                id: Some(stream.id),
                since_request_init: since(stream.began, now),
                since_response_init: stream.answered.and_then(|then| since(then, now)),
                response_bytes: stream.bytes,
                // A plain end is one, too.
                eos: Some(Eos { end }),
                trailers: stream.tap.headers.then(|| headers(&[], &stream.trailers)),
            };
            self.show(&stream, tap_event::http::Event::ResponseEnd(done));
        }
    }

    fn show(&self, stream: &Stream, event: tap_event::http::Event) {
        let direction = if self.inbound {
            tap_event::ProxyDirection::Inbound
        } else {
            tap_event::ProxyDirection::Outbound
        };
        let event = TapEvent {
            source: Some(self.source.into()),
            source_meta: Some(tap_event::EndpointMeta {
                labels: self.source_labels.clone(),
            }),
            route_meta: Some(tap_event::RouteMeta {
                labels: self.route_labels.clone(),
            }),
            destination: Some(stream.destination.into()),
            destination_meta: Some(tap_event::EndpointMeta {
                labels: stream.destination_labels.clone(),
            }),
            proxy_direction: direction.into(),
            event: Some(tap_event::Event::Http(tap_event::Http {
                event: Some(event),
            })),
        };
        // A slow reader misses events; requests never wait for it.
        if let Err(mpsc::error::TrySendError::Full(_)) = stream.tap.events.try_send(event) {
            stream.tap.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn since(then: Instant, now: Instant) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(now.saturating_duration_since(then)).ok()
}

fn lines(fields: &impl Fields) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    fields.each(&mut |name, value| {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        found.push((name, value.to_vec()));
    });
    found
}

fn headers(pseudo: &[(&str, &[u8])], found: &[(String, Vec<u8>)]) -> http_types::Headers {
    let header = |name: &str, value: &[u8]| http_types::headers::Header {
        name: name.to_owned(),
        value: value.to_vec(),
    };
    http_types::Headers {
        headers: pseudo
            .iter()
            .map(|(name, value)| header(name, value))
            .chain(found.iter().map(|(name, value)| header(name, value)))
            .collect(),
    }
}

fn method(name: &str) -> http_types::HttpMethod {
    use http_types::http_method::{Registered, Type};
    let kind = match Registered::from_str_name(name) {
        Some(known) => Type::Registered(known.into()),
        None => Type::Unregistered(name.to_owned()),
    };
    http_types::HttpMethod { r#type: Some(kind) }
}

fn scheme(name: &str) -> http_types::Scheme {
    use http_types::scheme::{Registered, Type};
    let kind = match name {
        "http" => Type::Registered(Registered::Http.into()),
        "https" => Type::Registered(Registered::Https.into()),
        other => Type::Unregistered(other.to_owned()),
    };
    http_types::Scheme { r#type: Some(kind) }
}

/// The code of a reset, by the word that series have for it.
fn reset(error: &str) -> h2::Reason {
    match error {
        "CANCEL" => h2::Reason::CANCEL,
        "REFUSED" => h2::Reason::REFUSED_STREAM,
        "ENHANCE_YOUR_CALM" => h2::Reason::ENHANCE_YOUR_CALM,
        _ => h2::Reason::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_have_their_codes() {
        for (error, code) in [
            ("CANCEL", 8),
            ("REFUSED", 7),
            ("ENHANCE_YOUR_CALM", 11),
            ("RESET", 2),
            ("IO", 2),
        ] {
            assert_eq!(u32::from(reset(error)), code, "{error}");
        }
    }

    fn subject(path: &str, taps: &Arc<Taps>) -> Tapped {
        let request = http::Request::get(format!("http://web.ns{path}"))
            .header("x-a", "1")
            .body(())
            .expect("valid");
        let source = ([10, 0, 0, 1], 999).into();
        Tapped::new(taps.clone(), false, source, Labels::new(), &request)
    }

    fn kinds(receiver: &mut mpsc::Receiver<TapEvent>) -> Vec<String> {
        let mut seen = Vec::new();
        while let Ok(event) = receiver.try_recv() {
            let Some(tap_event::Event::Http(http)) = event.event else {
                continue;
            };
            use tap_event::http::Event::{RequestInit, ResponseEnd, ResponseInit};
            seen.push(match http.event.expect("an event") {
                RequestInit(e) => format!("{:?} {}", e.id.expect("an id"), e.path),
                ResponseInit(e) => format!("{}", e.http_status),
                ResponseEnd(e) => format!("{} bytes {:?}", e.response_bytes, e.eos),
            });
        }
        seen
    }

    #[test]
    fn a_request_is_followed_to_its_end() {
        let taps = Arc::<Taps>::default();
        let wanted = Wanted {
            matches: Match::All(Vec::new()),
            headers: true,
            limit: 2,
        };
        let (_tap, mut events) = taps.add(wanted).expect("room");
        assert!(taps.is_active());
        let now = Instant::now();
        let to = ([10, 0, 0, 2], 80).into();
        let mut one = subject("/one", &taps);
        one.dispatched(to, &Labels::new(), now);
        one.answered(200, &http::HeaderMap::new(), now);
        one.body(5);
        one.ended(Some(Outcome::classify(200, None)), now);
        let mut two = subject("/two", &taps);
        two.dispatched(to, &Labels::new(), now);
        assert!(!taps.is_active(), "two were asked for");
        subject("/three", &taps).dispatched(to, &Labels::new(), now);
        two.ended(Some(Outcome::classify(200, Some(5))), now);
        assert_eq!(
            kinds(&mut events),
            [
                "StreamId { base: 0, stream: 0 } /one",
                "200",
                "5 bytes Some(Eos { end: None })",
                "StreamId { base: 0, stream: 1 } /two",
                "0 bytes Some(Eos { end: Some(GrpcStatusCode(5)) })",
            ]
        );
    }

    #[test]
    fn a_slow_reader_misses_events() {
        let taps = Arc::<Taps>::default();
        let wanted = Wanted {
            matches: Match::All(Vec::new()),
            headers: false,
            limit: u32::MAX,
        };
        let (tap, mut events) = taps.add(wanted).expect("room");
        let now = Instant::now();
        for _ in 0..EVENTS {
            let mut request = subject("/", &taps);
            request.dispatched(([10, 0, 0, 2], 80).into(), &Labels::new(), now);
            request.ended(None, now);
        }
        // Two of each: at its beginning and at its end.
        assert_eq!(kinds(&mut events).len(), EVENTS);
        assert_eq!(taps.dropped(), EVENTS as u64, "the others are counted");
        taps.remove(&tap.upgrade().expect("still wanted"));
        assert!(!taps.is_active());
    }
}
