//! The page, and the JSON API behind it, which asks `emoji` and `voting`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use linkerd_runtime::drain;
use serde_json::{Value, json};
use tonic::{Status, transport::Channel};

use crate::{api, grpc, http as server};

const PAGE: &str = include_str!("page.html");
/// How long a service may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to serve the page
    #[arg(long, env = "WEB_ADDRESS", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Where the emoji service is, as HOST:PORT
    #[arg(long, env = "EMOJISVC_HOST", value_name = "HOST:PORT")]
    emoji: String,
    /// Where the voting service is, as HOST:PORT
    #[arg(long, env = "VOTINGSVC_HOST", value_name = "HOST:PORT")]
    voting: String,
}

pub(crate) async fn run(args: Args, drain: drain::Watch) -> anyhow::Result<()> {
    let web = Web {
        emoji: channel(&args.emoji)?,
        voting: channel(&args.voting)?,
    };
    server::serve(args.listen, web, drain).await
}

fn channel(host: &str) -> anyhow::Result<Channel> {
    let endpoint = Channel::from_shared(format!("http://{host}"))
        .with_context(|| format!("{host:?} is not HOST:PORT"))?;
    Ok(endpoint.timeout(PATIENCE).connect_lazy())
}

#[derive(Clone, Debug)]
struct Web {
    emoji: Channel,
    voting: Channel,
}

/// Why a request has no good answer.
enum Refusal {
    NoSuchPage,
    BadChoice,
    Service(Status),
}

impl server::Handler for Web {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let uri = request.uri();
        let answer = match uri.path() {
            "/" | "/leaderboard" => {
                return server::reply(StatusCode::OK, "text/html; charset=utf-8", PAGE);
            }
            "/api/list" => self.list().await,
            "/api/vote" => self.vote(uri.query().unwrap_or_default()).await,
            "/api/leaderboard" => self.leaderboard().await,
            _ => Err(Refusal::NoSuchPage),
        };
        match answer {
            Ok(value) => server::json(StatusCode::OK, &value),
            Err(Refusal::NoSuchPage) => {
                server::json(StatusCode::NOT_FOUND, &json!({"error": "no such page"}))
            }
            Err(Refusal::BadChoice) => {
                let error = json!({"error": "choice must name an emoji, as in ?choice=:joy:"});
                server::json(StatusCode::BAD_REQUEST, &error)
            }
            Err(Refusal::Service(status)) => {
                let (code, message) = (status.code(), status.message());
                tracing::info!(%uri, ?code, message, "Failed");
                let error = json!({"error": format!("{code:?}: {message}")});
                server::json(StatusCode::INTERNAL_SERVER_ERROR, &error)
            }
        }
    }
}

impl Web {
    async fn list(&self) -> Result<Value, Refusal> {
        let list = self.emoji().await?.list;
        let entry =
            |emoji: &api::Emoji| json!({"shortcode": emoji.shortcode, "unicode": emoji.unicode});
        Ok(list.iter().map(entry).collect())
    }

    async fn vote(&self, query: &str) -> Result<Value, Refusal> {
        let shortcode = choice(query).ok_or(Refusal::BadChoice)?;
        let asked = api::Shortcode { shortcode };
        let found: api::Found =
            grpc::call(&self.emoji, api::EMOJI, "FindByShortcode", &asked).await?;
        let emoji = found.emoji.ok_or(Refusal::BadChoice)?;
        let method = api::vote_method(&emoji.shortcode);
        let _: api::Empty = grpc::call(&self.voting, api::VOTING, &method, &api::Empty {}).await?;
        Ok(json!({"voted": emoji.shortcode}))
    }

    async fn leaderboard(&self) -> Result<Value, Refusal> {
        let standings: api::Standings =
            grpc::call(&self.voting, api::VOTING, "Results", &api::Empty {}).await?;
        let list = self.emoji().await?.list;
        let entry = |standing: &api::Standing| {
            let emoji = list.iter().find(|e| e.shortcode == standing.shortcode);
            json!({
                "shortcode": standing.shortcode,
                "unicode": emoji.map(|emoji| emoji.unicode.as_str()),
                "votes": standing.votes,
            })
        };
        Ok(standings.results.iter().map(entry).collect())
    }

    async fn emoji(&self) -> Result<api::EmojiList, Status> {
        grpc::call(&self.emoji, api::EMOJI, "ListAll", &api::Empty {}).await
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Service(status)
    }
}

/// The value of `choice`, whose colons browsers write as `%3A`.
fn choice(query: &str) -> Option<String> {
    let value = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("choice="))?;
    let value = value
        .replace("%3A", ":")
        .replace("%3a", ":")
        .replace("%2B", "+");
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::choice;

    #[test]
    fn choices() {
        for (query, expected) in [
            ("choice=:joy:", Some(":joy:")),
            ("a=b&choice=%3Ajoy%3A", Some(":joy:")),
            ("choice=%3a%2B1%3a", Some(":+1:")),
            ("choice=", None),
            ("", None),
        ] {
            assert_eq!(choice(query).as_deref(), expected, "{query}");
        }
    }
}
