//! Chart values that touch more than one place: each one changes what it says it changes.

use serde_json::{Value, json};
use std::process::Command;

/// The objects of an install with these values.
fn rendered(sets: &[&str]) -> Vec<Value> {
    installed(
        &sets
            .iter()
            .flat_map(|set| ["--set", set])
            .collect::<Vec<_>>(),
    )
}

/// The objects of an install with these flags.
fn installed(flags: &[&str]) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd"));
    command.env_clear().args(["install", "--ignore-cluster"]);
    let output = command.args(flags).output().expect("linkerd starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {said}");
    assert_eq!(said, "", "{flags:?}: nothing to warn of");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let documents = linkerd_cli::manifest::documents("test", &text).expect("YAML");
    documents
        .into_iter()
        .map(|document| document.value)
        .collect()
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("there is a {kind} {name}"))
}

fn container<'a>(objects: &'a [Value], deployment: &str, name: &str) -> &'a Value {
    let deployment = object(objects, "Deployment", deployment);
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array();
    let found = containers
        .expect("containers")
        .iter()
        .find(|container| container["name"] == name);
    found.unwrap_or_else(|| panic!("there is a container {name}"))
}

fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let variables = container["env"].as_array()?;
    variables.iter().find(|v| v["name"] == name)?["value"].as_str()
}

fn has_argument(container: &Value, argument: &str) -> bool {
    let arguments = container["args"].as_array().expect("arguments");
    arguments.iter().any(|given| given == argument)
}

#[test]
fn identity_has_its_own_api_limits() {
    let objects = rendered(&["kubeAPI.clientQPS=5,kubeAPI.clientBurst=6"]);
    let identity = container(&objects, "linkerd-identity", "identity");
    assert!(has_argument(identity, "--kube-apiclient-qps=5"));
    let objects = rendered(&["kubeAPI.clientBurst=6,identity.kubeAPI.clientQPS=7"]);
    let identity = container(&objects, "linkerd-identity", "identity");
    assert!(has_argument(identity, "--kube-apiclient-qps=7"));
    assert!(has_argument(identity, "--kube-apiclient-burst=6"));
}

#[test]
fn monitors_look_where_they_are_told() {
    let name = "linkerd-controller";
    let selector = |objects: &[Value]| {
        object(objects, "PodMonitor", name)["spec"]["namespaceSelector"].clone()
    };
    assert_eq!(
        selector(&rendered(&["podMonitor.enabled=true"])),
        json!({"matchNames": ["linkerd", "linkerd-viz"]})
    );
    let template = "podMonitor.controller.namespaceSelector=matchNames: [{{ .Release.Namespace }}]";
    assert_eq!(
        selector(&rendered(&["podMonitor.enabled=true", template])),
        json!({"matchNames": ["linkerd"]})
    );
}

#[test]
fn sidecars_of_the_control_plane_trace() {
    let collector = "proxy.tracing.collector.endpoint=collector.t:4317,proxy.tracing.collector.meshIdentity.serviceAccountName=c,proxy.tracing.collector.meshIdentity.namespace=t";
    let objects = rendered(&[collector]);
    let proxy = container(&objects, "linkerd-identity", "linkerd-proxy");
    assert_eq!(
        variable(proxy, "LINKERD2_PROXY_TRACE_COLLECTOR_SVC_ADDR"),
        None
    );
    for (enabled, endpoint, flag) in [
        ("proxy.tracing.enabled=true", "collector.t:4317", false),
        ("controller.tracing.enabled=true", "collector.t:4317", true),
        (
            "controller.tracing.enabled=true,controller.tracing.collector.endpoint=own.t:4317",
            "own.t:4317",
            true,
        ),
    ] {
        let objects = rendered(&[collector, enabled]);
        for component in ["identity", "destination", "proxy-injector"] {
            let deployment = format!("linkerd-{component}");
            let proxy = container(&objects, &deployment, "linkerd-proxy");
            let set = |name: &str| variable(proxy, &format!("LINKERD2_PROXY_TRACE_{name}"));
            assert_eq!(set("COLLECTOR_SVC_ADDR"), Some(endpoint), "{enabled}");
            assert_eq!(
                set("COLLECTOR_SVC_NAME"),
                Some("c.t.serviceaccount.identity.linkerd.cluster.local")
            );
            assert_eq!(
                set("EXTRA_ATTRIBUTES"),
                Some(
                    "k8s.container.name=$(_pod_containerName)\nk8s.pod.ip=$(_pod_ip)\nk8s.pod.uid=$(_pod_uid)"
                )
            );
            let controller = container(&objects, &deployment, component);
            let argument = format!("--trace-collector={endpoint}");
            assert_eq!(has_argument(controller, &argument), flag, "{enabled}");
            let spec = &object(&objects, "Deployment", &deployment)["spec"]["template"]["spec"];
            let volumes = spec["volumes"].as_array().expect("volumes");
            assert!(volumes.iter().any(|v| v["name"] == "linkerd-podinfo"));
        }
    }
}

