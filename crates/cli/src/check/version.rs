//! `linkerd-version` and `control-plane-version`: is this the newest release, and the same one on
//! both sides? A server is asked only when one is configured; else this release is the newest known.

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::Facts,
};
use crate::{
    cluster::{CONFIG_MAP, lift_global},
    values::text,
    yaml,
};
use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, Config, client::Body};
use std::{collections::BTreeMap, time::Duration};

const TIMEOUT: Duration = Duration::from_secs(3);
/// No answer of a version server is longer.
const LIMIT: usize = 64 << 10;

pub fn category() -> Category<Facts> {
    Category {
        id: "linkerd-version",
        checks: vec![
            Check::new(
                "can determine the latest version",
                "l5d-version-latest",
                |facts| Box::pin(latest(facts)),
            )
            .warning()
            .informs(&[
                "linkerd-version",
                "control-plane-version",
                "linkerd-control-plane-proxy",
                "linkerd-data-plane",
            ]),
            Check::new("cli is up-to-date", "l5d-version-cli", |facts| {
                Box::pin(async { known(facts)?.matches(&facts.settings.cli_version) })
            })
            .warning(),
        ],
    }
}

pub fn control_plane() -> Category<Facts> {
    let anchor = "l5d-version-control";
    Category {
        id: "control-plane-version",
        checks: vec![
            Check::new("can retrieve the control plane version", anchor, |facts| {
                Box::pin(server(facts))
            })
            .fatal()
            .retry(),
            Check::new("control plane is up-to-date", anchor, |facts| {
                Box::pin(async {
                    known(facts)?.matches(facts.server.as_deref().unwrap_or_default())
                })
            })
            .warning(),
            Check::new(
                "control plane and cli versions match",
                anchor,
                |facts: &mut Facts| {
                    Box::pin(async {
                        let (server, cli) = (
                            facts.server.as_deref().unwrap_or_default(),
                            &facts.settings.cli_version,
                        );
                        if server == cli {
                            return Ok(());
                        }
                        Err(Problem::failed(format!(
                            "control plane running {server} but cli running {cli}"
                        )))
                    })
                },
            )
            .warning(),
        ],
    }
}

/// The newest releases, when they are known.
pub(super) fn known(facts: &Facts) -> Result<&Channels, Problem> {
    facts
        .latest
        .as_ref()
        .ok_or_else(|| Problem::skip("the latest version is not known"))
}

async fn latest(facts: &mut Facts) -> Verdict {
    if let Some(expected) = &facts.settings.expected_version {
        facts.latest = Some(Channels::of([expected.as_str()])?);
        return Ok(());
    }
    if facts.settings.offline {
        return Err(Problem::skip("--offline"));
    }
    let configured = facts
        .settings
        .version_url
        .as_deref()
        .filter(|url| !url.is_empty());
    let url = configured
        .unwrap_or_else(|| facts.value_text("versionCheckURL"))
        .to_owned();
    if url.is_empty() {
        // Nobody is asked: this very release is the newest one known.
        facts.latest = Some(Channels::of([facts.settings.cli_version.as_str()])?);
        return Ok(());
    }
    let uid = facts.config_uid.as_deref().unwrap_or("unknown");
    let version = &facts.settings.cli_version;
    let asked = ask(&url, version, uid);
    let channels = match tokio::time::timeout(TIMEOUT, asked).await {
        Ok(channels) => channels?,
        Err(_) => {
            return Err(Problem::failed(format!(
                "failed to resolve version check server: {url}"
            )));
        }
    };
    facts.latest = Some(channels);
    Ok(())
}

