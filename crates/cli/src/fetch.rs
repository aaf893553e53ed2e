//! Text from where an argument points: a file, stdin, or an https URL.

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, Config, client::Body};
use std::{env, fs, io::Read as _, time::Duration};

/// No manifest or values file is larger.
const LIMIT: usize = 64 << 20;
const REDIRECTS: usize = 5;

pub fn is_url(place: &str) -> bool {
    place.contains("://")
}

/// Reads `-` (stdin), an https URL or a file.
pub async fn text(place: &str) -> Result<String> {
    if place == "-" {
        let mut bytes = Vec::new();
        let limit = u64::try_from(LIMIT).unwrap_or(u64::MAX);
        std::io::stdin()
            .take(limit)
            .read_to_end(&mut bytes)
            .context("cannot read stdin")?;
        return String::from_utf8(bytes).context("stdin is not UTF-8 text");
    }
    if is_url(place) {
        return url(place).await;
    }
    let bytes = fs::read(place).with_context(|| format!("cannot read {place}"))?;
    String::from_utf8(bytes).with_context(|| format!("{place} is not UTF-8 text"))
}

async fn url(place: &str) -> Result<String> {
    let mut place = place.to_owned();
    for _ in 0..=REDIRECTS {
        let uri: http::Uri = place
            .parse()
            .with_context(|| format!("{place:?} is not a URL"))?;
        if uri.scheme_str() != Some("https") {
            bail!("only HTTPS URLs are allowed");
        }
        // The Kubernetes client is an https client with the machine's trusted roots.
        let host = uri.authority().context("the URL has no host")?;
        let mut config = Config::new(format!("https://{host}").parse()?);
        config.connect_timeout = Some(Duration::from_secs(10));
        config.read_timeout = Some(Duration::from_secs(30));
        config.default_retry = false;
        config.proxy_url = ["HTTPS_PROXY", "https_proxy"]
            .iter()
            .find_map(|name| env::var(name).ok()?.parse().ok());
        let client = Client::try_from(config).context("cannot make an https client")?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = http::Request::get(path).body(Body::empty())?;
        let response = client
            .send(request)
            .await
            .map_err(crate::cluster::plain)
            .with_context(|| format!("unable to read URL {place:?}"))?;
        let status = response.status();
        if status.is_redirection()
            && let Some(next) = response.headers().get(http::header::LOCATION)
        {
            let next = next
                .to_str()
                .context("a redirect to something that is no text")?;
            place = if next.starts_with('/') {
                format!("https://{host}{next}")
            } else {
                next.to_owned()
            };
            continue;
        }
        if status != http::StatusCode::OK {
            let code = status.as_u16();
            bail!("unable to read URL {place:?}, server reported {status}, status code={code}");
        }
        let body = Limited::new(response.into_body(), LIMIT).collect().await;
        let body =
            body.map_err(|error| anyhow::anyhow!("unable to read URL {place:?}: {error}"))?;
        return String::from_utf8(body.to_bytes().to_vec())
            .with_context(|| format!("{place} is not UTF-8 text"));
    }
    bail!("unable to read URL {place:?}, more than {REDIRECTS} redirects")
}
