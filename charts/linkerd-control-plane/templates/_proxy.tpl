{{- /* The sidecar of the control plane's own pods. Application pods get theirs from the injector,
       which builds the same container; a test compares the two.

       Takes a dict: root, component, inboundPorts, resources; and optionally identityAddr,
       destinationAddr, policyAddr (when the service is in the same pod), requireTLSPorts, await,
       native. */ -}}
{{- define "linkerd.proxy" -}}
{{- $v := .root.Values -}}
{{- $p := $v.proxy -}}
{{- $ns := .root.Release.Namespace -}}
{{- $td := include "linkerd.trustDomain" .root -}}
{{- $any := ternary "0.0.0.0" "[::]" $v.disableIPv6 -}}
{{- $traced := or $p.tracing.enabled $v.controller.tracing.enabled -}}
{{- if not (has $p.logHTTPHeaders (list "off" "insecure" "")) -}}
{{- fail "proxy.logHTTPHeaders must be one of: off, insecure" -}}
{{- end -}}
name: linkerd-proxy
image: {{ $p.image.name }}:{{ $p.image.version | default $v.linkerdVersion }}
imagePullPolicy: {{ $p.image.pullPolicy | default $v.imagePullPolicy }}
env:
- name: _pod_name
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: _pod_ns
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: _pod_uid
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: _pod_ip
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: _pod_nodeName
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: _pod_containerName
  value: linkerd-proxy
{{- $own := .resources | default dict }}
{{- $min := $own.cores | default $p.cores | default $p.runtime.workers.minimum }}
- name: LINKERD2_PROXY_CORES
  value: {{ $min | quote }}
- name: LINKERD2_PROXY_CORES_MIN
  value: {{ $min | quote }}
{{- with $p.runtime.workers.maximum }}
- name: LINKERD2_PROXY_CORES_MAX
  value: {{ . | quote }}
{{- end }}
{{- with $p.runtime.workers.maximumCPURatio }}
- name: LINKERD2_PROXY_CORES_MAX_RATIO
  value: {{ . | quote }}
{{- end }}
{{- with $p.requireIdentityOnInboundPorts }}
- name: LINKERD2_PROXY_INBOUND_PORTS_REQUIRE_IDENTITY
  value: {{ . | quote }}
{{- end }}
{{- with .requireTLSPorts }}
- name: LINKERD2_PROXY_INBOUND_PORTS_REQUIRE_TLS
  value: {{ . | quote }}
{{- end }}
- name: LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED
  value: {{ $p.enableShutdownEndpoint | quote }}
- name: LINKERD2_PROXY_LOG
  value: {{ if eq $p.logHTTPHeaders "insecure" }}{{ $p.logLevel | quote }}{{ else }}{{ printf "%s,[{headers}]=off,[{request}]=off" $p.logLevel | quote }}{{ end }}
- name: LINKERD2_PROXY_LOG_FORMAT
  value: {{ $p.logFormat | quote }}
- name: LINKERD2_PROXY_DESTINATION_SVC_ADDR
  value: {{ .destinationAddr | default (printf "linkerd-dst-headless.%s.svc.%s.:8086" $ns $v.clusterDomain) }}
- name: LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS
  value: {{ $v.clusterNetworks | quote }}
- name: LINKERD2_PROXY_POLICY_SVC_ADDR
  value: {{ .policyAddr | default (printf "linkerd-policy.%s.svc.%s.:8090" $ns $v.clusterDomain) }}
- name: LINKERD2_PROXY_POLICY_WORKLOAD
  value: |
    {"ns":"$(_pod_ns)", "pod":"$(_pod_name)"}
- name: LINKERD2_PROXY_INBOUND_DEFAULT_POLICY
  value: all-unauthenticated
- name: LINKERD2_PROXY_POLICY_CLUSTER_NETWORKS
  value: {{ $v.clusterNetworks | quote }}
- name: LINKERD2_PROXY_CONTROL_STREAM_INITIAL_TIMEOUT
  value: {{ $p.control.streams.initialTimeout | quote }}
