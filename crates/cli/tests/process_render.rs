//! Two installers, one truth: the objects of `linkerd install` are those of the real Helm.
//!
//! Needs Helm: `LINKERD_HELM`, or the one that `cargo xtask tool helm` builds and names.

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn helm() -> PathBuf {
    if let Some(helm) = env::var_os("LINKERD_HELM") {
        return helm.into();
    }
    let asked = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "xtask", "--", "tool", "helm"])
        .current_dir(root())
        .output();
    let path = asked
        .ok()
        .filter(|output| output.status.success())
        .map(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            PathBuf::from(text.lines().last().unwrap_or_default().trim())
        });
    path.filter(|path| path.is_file()).unwrap_or_else(|| {
        panic!("this test compares with the real Helm: run `cargo xtask tool helm` and set LINKERD_HELM to the path it prints")
    })
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn linkerd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd"));
    command
        .env_remove("LINKERD_NAMESPACE")
        .env_remove("LINKERD_DOCKER_REGISTRY");
    command
}

/// Objects by what identifies them, without what is new at each render.
fn objects(text: &str) -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    for (_, text) in linkerd_cli::manifest::split(text) {
        let mut object =
            linkerd_cli::yaml::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        if object.is_null() {
            continue;
        }
        let (group, kind, namespace, name) = linkerd_cli::inventory::identity(&object);
        if kind == "ConfigMap" && name == "linkerd-config" {
            let values = object["data"]["values"]
                .as_str()
                .expect("values")
                .to_owned();
            object["data"]["values"] = linkerd_cli::yaml::parse(&values).expect("values are YAML");
        }
        // The CLI's definitions come from no published chart.
        if let Some(chart) = object.pointer_mut("/metadata/labels/helm.sh~1chart") {
            *chart = json!("linkerd-crds");
        }
        if let Some(checksum) =
            object.pointer_mut("/spec/template/metadata/annotations/checksum~1config")
        {
            *checksum = json!("a digest of rendered text");
        }
        let before = out.insert(format!("{group} {kind} {namespace}/{name}"), object);
        assert!(before.is_none(), "{kind} {name} twice");
    }
    out
}

fn compare(name: &str, ours: &BTreeMap<String, Value>, theirs: &BTreeMap<String, Value>) {
    let keys = |map: &BTreeMap<String, Value>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(ours), keys(theirs), "{name}: the same objects");
    for (key, ours) in ours {
        assert_eq!(ours, &theirs[key], "{name}: {key}");
    }
}

/// Values that would differ between two renders, fixed.
fn fixed(dir: &Path) -> PathBuf {
    let authority = linkerd_tls::issuer::generate::Authority::for_install(
        "linkerd",
        "cluster.local",
        std::time::SystemTime::now(),
    )
    .expect("a CA");
    let crt = authority.certificate.to_pem();
    let key = authority.key.to_sec1_pem().expect("a key");
    let webhook = json!({"crtPEM": crt, "keyPEM": key});
    let values = json!({
        "identityTrustAnchorsPEM": crt,
        "identity": {"issuer": {"tls": {"crtPEM": crt, "keyPEM": key}}},
        "proxyInjector": webhook, "profileValidator": webhook, "policyValidator": webhook,
        "heartbeatSchedule": "1 2 * * *",
        "cliVersion": format!("linkerd/cli {}", linkerd_runtime::version::VERSION),
    });
    let file = dir.join("fixed.yaml");
    fs::write(&file, values.to_string()).expect("ours");
    file
}

/// Settings of the three services that are one container, and of the sidecars beside them.
const FOLDED: &[&str] = &[
    "--set",
    "destinationResources.cpu.request=100m,policyController.resources.cpu.request=1,spValidatorResources.memory.limit=1Gi,destinationResources.memory.limit=250Mi,policyController.resources.memory.limit=100M",
    "--set",
    "policyController.livenessProbe.timeoutSeconds=5,spValidator.additionalEnv[0].name=A,spValidator.additionalEnv[0].value=b",
    "--set",
    "proxy.resources.cpu.limit=1,identityProxyResources.cpu.request=200m,identityProxyResources.cores=2,identity.kubeAPI.clientQPS=7",
    "--set",
    "heartbeat.experimentalEnv[0].name=H,heartbeat.experimentalEnv[0].value=h,proxyInjector.experimentalEnv[0].name=I,proxyInjector.experimentalEnv[0].value=i,runtimeClassName=kata",
    "--set",
    "podMonitor.enabled=true,podMonitor.controller.namespaceSelector=any: true",
];
const TRACED: &[&str] = &[
    "--set",
    "proxy.tracing.enabled=true,proxy.tracing.collector.endpoint=collector.tracing:4317,proxy.tracing.collector.meshIdentity.serviceAccountName=collector,proxy.tracing.collector.meshIdentity.namespace=tracing",
    "--set",
    "controller.tracing.enabled=true,podMonitor.enabled=true",
];

