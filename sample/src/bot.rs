//! Somebody who never stops voting: now and then for doughnuts, otherwise for whatever there is.

use std::time::Duration;

use anyhow::Context as _;
use linkerd_runtime::drain;
use rand::seq::IndexedRandom as _;
use tokio::time::{MissedTickBehavior, interval};

use crate::load::Client;

/// How often out of a hundred it is doughnuts.
const DOUGHNUTS: u32 = 15;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the page is, as HOST:PORT
    #[arg(long, env = "WEB_HOST", value_name = "HOST:PORT")]
    web: String,
    /// How often to vote
    #[arg(long, env = "REQUESTS_PER_SECOND", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
}

pub(crate) async fn run(args: Args, mut drain: drain::Watch) -> anyhow::Result<()> {
    let client = Client::new();
    let mut ticks = interval(Duration::from_secs(1) / args.rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = drain.signaled() => return Ok(()),
        }
        match vote(&client, &args.web).await {
            Ok((choice, 200)) => tracing::info!(choice, "Voted"),
            Ok((choice, status)) => tracing::warn!(choice, status, "Not counted"),
            Err(error) => tracing::warn!(error = format!("{error:#}"), "No answer"),
        }
    }
}

async fn vote(client: &Client, web: &str) -> anyhow::Result<(String, u16)> {
    let choice = if rand::random_ratio(DOUGHNUTS, 100) {
        ":doughnut:".to_owned()
    } else {
        let list = client
            .get(&format!("http://{web}/api/list").parse()?)
            .await?;
        let list: Vec<serde_json::Value> =
            serde_json::from_slice(&list.body).context("the list of emoji")?;
        let picked = list
            .choose(&mut rand::rng())
            .context("there are no emoji")?;
        picked["shortcode"].as_str().unwrap_or_default().to_owned()
    };
    let uri = format!("http://{web}/api/vote?choice={choice}").parse()?;
    let answer = client.get(&uri).await?;
    Ok((choice, answer.status))
}
