//! The `linkerd-proxy` container: its environment is the contract the proxy starts from.

use crate::{
    Error, Request,
    init::{image, pull_policy},
    settings::Settings,
    values::{Resources, ServerParams},
};
use linkerd_k8s::labels::prefix;
use serde_json::{Map, Value, json};

const END_ENTITY_DIR: &str = "/var/run/linkerd/identity/end-entity";
const TOKEN_DIR: &str = "/var/run/secrets/tokens";
const TOKEN_FILE: &str = "/var/run/secrets/tokens/linkerd-identity-token";
const AUTOMOUNTED_TOKEN_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Only the keys that are set; nothing when none is.
pub(crate) fn resources(resources: &Resources) -> Option<Value> {
    let kinds = [
        ("cpu", &resources.cpu),
        ("memory", &resources.memory),
        ("ephemeral-storage", &resources.ephemeral_storage),
    ];
    let mut out = Map::new();
    for (side, of) in [("limits", 0), ("requests", 1)] {
        let set: Map<String, Value> = kinds
            .iter()
            .map(|(kind, bounds)| {
                (
                    *kind,
                    if of == 0 {
                        &bounds.limit
                    } else {
                        &bounds.request
                    },
                )
            })
            .filter(|(_, quantity)| !quantity.is_empty())
            .map(|(kind, quantity)| (kind.to_owned(), Value::from(quantity.as_str())))
            .collect();
        if !set.is_empty() {
            out.insert(side.to_owned(), Value::Object(set));
        }
    }
    (!out.is_empty()).then_some(Value::Object(out))
}

/// The whole container.
pub fn container(request: &Request<'_>, settings: &Settings) -> Result<Value, Error> {
    let v = &settings.values;
    let p = &v.proxy;
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": p.ports.admin}});
    let timed = |path: &str, delay: u32, timeout: u32| {
        let mut probe = probe(path);
        probe["initialDelaySeconds"] = delay.into();
        probe["timeoutSeconds"] = timeout.into();
        probe
    };
    let mut container = json!({
        "name": "linkerd-proxy",
        "image": image(&p.image, &v.linkerd_version),
        "imagePullPolicy": pull_policy(&p.image, &v.image_pull_policy),
        "env": environment(request, settings)?,
        "livenessProbe": timed("/live", p.liveness_probe.initial_delay_seconds, p.liveness_probe.timeout_seconds),
        "ports": [
            {"containerPort": p.ports.inbound, "name": "linkerd-proxy"},
            {"containerPort": p.ports.admin, "name": "linkerd-admin"},
        ],
        "readinessProbe": timed("/ready", p.readiness_probe.initial_delay_seconds, p.readiness_probe.timeout_seconds),
        "securityContext": security_context(request, settings),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(request, settings),
    });
    if let Some(resources) = resources(&p.resources) {
        container["resources"] = resources;
    }
    if p.native_sidecar {
        container["restartPolicy"] = "Always".into();
        if p.await_ready {
            let mut startup = probe("/ready");
            startup["initialDelaySeconds"] = p.startup_probe.initial_delay_seconds.into();
            startup["periodSeconds"] = p.startup_probe.period_seconds.into();
            startup["failureThreshold"] = p.startup_probe.failure_threshold.into();
            container["startupProbe"] = startup;
        }
    } else {
        let mut lifecycle = Map::new();
        if p.await_ready {
            let port = format!("--port={}", p.ports.admin);
            let command = json!(["/usr/lib/linkerd/linkerd-await", "--timeout=2m", port]);
            lifecycle.insert("postStart".into(), json!({"exec": {"command": command}}));
        }
        if p.wait_before_exit_seconds > 0 {
            let command = json!(["/bin/sleep", p.wait_before_exit_seconds.to_string()]);
            lifecycle.insert("preStop".into(), json!({"exec": {"command": command}}));
        }
        if !lifecycle.is_empty() {
            container["lifecycle"] = Value::Object(lifecycle);
        }
    }
    Ok(container)
}

