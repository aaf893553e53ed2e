//! Every annotation changes its field and nothing else; bad values change nothing and are reported.

use super::*;
use serde_json::json;

fn pod(annotations: Value) -> Template {
    let ports = json!([{"containerPort": 3306, "name": "sql"}, {"containerPort": 80}]);
    let pod = json!({
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "app", "ports": ports}]},
    });
    Template::read(&pod).expect("pod")
}

/// Lines of the printed settings that differ from the defaults', as `field: value`.
fn changed(settings: &Settings) -> Vec<String> {
    let print = |values: &Values| -> Vec<String> {
        let printed = format!("{values:#?}");
        printed
            .lines()
            .map(|line| line.trim().trim_end_matches(',').to_owned())
            .collect()
    };
    let (before, after) = (print(&Values::default()), print(&settings.values));
    assert_eq!(before.len(), after.len(), "{after:#?}");
    before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before != after)
        .map(|(_, after)| after.clone())
        .collect()
}

#[test]
fn each_annotation_sets_its_field() {
    for (key, value, expected) in [
        (INJECT, "ingress", &["is_ingress: true"] as &[_]),
        (PROXY_IMAGE, "example/proxy", &["name: \"example/proxy\""]),
        (PROXY_IMAGE_VERSION, "v1", &["version: \"v1\""]),
        (
            IMAGE_PULL_POLICY,
            "Always",
            &["pull_policy: \"Always\"", "pull_policy: \"Always\""],
        ),
        (INIT_IMAGE, "example/init", &["name: \"example/init\""]),
        (INIT_IMAGE_VERSION, "v2", &["version: \"v2\""]),
        (DEBUG_IMAGE, "example/debug", &["name: \"example/debug\""]),
        (DEBUG_IMAGE_VERSION, "v3", &["version: \"v3\""]),
        (
            DEBUG_IMAGE_PULL_POLICY,
            "Never",
            &["pull_policy: \"Never\""],
        ),
        (CONTROL_PORT, "5190", &["control: 5190"]),
        (INBOUND_PORT, "5143", &["inbound: 5143"]),
        (OUTBOUND_PORT, "5140", &["outbound: 5140"]),
        (ADMIN_PORT, "5191", &["admin: 5191"]),
        (
            POD_INBOUND_PORTS,
            "80,90",
            &["pod_inbound_ports: \"80,90\""],
        ),
        (
            SKIP_INBOUND_PORTS,
            "1,2-5",
            &["ignore_inbound_ports: \"1,2-5\""],
        ),
        (SKIP_OUTBOUND_PORTS, "", &["ignore_outbound_ports: \"\""]),
        (
            SKIP_SUBNETS,
            "10.0.0.0/8",
            &["skip_subnets: \"10.0.0.0/8\""],
        ),
        (
            SKIP_INBOUND_SUBNETS,
            "10.0.0.0/8",
            &["skip_inbound_subnets: \"10.0.0.0/8\""],
        ),
        (
            SKIP_OUTBOUND_SUBNETS,
            "10.0.0.0/8",
            &["skip_outbound_subnets: \"10.0.0.0/8\""],
        ),
        (
            OPAQUE_PORTS,
            "sql, 80,100-200",
            &["opaque_ports: \"3306,80,100-200\""],
        ),
        (
            PROXY_CPU_REQUEST,
            "1500m",
            &["minimum: \"2\"", "request: \"1500m\""],
        ),
        (PROXY_CPU_LIMIT, "3", &["maximum: \"3\"", "limit: \"3\""]),
        (
            PROXY_CPU_RATIO_LIMIT,
            "0.5",
            &["maximum_cpu_ratio: \"0.5\""],
        ),
        (PROXY_MEMORY_REQUEST, "20Mi", &["request: \"20Mi\""]),
        (PROXY_MEMORY_LIMIT, "1Gi", &["limit: \"1Gi\""]),
        (PROXY_EPHEMERAL_STORAGE_REQUEST, "1M", &["request: \"1M\""]),
        (PROXY_EPHEMERAL_STORAGE_LIMIT, "2M", &["limit: \"2M\""]),
        (PROXY_UID, "3000", &["uid: 3000"]),
        (PROXY_GID, "3001", &["gid: 3001"]),
        (PROXY_LOG_LEVEL, "debug", &["log_level: \"debug\""]),
        (PROXY_LOG_FORMAT, "json", &["log_format: \"json\""]),
        (
            PROXY_LOG_HTTP_HEADERS,
            "insecure",
            &["log_http_headers: \"insecure\""],
        ),
        (ACCESS_LOG, "json", &["access_log: \"json\""]),
        (
            PROXY_ADMIN_SHUTDOWN,
            "enabled",
            &["enable_shutdown_endpoint: true"],
        ),
        (
            ENABLE_EXTERNAL_PROFILES,
            "true",
            &["enable_external_profiles: true"],
        ),
        (
            REQUIRE_IDENTITY_ON_INBOUND_PORTS,
            "80",
            &["require_identity_on_inbound_ports: \"80\""],
        ),
        (
            PROXY_METRICS_HOSTNAME_LABELS,
            "true",
            &["hostname_labels: true"],
        ),
        (
            OUTBOUND_CONNECT_TIMEOUT,
            "1m",
            &["outbound_connect_timeout: \"60000ms\""],
        ),
        (
            INBOUND_CONNECT_TIMEOUT,
            "1.5s",
            &["inbound_connect_timeout: \"1500ms\""],
        ),
        (
            OUTBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT,
            "1m",
            &["outbound_discovery_cache_unused_timeout: \"60s\""],
        ),
        (
            INBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT,
            "2m",
            &["inbound_discovery_cache_unused_timeout: \"120s\""],
        ),
        (
            DISABLE_OUTBOUND_PROTOCOL_DETECT_TIMEOUT,
            "true",
            &["disable_outbound_protocol_detect_timeout: true"],
        ),
        (
            DISABLE_INBOUND_PROTOCOL_DETECT_TIMEOUT,
            "true",
            &["disable_inbound_protocol_detect_timeout: true"],
        ),
        (
            SHUTDOWN_GRACE_PERIOD,
            "30s",
            &["shutdown_grace_period: \"30000ms\""],
        ),
        (
            DEFAULT_INBOUND_POLICY,
            "deny",
            &["default_inbound_policy: \"deny\""],
        ),
        (ENABLE_GATEWAY, "true", &["is_gateway: true"]),
        (CLOSE_WAIT_TIMEOUT, "30s", &["close_wait_timeout_secs: 30"]),
        (PROXY_AWAIT, "disabled", &["await_ready: false"]),
        (
            PROXY_WAIT_BEFORE_EXIT,
            "15",
            &["wait_before_exit_seconds: 15"],
        ),
        (NATIVE_SIDECAR_ALPHA, "true", &["native_sidecar: true"]),
        (NATIVE_SIDECAR_BETA, "true", &["native_sidecar: true"]),
        (NATIVE_SIDECAR, "true", &["native_sidecar: true"]),
    ] {
        let settings = resolve(
            &Values::default(),
            &Annotations::new(),
            &pod(json!({key: value})),
        );
        assert_eq!(settings.ignored, Vec::<String>::new(), "{key}");
        assert_eq!(changed(&settings), expected, "{key}");

        let namespace: Annotations = [(key.to_owned(), value.to_owned())].into();
        let inherited = resolve(&Values::default(), &namespace, &pod(json!({})));
        let expected = if inheritable(key) { expected } else { &[] };
        assert_eq!(changed(&inherited), expected, "{key} at the namespace");
    }
}