- name: LINKERD2_PROXY_CONTROL_STREAM_IDLE_TIMEOUT
  value: {{ $p.control.streams.idleTimeout | quote }}
- name: LINKERD2_PROXY_CONTROL_STREAM_LIFETIME
  value: {{ $p.control.streams.lifetime | quote }}
{{- with $p.inboundConnectTimeout }}
- name: LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT
  value: {{ . | quote }}
{{- end }}
{{- with $p.outboundConnectTimeout }}
- name: LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT
  value: {{ . | quote }}
{{- end }}
- name: LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT
  value: "5s"
- name: LINKERD2_PROXY_INBOUND_DISCOVERY_IDLE_TIMEOUT
  value: "90s"
{{- if $p.disableOutboundProtocolDetectTimeout }}
- name: LINKERD2_PROXY_OUTBOUND_DETECT_TIMEOUT
  value: "365d"
{{- end }}
{{- if $p.disableInboundProtocolDetectTimeout }}
- name: LINKERD2_PROXY_INBOUND_DETECT_TIMEOUT
  value: "365d"
{{- end }}
- name: LINKERD2_PROXY_CONTROL_LISTEN_ADDR
  value: {{ printf "%s:%d" $any (int $p.ports.control) | quote }}
- name: LINKERD2_PROXY_ADMIN_LISTEN_ADDR
  value: {{ printf "%s:%d" $any (int $p.ports.admin) | quote }}
- name: LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR
  value: {{ printf "127.0.0.1:%d" (int $p.ports.outbound) | quote }}
- name: LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS
  value: {{ if $v.disableIPv6 }}{{ printf "127.0.0.1:%d" (int $p.ports.outbound) | quote }}{{ else }}{{ printf "127.0.0.1:%d,[::1]:%d" (int $p.ports.outbound) (int $p.ports.outbound) | quote }}{{ end }}
- name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR
  value: {{ printf "%s:%d" $any (int $p.ports.inbound) | quote }}
- name: LINKERD2_PROXY_INBOUND_IPS
  valueFrom:
    fieldRef:
      fieldPath: status.podIPs
- name: LINKERD2_PROXY_INBOUND_PORTS
  value: {{ .inboundPorts | quote }}
- name: LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES
  value: {{ ternary "." (printf "svc.%s." $v.clusterDomain) $p.enableExternalProfiles }}
- name: LINKERD2_PROXY_INBOUND_ACCEPT_KEEPALIVE
  value: 10000ms
- name: LINKERD2_PROXY_OUTBOUND_CONNECT_KEEPALIVE
  value: 10000ms
- name: LINKERD2_PROXY_INBOUND_ACCEPT_USER_TIMEOUT
  value: 30s
- name: LINKERD2_PROXY_OUTBOUND_CONNECT_USER_TIMEOUT
  value: 30s
- name: LINKERD2_PROXY_OUTBOUND_METRICS_HOSTNAME_LABELS
  value: {{ $p.metrics.hostnameLabels | quote }}
{{- if $traced }}
{{- $c := $p.tracing.collector }}
{{- $endpoint := include "linkerd.traceCollector" .root }}
{{- if not (and $endpoint $c.meshIdentity.serviceAccountName $c.meshIdentity.namespace) }}
{{- fail "proxy.tracing needs collector.endpoint and collector.meshIdentity" }}
{{- end }}
{{- $attributes := list }}
{{- range $key, $value := $p.tracing.labels }}
{{- $attributes = append $attributes (printf "%s=%s" $key $value) }}
{{- end }}
- name: LINKERD2_PROXY_TRACE_ATTRIBUTES_PATH
  value: /var/run/linkerd/podinfo/labels
- name: LINKERD2_PROXY_TRACE_ANNOTATIONS_PATH
  value: /var/run/linkerd/podinfo/annotations
- name: LINKERD2_PROXY_TRACE_PROTOCOL
  value: opentelemetry