#[test]
fn sidecar_resources_are_laid_over_the_proxys() {
    let objects = rendered(&[
        "proxy.resources.cpu.request=100m,proxy.resources.memory.limit=250Mi,proxy.runtime.workers.minimum=1",
        "identityProxyResources.cpu.request=200m,identityProxyResources.cores=3",
    ]);
    let own = container(&objects, "linkerd-identity", "linkerd-proxy");
    assert_eq!(
        own["resources"],
        json!({"limits": {"memory": "250Mi"}, "requests": {"cpu": "200m"}})
    );
    assert_eq!(variable(own, "LINKERD2_PROXY_CORES"), Some("3"));
    let other = container(&objects, "linkerd-destination", "linkerd-proxy");
    assert_eq!(
        other["resources"],
        json!({"limits": {"memory": "250Mi"}, "requests": {"cpu": "100m"}})
    );
    assert_eq!(variable(other, "LINKERD2_PROXY_CORES"), Some("1"));
}

/// Destination, policy and the validator of profiles are one container.
#[test]
fn settings_of_three_services_meet_in_one_container() {
    for (sets, resources) in [
        (
            "policyController.resources.memory.limit=64Mi",
            json!({"limits": {"memory": "64Mi"}}),
        ),
        (
            "destinationResources.cpu.request=100m,policyController.resources.cpu.request=1,spValidatorResources.cpu.request=0.5",
            json!({"requests": {"cpu": "1600m"}}),
        ),
        (
            "destinationResources.memory.limit=50Mi,spValidatorResources.memory.limit=1Gi",
            json!({"limits": {"memory": "1074Mi"}}),
        ),
        (
            "destinationResources.memory.request=1M,spValidatorResources.memory.request=1k",
            json!({"requests": {"memory": "1001000"}}),
        ),
    ] {
        let objects = rendered(&[sets]);
        let container = container(&objects, "linkerd-destination", "destination");
        assert_eq!(container["resources"], resources, "{sets}");
    }
    let objects = rendered(&[
        "policyController.livenessProbe.timeoutSeconds=5,spValidator.readinessProbe.timeoutSeconds=3",
        "destinationController.additionalEnv[0].name=A,policyController.experimentalEnv[0].name=B",
        "spValidator.additionalEnv[0].name=C,spValidator.experimentalEnv[0].name=D",
    ]);
    let container = container(&objects, "linkerd-destination", "destination");
    assert_eq!(container["livenessProbe"]["timeoutSeconds"], 5);
    assert_eq!(container["readinessProbe"]["timeoutSeconds"], 3);
    let names: Vec<&Value> = container["env"]
        .as_array()
        .expect("variables")
        .iter()
        .map(|variable| &variable["name"])
        .collect();
    assert_eq!(names, ["HOSTNAME", "A", "B", "C", "D"]);
}

/// These values do not render, and the message says why.
fn refused(set: &str, message: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_linkerd"))
        .args(["install", "--ignore-cluster", "--set", set])
        .env_clear()
        .output()
        .expect("linkerd starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{set}: {said}");
    assert!(said.contains(message), "{set}: {said}");
    assert!(output.stdout.is_empty(), "{set}: nothing is printed");
}

#[test]
fn a_quantity_that_cannot_be_added_is_refused() {
    refused(
        "destinationResources.cpu.request=1e3,spValidatorResources.cpu.request=1",
        "\"1e3\" is not a quantity that can be added up",
    );
}