fn security_context(request: &Request<'_>, settings: &Settings) -> Value {
    let p = &settings.values.proxy;
    if !p.security_context.is_empty() {
        return json!(p.security_context);
    }
    let mut context = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "runAsUser": p.uid,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    if let Some(capabilities) = request.template.capabilities() {
        context["capabilities"] = json!(capabilities);
    }
    if p.gid >= 0 {
        context["runAsGroup"] = p.gid.into();
    }
    context
}

fn mounts(request: &Request<'_>, settings: &Settings) -> Vec<Value> {
    let mut mounts =
        vec![json!({"mountPath": END_ENTITY_DIR, "name": "linkerd-identity-end-entity"})];
    if settings.values.proxy.tracing.enabled {
        mounts.push(json!({"mountPath": "/var/run/linkerd/podinfo", "name": "linkerd-podinfo"}));
    }
    if settings.values.identity.service_account_token_projection {
        mounts.push(json!({"mountPath": TOKEN_DIR, "name": "linkerd-identity-token"}));
    }
    mounts.extend(
        request
            .template
            .token_mount()
            .and_then(|mount| serde_json::to_value(mount).ok()),
    );
    mounts
}

/// Variables in the order they are written.
#[derive(Default)]
struct Environment(Vec<Value>);

impl Environment {
    fn field(&mut self, name: &str, path: &str) {
        self.0
            .push(json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    }

    fn plain(&mut self, name: &str, value: impl Into<String>) {
        self.0.push(json!({"name": name, "value": value.into()}));
    }

    /// With the proxy's prefix.
    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.plain(&format!("LINKERD2_PROXY_{name}"), value);
    }

    fn set_unless_empty(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.set(name, value);
        }
    }

    /// `scope.protocol.someParam` as `DIRECTION_SCOPE_PROTOCOL_SOME_PARAM`.
    fn server(&mut self, direction: &str, params: &ServerParams) {
        for (scope, protocols) in params {
            for (protocol, params) in protocols {
                for (param, value) in params {
                    let name = [direction, scope, protocol, param]
                        .map(upper_snake)
                        .join("_");
                    let value = value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned);
                    self.set(&name, value);
                }
            }
        }
    }
}

fn upper_snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for (at, c) in name.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

