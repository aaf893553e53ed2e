//! How long a request waits for clusters that are not listed yet.

use super::*;
use crate::{config::Config, metrics::Metrics};

fn server(clusters: &Clusters) -> Server {
    let local = Discovery::new(Config::default(), Metrics::default());
    let (_, drain) = drain::channel();
    let calls = Calls::unregistered();
    Server::new(
        local,
        clusters.clone(),
        Readiness::new(),
        drain,
        calls,
        Gate::open(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_stays_away_is_waited_for_only_while_it_is_new() {
    let clusters = Clusters::default();
    let server = server(&clusters);
    let cluster = Discovery::new(Config::default(), Metrics::default());
    let listing = cluster.listed().block("pods");
    clusters.insert("east", cluster);
    let waited = async || {
        let started = tokio::time::Instant::now();
        server.0.members_listed("web@east,web@nowhere").await;
        started.elapsed()
    };
    assert_eq!(waited().await, SYNC_PATIENCE, "it may be listed any moment");
    tokio::time::advance(NEW_CLUSTER).await;
    assert_eq!(waited().await, Duration::ZERO, "it is away");
    drop(listing);
    assert_eq!(waited().await, Duration::ZERO, "it is there");
}