/// Certificates that something else makes; the fixed ones are taken back.
const GIVEN: &[&str] = &[
    "--set",
    "proxyInjector.crtPEM=,proxyInjector.keyPEM=,proxyInjector.externalSecret=true,proxyInjector.injectCaFrom=linkerd/a",
    "--set",
    "profileValidator.crtPEM=,profileValidator.keyPEM=,profileValidator.externalSecret=true,profileValidator.injectCaFromSecret=linkerd/b",
    "--set",
    "policyValidator.crtPEM=,policyValidator.keyPEM=,policyValidator.externalSecret=true,policyValidator.caBundle=pem",
    "--set",
    "imagePullSecrets[0].name=registry,configReaders[0].name=reader,configReaders[0].namespace=tools",
];
const SCHEDULED: &[&str] = &[
    "--set",
    "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key=metadata.name,nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].operator=In,nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].values={n1}",
    "--set",
    "enablePodAntiAffinity=true,deploymentStrategy.rollingUpdate.maxSurge=1,deploymentStrategy.rollingUpdate.maxUnavailable=0,priorityClassName=high,revisionHistoryLimit=3",
    "--set-string",
    "nodeSelector.disk=ssd,podLabels.team=mesh",
];
const FAMILIES: &[&str] = &[
    "--set",
    "disableIPv6=false,policyController.probeNetworks={10.0.0.0/8,fd00::/8},proxy.outboundTransportMode=transparent,proxy.enableExternalProfiles=true",
    "--set",
    "policyController.additionalArgs={--a},policyController.experimentalArgs={--b},destinationController.additionalArgs={--c}",
    "--set",
    "proxyInit.iptablesMode=legacy,proxyInit.skipSubnets=10.1.0.0/16,proxyInit.logLevel=debug,networkValidator.timeout=3s,enablePprof=true",
];
const TOKEN: &[&str] = &[
    "--set",
    "identity.serviceAccountTokenProjection=false,stage=x,partials.a=b,proxy.securityContext.runAsUser=7,proxyInit.runAsRoot=true,proxyInit.closeWaitTimeoutSecs=10",
];

#[test]
fn the_control_plane_is_helms() {
    let helm = helm();
    let dir = tempfile::tempdir().expect("a directory");
    let fixed = fixed(dir.path());
    let ha = root().join("charts/linkerd-control-plane/values-ha.yaml");
    let ha = ha.to_str().expect("UTF-8");
    let plain: [(&str, &[&str], &[&str], &str); 15] = [
        ("default", &[], &[], "linkerd"),
        ("high availability", &["--ha"], &["-f", ha], "linkerd"),
        (
            "CNI",
            &["--linkerd-cni-enabled"],
            &["--set", "cniEnabled=true"],
            "linkerd",
        ),
        (
            "native sidecar",
            &["--set", "proxy.nativeSidecar=true"],
            &["--set", "proxy.nativeSidecar=true"],
            "linkerd",
        ),
        (
            "external issuer",
            &["--set", "identity.issuer.scheme=kubernetes.io/tls"],
            &["--set", "identity.issuer.scheme=kubernetes.io/tls"],
            "linkerd",
        ),
        ("other namespace", &[], &[], "other"),
        (
            "no heartbeat",
            &["--disable-heartbeat"],
            &["--set", "disableHeartBeat=true"],
            "linkerd",
        ),
        (
            "monitors",
            &["--set", "podMonitor.enabled=true"],
            &["--set", "podMonitor.enabled=true"],
            "linkerd",
        ),
        ("folded", FOLDED, FOLDED, "linkerd"),
        ("traced", TRACED, TRACED, "linkerd"),
        ("given certificates", GIVEN, GIVEN, "linkerd"),
        ("scheduled", SCHEDULED, SCHEDULED, "linkerd"),
        ("both families", FAMILIES, FAMILIES, "linkerd"),
        ("the API's token", TOKEN, TOKEN, "linkerd"),
        (
            "several",
            &[
                "--set",
                "proxy.logLevel=debug,podAnnotations.a\\.b/c=d,tolerations[0].key=x,tolerations[0].operator=Exists",
                "--set-string",
                "controllerReplicas=2",
                "--set",
                "commonLabels.team=mesh",
            ],
            &[
                "--set",
                "proxy.logLevel=debug,podAnnotations.a\\.b/c=d,tolerations[0].key=x,tolerations[0].operator=Exists",
                "--set-string",
                "controllerReplicas=2",
                "--set",
                "commonLabels.team=mesh",
            ],
            "linkerd",
        ),
    ];
    for (name, ours, theirs, namespace) in plain {
        let ours = run(linkerd()
            .args(["install", "--ignore-cluster", "-L", namespace, "-f"])
            .arg(&fixed)
            .args(ours));
        let theirs = run(Command::new(&helm)
            .args(["template", "linkerd-control-plane"])
            .arg(root().join("charts/linkerd-control-plane"))
            .args(["--namespace", namespace, "--kube-version", "1.34.0", "-f"])
            .arg(&fixed)
            .args(theirs));
        let mut ours = objects(&ours);
        ours.remove(&format!(" Namespace /{namespace}"))
            .expect("the CLI makes the namespace");
        ours.remove(&format!(" Secret {namespace}/linkerd-config-overrides"))
            .expect("the CLI remembers");
        compare(name, &ours, &objects(&theirs));
    }
}