- name: LINKERD2_PROXY_TRACE_SERVICE_NAME
  value: {{ $p.tracing.traceServiceName | quote }}
- name: LINKERD2_PROXY_TRACE_COLLECTOR_SVC_ADDR
  value: {{ $endpoint | quote }}
- name: LINKERD2_PROXY_TRACE_COLLECTOR_SVC_NAME
  value: {{ $c.meshIdentity.serviceAccountName }}.{{ $c.meshIdentity.namespace }}.serviceaccount.identity.{{ $ns }}.{{ $td }}
- name: LINKERD2_PROXY_TRACE_EXTRA_ATTRIBUTES
  value: {{ join "\n" $attributes | quote }}
{{- end }}
{{- range $direction := list "inbound" "outbound" }}
{{- range $scope, $protocols := index $p $direction }}
{{- range $protocol, $params := $protocols }}
{{- range $param, $value := $params }}
- name: LINKERD2_PROXY_{{ printf "%s_%s_%s_%s" $direction ($scope | snakecase) ($protocol | snakecase) ($param | snakecase) | upper }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- with $p.opaquePorts }}
- name: LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION
  value: {{ . | quote }}
{{- end }}
- name: LINKERD2_PROXY_DESTINATION_CONTEXT
  value: |
    {"ns":"$(_pod_ns)", "nodeName":"$(_pod_nodeName)", "pod":"$(_pod_name)"}
- name: _pod_sa
  valueFrom:
    fieldRef:
      fieldPath: spec.serviceAccountName
- name: _l5d_ns
  value: {{ $ns }}
- name: _l5d_trustdomain
  value: {{ $td }}
- name: LINKERD2_PROXY_IDENTITY_DIR
  value: /var/run/linkerd/identity/end-entity
- name: LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS
  valueFrom:
    configMapKeyRef:
      name: linkerd-identity-trust-roots
      key: ca-bundle.crt
- name: LINKERD2_PROXY_IDENTITY_TOKEN_FILE
  value: {{ ternary "/var/run/secrets/tokens/linkerd-identity-token" "/var/run/secrets/kubernetes.io/serviceaccount/token" $v.identity.serviceAccountTokenProjection }}
- name: LINKERD2_PROXY_IDENTITY_SVC_ADDR
  value: {{ .identityAddr | default (printf "linkerd-identity-headless.%s.svc.%s.:8080" $ns $v.clusterDomain) }}
- name: LINKERD2_PROXY_IDENTITY_LOCAL_NAME
  value: $(_pod_sa).$(_pod_ns).serviceaccount.identity.{{ $ns }}.{{ $td }}
- name: LINKERD2_PROXY_IDENTITY_SVC_NAME
  value: linkerd-identity.{{ $ns }}.serviceaccount.identity.{{ $ns }}.{{ $td }}
- name: LINKERD2_PROXY_DESTINATION_SVC_NAME
  value: linkerd-destination.{{ $ns }}.serviceaccount.identity.{{ $ns }}.{{ $td }}
- name: LINKERD2_PROXY_POLICY_SVC_NAME
  value: linkerd-destination.{{ $ns }}.serviceaccount.identity.{{ $ns }}.{{ $td }}
{{- with $p.accessLog }}
- name: LINKERD2_PROXY_ACCESS_LOG
  value: {{ . | quote }}
{{- end }}
{{- with $p.shutdownGracePeriod }}
- name: LINKERD2_PROXY_SHUTDOWN_GRACE_PERIOD
  value: {{ . | quote }}
{{- end }}
{{- with $p.additionalEnv }}
{{ toYaml . }}
{{- end }}
{{- with $p.experimentalEnv }}
{{ toYaml . }}
{{- end }}
ports:
- containerPort: {{ $p.ports.inbound }}
  name: linkerd-proxy
- containerPort: {{ $p.ports.admin }}
  name: linkerd-admin