/// The chart writes the sidecars of the control plane, the injector all others; both write the same
/// container, but for what section 6.3 lists.
#[test]
fn the_charts_sidecar_is_the_injectors() {
    use linkerd_injector::{Annotations, Request, Template, Values, inject};
    let common = "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS";
    let components: [(&str, &[&str]); 3] = [
        (
            "identity",
            &["INBOUND_PORTS_REQUIRE_TLS", "IDENTITY_SVC_ADDR"],
        ),
        ("destination", &["DESTINATION_SVC_ADDR", "POLICY_SVC_ADDR"]),
        ("proxy-injector", &[]),
    ];
    for sets in [
        &[][..],
        &["disableIPv6=false,proxy.logLevel=debug,proxy.gid=7,proxy.cores=2,proxy.accessLog=json"],
        &[
            "proxy.resources.cpu.limit=500m,proxy.shutdownGracePeriod=5s,proxy.metrics.hostnameLabels=true",
        ],
        &[
            "proxy.ports.admin=5191,proxy.enableExternalProfiles=true,proxy.opaquePorts=1234,proxy.additionalEnv[0].name=A",
        ],
    ] {
        let objects = rendered(sets);
        let config = object(&objects, "ConfigMap", "linkerd-config");
        let values = config["data"]["values"].as_str().expect("text");
        let values = Values::from_yaml(values).expect("values");
        for (component, different) in components {
            let deployment = format!("linkerd-{component}");
            let controller = container(&objects, &deployment, component);
            let pod = json!({"spec": {"containers": [controller]}});
            let injection = inject(&Request {
                values: &values,
                template: &Template::read(&pod).expect("a pod"),
                prefix: "",
                namespace: "linkerd",
                namespace_annotations: &Annotations::new(),
                owner: None,
                control_plane_ns: "linkerd",
                trust_anchors: "",
                created_by: "",
            })
            .expect("injected");
            let mut theirs = injection
                .patch
                .into_iter()
                .map(|operation| operation["value"].clone())
                .find(|value| value["name"] == "linkerd-proxy")
                .expect("a sidecar");
            let mut ours = container(&objects, &deployment, "linkerd-proxy").clone();
            let variables = |container: &mut Value| -> Vec<Value> {
                let Value::Array(all) = container["env"].take() else {
                    panic!("{component} has variables")
                };
                all.into_iter()
                    .filter(|variable| {
                        let name = variable["name"].as_str().unwrap_or_default();
                        let short = name.trim_start_matches("LINKERD2_PROXY_");
                        name != common && !different.contains(&short)
                    })
                    .collect()
            };
            assert_eq!(
                variables(&mut ours),
                variables(&mut theirs),
                "{component} {sets:?}"
            );
            // The injector copies the application's mount of the API's token.
            let mut mounts = theirs["volumeMounts"].take();
            let mounts = mounts.as_array_mut().expect("mounts");
            mounts.retain(|mount| mount["name"] != "kube-api-access");
            assert_eq!(ours["volumeMounts"].take(), json!(mounts), "{component}");
            if component == "identity" {
                // Its proxy cannot be ready before identity is.
                theirs
                    .as_object_mut()
                    .expect("a container")
                    .remove("lifecycle");
            }
            assert_eq!(ours, theirs, "{component} {sets:?}");
        }
    }
}

#[test]
fn heartbeat_and_injector_take_variables() {
    let objects = rendered(&[
        "heartbeat.additionalEnv[0].name=A,heartbeat.experimentalEnv[0].name=B,runtimeClassName=kata",
        "proxyInjector.experimentalEnv[0].name=C",
    ]);
    let job = object(&objects, "CronJob", "linkerd-heartbeat");
    let pod = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    assert_eq!(pod["runtimeClassName"], "kata");
    assert_eq!(
        pod["containers"][0]["env"],
        json!([{"name": "A"}, {"name": "B"}])
    );
    let injector = container(&objects, "linkerd-proxy-injector", "proxy-injector");
    assert_eq!(injector["env"], json!([{"name": "C"}]));
}

