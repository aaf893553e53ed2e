//! The tap server: gRPC over mesh TLS on a port of its own, for one identity and for clients on this
//! host. Runs on the admin thread, like every other answer about traffic.

use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use linkerd_api::proto::tap::{
    ObserveRequest, TapEvent, observe_request,
    tap_server::{Tap as Service, TapServer},
};
use linkerd_tls::Store;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tonic::{Request, Response, Status, transport::server::Connected};

use super::{
    Tap, Taps, Wanted,
    matching::{InvalidMatch, Match},
};
use crate::{policy::server::ClientTls, service_io::ServiceIo};

/// Connections at once.
const CONNECTIONS: usize = 64;
/// After a failed accept, how long until the next try.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until its future is dropped.
pub async fn serve(listener: TcpListener, store: Arc<Store>, taps: Arc<Taps>, identity: String) {
    let (sender, accepted) = mpsc::channel(8);
    linkerd_runtime::spawn_local("tap-accept", accept(listener, store, sender));
    let incoming = futures::stream::unfold(accepted, |mut accepted| async move {
        let io = accepted.recv().await?;
        Some((Ok::<_, io::Error>(io), accepted))
    });
    let service = TapServer::new(Server { taps, identity });
    let served = tonic::transport::Server::builder()
        .max_concurrent_streams(Some(64))
        .add_service(service)
        .serve_with_incoming(incoming)
        .await;
    if let Err(error) = served {
        tracing::warn!(%error, "Tap server failed");
    }
}

async fn accept(listener: TcpListener, store: Arc<Store>, sender: mpsc::Sender<Io>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let (io, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "Tap listener cannot accept");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (store, sender) = (store.clone(), sender.clone());
        linkerd_runtime::spawn_local("tap-connection", async move {
            match ServiceIo::accept(io, &store).await {
                Ok(io) => {
                    let client = Client {
                        ip: peer.ip().to_canonical(),
                        tls: io.client.clone(),
                    };
                    let io = Io {
                        io,
                        client,
                        _slot: slot,
                    };
                    let _ = sender.send(io).await;
                }
                Err(error) => tracing::debug!(%peer, %error, "Tap connection failed"),
            }
        });
    }
}

/// Who is at the other end.
#[derive(Clone, Debug)]
struct Client {
    ip: IpAddr,
    tls: ClientTls,
}

/// A connection with its client's identity.
#[derive(Debug)]
struct Io {
    io: ServiceIo,
    client: Client,
    _slot: OwnedSemaphorePermit,
}

impl Connected for Io {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.clone()
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[derive(Debug)]
struct Server {
    taps: Arc<Taps>,
    identity: String,
}

impl Server {
    fn admit(&self, client: Option<&Client>) -> Result<(), Status> {
        let reason = match client {
            Some(client) if client.ip.is_loopback() && client.tls.id().is_none() => return Ok(()),
            Some(Client {
                tls: ClientTls::Mesh(id),
                ..
            }) => match id {
                Some(id) if id.as_str() == self.identity => return Ok(()),
                _ => "Unauthorized client",
            },
            _ => "no_tls_from_remote",
        };
        Err(Status::unauthenticated(reason))
    }
}

#[tonic::async_trait]
impl Service for Server {
    type ObserveStream = Observation;

    async fn observe(
        &self,
        request: Request<ObserveRequest>,
    ) -> Result<Response<Observation>, Status> {
        self.admit(request.extensions().get::<Client>())?;
        let wanted = wanted(request.get_ref())?;
        let (tap, events) = self
            .taps
            .add(wanted)
            .ok_or_else(|| Status::resource_exhausted("too many taps"))?;
        Ok(Response::new(Observation {
            taps: self.taps.clone(),
            tap,
            events,
        }))
    }
}

fn wanted(request: &ObserveRequest) -> Result<Wanted, Status> {
    if request.limit == 0 {
        return Err(Status::invalid_argument("limit must be positive"));
    }
    let matches = request
        .r#match
        .as_ref()
        .ok_or(InvalidMatch::Empty)
        .and_then(Match::new)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let headers = matches!(
        request.extract,
        Some(observe_request::Extract {
            extract: Some(observe_request::extract::Extract::Http(
                observe_request::extract::Http {
                    extract: Some(observe_request::extract::http::Extract::Headers(_)),
                }
            )),
        })
    );
    Ok(Wanted {
        matches,
        headers,
        limit: request.limit,
    })
}

/// The events of one call. The tap ends with it.
#[derive(Debug)]
pub struct Observation {
    taps: Arc<Taps>,
    /// Not an owner: once everything asked for is followed, only those requests keep it open.
    tap: Weak<Tap>,
    events: mpsc::Receiver<TapEvent>,
}

impl futures::Stream for Observation {
    type Item = Result<TapEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_recv(cx).map(|event| event.map(Ok))
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if let Some(tap) = self.tap.upgrade() {
            self.taps.remove(&tap);
        }
    }
}

#[cfg(test)]
mod tests {
    use linkerd_core::identity::Id;

    use super::*;
    use crate::policy::server::NoTls;

    #[test]
    fn who_may_tap() {
        let server = Server {
            taps: Arc::default(),
            identity: "tap.linkerd-viz".into(),
        };
        let id = |name: &str| ClientTls::Mesh(Some(Id::parse(name).expect("a name")));
        let plain = ClientTls::Plain(NoTls::NotFromRemote);
        let stranger = Some("Unauthorized client");
        for (name, ip, tls, want) in [
            (
                "the tap service",
                [10, 0, 0, 1],
                id("tap.linkerd-viz"),
                None,
            ),
            ("this host", [127, 0, 0, 1], plain.clone(), None),
            ("somebody else", [10, 0, 0, 1], id("web.ns"), stranger),
            ("somebody else here", [127, 0, 0, 1], id("web.ns"), stranger),
            ("nobody", [10, 0, 0, 1], ClientTls::Mesh(None), stranger),
            ("plain", [10, 0, 0, 1], plain, Some("no_tls_from_remote")),
        ] {
            let client = Client { ip: ip.into(), tls };
            let refused = server.admit(Some(&client)).err();
            let message = refused.as_ref().map(Status::message);
            assert_eq!(message, want, "{name}");
        }
    }

    #[test]
    fn requests() {
        use observe_request::r#match::{Match as Kind, Seq};
        let everything = observe_request::Match {
            r#match: Some(Kind::All(Seq::default())),
        };
        for (name, limit, matches, want) in [
            (
                "no limit",
                0,
                Some(everything.clone()),
                Some("limit must be positive"),
            ),
            ("no match", 1, None, Some("missing required field")),
            (
                "an empty match",
                1,
                Some(observe_request::Match::default()),
                Some("missing required field"),
            ),
            ("fine", 1, Some(everything), None),
        ] {
            let request = ObserveRequest {
                limit,
                r#match: matches,
                extract: None,
            };
            let refused = wanted(&request).err();
            assert_eq!(refused.as_ref().map(Status::message), want, "{name}");
        }
    }
}