async fn ask(url: &str, version: &str, uid: &str) -> Result<Channels> {
    let uri: http::Uri = url
        .parse()
        .with_context(|| format!("{url:?} is not a URL"))?;
    let scheme = uri.scheme_str().unwrap_or("https");
    let host = uri
        .authority()
        .with_context(|| format!("{url:?} has no host"))?;
    // The Kubernetes client is an https client with the machine's trusted roots.
    let mut config = Config::new(format!("{scheme}://{host}").parse()?);
    config.connect_timeout = Some(TIMEOUT);
    config.read_timeout = Some(TIMEOUT);
    config.default_retry = false;
    let client = Client::try_from(config).context("cannot make an https client")?;
    let path = format!("{}?version={version}&uuid={uid}&source=cli", uri.path());
    let request = http::Request::get(path).body(Body::empty())?;
    let response = client
        .send(request)
        .await
        .map_err(crate::cluster::plain)
        .with_context(|| format!("failed to resolve version check server: {url}"))?;
    let status = response.status();
    if status != http::StatusCode::OK {
        bail!("unexpected versioncheck response: {status}");
    }
    let body = Limited::new(response.into_body(), LIMIT).collect().await;
    let body =
        body.map_err(|error| anyhow::anyhow!("unexpected versioncheck response: {error}"))?;
    let channels: BTreeMap<String, String> =
        serde_json::from_slice(&body.to_bytes()).context("unexpected versioncheck response")?;
    Channels::of(channels.values().map(String::as_str))
}

async fn server(facts: &mut Facts) -> Verdict {
    let map: Option<ConfigMap> = facts
        .named_in(facts.namespace(), CONFIG_MAP)
        .await
        .map_err(|problem| match problem {
            Problem::Failed(error) => {
                Problem::failed(format!("failed to fetch linkerd-config: {error}"))
            }
            skip @ Problem::Skip(_) => skip,
        })?;
    let map = map.ok_or_else(|| {
        Problem::failed(format!(
            "failed to fetch linkerd-config: configmaps \"{CONFIG_MAP}\" not found"
        ))
    })?;
    let values = map
        .data
        .and_then(|mut data| data.remove("values"))
        .unwrap_or_default();
    let mut values = yaml::parse(&values).map_err(|error| {
        Problem::failed(format!(
            "failed to load values from linkerd-config: {error}"
        ))
    })?;
    lift_global(&mut values);
    facts.server = Some(text(&values, "linkerdVersion").to_owned());
    Ok(())
}

/// `edge-25.10.7`, `stable-2.14.1-2` with a hotpatch, `dev-0a1b2c3d-ann`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version<'a> {
    channel: String,
    number: &'a str,
    hotpatch: Option<&'a str>,
}

impl<'a> Version<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let mut parts = text.split('-');
        let (Some(channel), Some(number)) = (parts.next(), parts.next()) else {
            bail!("unsupported version format: {text}");
        };
        let hotpatch =
            parts.find(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
        Ok(Self {
            channel: match hotpatch {
                Some(_) => format!("{channel}Hotpatch"),
                None => channel.to_owned(),
            },
            number,
            hotpatch,
        })
    }

    /// Without the channel.
    fn shown(&self) -> String {
        match self.hotpatch {
            Some(hotpatch) => format!("{}-{hotpatch}", self.number),
            None => self.number.to_owned(),
        }
    }
}

/// The newest version of each channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channels(BTreeMap<String, String>);

impl Channels {
    pub fn of<'a>(versions: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut channels = BTreeMap::new();
        for text in versions {
            channels.insert(Version::parse(text)?.channel, text.to_owned());
        }
        Ok(Self(channels))
    }

    /// Fails when the channel of `running` has a newer version.
    pub fn matches(&self, running: &str) -> Verdict {
        let version = Version::parse(running)?;
        let Some(latest) = self.0.get(&version.channel) else {
            return Err(Problem::failed(format!(
                "unsupported version channel: {running}"
            )));
        };
        let latest = Version::parse(latest)?;
        if (version.number, version.hotpatch) == (latest.number, latest.hotpatch) {
            return Ok(());
        }
        Err(Problem::failed(format!(
            "is running version {} but the latest {} version is {}",
            version.shown(),
            version.channel,
            latest.shown()
        )))
    }
}

#[cfg(test)]
mod tests;
