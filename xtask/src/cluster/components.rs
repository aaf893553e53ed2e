//! The programs that make a cluster: which there are, what their configuration says and
//! how each is called. Everything is written afresh at every `up`; a program that runs
//! keeps the configuration it started with.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::node::inside;
use super::pki::{kubeconfig_path, kubelet_user};
use super::spec::Spec;
use super::{cgroups, system};
use crate::machine;

/// A program of a node.
#[derive(Clone, Debug)]
pub(crate) struct Component {
    pub(crate) name: &'static str,
    pub(crate) node: u8,
    pub(crate) argv: Vec<String>,
    pub(crate) log: PathBuf,
}

/// The programs every node runs; node 1 runs the others too.
const ON_EVERY_NODE: [&str; 3] = ["containerd", "kubelet", "kube-proxy"];

/// In the order they are started; those after the API server wait for it.
pub(crate) const NAMES: [&str; 7] = [
    "etcd",
    "containerd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
];

/// Every component of the cluster. `kubernetes` is the directory of its programs.
pub(crate) fn all(spec: &Spec, kubernetes: &Path) -> Vec<Component> {
    NAMES
        .iter()
        .flat_map(|name| spec.node_numbers().map(move |node| (*name, node)))
        .filter(|(name, node)| *node == 1 || ON_EVERY_NODE.contains(name))
        .map(|(name, node)| Component {
            name,
            node,
            argv: argv(spec, kubernetes, name, node),
            log: log_path(spec, name, node),
        })
        .collect()
}

pub(crate) fn log_path(spec: &Spec, name: &str, node: u8) -> PathBuf {
    if node == 1 {
        return spec.log_dir().join(format!("{name}.log"));
    }
    spec.log_dir().join(format!("{name}-node{node}.log"))
}

fn argv(spec: &Spec, kubernetes: &Path, name: &str, node: u8) -> Vec<String> {
    let (program, arguments) = match name {
        "etcd" => (PathBuf::from("etcd"), etcd(spec)),
        "containerd" => (
            PathBuf::from("containerd"),
            vec![flag("config", config_path(spec, node, "containerd.toml"))],
        ),
        "kube-apiserver" => (kubernetes.join(name), apiserver(spec)),
        "kube-controller-manager" => (kubernetes.join(name), controller_manager(spec)),
        "kube-scheduler" => (kubernetes.join(name), scheduler(spec)),
        "kubelet" => (kubernetes.join(name), kubelet(spec, node)),
        _ => (
            kubernetes.join(name),
            vec![flag("config", config_path(spec, node, "kube-proxy.json"))],
        ),
    };
    let mut argv = vec![program.display().to_string()];
    argv.extend(arguments);
    argv
}

fn flag(name: &str, value: impl AsRef<Path>) -> String {
    format!("--{name}={}", value.as_ref().display())
}

fn config_path(spec: &Spec, node: u8, file: &str) -> PathBuf {
    spec.node_dir(node).join(file)
}

fn etcd(spec: &Spec) -> Vec<String> {
    vec![
        flag("data-dir", spec.dir.join("etcd")),
        "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
        "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-cluster=default=http://127.0.0.1:2380".to_owned(),
        "--logger=zap".to_owned(),
        "--log-level=warn".to_owned(),
        // Losing a test cluster with the machine's power is fine; waiting for disks is not.
        "--unsafe-no-fsync".to_owned(),
    ]
}

fn apiserver(spec: &Spec) -> Vec<String> {
    let issuer = "https://kubernetes.default.svc.cluster.local";
    vec![
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        "--bind-address=0.0.0.0".to_owned(),
        "--secure-port=6443".to_owned(),
        format!("--advertise-address={}", spec.node_ip(1)),
        format!("--service-cluster-ip-range={}", spec.service_net()),
        "--allow-privileged=true".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--profiling=false".to_owned(),
        flag("client-ca-file", spec.pki("ca.crt")),
        flag("tls-cert-file", spec.pki("apiserver.crt")),
        flag("tls-private-key-file", spec.pki("apiserver.key")),
        flag(
            "kubelet-client-certificate",
            spec.pki("apiserver-kubelet.crt"),
        ),
        flag("kubelet-client-key", spec.pki("apiserver-kubelet.key")),
        flag("kubelet-certificate-authority", spec.pki("ca.crt")),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--service-account-issuer={issuer}"),
        format!("--api-audiences={issuer}"),
        flag("service-account-key-file", spec.pki("service-account.pub")),
        flag(
            "service-account-signing-key-file",
            spec.pki("service-account.key"),
        ),
        flag(
            "requestheader-client-ca-file",
            spec.pki("front-proxy-ca.crt"),
        ),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        flag("proxy-client-cert-file", spec.pki("front-proxy.crt")),
        flag("proxy-client-key-file", spec.pki("front-proxy.key")),
        "--enable-aggregator-routing=true".to_owned(),
    ]
}

