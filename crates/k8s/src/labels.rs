//! Labels and annotations of the public contract. A name appears once; the group says who reads
//! it first. Names that start with a prefix of [`prefix`] belong to us.

/// Prefixes of names.
pub mod prefix {
    pub const LINKERD: &str = "linkerd.io";
    pub const CONFIG: &str = "config.linkerd.io";
    pub const CONFIG_ALPHA: &str = "config.alpha.linkerd.io";
    pub const CONFIG_BETA: &str = "config.beta.linkerd.io";
    pub const BALANCER: &str = "balancer.linkerd.io";
    pub const RETRY: &str = "retry.linkerd.io";
    pub const TIMEOUT: &str = "timeout.linkerd.io";
    pub const OPENTELEMETRY: &str = "resource.opentelemetry.io";
}

// === Labels on everything the mesh installs or injects; read by every component ===

pub const CONTROL_PLANE_NS: &str = "linkerd.io/control-plane-ns";
pub const CONTROL_PLANE_COMPONENT: &str = "linkerd.io/control-plane-component";
pub const WORKLOAD_NS: &str = "linkerd.io/workload-ns";
pub const EXTENSION: &str = "linkerd.io/extension";
pub const IS_CONTROL_PLANE: &str = "linkerd.io/is-control-plane";
pub const CREATED_BY: &str = "linkerd.io/created-by";
pub const PROXY_VERSION: &str = "linkerd.io/proxy-version";
pub const TRUST_ROOT_SHA256: &str = "linkerd.io/trust-root-sha256";
pub const HELM_CHART: &str = "helm.sh/chart";
pub const HELM_RESOURCE_POLICY: &str = "helm.sh/resource-policy";

/// Label of an injected pod that names its owner; `kind` is lower case.
pub fn proxy_owner(kind: &str) -> String {
    format!("linkerd.io/proxy-{kind}")
}

// === Injector ===

pub const INJECT: &str = "linkerd.io/inject";
pub const INJECT_ENABLED: &str = "enabled";
pub const INJECT_DISABLED: &str = "disabled";
pub const INJECT_INGRESS: &str = "ingress";
/// Label of a Namespace whose objects our webhooks never see.
pub const ADMISSION_WEBHOOKS: &str = "config.linkerd.io/admission-webhooks";

pub const PROXY_IMAGE: &str = "config.linkerd.io/proxy-image";
pub const PROXY_IMAGE_VERSION: &str = "config.linkerd.io/proxy-version";
pub const IMAGE_PULL_POLICY: &str = "config.linkerd.io/image-pull-policy";
pub const INIT_IMAGE: &str = "config.linkerd.io/init-image";
pub const INIT_IMAGE_VERSION: &str = "config.linkerd.io/init-image-version";
pub const DEBUG_IMAGE: &str = "config.linkerd.io/debug-image";
pub const DEBUG_IMAGE_VERSION: &str = "config.linkerd.io/debug-image-version";
pub const DEBUG_IMAGE_PULL_POLICY: &str = "config.linkerd.io/debug-image-pull-policy";
pub const ENABLE_DEBUG_SIDECAR: &str = "config.linkerd.io/enable-debug-sidecar";
pub const CONTROL_PORT: &str = "config.linkerd.io/control-port";
pub const INBOUND_PORT: &str = "config.linkerd.io/inbound-port";
pub const OUTBOUND_PORT: &str = "config.linkerd.io/outbound-port";
pub const ADMIN_PORT: &str = "config.linkerd.io/admin-port";
pub const POD_INBOUND_PORTS: &str = "config.linkerd.io/pod-inbound-ports";
pub const SKIP_OUTBOUND_PORTS: &str = "config.linkerd.io/skip-outbound-ports";
pub const SKIP_SUBNETS: &str = "config.linkerd.io/skip-subnets";
pub const SKIP_INBOUND_SUBNETS: &str = "config.linkerd.io/skip-inbound-subnets";
pub const SKIP_OUTBOUND_SUBNETS: &str = "config.linkerd.io/skip-outbound-subnets";
pub const PROXY_CPU_REQUEST: &str = "config.linkerd.io/proxy-cpu-request";
pub const PROXY_CPU_LIMIT: &str = "config.linkerd.io/proxy-cpu-limit";
pub const PROXY_CPU_RATIO_LIMIT: &str = "config.linkerd.io/proxy-cpu-ratio-limit";
pub const PROXY_MEMORY_REQUEST: &str = "config.linkerd.io/proxy-memory-request";
pub const PROXY_MEMORY_LIMIT: &str = "config.linkerd.io/proxy-memory-limit";
pub const PROXY_EPHEMERAL_STORAGE_REQUEST: &str =
    "config.linkerd.io/proxy-ephemeral-storage-request";