fn environment(request: &Request<'_>, settings: &Settings) -> Result<Vec<Value>, Error> {
    let v = &settings.values;
    let p = &v.proxy;
    let ns = request.control_plane_ns;
    let td = v.trust_domain();
    let service = |name: &str, port: u16| format!("{name}.{ns}.svc.{}.:{port}", v.cluster_domain);
    let identity = |name: &str| format!("{name}.{ns}.serviceaccount.identity.{ns}.{td}");
    let any = if v.disable_ipv6 { "0.0.0.0" } else { "[::]" };
    let mut e = Environment::default();

    e.field("_pod_name", "metadata.name");
    e.field("_pod_ns", "metadata.namespace");
    e.field("_pod_uid", "metadata.uid");
    e.field("_pod_ip", "status.podIP");
    e.field("_pod_nodeName", "spec.nodeName");
    e.plain("_pod_containerName", "linkerd-proxy");
    let minimum = if p.cores.is_empty() {
        &p.runtime.workers.minimum
    } else {
        &p.cores
    };
    e.set("CORES", minimum);
    e.set("CORES_MIN", minimum);
    e.set_unless_empty("CORES_MAX", &p.runtime.workers.maximum);
    e.set_unless_empty("CORES_MAX_RATIO", &p.runtime.workers.maximum_cpu_ratio);
    e.set_unless_empty(
        "INBOUND_PORTS_REQUIRE_IDENTITY",
        &p.require_identity_on_inbound_ports,
    );
    e.set(
        "SHUTDOWN_ENDPOINT_ENABLED",
        p.enable_shutdown_endpoint.to_string(),
    );
    let quiet = if p.log_http_headers == "insecure" {
        ""
    } else {
        ",[{headers}]=off,[{request}]=off"
    };
    e.set("LOG", format!("{}{quiet}", p.log_level));
    e.set("LOG_FORMAT", &p.log_format);
    e.set(
        "DESTINATION_SVC_ADDR",
        service("linkerd-dst-headless", 8086),
    );
    e.set("DESTINATION_PROFILE_NETWORKS", &v.cluster_networks);
    e.set("POLICY_SVC_ADDR", service("linkerd-policy", 8090));
    e.set(
        "POLICY_WORKLOAD",
        "{\"ns\":\"$(_pod_ns)\", \"pod\":\"$(_pod_name)\"}\n",
    );
    e.set("INBOUND_DEFAULT_POLICY", &p.default_inbound_policy);
    e.set("POLICY_CLUSTER_NETWORKS", &v.cluster_networks);
    e.set(
        "CONTROL_STREAM_INITIAL_TIMEOUT",
        &p.control.streams.initial_timeout,
    );
    e.set(
        "CONTROL_STREAM_IDLE_TIMEOUT",
        &p.control.streams.idle_timeout,
    );
    e.set("CONTROL_STREAM_LIFETIME", &p.control.streams.lifetime);
    e.set_unless_empty("INBOUND_CONNECT_TIMEOUT", &p.inbound_connect_timeout);
    e.set_unless_empty("OUTBOUND_CONNECT_TIMEOUT", &p.outbound_connect_timeout);
    e.set_unless_empty(
        "OUTBOUND_DISCOVERY_IDLE_TIMEOUT",
        &p.outbound_discovery_cache_unused_timeout,
    );
    e.set_unless_empty(
        "INBOUND_DISCOVERY_IDLE_TIMEOUT",
        &p.inbound_discovery_cache_unused_timeout,
    );
    if p.disable_outbound_protocol_detect_timeout {
        e.set("OUTBOUND_DETECT_TIMEOUT", "365d");
    }
    if p.disable_inbound_protocol_detect_timeout {
        e.set("INBOUND_DETECT_TIMEOUT", "365d");
    }
    e.set("CONTROL_LISTEN_ADDR", format!("{any}:{}", p.ports.control));
    e.set("ADMIN_LISTEN_ADDR", format!("{any}:{}", p.ports.admin));
    let outbound = format!("127.0.0.1:{}", p.ports.outbound);
    e.set("OUTBOUND_LISTEN_ADDR", &outbound);
    let both = format!("{outbound},[::1]:{}", p.ports.outbound);
    e.set(
        "OUTBOUND_LISTEN_ADDRS",
        if v.disable_ipv6 { outbound } else { both },
    );
    e.set("INBOUND_LISTEN_ADDR", format!("{any}:{}", p.ports.inbound));
    e.field("LINKERD2_PROXY_INBOUND_IPS", "status.podIPs");
    let inbound_ports = request.template.inbound_ports();
    e.set(
        "INBOUND_PORTS",
        if p.pod_inbound_ports.is_empty() {
            &inbound_ports
        } else {
            &p.pod_inbound_ports
        },
    );
    let suffix = format!("svc.{}.", v.cluster_domain);
    if p.is_gateway {
        e.set("INBOUND_GATEWAY_SUFFIXES", &suffix);
    }
    if p.is_ingress {
        e.set("INGRESS_MODE", "true");
    }
    e.set(
        "DESTINATION_PROFILE_SUFFIXES",
        if p.enable_external_profiles {
            "."
        } else {
            &suffix
        },
    );
    e.set("INBOUND_ACCEPT_KEEPALIVE", "10000ms");
    e.set("OUTBOUND_CONNECT_KEEPALIVE", "10000ms");
    e.set("INBOUND_ACCEPT_USER_TIMEOUT", "30s");
    e.set("OUTBOUND_CONNECT_USER_TIMEOUT", "30s");
    e.set(
        "OUTBOUND_METRICS_HOSTNAME_LABELS",
        p.metrics.hostname_labels.to_string(),
    );
    if p.tracing.enabled {
        tracing(&mut e, request, settings)?;
    }
    e.server("inbound", &p.inbound);
    e.server("outbound", &p.outbound);
    e.set_unless_empty("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", &p.opaque_ports);
    let context =
        "{\"ns\":\"$(_pod_ns)\", \"nodeName\":\"$(_pod_nodeName)\", \"pod\":\"$(_pod_name)\"}\n";
    e.set("DESTINATION_CONTEXT", context);
    e.field("_pod_sa", "spec.serviceAccountName");
    e.plain("_l5d_ns", ns);
    e.plain("_l5d_trustdomain", td);
    e.set("IDENTITY_DIR", END_ENTITY_DIR);
    e.set("IDENTITY_TRUST_ANCHORS", request.trust_anchors);
    let projected = v.identity.service_account_token_projection;
    e.set(
        "IDENTITY_TOKEN_FILE",
        if projected {
            TOKEN_FILE
        } else {
            AUTOMOUNTED_TOKEN_FILE
        },
    );
    e.set(
        "IDENTITY_SVC_ADDR",
        service("linkerd-identity-headless", 8080),
    );
    e.set(
        "IDENTITY_LOCAL_NAME",
        format!("$(_pod_sa).$(_pod_ns).serviceaccount.identity.{ns}.{td}"),
    );
    e.set("IDENTITY_SVC_NAME", identity("linkerd-identity"));
    e.set("DESTINATION_SVC_NAME", identity("linkerd-destination"));
    e.set("POLICY_SVC_NAME", identity("linkerd-destination"));
    e.set_unless_empty("ACCESS_LOG", &p.access_log);
    e.set_unless_empty("SHUTDOWN_GRACE_PERIOD", &p.shutdown_grace_period);
    e.0.extend(p.additional_env.iter().flatten().cloned());
    e.0.extend(p.experimental_env.iter().flatten().cloned());
    Ok(e.0)
}

