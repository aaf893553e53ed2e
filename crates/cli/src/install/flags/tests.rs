//! Each flag sets its values and no others.

use super::*;
use crate::values::get;
use clap::Parser as _;
use serde_json::json;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    install: InstallFlags,
    #[command(flatten)]
    control_plane: ControlPlaneFlags,
    #[command(flatten)]
    proxy: ProxyFlags,
}

/// What the flags change of the chart's values, by path.
fn changed(flags: &str) -> Vec<(String, Value)> {
    let words = std::iter::once("install").chain(flags.split_whitespace());
    let line = Line::try_parse_from(words).expect("known flags");
    let chart = Chart::named("linkerd-control-plane").expect("a chart");
    let before = chart.values("values.yaml").expect("values");
    let mut after = before.clone();
    line.install.apply(&mut after);
    line.control_plane
        .apply(&chart, &mut after)
        .expect("no files");
    line.proxy.apply(&mut after);
    let mut paths = Vec::new();
    leaves("", &after, &mut paths);
    paths.retain(|(path, value)| get(&before, path) != value);
    paths
}

fn leaves(above: &str, values: &Value, out: &mut Vec<(String, Value)>) {
    match values.as_object().filter(|map| !map.is_empty()) {
        // Keys with dots in them are the user's own and are set by no flag.
        Some(map) => map
            .iter()
            .filter(|(key, _)| !key.contains('.'))
            .for_each(|(key, value)| leaves(&format!("{above}{key}."), value, out)),
        None => out.push((above.trim_end_matches('.').to_owned(), values.clone())),
    }
}

#[test]
fn each_flag_sets_its_values() {
    let registry = |name: &str| json!(format!("example.org/mesh/{name}"));
    for (flags, expected) in [
        ("", vec![]),
        (
            "--proxy-image a/b",
            vec![("proxy.image.name", json!("a/b"))],
        ),
        (
            "--proxy-version v1",
            vec![("proxy.image.version", json!("v1"))],
        ),
        ("-v v1", vec![("proxy.image.version", json!("v1"))]),
        (
            "--init-image a/c",
            vec![("proxyInit.image.name", json!("a/c"))],
        ),
        (
            "--init-image-version v2",
            vec![("proxyInit.image.version", json!("v2"))],
        ),
        (
            "--image-pull-policy Always",
            vec![
                ("imagePullPolicy", json!("Always")),
                ("debugContainer.image.pullPolicy", json!("Always")),
                ("proxy.image.pullPolicy", json!("Always")),
                ("proxyInit.image.pullPolicy", json!("Always")),
            ],
        ),
        (
            "--registry example.org/mesh/",
            vec![
                ("controllerImage", registry("controller")),
                ("debugContainer.image.name", registry("debug")),
                ("proxy.image.name", registry("proxy")),
                ("proxyInit.image.name", registry("proxy-init")),
            ],
        ),
        (
            "--inbound-port 1 --outbound-port 2 --control-port 3 --admin-port 4",
            vec![
                ("proxy.ports.admin", json!(4)),
                ("proxy.ports.control", json!(3)),
                ("proxy.ports.inbound", json!(1)),
                ("proxy.ports.outbound", json!(2)),
            ],
        ),
        (
            "--skip-inbound-ports 1,2 --skip-inbound-ports 3 --skip-outbound-ports 4-5",
            vec![
                ("proxyInit.ignoreInboundPorts", json!("1,2,3")),
                ("proxyInit.ignoreOutboundPorts", json!("4-5")),
            ],
        ),
        (
            "--proxy-uid 7 --proxy-gid 8",
            vec![("proxy.uid", json!(7)), ("proxy.gid", json!(8))],
        ),
        ("--proxy-gid -1", vec![]),
        (
            "--proxy-log-level debug",
            vec![("proxy.logLevel", json!("debug"))],
        ),
        (
            "--proxy-cpu-request 1500m --proxy-cpu-limit 3",
            vec![
                ("proxy.runtime.workers.minimum", json!(2)),
                ("proxy.runtime.workers.maximum", json!(3)),
                ("proxy.resources.cpu.limit", json!("3")),
                ("proxy.resources.cpu.request", json!("1500m")),
            ],
        ),
        (
            "--proxy-cpu 1500m --proxy-memory 5Mi",
            vec![
                ("proxy.resources.cpu.request", json!("1500m")),
                ("proxy.resources.memory.request", json!("5Mi")),
            ],
        ),
        (
            "--proxy-memory-request 1Mi --proxy-memory-limit 2Mi",
            vec![
                ("proxy.resources.memory.limit", json!("2Mi")),
                ("proxy.resources.memory.request", json!("1Mi")),
            ],
        ),
        (
            "--enable-external-profiles --default-inbound-policy deny",
            vec![
                ("proxy.enableExternalProfiles", json!(true)),
                ("proxy.defaultInboundPolicy", json!("deny")),
            ],
        ),
        (
            "--controller-replicas 2 --controller-uid 5 --controller-gid 6 --controller-log-level warn",
            vec![
                ("controllerLogLevel", json!("warn")),
                ("controllerReplicas", json!(2)),
                ("controllerUID", json!(5)),
                ("controllerGID", json!(6)),
            ],
        ),
        (
            "--cluster-domain a.b --identity-trust-domain c.d --identity-external-ca",
            vec![
                ("clusterDomain", json!("a.b")),
                ("identityTrustDomain", json!("c.d")),
                ("identity.externalCA", json!(true)),
            ],
        ),
        (
            "--identity-external-issuer --identity-issuance-lifetime 1h --identity-clock-skew-allowance 1s",
            vec![
                ("identity.issuer.scheme", json!("kubernetes.io/tls")),
                ("identity.issuer.clockSkewAllowance", json!("1s")),
                ("identity.issuer.issuanceLifetime", json!("1h")),
            ],
        ),
        (
            "--linkerd-cni-enabled --disable-h2-upgrade --disable-heartbeat --enable-endpoint-slices=false",
            vec![
                ("enableEndpointSlices", json!(false)),
                ("enableH2Upgrade", json!(false)),
                ("cniEnabled", json!(true)),
                ("disableHeartBeat", json!(true)),
            ],
        ),
        ("--enable-endpoint-slices", vec![]),
    ] {
        let expected: Vec<(String, Value)> = expected
            .into_iter()
            .map(|(path, value)| (path.to_owned(), value))
            .collect();
        let sorted = |mut pairs: Vec<(String, Value)>| {
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            pairs
        };
        assert_eq!(sorted(changed(flags)), sorted(expected), "{flags}");
    }
}

#[test]
fn what_is_on_its_way_out_is_told() {
    for (flags, notice) in [
        ("--proxy-cpu 1", "use --proxy-cpu-request instead"),
        ("--proxy-memory 1", "use --proxy-memory-request instead"),
        ("--proxy-version 1", "use --set proxy.image.version instead"),
        ("--init-image a", "use --set proxyInit.image.name instead"),
        (
            "--init-image-version a",
            "use --set proxyInit.image.version instead",
        ),
    ] {
        let words = std::iter::once("install").chain(flags.split_whitespace());
        let line = Line::try_parse_from(words).expect("known flags");
        let flag = flags.split(' ').next().unwrap_or_default();
        let expected = format!("Flag {flag} has been deprecated, {notice}");
        assert_eq!(line.proxy.deprecations(), [expected]);
    }
    assert!(ProxyFlags::default().deprecations().is_empty());
}