#[test]
fn bad_values_are_reported_and_have_no_effect() {
    for (key, value) in [
        (ADMIN_PORT, "70000"),
        (PROXY_UID, "root"),
        (PROXY_CPU_REQUEST, "lots"),
        (PROXY_CPU_RATIO_LIMIT, "2"),
        (PROXY_CPU_RATIO_LIMIT, "1"),
        (PROXY_CPU_RATIO_LIMIT, "0"),
        (PROXY_CPU_RATIO_LIMIT, "NaN"),
        (PROXY_MEMORY_LIMIT, "1K"),
        (PROXY_MEMORY_LIMIT, "1 Gi"),
        (ENABLE_GATEWAY, "yes"),
        (ENABLE_GATEWAY, "tRUE"),
        (ENABLE_GATEWAY, ""),
        (PROXY_AWAIT, "true"),
        (OUTBOUND_CONNECT_TIMEOUT, "10"),
        (DEFAULT_INBOUND_POLICY, "allow"),
        (ACCESS_LOG, "nginx"),
        (PROXY_WAIT_BEFORE_EXIT, "-1"),
        (PROXY_ADDITIONAL_ENV, "{"),
        (PROXY_ADDITIONAL_ENV, "[{}]"),
    ] {
        let settings = resolve(
            &Values::default(),
            &Annotations::new(),
            &pod(json!({key: value})),
        );
        assert_eq!(changed(&settings), Vec::<String>::new(), "{key}: {value}");
        assert_eq!(settings.ignored.len(), 1, "{key}: {value}");
        assert!(
            settings.ignored[0].starts_with(key),
            "{}",
            settings.ignored[0]
        );
    }
    let settings = resolve(
        &Values::default(),
        &Annotations::new(),
        &pod(json!({OPAQUE_PORTS: "80,what,9-1"})),
    );
    assert_eq!(settings.values.proxy.opaque_ports, "80");
    assert_eq!(settings.ignored.len(), 2);
}

