//! The environment the chart renders is accepted; every mistake of a bad one is reported at once.

mod variables;

use std::collections::HashMap;

use super::*;

fn chart() -> HashMap<String, String> {
    [
        ("LINKERD2_PROXY_CORES", "1"),
        ("LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED", "false"),
        (
            "LINKERD2_PROXY_LOG",
            "warn,linkerd=info,hickory=error,[{headers}]=off,[{request}]=off",
        ),
        ("LINKERD2_PROXY_LOG_FORMAT", "plain"),
        (
            "LINKERD2_PROXY_DESTINATION_SVC_ADDR",
            "linkerd-dst-headless.linkerd.svc.cluster.local.:8086",
        ),
        (
            "LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS",
            "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8",
        ),
        (
            "LINKERD2_PROXY_POLICY_SVC_ADDR",
            "linkerd-policy.linkerd.svc.cluster.local.:8090",
        ),
        (
            "LINKERD2_PROXY_POLICY_WORKLOAD",
            "{\"ns\":\"emojivoto\", \"pod\":\"web-1\"}\n",
        ),
        (
            "LINKERD2_PROXY_INBOUND_DEFAULT_POLICY",
            "all-unauthenticated",
        ),
        (
            "LINKERD2_PROXY_POLICY_CLUSTER_NETWORKS",
            "10.0.0.0/8,fd00::/8",
        ),
        ("LINKERD2_PROXY_CONTROL_STREAM_INITIAL_TIMEOUT", "3s"),
        ("LINKERD2_PROXY_CONTROL_STREAM_IDLE_TIMEOUT", "5m"),
        ("LINKERD2_PROXY_CONTROL_STREAM_LIFETIME", "1h"),
        ("LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT", "100ms"),
        ("LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT", "1000ms"),
        ("LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT", "5s"),
        ("LINKERD2_PROXY_INBOUND_DISCOVERY_IDLE_TIMEOUT", "90s"),
        ("LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "0.0.0.0:4190"),
        ("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "0.0.0.0:4191"),
        ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR", "127.0.0.1:4140"),
        (
            "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS",
            "127.0.0.1:4140,[::1]:4140",
        ),
        ("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "0.0.0.0:4143"),
        ("LINKERD2_PROXY_INBOUND_IPS", "10.42.0.7"),
        ("LINKERD2_PROXY_INBOUND_PORTS", "8080"),
        (
            "LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES",
            "svc.cluster.local.",
        ),
        ("LINKERD2_PROXY_INBOUND_ACCEPT_KEEPALIVE", "10000ms"),
        ("LINKERD2_PROXY_OUTBOUND_CONNECT_KEEPALIVE", "10000ms"),
        ("LINKERD2_PROXY_INBOUND_ACCEPT_USER_TIMEOUT", "30s"),
        ("LINKERD2_PROXY_OUTBOUND_CONNECT_USER_TIMEOUT", "30s"),
        (
            "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL",
            "10s",
        ),
        (
            "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT",
            "3s",
        ),
        (
            "LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
            "25,587,3306,4444,5432,6379,9300,11211",
        ),
        (
            "LINKERD2_PROXY_DESTINATION_CONTEXT",
            "{\"ns\":\"emojivoto\"}\n",
        ),
        (
            "LINKERD2_PROXY_IDENTITY_DIR",
            "/var/run/linkerd/identity/end-entity",
        ),
        (
            "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS",
            "-----BEGIN CERTIFICATE-----\n",
        ),
        (
            "LINKERD2_PROXY_IDENTITY_TOKEN_FILE",
            // Where the chart has the token; here, any file that is there.
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ),
        (
            "LINKERD2_PROXY_IDENTITY_SVC_ADDR",
            "linkerd-identity-headless.linkerd.svc.cluster.local.:8080",
        ),
        (
            "LINKERD2_PROXY_IDENTITY_LOCAL_NAME",
            "web.emojivoto.serviceaccount.identity.linkerd.cluster.local",
        ),
        (
            "LINKERD2_PROXY_IDENTITY_SVC_NAME",
            "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local",
        ),
        (
            "LINKERD2_PROXY_DESTINATION_SVC_NAME",
            "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local",
        ),
        (
            "LINKERD2_PROXY_POLICY_SVC_NAME",
            "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local",
        ),
        ("LINKERD2_PROXY_UNKNOWN_VARIABLE", "ignored"),
        ("_pod_name", "web-1"),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .collect()
}

fn read(change: impl FnOnce(&mut HashMap<String, String>)) -> Result<Config, Vec<String>> {
    let mut env = chart();
    change(&mut env);
    Config::read(&env).map_err(|e| e.mistakes)
}

#[test]
fn the_charts_environment_is_accepted() {
    let config = read(|_| {}).expect("valid");
    assert_eq!(config.outbound.listen.len(), 2);
    assert_eq!(config.inbound.connect_timeout, Duration::from_millis(100));
    assert!(config.inbound.opaque_ports.contains(6379));
    assert_eq!(config.identity.id, config.identity.server_name);
    assert_eq!(
        config.control.streams.lifetime,
        Some(Duration::from_secs(3600))
    );
    assert!(config.tap.is_none());
    assert_eq!(config.workers.count(8), 1);
}

#[test]
fn every_mistake_is_reported() {
    let mistakes = read(|env| {
        env.insert(env::OUTBOUND_CONNECT_TIMEOUT.into(), "1".into());
        env.insert(env::INGRESS_MODE.into(), "yes".into());
        env.insert(env::INBOUND_PORTS.into(), "a".into());
        env.remove(env::POLICY_SVC_ADDR);
        env.remove(env::DESTINATION_SVC_ADDR);
    })
    .expect_err("invalid");
    for wanted in [
        "LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT=\"1\" is not valid: not a duration like 10s",
        "LINKERD2_PROXY_INGRESS_MODE=\"yes\" is not valid: not true or false",
        "LINKERD2_PROXY_INBOUND_PORTS=\"a\" is not valid: not a list of ports and port ranges",
        "no policy service configured",
        "no destination service configured",
    ] {
        assert!(
            mistakes.iter().any(|m| m == wanted),
            "{wanted} in {mistakes:#?}"
        );
    }
    assert_eq!(mistakes.len(), 5, "{mistakes:#?}");
}

#[test]
fn single_mistakes() {
    let cases: &[(&str, &str, Option<&str>, &str)] = &[
        (
            "third outbound listener",
            env::OUTBOUND_LISTEN_ADDRS,
            Some("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"),
            "one or two",
        ),
        (
            "remote controller without a name",
            env::POLICY_SVC_NAME,
            None,
            "is required when",
        ),
        (
            "identity turned off",
            env::IDENTITY_DISABLED,
            Some("1"),
            "identity must be enabled",
        ),
        (
            "empty anchors",
            env::IDENTITY_TRUST_ANCHORS,
            Some(" "),
            "must not be empty",
        ),
        ("no token", env::IDENTITY_TOKEN_FILE, None, "is required"),
        (
            "no token file",
            env::IDENTITY_TOKEN_FILE,
            Some("/nonexistent/token"),
            "IDENTITY_TOKEN_FILE is not usable: the token cannot be read",
        ),
        (
            "empty token file",
            env::IDENTITY_TOKEN_FILE,
            Some("/dev/null"),
            "is empty",
        ),
        ("no workload", env::POLICY_WORKLOAD, None, "is required"),
        (
            "streams out of order",
            env::CONTROL_STREAM_LIFETIME,
            Some("1s"),
            "must not decrease",
        ),
        (
            "half a backoff",
            env::OUTBOUND_CONNECT_EXP_BACKOFF_MIN,
            Some("1s"),
            "must be set together",
        ),
        (
            "unknown default policy",
            env::INBOUND_DEFAULT_POLICY,
            Some("allow"),
            "not a default policy",
        ),
        (
            "small frame",
            env::INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE,
            Some("1"),
            "between 16384",
        ),
        (
            "a window of the server",
            env::INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE,
            Some("2147483648"),
            "at most 2147483647",
        ),
        (
            "a window of streams",
            env::OUTBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE,
            Some("4294967295"),
            "at most 2147483647",
        ),
        (
            "a window of clients",
            env::HTTP2_INITIAL_CONNECTION_WINDOW_SIZE,
            Some("2147483648"),
            "at most 2147483647",
        ),
        (
            "a window of clients' streams",
            env::HTTP2_INITIAL_STREAM_WINDOW_SIZE,
            Some("2147483648"),
            "at most 2147483647",
        ),
        (
            "more to send than can be counted",
            env::OUTBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE,
            Some("4294967296"),
            "at most 4294967295",
        ),
        (
            "jitter that is no number",
            env::OUTBOUND_CONNECT_EXP_BACKOFF_JITTER,
            Some("NaN"),
            "EXP_BACKOFF_JITTER is not valid: jitter must be",
        ),
    ];
    for (name, var, value, wanted) in cases {
        let mistakes = read(|env| {
            match value {
                Some(value) => env.insert((*var).into(), (*value).into()),
                None => env.remove(*var),
            };
        })
        .expect_err(name);
        assert_eq!(mistakes.len(), 1, "{name}: {mistakes:#?}");
        assert!(mistakes[0].contains(wanted), "{name}: {mistakes:#?}");
    }
}

#[test]
fn one_name_wins_over_one_for_each() {
    let both = |env: &mut HashMap<String, String>| {
        env.insert(env::IDENTITY_SERVER_ID.into(), "some.id".into());
        env.insert(env::IDENTITY_SERVER_NAME.into(), "some.name".into());
    };
    let name = chart()[env::IDENTITY_LOCAL_NAME].clone();
    let config = read(both).expect("valid");
    assert_eq!(config.identity.id, name);
    assert_eq!(config.identity.server_name, name);
    let mistakes = read(|env| {
        both(env);
        env.remove(env::IDENTITY_LOCAL_NAME);
    })
    .expect_err("they differ");
    assert!(mistakes[0].contains("to be the same"), "{mistakes:?}");
}

#[test]
fn audit_needs_the_cluster_networks() {
    let set = |env: &mut HashMap<String, String>| {
        env.insert(env::INBOUND_DEFAULT_POLICY.into(), "audit".into());
    };
    assert!(read(set).is_ok());
    let mistakes = read(|env| {
        set(env);
        env.remove(env::POLICY_CLUSTER_NETWORKS);
    })
    .expect_err("invalid");
    assert!(
        mistakes[0].contains("needs the cluster networks"),
        "{mistakes:?}"
    );
}

#[test]
fn loopback_controllers_are_plain() {
    let config = read(|env| {
        env.insert(env::DESTINATION_SVC_ADDR.into(), "localhost.:8086".into());
    })
    .expect("valid");
    assert_eq!(config.control.destination.identity, None);
}

#[test]
fn bad_worker_counts_are_warnings() {
    let config = read(|env| {
        env.insert(env::CORES_MAX.into(), "many".into());
    })
    .expect("valid");
    assert!(
        config.warnings.iter().any(|w| w.contains("CORES_MAX")),
        "{:?}",
        config.warnings
    );
}

#[test]
fn worker_counts() {
    let workers = |min, max, max_ratio| Workers {
        min,
        max,
        max_ratio,
    };
    for (name, workers, available, want) in [
        ("default", workers(1, None, None), 8, 1),
        ("maximum", workers(1, Some(4), None), 8, 4),
        ("ratio", workers(1, None, Some(0.5)), 8, 4),
        ("minimum", workers(2, None, None), 8, 2),
        ("never above the cpus", workers(1, Some(9), None), 2, 2),
        ("tiny ratio", workers(1, None, Some(0.01)), 8, 1),
    ] {
        assert_eq!(workers.count(available), want, "{name}");
    }
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<_> = env::ALL.iter().map(|v| v.name).collect();
    assert_eq!(names.len(), env::ALL.len());
}