pub const PROXY_EPHEMERAL_STORAGE_LIMIT: &str = "config.linkerd.io/proxy-ephemeral-storage-limit";
pub const PROXY_UID: &str = "config.linkerd.io/proxy-uid";
pub const PROXY_GID: &str = "config.linkerd.io/proxy-gid";
pub const PROXY_LOG_LEVEL: &str = "config.linkerd.io/proxy-log-level";
pub const PROXY_LOG_FORMAT: &str = "config.linkerd.io/proxy-log-format";
pub const PROXY_LOG_HTTP_HEADERS: &str = "config.linkerd.io/proxy-log-http-headers";
pub const ACCESS_LOG: &str = "config.linkerd.io/access-log";
pub const PROXY_ADMIN_SHUTDOWN: &str = "config.linkerd.io/proxy-admin-shutdown";
pub const ENABLE_EXTERNAL_PROFILES: &str = "config.linkerd.io/enable-external-profiles";
pub const REQUIRE_IDENTITY_ON_INBOUND_PORTS: &str =
    "config.linkerd.io/proxy-require-identity-inbound-ports";
pub const PROXY_METRICS_HOSTNAME_LABELS: &str = "config.linkerd.io/proxy-metrics-hostname-labels";
pub const OUTBOUND_CONNECT_TIMEOUT: &str = "config.linkerd.io/proxy-outbound-connect-timeout";
pub const INBOUND_CONNECT_TIMEOUT: &str = "config.linkerd.io/proxy-inbound-connect-timeout";
pub const OUTBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT: &str =
    "config.linkerd.io/proxy-outbound-discovery-cache-unused-timeout";
pub const INBOUND_DISCOVERY_CACHE_UNUSED_TIMEOUT: &str =
    "config.linkerd.io/proxy-inbound-discovery-cache-unused-timeout";
pub const DISABLE_OUTBOUND_PROTOCOL_DETECT_TIMEOUT: &str =
    "config.linkerd.io/proxy-disable-outbound-protocol-detect-timeout";
pub const DISABLE_INBOUND_PROTOCOL_DETECT_TIMEOUT: &str =
    "config.linkerd.io/proxy-disable-inbound-protocol-detect-timeout";
pub const SHUTDOWN_GRACE_PERIOD: &str = "config.linkerd.io/shutdown-grace-period";
pub const ENABLE_GATEWAY: &str = "config.linkerd.io/enable-gateway";
pub const CLOSE_WAIT_TIMEOUT: &str = "config.linkerd.io/close-wait-timeout";
pub const PROXY_AWAIT: &str = "config.linkerd.io/proxy-await";
pub const PROXY_WAIT_BEFORE_EXIT: &str = "config.alpha.linkerd.io/proxy-wait-before-exit-seconds";
pub const NATIVE_SIDECAR_ALPHA: &str = "config.alpha.linkerd.io/proxy-enable-native-sidecar";
pub const NATIVE_SIDECAR_BETA: &str = "config.beta.linkerd.io/proxy-enable-native-sidecar";
pub const NATIVE_SIDECAR: &str = "config.linkerd.io/proxy-enable-native-sidecar";
pub const PROXY_ADDITIONAL_ENV: &str = "config.linkerd.io/proxy-additional-env";

// === Injector and destination ===

pub const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";
pub const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";

// === Injector and policy ===

pub const DEFAULT_INBOUND_POLICY: &str = "config.linkerd.io/default-inbound-policy";

// === Destination ===

pub const REMOTE_SVC_FQ_NAME: &str = "mirror.linkerd.io/remote-svc-fq-name";
pub const REMOTE_GATEWAY_IDENTITY: &str = "mirror.linkerd.io/remote-gateway-identity";
pub const MIRROR_CLUSTER_NAME: &str = "mirror.linkerd.io/cluster-name";
pub const MIRRORED_SERVICE: &str = "mirror.linkerd.io/mirrored-service";
/// Label: the cluster whose Service stands behind this one. Annotation: members of a federation.
pub const REMOTE_DISCOVERY: &str = "multicluster.linkerd.io/remote-discovery";
pub const LOCAL_DISCOVERY: &str = "multicluster.linkerd.io/local-discovery";
pub const REMOTE_SERVICE: &str = "multicluster.linkerd.io/remote-service";
/// Type of the Secrets that describe linked clusters.
pub const REMOTE_KUBECONFIG_TYPE: &str = "mirror.linkerd.io/remote-kubeconfig";
pub const CLUSTER_NAME: &str = "multicluster.linkerd.io/cluster-name";
pub const CLUSTER_TRUST_DOMAIN: &str = "multicluster.linkerd.io/trust-domain";
pub const CLUSTER_DOMAIN: &str = "multicluster.linkerd.io/cluster-domain";

// === Policy: routes and parents ===

pub const RETRY_HTTP: &str = "retry.linkerd.io/http";
pub const RETRY_GRPC: &str = "retry.linkerd.io/grpc";
pub const RETRY_LIMIT: &str = "retry.linkerd.io/limit";
pub const RETRY_TIMEOUT: &str = "retry.linkerd.io/timeout";
pub const TIMEOUT_REQUEST: &str = "timeout.linkerd.io/request";
pub const TIMEOUT_RESPONSE: &str = "timeout.linkerd.io/response";
pub const TIMEOUT_IDLE: &str = "timeout.linkerd.io/idle";
pub const FAILURE_ACCRUAL: &str = "balancer.linkerd.io/failure-accrual";

// === Kubernetes' own ===

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const SERVICE_HEADLESS: &str = "service.kubernetes.io/headless";
pub const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What we write as manager of EndpointSlices made for ExternalWorkloads.
pub const SLICE_MANAGER: &str = "linkerd-external-workloads-controller";
