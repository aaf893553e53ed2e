//! Connection series: opened, open, closed with an errno, bytes each way.

use std::{io, rc::Rc, sync::Arc};

use super::{Counter, Family, Registry};

/// Series of one kind of connection, for one worker.
#[derive(Debug)]
pub struct TransportMetrics {
    registry: Arc<Registry>,
    labels: Arc<str>,
    opened: Arc<Counter>,
    open: Arc<Counter>,
    read: Arc<Counter>,
    written: Arc<Counter>,
    closed: Arc<Counter>,
    /// Bytes received and sent, by zone.
    cost: Option<(Arc<Counter>, Arc<Counter>)>,
}

impl TransportMetrics {
    /// Resolves the series.
    pub fn new(registry: &Arc<Registry>, labels: Arc<str>) -> Rc<Self> {
        Self::with_zone(registry, labels, None)
    }

    /// Resolves the series; bytes are also counted for a zone.
    pub fn with_zone(
        registry: &Arc<Registry>,
        labels: Arc<str>,
        zone: Option<&'static str>,
    ) -> Rc<Self> {
        let cost = |op: &str, zone: &str| {
            let labels = format!("op=\"{op}\",zone_locality=\"{zone}\"").into();
            registry.counter(Family::OutboundTcpTransferCost, &labels)
        };
        let closed: Arc<str> = format!("{labels},errno=\"\"").into();
        Rc::new(Self {
            opened: registry.counter(Family::TcpOpenTotal, &labels),
            open: registry.counter(Family::TcpOpenConnections, &labels),
            read: registry.counter(Family::TcpReadBytesTotal, &labels),
            written: registry.counter(Family::TcpWriteBytesTotal, &labels),
            closed: registry.counter(Family::TcpCloseTotal, &closed),
            cost: zone.map(|zone| (cost("Recv", zone), cost("Send", zone))),
            registry: registry.clone(),
            labels,
        })
    }

    /// Counts a connection from now until the guard is dropped.
    pub fn open(self: &Rc<Self>) -> OpenTransport {
        self.opened.inc();
        self.open.inc();
        OpenTransport {
            metrics: self.clone(),
            error: None,
        }
    }
}

/// One open connection.
#[derive(Debug)]
pub struct OpenTransport {
    metrics: Rc<TransportMetrics>,
    error: Option<i32>,
}

impl OpenTransport {
    /// Bytes came.
    #[inline]
    pub fn read(&self, n: usize) {
        self.metrics.read.add(n as u64);
        if let Some((received, _)) = &self.metrics.cost {
            received.add(n as u64);
        }
    }

    /// Bytes went.
    #[inline]
    pub fn written(&self, n: usize) {
        self.metrics.written.add(n as u64);
        if let Some((_, sent)) = &self.metrics.cost {
            sent.add(n as u64);
        }
    }

    /// The connection failed; the close will say so.
    pub fn failed(&mut self, error: &io::Error) {
        self.error = self.error.or_else(|| error.raw_os_error());
    }
}

impl Drop for OpenTransport {
    fn drop(&mut self) {
        self.metrics.open.dec();
        match self.error.map(errno_name) {
            None => self.metrics.closed.inc(),
            Some(name) => {
                let labels = format!("{},errno=\"{name}\"", self.metrics.labels).into();
                self.metrics
                    .registry
                    .counter(Family::TcpCloseTotal, &labels)
                    .inc();
            }
        }
    }
}

fn errno_name(code: i32) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(code) {
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::CONNRESET => "ECONNRESET",
        Errno::CONNABORTED => "ECONNABORTED",
        Errno::PIPE => "EPIPE",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::NOTCONN => "ENOTCONN",
        Errno::HOSTUNREACH => "EHOSTUNREACH",
        Errno::NETUNREACH => "ENETUNREACH",
        Errno::ADDRNOTAVAIL => "EADDRNOTAVAIL",
        _ => "UNKNOWN",
    }
}