/// Identity reads one ConfigMap of its own namespace, not of all.
#[test]
fn identity_reads_anchors_in_its_namespace_only() {
    let objects = rendered(&[]);
    let cluster = object(&objects, "ClusterRole", "linkerd-linkerd-identity");
    assert!(!cluster.to_string().contains("configmaps"));
    let role = object(&objects, "Role", "linkerd-identity");
    assert_eq!(role["metadata"]["namespace"], "linkerd");
    assert_eq!(
        role["rules"][0]["resourceNames"],
        json!(["linkerd-identity-trust-roots"])
    );
    let binding = object(&objects, "RoleBinding", "linkerd-identity");
    assert_eq!(binding["subjects"][0]["name"], "linkerd-identity");
}

#[test]
fn definitions_of_the_cli_name_no_published_chart() {
    let output = Command::new(env!("CARGO_BIN_EXE_linkerd"))
        .args(["install", "--ignore-cluster", "--crds", "-o", "json"])
        .env_clear()
        .output()
        .expect("linkerd starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for line in text.lines() {
        let object: Value = serde_json::from_str(line).expect("JSON");
        let chart = &object["metadata"]["labels"]["helm.sh/chart"];
        assert_eq!(chart, "linkerd-crds-0.0.0-undefined");
    }
}

/// Without a projected token the sidecars read the one of the API, which must be mounted for them.
#[test]
fn sidecars_have_the_token_they_read() {
    for (projected, path, volume) in [
        (true, "/var/run/secrets/tokens", "linkerd-identity-token"),
        (
            false,
            "/var/run/secrets/kubernetes.io/serviceaccount",
            "kube-api-access",
        ),
    ] {
        let objects = rendered(&[&format!(
            "identity.serviceAccountTokenProjection={projected}"
        )]);
        for deployment in [
            "linkerd-identity",
            "linkerd-destination",
            "linkerd-proxy-injector",
        ] {
            let proxy = container(&objects, deployment, "linkerd-proxy");
            let file = variable(proxy, "LINKERD2_PROXY_IDENTITY_TOKEN_FILE").expect("a file");
            assert!(file.starts_with(path), "{deployment} {file}");
            let mounts = proxy["volumeMounts"].as_array().expect("mounts");
            let mount = mounts.iter().find(|mount| mount["mountPath"] == path);
            assert_eq!(mount.expect("a mount")["name"], volume, "{deployment}");
            let pod = &object(&objects, "Deployment", deployment)["spec"]["template"]["spec"];
            let volumes = pod["volumes"].as_array().expect("volumes");
            assert!(volumes.iter().any(|v| v["name"] == volume), "{deployment}");
        }
    }
}

/// Leftovers of older releases do not reach what the control plane reads.
#[test]
fn the_stored_values_hold_no_leftovers() {
    let objects = rendered(&["partials.a=1,configs.b=2,stage=control-plane"]);
    let config = object(&objects, "ConfigMap", "linkerd-config");
    let values = config["data"]["values"].as_str().expect("text");
    let values = linkerd_cli::yaml::parse(values).expect("YAML");
    for key in ["partials", "configs", "stage"] {
        assert!(values.get(key).is_none(), "{key}");
    }
    assert_eq!(values["proxy"]["uid"], 2102);
}