fn tracing(e: &mut Environment, request: &Request<'_>, settings: &Settings) -> Result<(), Error> {
    let v = &settings.values;
    let t = &v.proxy.tracing;
    let collector = &t.collector;
    let (account, namespace) = (
        &collector.mesh_identity.service_account_name,
        &collector.mesh_identity.namespace,
    );
    if [&collector.endpoint, account, namespace]
        .into_iter()
        .any(String::is_empty)
    {
        return Err(Error::Tracing);
    }
    let named = ["app.kubernetes.io/instance", "app.kubernetes.io/name"];
    let service = named
        .into_iter()
        .find_map(|label| request.template.label(label));
    let mut attributes: Vec<String> = t
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if let Some(service) = service {
        attributes.push(format!("service.name={service}"));
    }
    for (key, value) in request.template.annotations().into_iter().flatten() {
        if let Some(key) = key
            .strip_prefix(prefix::OPENTELEMETRY)
            .and_then(|key| key.strip_prefix('/'))
        {
            attributes.push(format!("{key}={value}"));
        }
    }
    let ns = request.control_plane_ns;
    e.set("TRACE_ATTRIBUTES_PATH", "/var/run/linkerd/podinfo/labels");
    e.set(
        "TRACE_ANNOTATIONS_PATH",
        "/var/run/linkerd/podinfo/annotations",
    );
    e.set("TRACE_PROTOCOL", "opentelemetry");
    e.set("TRACE_SERVICE_NAME", &t.trace_service_name);
    e.set("TRACE_COLLECTOR_SVC_ADDR", &collector.endpoint);
    let td = v.trust_domain();
    e.set(
        "TRACE_COLLECTOR_SVC_NAME",
        format!("{account}.{namespace}.serviceaccount.identity.{ns}.{td}"),
    );
    e.set("TRACE_EXTRA_ATTRIBUTES", attributes.join("\n"));
    Ok(())
}