#[test]
fn booleans_are_written_as_in_go() {
    for (text, expected) in [
        ("1", true),
        ("t", true),
        ("T", true),
        ("true", true),
        ("TRUE", true),
        ("True", true),
        ("0", false),
        ("f", false),
        ("F", false),
        ("false", false),
        ("FALSE", false),
        ("False", false),
    ] {
        let mut values = Values::default();
        values.proxy.is_gateway = !expected;
        let pod = pod(json!({ENABLE_GATEWAY: text}));
        let settings = resolve(&values, &Annotations::new(), &pod);
        assert_eq!(settings.values.proxy.is_gateway, expected, "{text}");
        assert_eq!(settings.ignored, Vec::<String>::new(), "{text}");
    }
}

#[test]
fn quantities_are_written_as_in_kubernetes() {
    for (text, expected) in [
        ("1e9", Some("1000000000")),
        ("12E-1", Some("2")),
        ("1500m", Some("2")),
        ("2500000u", Some("3")),
        ("1000000001n", Some("2")),
        ("1Ki", Some("1024")),
        ("1P", Some("1000000000000000")),
        ("1E", Some("18446744073709552")),
        ("1Pi", Some("1125899906842624")),
        ("1Ei", Some("18446744073709552")),
        ("1K", None),
        ("-1", None),
    ] {
        assert_eq!(processors(text).as_deref(), expected, "{text}");
        let pod = pod(json!({PROXY_MEMORY_LIMIT: text}));
        let settings = resolve(&Values::default(), &Annotations::new(), &pod);
        assert_eq!(settings.ignored.is_empty(), expected.is_some(), "{text}");
    }
}

#[test]
fn the_pod_beats_the_namespace() {
    let namespace: Annotations = [
        (PROXY_LOG_LEVEL.to_owned(), "info".to_owned()),
        (NATIVE_SIDECAR.to_owned(), "true".to_owned()),
        (
            PROXY_ADDITIONAL_ENV.to_owned(),
            r#"[{"name":"A","value":"1"},{"name":"B","value":"1"}]"#.to_owned(),
        ),
    ]
    .into();
    let pod = pod(json!({
        PROXY_LOG_LEVEL: "debug",
        NATIVE_SIDECAR_ALPHA: "false",
        PROXY_ADDITIONAL_ENV: r#"[{"name":"B","value":"2"}]"#,
    }));
    let settings = resolve(&Values::default(), &namespace, &pod);
    assert_eq!(settings.values.proxy.log_level, "debug");
    assert!(
        settings.values.proxy.native_sidecar,
        "the newest name of an annotation wins"
    );
    let env = settings.values.proxy.additional_env.expect("set");
    assert_eq!(
        json!(env),
        json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    );
}