livenessProbe:
  httpGet:
    path: /live
    port: {{ $p.ports.admin }}
  initialDelaySeconds: {{ $p.livenessProbe.initialDelaySeconds }}
  timeoutSeconds: {{ $p.livenessProbe.timeoutSeconds }}
readinessProbe:
  httpGet:
    path: /ready
    port: {{ $p.ports.admin }}
  initialDelaySeconds: {{ $p.readinessProbe.initialDelaySeconds }}
  timeoutSeconds: {{ $p.readinessProbe.timeoutSeconds }}
{{- if and .native .await }}
startupProbe:
  httpGet:
    path: /ready
    port: {{ $p.ports.admin }}
  initialDelaySeconds: {{ $p.startupProbe.initialDelaySeconds }}
  periodSeconds: {{ $p.startupProbe.periodSeconds }}
  failureThreshold: {{ $p.startupProbe.failureThreshold }}
{{- end }}
{{- if .native }}
restartPolicy: Always
{{- else if .await }}
lifecycle:
  postStart:
    exec:
      command:
      - /usr/lib/linkerd/linkerd-await
      - --timeout=2m
      - --port={{ $p.ports.admin }}
{{- end }}
{{- $laid := dict }}
{{- range $kind := list "cpu" "memory" "ephemeral-storage" }}
{{- $above := index $own $kind | default dict }}
{{- $below := index $p.resources $kind | default dict }}
{{- $laid = merge (dict $kind (dict "limit" ($above.limit | default $below.limit) "request" ($above.request | default $below.request))) $laid }}
{{- end }}
{{- with include "linkerd.resources" $laid }}
{{ . }}
{{- end }}
securityContext:
{{- with $p.securityContext }}
  {{- toYaml . | nindent 2 }}
{{- else }}
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  runAsUser: {{ $p.uid }}
  {{- if ge (int $p.gid) 0 }}
  runAsGroup: {{ $p.gid }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
- mountPath: /var/run/linkerd/identity/end-entity
  name: linkerd-identity-end-entity
{{- if $traced }}
- mountPath: /var/run/linkerd/podinfo
  name: linkerd-podinfo
{{- end }}
{{- if $v.identity.serviceAccountTokenProjection }}
- mountPath: /var/run/secrets/tokens
  name: linkerd-identity-token
{{- else }}
{{ include "linkerd.serviceAccountTokenMount" . }}
{{- end }}
{{- end -}}

{{- /* Volumes the sidecar and its init container need; takes the root. */ -}}
{{- define "linkerd.proxyVolumes" -}}
{{- if not .Values.cniEnabled }}
- name: {{ .Values.proxyInit.xtMountPath.name }}
  emptyDir: {}
{{- end }}
- name: linkerd-identity-end-entity
  emptyDir:
    medium: Memory
{{- if or .Values.proxy.tracing.enabled .Values.controller.tracing.enabled }}
- name: linkerd-podinfo
  downwardAPI:
    items:
    - path: labels
      fieldRef:
        fieldPath: metadata.labels
{{- end }}
{{- if .Values.identity.serviceAccountTokenProjection }}
- name: linkerd-identity-token
  projected:
    sources:
    - serviceAccountToken:
        path: linkerd-identity-token
        expirationSeconds: 86400
        audience: identity.l5d.io
{{- end }}
{{- end -}}

{{- /* The init container of the control plane's own pods: redirection, or its check with a CNI plugin. */ -}}
{{- define "linkerd.proxyInit" -}}
{{- $v := .Values -}}
{{- $i := $v.proxyInit -}}
{{- $p := $v.proxy -}}
{{- if $v.cniEnabled -}}
name: linkerd-network-validator
image: {{ $p.image.name }}:{{ $p.image.version | default $v.linkerdVersion }}
imagePullPolicy: {{ $p.image.pullPolicy | default $v.imagePullPolicy }}
{{- with include "linkerd.resources" $p.resources }}
{{ . }}
{{- end }}
{{- if $v.networkValidator.enableSecurityContext }}
securityContext:
  {{- toYaml $v.networkValidator.securityContext | nindent 2 }}
{{- end }}
command:
- /usr/lib/linkerd/linkerd2-network-validator
args:
- --log-format
- {{ $v.networkValidator.logFormat }}
- --log-level
- {{ $v.networkValidator.logLevel }}
- --connect-addr
- {{ $v.networkValidator.connectAddr | default (ternary "1.1.1.1:20001" "[fd00::1]:20001" $v.disableIPv6) | quote }}
- --listen-addr
- {{ $v.networkValidator.listenAddr | default (ternary "0.0.0.0:4140" "[::]:4140" $v.disableIPv6) | quote }}
- --timeout
- {{ $v.networkValidator.timeout }}
{{- else -}}
{{- if not (has $i.iptablesMode (list "nft" "legacy" "native")) -}}
{{- fail (printf "Unsupported value %q for proxyInit.iptablesMode\nValid values: [\"nft\", \"legacy\", \"native\"]" $i.iptablesMode) -}}
{{- end -}}
{{- if and (gt (int $i.closeWaitTimeoutSecs) 0) (not $i.runAsRoot) -}}
{{- fail "proxyInit.runAsRoot must be set to use proxyInit.closeWaitTimeoutSecs" -}}
{{- end -}}
name: linkerd-init
image: {{ $i.image.name }}:{{ $i.image.version | default $v.linkerdVersion }}
imagePullPolicy: {{ $i.image.pullPolicy | default $v.imagePullPolicy }}
args:
{{- if eq $i.iptablesMode "nft" }}
- --firewall-bin-path
- iptables-nft
- --firewall-save-bin-path
- iptables-nft-save
{{- else if eq $i.iptablesMode "native" }}
- --iptables-mode
- native
{{- end }}
{{- if $v.disableIPv6 }}
- --ipv6=false
{{- end }}
- --incoming-proxy-port
- {{ $p.ports.inbound | quote }}
- --outgoing-proxy-port
- {{ $p.ports.outbound | quote }}
- --proxy-uid
- {{ $p.uid | quote }}
{{- if ge (int $p.gid) 0 }}
- --proxy-gid
- {{ $p.gid | quote }}
{{- end }}
- --inbound-ports-to-ignore
- {{ printf "%d,%d" (int $p.ports.control) (int $p.ports.admin) }}{{ with $i.ignoreInboundPorts }},{{ . }}{{ end }}
- --outbound-ports-to-ignore
- {{ $i.kubeAPIServerPorts | quote }}
{{- if gt (int $i.closeWaitTimeoutSecs) 0 }}
- --timeout-close-wait-secs
- {{ $i.closeWaitTimeoutSecs | quote }}
{{- end }}
{{- with $i.logFormat }}
- --log-format
- {{ . }}
{{- end }}
{{- with $i.logLevel }}
- --log-level
- {{ . }}
{{- end }}
{{- with $i.skipSubnets }}
- --subnets-to-ignore
- {{ . | quote }}
{{- end }}
{{- with include "linkerd.resources" $p.resources }}
{{ . }}
{{- end }}
securityContext:
  {{- $privileged := or $i.privileged (gt (int $i.closeWaitTimeoutSecs) 0) }}
  allowPrivilegeEscalation: {{ $privileged }}
  capabilities:
    add:
    - NET_ADMIN
    - NET_RAW
  privileged: {{ $privileged }}
  {{- if $i.runAsRoot }}
  runAsNonRoot: false
  runAsUser: 0
  runAsGroup: 0
  {{- else }}
  runAsNonRoot: true
  runAsUser: {{ $i.runAsUser | default 65534 }}
  runAsGroup: {{ $i.runAsGroup | default 65534 }}
  {{- end }}
  readOnlyRootFilesystem: true
  seccompProfile:
    type: RuntimeDefault
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
- mountPath: {{ $i.xtMountPath.mountPath }}
  name: {{ $i.xtMountPath.name }}
{{- end -}}
{{- end -}}