/// One value, one place: object, pointer and what stands there.
#[test]
fn values_reach_their_place() {
    let deployment = |name: &str| ("Deployment", format!("linkerd-{name}"));
    let pod = |rest: &str| format!("/spec/template/spec{rest}");
    let affinity = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key=metadata.name";
    for (set, (kind, name), pointer, expected) in [
        (
            "imagePullSecrets[0].name=registry",
            ("ServiceAccount", "linkerd-identity".to_owned()),
            "/imagePullSecrets".to_owned(),
            json!([{"name": "registry"}]),
        ),
        (
            affinity,
            deployment("identity"),
            pod(
                "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/key",
            ),
            json!("metadata.name"),
        ),
        (
            "deploymentStrategy.rollingUpdate.maxSurge=1",
            deployment("destination"),
            "/spec/strategy/rollingUpdate".to_owned(),
            json!({"maxUnavailable": "25%", "maxSurge": 1}),
        ),
        (
            "revisionHistoryLimit=3",
            deployment("proxy-injector"),
            "/spec/revisionHistoryLimit".to_owned(),
            json!(3),
        ),
        (
            "priorityClassName=high",
            deployment("destination"),
            pod("/priorityClassName"),
            json!("high"),
        ),
        (
            "podLabels.team=mesh",
            deployment("identity"),
            "/spec/template/metadata/labels/team".to_owned(),
            json!("mesh"),
        ),
        (
            "proxyInit.runAsRoot=true",
            deployment("identity"),
            pod("/initContainers/0/securityContext/runAsUser"),
            json!(0),
        ),
        (
            "cniEnabled=true,networkValidator.enableSecurityContext=false",
            deployment("identity"),
            pod("/initContainers/0/securityContext"),
            Value::Null,
        ),
    ] {
        let objects = rendered(&[set]);
        let found = object(&objects, kind, &name).pointer(&pointer).cloned();
        assert_eq!(found.unwrap_or_default(), expected, "{set}");
    }
    for (set, argument) in [
        (
            "policyController.probeNetworks={10.0.0.0/8,fd00::/8}",
            "--probe-networks=10.0.0.0/8,fd00::/8",
        ),
        (
            "proxy.outboundTransportMode=transparent",
            "--outbound-transport-mode=transparent",
        ),
        ("policyController.additionalArgs={--more}", "--more"),
        ("enableH2Upgrade=false", "--enable-h2-upgrade=false"),
    ] {
        let objects = rendered(&[set]);
        let destination = container(&objects, "linkerd-destination", "destination");
        assert!(
            has_argument(destination, argument),
            "{set}: {}",
            destination["args"]
        );
    }
    let readers = "configReaders[0].name=reader,configReaders[0].namespace=tools";
    let objects = rendered(&[readers]);
    let allowed = objects.iter().any(|object| {
        let subjects = object["subjects"].as_array().into_iter().flatten();
        object["kind"] == "RoleBinding"
            && subjects
                .into_iter()
                .any(|s| s["name"] == "reader" && s["namespace"] == "tools")
    });
    assert!(allowed, "a binding for the reader");
}

/// What `install-cni` does with these values.
fn cni(sets: &str) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd"));
    command.env_clear().args(["install-cni", "--set", sets]);
    command.output().expect("linkerd starts")
}

#[test]
fn the_cni_plugins_installer_is_ready_after_its_work_and_may_leave_it() {
    for (sets, arguments, host_network) in [
        ("logLevel=info", json!(["--log-level=info"]), Value::Null),
        (
            "keepOnExit=true,hostNetwork=true",
            json!(["--log-level=info", "--keep-on-exit"]),
            json!(true),
        ),
    ] {
        let output = cni(sets);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{sets}: {said}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let documents = linkerd_cli::manifest::documents("test", &text).expect("YAML");
        let objects: Vec<Value> = documents.into_iter().map(|d| d.value).collect();
        let pod = &object(&objects, "DaemonSet", "linkerd-cni")["spec"]["template"]["spec"];
        assert_eq!(pod["hostNetwork"], host_network, "{sets}");
        let installer = &pod["containers"][0];
        assert_eq!(installer["args"], arguments, "{sets}");
        let ready = &installer["readinessProbe"]["exec"]["command"];
        assert_eq!(
            (&ready[0], &ready[1]),
            (
                &json!("/usr/lib/linkerd/linkerd-cni-install"),
                &json!("--ready")
            ),
            "{sets}"
        );
        let config = object(&objects, "ConfigMap", "linkerd-cni-config");
        let entry = config["data"]["cni_network_config"].as_str().expect("text");
        let entry: Value = serde_json::from_str(entry).expect("JSON");
        assert_eq!(entry["kubernetes"]["namespace"], "linkerd-cni", "{sets}");
    }
}

#[test]
fn a_repair_controller_that_is_not_there_is_refused() {
    let output = cni("repairController.enabled=true");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(
            "repairController.enabled is not supported: this version has no repair controller"
        ),
        "{said}"
    );
    assert!(cni("repairController.enabled=false").status.success());
}