fn controller_manager(spec: &Spec) -> Vec<String> {
    let kubeconfig = kubeconfig_path(spec, "kube-controller-manager");
    vec![
        flag("kubeconfig", &kubeconfig),
        flag("authentication-kubeconfig", &kubeconfig),
        flag("authorization-kubeconfig", &kubeconfig),
        flag(
            "service-account-private-key-file",
            spec.pki("service-account.key"),
        ),
        flag("root-ca-file", spec.pki("ca.crt")),
        flag("cluster-signing-cert-file", spec.pki("ca.crt")),
        flag("cluster-signing-key-file", spec.pki("ca.key")),
        flag(
            "requestheader-client-ca-file",
            spec.pki("front-proxy-ca.crt"),
        ),
        "--use-service-account-credentials=true".to_owned(),
        // Nodes get their pod subnets from us: routes between them are ours too.
        "--allocate-node-cidrs=false".to_owned(),
        format!("--cluster-cidr={}", spec.pod_net()),
        "--leader-elect=false".to_owned(),
        "--kube-api-qps=200".to_owned(),
        "--kube-api-burst=400".to_owned(),
    ]
}

fn scheduler(spec: &Spec) -> Vec<String> {
    let kubeconfig = kubeconfig_path(spec, "kube-scheduler");
    vec![
        flag("kubeconfig", &kubeconfig),
        flag("authentication-kubeconfig", &kubeconfig),
        flag("authorization-kubeconfig", &kubeconfig),
        "--leader-elect=false".to_owned(),
    ]
}

fn kubelet(spec: &Spec, node: u8) -> Vec<String> {
    vec![
        flag("config", config_path(spec, node, "kubelet.json")),
        flag("kubeconfig", kubeconfig_path(spec, &kubelet_user(node))),
        format!("--hostname-override={}", spec.node_name(node)),
        format!("--node-ip={}", spec.node_ip(node)),
    ]
}

/// Writes the configuration files of every node.
pub(crate) fn configure(spec: &Spec) -> Result<()> {
    fs::create_dir_all(spec.log_dir()).context("creating the log directory")?;
    for node in spec.node_numbers() {
        let dir = spec.node_dir(node);
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        machine::write(&dir.join("resolv.conf"), "nameserver 127.0.0.1\n")?;
        machine::write(
            &dir.join("containerd.toml"),
            containerd_config(snapshotter(&dir)),
        )?;
        let kubelet = serde_json::to_vec_pretty(&kubelet_config(spec, node))?;
        machine::write(&dir.join("kubelet.json"), kubelet)?;
        let proxy = serde_json::to_vec_pretty(&proxy_config(spec, node))?;
        machine::write(&dir.join("kube-proxy.json"), proxy)?;
        let plugins = inside(&dir, "/opt/cni/bin");
        fs::create_dir_all(&plugins)?;
        for plugin in fs::read_dir("/usr/lib/cni").context("reading /usr/lib/cni")? {
            let plugin = plugin?;
            let link = plugins.join(plugin.file_name());
            if !link.exists() {
                std::os::unix::fs::symlink(plugin.path(), &link)?;
            }
        }
        let networks = inside(&dir, "/etc/cni/net.d");
        fs::create_dir_all(&networks)?;
        let list = networks.join("10-pods.conflist");
        // A CNI plugin under test may have added itself to the list: that stays.
        if !list.exists() {
            machine::write(&list, serde_json::to_vec_pretty(&cni_config(spec, node))?)?;
        }
    }
    Ok(())
}

/// Overlay mounts cannot lie on an overlay file system, as inside another container.
pub(crate) fn snapshotter(dir: &Path) -> &'static str {
    const OVERLAYFS_MAGIC: i64 = 0x794c_7630;
    match rustix::fs::statfs(dir) {
        Ok(stat) if stat.f_type == OVERLAYFS_MAGIC => "native",
        _ => "overlayfs",
    }
}

fn containerd_config(snapshotter: &str) -> String {
    format!(
        r#"version = 2
oom_score = 0
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # A machine without CAP_SYS_RESOURCE cannot give containers a better score than its own.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"#,
        pause = system::PAUSE_IMAGE,
    )
}

/// Pods hang on routed links, each of its own: all their traffic passes the node's
/// firewall, which a bridge would need a kernel module for. Nothing is masqueraded, so
/// pods see each other's addresses across nodes.
fn cni_config(spec: &Spec, node: u8) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-addresses",
                    "ranges": [[{ "subnet": spec.node_pods(node).to_string() }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
}

fn kubelet_config(spec: &Spec, node: u8) -> Value {
    let user = kubelet_user(node);
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": spec.pki("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "clusterDomain": "cluster.local",
        "clusterDNS": [spec.dns_ip()],
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups::node_path(&spec.name, node),
        "failCgroupV1": false,
        "failSwapOn": false,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "tlsCertFile": spec.pki(&format!("{user}.crt")),
        "tlsPrivateKeyFile": spec.pki(&format!("{user}.key")),
        "resolvConf": config_path(spec, node, "resolv.conf"),
        "evictionHard": { "memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%" },
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "8760h",
        "maxPods": 200,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "eventRecordQPS": 50,
        "registryPullQPS": 0,
        "serializeImagePulls": false,
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "4s",
    })
}

fn proxy_config(spec: &Spec, node: u8) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": { "kubeconfig": kubeconfig_path(spec, "kube-proxy") },
        "mode": "iptables",
        "clusterCIDR": spec.pod_net().to_string(),
        "hostnameOverride": spec.node_name(node),
        "iptables": { "minSyncPeriod": "100ms", "syncPeriod": "30s" },
        // Zero leaves the machine's connection tracking as it is.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    })
}
