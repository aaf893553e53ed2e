//! Releases compared, and version servers in every mood.

use super::*;
use crate::check::fake::{Fake, assert_says, verdict};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

#[test]
fn versions_match_within_their_channel() {
    let channels =
        Channels::of(["edge-25.12.2", "stable-2.14.10", "stable-2.14.9-3"]).expect("versions");
    for (running, error) in [
        ("edge-25.12.2", ""),
        ("edge-25.12.2-build7", ""),
        (
            "edge-25.10.7",
            "is running version 25.10.7 but the latest edge version is 25.12.2",
        ),
        (
            "stable-2.14.9-2",
            "is running version 2.14.9-2 but the latest stableHotpatch version is 2.14.9-3",
        ),
        (
            "dev-undefined",
            "unsupported version channel: dev-undefined",
        ),
        ("latest", "unsupported version format: latest"),
    ] {
        let expected = if error.is_empty() {
            Ok(())
        } else {
            Err(Problem::failed(error))
        };
        assert_eq!(channels.matches(running), expected, "{running}");
    }
}

/// Without a server the release of the CLI is the newest one known, so every row is there.
#[tokio::test]
async fn without_a_server_the_cli_is_the_newest_release() {
    let mut facts = Fake::of(vec![]).facts();
    let latest = "can determine the latest version";
    assert_says(&category(), latest, &mut facts, "").await;
    assert_says(&category(), "cli is up-to-date", &mut facts, "").await;
    facts.server = Some("edge-25.9.1".to_owned());
    let old = "is running version 25.9.1 but the latest edge version is 25.10.7";
    let control_plane_row = "control plane is up-to-date";
    assert_says(&control_plane(), control_plane_row, &mut facts, old).await;
}

#[tokio::test]
async fn nobody_is_asked_offline() {
    let mut facts = Fake::of(vec![]).facts();
    facts.settings.offline = true;
    let latest = "can determine the latest version";
    for row in [latest, "cli is up-to-date"] {
        let skipped = verdict(&category(), row, &mut facts).await;
        assert!(matches!(skipped, Err(Problem::Skip(_))), "{row}");
    }
    facts.settings.expected_version = Some("edge-25.12.2".to_owned());
    assert_says(&category(), latest, &mut facts, "").await;
    let old = "is running version 25.10.7 but the latest edge version is 25.12.2";
    assert_says(&category(), "cli is up-to-date", &mut facts, old).await;
}

async fn serve(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    linkerd_runtime::spawn("version-server", async move {
        let Ok((mut stream, _)) = listener.accept().await else {
            return;
        };
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await.unwrap_or(0);
        let request = String::from_utf8_lossy(&request[..read]).into_owned();
        assert!(
            request.starts_with("GET /version.json?version=edge-25.10.7&uuid=unknown&source=cli "),
            "{request}"
        );
        let _ = stream.write_all(answer.as_bytes()).await;
    });
    format!("http://{address}/version.json")
}

#[tokio::test]
async fn a_configured_server_is_asked() {
    let mut facts = Fake::of(vec![]).facts();
    let url = serve("HTTP/1.1 200 OK\r\ncontent-length: 23\r\nconnection: close\r\n\r\n{\"edge\":\"edge-25.12.2\"}").await;
    facts.settings.version_url = Some(url);
    assert_says(
        &category(),
        "can determine the latest version",
        &mut facts,
        "",
    )
    .await;
    assert!(facts.latest.is_some());
    let url = serve("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    facts.settings.version_url = Some(url);
    let error = "unexpected versioncheck response: 500 Internal Server Error";
    assert_says(
        &category(),
        "can determine the latest version",
        &mut facts,
        error,
    )
    .await;
}

/// Each trouble with a server, by how its message begins; `{url}` stands for where it is.
#[tokio::test]
async fn a_server_in_trouble() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = |listener: &TcpListener| {
        let address = listener.local_addr().expect("an address");
        format!("http://{address}/version.json")
    };
    let (no_answer, nobody) = (url(&silent), url(&gone));
    drop(gone);
    let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
    let odd =
        "HTTP/1.1 200 OK\r\ncontent-length: 16\r\nconnection: close\r\n\r\n{\"edge\":\"newest\"}";
    for (name, url, error) in [
        (
            "nobody listens",
            nobody,
            "failed to resolve version check server: {url}",
        ),
        (
            "no answer",
            no_answer,
            "failed to resolve version check server: {url}",
        ),
        (
            "no JSON",
            serve(text).await,
            "unexpected versioncheck response: ",
        ),
        (
            "cut short",
            serve(odd).await,
            "unexpected versioncheck response: ",
        ),
    ] {
        let mut facts = Fake::of(vec![]).facts();
        facts.settings.version_url = Some(url.clone());
        let found = verdict(&category(), "can determine the latest version", &mut facts).await;
        let error = error.replace("{url}", &url);
        assert!(
            matches!(&found, Err(Problem::Failed(said)) if said.starts_with(&error)),
            "{name}: {found:?}"
        );
        let unknown = verdict(&category(), "cli is up-to-date", &mut facts).await;
        assert!(matches!(unknown, Err(Problem::Skip(_))), "{name}");
    }
}

#[tokio::test]
async fn the_control_plane_has_its_own_version() {
    let map = |values: &str| {
        json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"values": values},
            "metadata": {"name": "linkerd-config", "namespace": "linkerd"}})
    };
    let mut facts = Fake::of(vec![map("linkerdVersion: edge-25.9.1")]).facts();
    let category = control_plane();
    assert_says(
        &category,
        "can retrieve the control plane version",
        &mut facts,
        "",
    )
    .await;
    let differ = "control plane running edge-25.9.1 but cli running edge-25.10.7";
    assert_says(
        &category,
        "control plane and cli versions match",
        &mut facts,
        differ,
    )
    .await;
    facts.latest = Some(Channels::of(["edge-25.12.2"]).expect("a version"));
    let old = "is running version 25.9.1 but the latest edge version is 25.12.2";
    assert_says(&category, "control plane is up-to-date", &mut facts, old).await;
    let old = "global: {linkerdVersion: edge-25.10.7}";
    let mut facts = Fake::of(vec![map(old)]).facts();
    let retrieve = "can retrieve the control plane version";
    assert_says(&category, retrieve, &mut facts, "").await;
    assert_eq!(facts.server.as_deref(), Some("edge-25.10.7"));
    let mut facts = Fake::of(vec![map("a: [1")]).facts();
    let broken = verdict(&category, retrieve, &mut facts).await;
    assert!(
        matches!(&broken, Err(Problem::Failed(error)) if error.starts_with("failed to load values from linkerd-config: ")),
        "{broken:?}"
    );
    let mut facts = Fake::of(vec![]).facts();
    let error = "failed to fetch linkerd-config: configmaps \"linkerd-config\" not found";
    assert_says(
        &category,
        "can retrieve the control plane version",
        &mut facts,
        error,
    )
    .await;
}