#[test]
fn the_definitions_are_helms() {
    let helm = helm();
    let gateway = root().join("charts/linkerd-crds/templates/gateway.networking.k8s.io");
    let cli = format!(
        "cliVersion=linkerd/cli {}",
        linkerd_runtime::version::VERSION
    );
    assert!(
        gateway.is_dir(),
        "the chart lacks the Gateway API's definitions: run `cargo xtask charts`"
    );
    let cases = [
        "installGatewayAPI=false",
        "installGatewayAPI=true",
        "installGatewayAPI=true,enableTcpRoutes=false",
    ];
    for set in cases {
        let ours = run(linkerd().args(["install", "--crds", "--ignore-cluster", "--set", set]));
        let theirs = run(Command::new(&helm)
            .args(["template", "linkerd-crds"])
            .arg(root().join("charts/linkerd-crds"))
            .args([
                "--namespace",
                "linkerd",
                "--kube-version",
                "1.34.0",
                "--set",
                set,
                "--set",
                &cli,
            ]));
        let (ours, theirs) = (objects(&ours), objects(&theirs));
        compare(set, &ours, &theirs);
        let routes = ours
            .keys()
            .filter(|key| key.contains("gateway.networking.k8s.io"))
            .count();
        let expected = if !set.contains("API=true") {
            0
        } else if set.contains("Tcp") {
            3
        } else {
            4
        };
        assert_eq!(routes, expected, "{set}");
    }
}

/// A clone without the fetched definitions must not install half of what was asked for.
#[test]
fn helm_refuses_definitions_that_were_not_fetched() {
    let helm = helm();
    let dir = tempfile::tempdir().expect("a directory");
    let chart = dir.path().join("linkerd-crds");
    let templates = chart.join("templates");
    fs::create_dir_all(&templates).expect("ours");
    let source = root().join("charts/linkerd-crds");
    for file in ["Chart.yaml", "values.yaml", "templates/gateway-api.yaml"] {
        fs::copy(source.join(file), chart.join(file)).expect(file);
    }
    let rendered = |set: &str| {
        let output = Command::new(&helm)
            .args([
                "template",
                "linkerd-crds",
                "--kube-version",
                "1.34.0",
                "--set",
                set,
            ])
            .arg(&chart)
            .output()
            .expect("helm starts");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    for set in ["installGatewayAPI=true", "enableTlsRoutes=true"] {
        let (fine, said) = rendered(set);
        assert!(!fine, "{set}");
        assert!(said.contains("run `cargo xtask charts` first"), "{said}");
    }
    assert!(rendered("installGatewayAPI=false").0);
    assert!(rendered("installGatewayAPI=true,enableHttpRoutes=false,enableTlsRoutes=false,enableTcpRoutes=false").0);
    fs::write(chart.join("gateway-api.version"), "v1\n").expect("ours");
    assert!(rendered("installGatewayAPI=true").0);
}

#[test]
fn the_cni_plugin_is_helms() {
    let helm = helm();
    let version = linkerd_runtime::version::VERSION;
    let both = format!("cliVersion=linkerd/cli {version},image.version={version}");
    for sets in [
        "logLevel=info",
        "ignoreInboundPorts=1\\,2-3,ignoreOutboundPorts=25,proxyGID=7,commonLabels.team=mesh,resources.cpu.limit=1",
        "destCNIBinDir=/etc/cni/net.d,priorityClassName=high,privileged=true,disableIPv6=false",
        "keepOnExit=true,hostNetwork=true",
    ] {
        let ours = run(linkerd().args(["install-cni", "--set", &both, "--set", sets]));
        let theirs = run(Command::new(&helm)
            .args(["template", "linkerd2-cni", "--namespace", "linkerd-cni"])
            .args(["--kube-version", "1.34.0", "--set", &both, "--set", sets])
            .arg(root().join("charts/linkerd2-cni")));
        let mut ours = objects(&ours);
        ours.remove(" Namespace /linkerd-cni")
            .expect("the CLI makes the namespace");
        compare(sets, &ours, &objects(&theirs));
    }
}
