//! Follows the name of a control-plane service while there is a connection to it: the name is looked
//! up again as often as its records say, and when the address in use is no longer among the answers a
//! new connection is made before the old one is left.

use std::{net::SocketAddr, pin::Pin, sync::Weak, time::Duration};

use super::{super::dns::DnsError, ChannelError, Inner};

/// Bounds of the time between two lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refresh {
    /// No sooner, whatever the records say.
    pub min: Option<Duration>,
    /// No later.
    pub max: Option<Duration>,
}

/// Without a lower bound. Answers that there is nothing often have no time of their own.
const MIN: Duration = Duration::from_secs(5);
/// Even where the configuration allows more, name servers are not asked without pause.
const PAUSE: Duration = Duration::from_secs(1);

impl Refresh {
    /// When to look again at something that holds for `ttl`.
    pub fn after(&self, ttl: Option<Duration>) -> Duration {
        let min = self.min.unwrap_or(MIN);
        let max = self.max.unwrap_or(Duration::MAX);
        ttl.unwrap_or(min).min(max).max(min).max(PAUSE)
    }
}

/// Ends when the service has left `at` and there is a connection to where it is now. The address of
/// a service that was not looked up (`ttl` is `None`) does not change.
pub(super) fn follow(channel: Weak<Inner>, at: SocketAddr, ttl: Option<Duration>) -> Left {
    // The new connection is followed in turn, so the type must end here.
    Box::pin(follow_name(channel, at, ttl))
}

type Left = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn follow_name(channel: Weak<Inner>, at: SocketAddr, ttl: Option<Duration>) {
    let mut left = ttl;
    while let Some(ttl) = left {
        let Some(refresh) = channel.upgrade().map(|channel| channel.options.refresh) else {
            break;
        };
        tokio::time::sleep(refresh.after(Some(ttl))).await;
        let Some(channel) = channel.upgrade() else {
            break;
        };
        left = Some(match channel.resolve(&channel.addr).await {
            Ok(found) => {
                let ttl = found.ttl.unwrap_or_default();
                channel.metrics.found(&found.addrs);
                // Without any address, the one that answers is better than none.
                let gone = !found.addrs.is_empty() && !found.addrs.contains(&at);
                if gone && channel.replace(found).await {
                    return;
                }
                ttl
            }
            Err(ChannelError::Resolve(_, DnsError::NotFound { ttl })) => ttl.unwrap_or_default(),
            Err(_) => Duration::ZERO,
        });
    }
    // Nobody uses the channel any more: the connection ends without us.
    std::future::pending().await
}

impl Inner {
    /// Makes a new connection and has new calls use it. If that fails the old one is kept.
    async fn replace(&self, found: super::Found) -> bool {
        match self.connect_to_one_of(found).await {
            Ok(send) => {
                *self.current.lock().await = Some(send);
                true
            }
            Err(error) => {
                tracing::debug!(%error, addr = %self.addr, "Control plane has moved, to where it is not reached");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_live_are_clamped() {
        let seconds = Duration::from_secs;
        let refresh = |min: Option<u64>, max: Option<u64>| Refresh {
            min: min.map(seconds),
            max: max.map(seconds),
        };
        for (name, refresh, ttl, want) in [
            ("as the record says", refresh(None, None), Some(30), 30),
            ("not below five seconds", refresh(None, None), Some(1), 5),
            ("negative without a time", refresh(None, None), None, 5),
            ("a lower bound", refresh(Some(60), None), Some(30), 60),
            ("a lower one than usual", refresh(Some(2), None), Some(1), 2),
            ("negative, a lower bound", refresh(Some(2), None), None, 2),
            ("an upper bound", refresh(None, Some(10)), Some(30), 10),
            ("both, below", refresh(Some(10), Some(20)), Some(1), 10),
            ("both, above", refresh(Some(10), Some(20)), Some(99), 20),
            ("both, between", refresh(Some(10), Some(20)), Some(15), 15),
            ("never without pause", refresh(Some(0), Some(0)), Some(0), 1),
        ] {
            assert_eq!(refresh.after(ttl.map(seconds)), seconds(want), "{name}");
        }
    }
}
