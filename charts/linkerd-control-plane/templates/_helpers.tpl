{{- /* Names and small pieces every template uses. */ -}}

{{- define "linkerd.trustDomain" -}}
{{ .Values.identityTrustDomain | default .Values.clusterDomain }}
{{- end -}}

{{- define "linkerd.createdBy" -}}
{{ .Values.cliVersion | default (printf "linkerd/helm %s" .Values.linkerdVersion) }}
{{- end -}}

{{- /* Labels of an object that belongs to the control plane; a dict of root and, optionally, component. */ -}}
{{- define "linkerd.labels" -}}
{{- with .component }}
linkerd.io/control-plane-component: {{ . }}
{{- end }}
linkerd.io/control-plane-ns: {{ .root.Release.Namespace }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "linkerd.deploymentLabels" -}}
app.kubernetes.io/name: {{ .component }}
app.kubernetes.io/part-of: Linkerd
app.kubernetes.io/version: {{ .root.Values.linkerdVersion }}
{{ include "linkerd.labels" . | trim }}
{{- end -}}

{{- define "linkerd.podLabels" -}}
linkerd.io/control-plane-component: {{ .component }}
linkerd.io/control-plane-ns: {{ .root.Release.Namespace }}
linkerd.io/workload-ns: {{ .root.Release.Namespace }}
linkerd.io/proxy-deployment: linkerd-{{ .component }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with .root.Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "linkerd.podAnnotations" -}}
linkerd.io/created-by: {{ include "linkerd.createdBy" .root }}
linkerd.io/proxy-version: {{ .root.Values.proxy.image.version | default .root.Values.linkerdVersion }}
cluster-autoscaler.kubernetes.io/safe-to-evict: "true"
linkerd.io/trust-root-sha256: {{ .root.Values.identityTrustAnchorsPEM | trim | sha256sum }}
{{- with .root.Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- with .podAnnotations }}
{{ toYaml . }}
{{- end }}
config.linkerd.io/default-inbound-policy: "all-unauthenticated"
{{- end -}}

{{- /* Where pods run: selector, tolerations, affinity, priority. */ -}}
{{- define "linkerd.scheduling" -}}
nodeSelector:
  {{- toYaml .root.Values.nodeSelector | nindent 2 }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .root.Values.enablePodAntiAffinity .root.Values.nodeAffinity }}
affinity:
  {{- with .root.Values.nodeAffinity }}
  nodeAffinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .root.Values.enablePodAntiAffinity }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        labelSelector:
          matchExpressions:
          - key: linkerd.io/control-plane-component
            operator: In
            values: [{{ .component }}]
        topologyKey: topology.kubernetes.io/zone
    requiredDuringSchedulingIgnoredDuringExecution:
    - labelSelector:
        matchExpressions:
        - key: linkerd.io/control-plane-component
          operator: In
          values: [{{ .component }}]
      topologyKey: kubernetes.io/hostname
  {{- end }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "linkerd.controllerSecurityContext" -}}
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: {{ .Values.controllerUID }}
{{- if ge (int .Values.controllerGID) 0 }}
runAsGroup: {{ .Values.controllerGID }}
{{- end }}
allowPrivilegeEscalation: false
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* Requests and limits, only the keys that are set. */ -}}
{{- define "linkerd.resources" -}}
{{- $limits := dict -}}
{{- $requests := dict -}}
{{- range $kind := list "cpu" "memory" "ephemeral-storage" -}}
{{- with index $ $kind -}}
{{- if .limit -}}{{- $limits = merge (dict $kind .limit) $limits -}}{{- end -}}
{{- if .request -}}{{- $requests = merge (dict $kind .request) $requests -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if or $limits $requests -}}
resources:
{{- if $limits }}
  limits:
    {{- toYaml $limits | nindent 4 }}
{{- end }}
{{- if $requests }}
  requests:
    {{- toYaml $requests | nindent 4 }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* One container does the work of several: what is given for each of them is added up. Takes a
       list of resources as values write them. */ -}}
{{- define "linkerd.summedResources" -}}
{{- $all := . -}}
{{- $sums := dict -}}
{{- range $kind := list "cpu" "memory" "ephemeral-storage" -}}
{{- $sum := dict -}}
{{- range $side := list "limit" "request" -}}
{{- $given := list -}}
{{- range $resources := $all -}}
{{- with $resources -}}{{- with index . $kind -}}{{- with index . $side -}}
{{- $given = append $given (toString .) -}}
{{- end -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if $given -}}{{- $sum = merge (dict $side (include "linkerd.quantitySum" $given)) $sum -}}{{- end -}}
{{- end -}}
{{- $sums = merge (dict $kind $sum) $sums -}}
{{- end -}}
{{- include "linkerd.resources" $sums -}}
{{- end -}}

{{- /* The sum of quantities such as 100m and 1, or 50Mi and 1Gi; a single one stays as it is written. */ -}}
{{- define "linkerd.quantitySum" -}}
{{- if eq (len .) 1 -}}
{{- index . 0 -}}
{{- else -}}
{{- $total := 0 -}}
{{- range . -}}{{- $total = add $total (int64 (include "linkerd.milli" .)) -}}{{- end -}}
{{- if eq (mod $total 1048576000) 0 -}}{{- printf "%dMi" (div $total 1048576000) -}}
{{- else if eq (mod $total 1000) 0 -}}{{- div $total 1000 -}}
{{- else -}}{{- printf "%dm" $total -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A quantity in thousandths. */ -}}
{{- define "linkerd.milli" -}}
{{- $unit := trimAll "0123456789." . -}}
{{- $units := dict "" 1000 "m" 1 "k" 1000000 "M" 1000000000 "G" 1000000000000 "Ki" 1024000 "Mi" 1048576000 "Gi" 1073741824000 -}}
{{- if not (hasKey $units $unit) -}}
{{- fail (printf "%q is not a quantity that can be added up: write it with m, k, M, G, Ki, Mi, Gi or no unit" .) -}}
{{- end -}}
{{- mulf (trimSuffix $unit .) (index $units $unit) | int64 -}}
{{- end -}}

{{- /* Where the control plane and its sidecars send traces; nothing when they send none. */ -}}
{{- define "linkerd.traceCollector" -}}
{{- if .Values.controller.tracing.enabled -}}
{{ .Values.controller.tracing.collector.endpoint | default .Values.proxy.tracing.collector.endpoint }}
{{- else if .Values.proxy.tracing.enabled -}}
{{ .Values.proxy.tracing.collector.endpoint }}
{{- end -}}
{{- end -}}

{{- define "linkerd.serviceAccountTokenVolume" -}}
- name: kube-api-access
  projected:
    defaultMode: 420
    sources:
    - serviceAccountToken:
        expirationSeconds: 3607
        path: token
    - configMap:
        name: kube-root-ca.crt
        items:
        - key: ca.crt
          path: ca.crt
    - downwardAPI:
        items:
        - path: namespace
          fieldRef:
            apiVersion: v1
            fieldPath: metadata.namespace
{{- end -}}

{{- define "linkerd.serviceAccountTokenMount" -}}
- name: kube-api-access
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}

{{- define "linkerd.controllerImage" -}}
image: {{ .Values.controllerImage }}:{{ .Values.controllerImageVersion | default .Values.linkerdVersion }}
imagePullPolicy: {{ .Values.imagePullPolicy }}
{{- end -}}

{{- define "linkerd.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: linkerd-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "linkerd.labels" . | nindent 4 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* A PodDisruptionBudget; a dict of root, component and name. */ -}}
{{- define "linkerd.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "linkerd.labels" . | nindent 4 }}
  annotations:
    linkerd.io/created-by: {{ include "linkerd.createdBy" .root }}
spec:
  maxUnavailable: {{ .root.Values.controller.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      linkerd.io/control-plane-component: {{ .component }}
{{- end -}}

{{- /* Fails the render when a webhook's certificate settings contradict each other; a dict of name and webhook. */ -}}
{{- define "linkerd.webhookValidate" -}}
{{- $w := .webhook -}}
{{- if and $w.injectCaFrom $w.injectCaFromSecret -}}
{{- fail (printf "%s: injectCaFrom and injectCaFromSecret cannot both be set" .name) -}}
{{- end -}}
{{- if and (or $w.injectCaFrom $w.injectCaFromSecret) $w.caBundle -}}
{{- fail (printf "%s: caBundle cannot be set together with injectCaFrom or injectCaFromSecret" .name) -}}
{{- end -}}
{{- if and $w.externalSecret (not (or $w.injectCaFrom $w.injectCaFromSecret $w.caBundle)) -}}
{{- fail (printf "%s: externalSecret needs one of caBundle, injectCaFrom and injectCaFromSecret" .name) -}}
{{- end -}}
{{- if and (or $w.injectCaFrom $w.injectCaFromSecret) (not $w.externalSecret) -}}
{{- fail (printf "%s: injectCaFrom and injectCaFromSecret need externalSecret" .name) -}}
{{- end -}}
{{- end -}}

{{- /* The Secret and the head of a webhook configuration share one certificate, so they are made
       together: a dict of root, component, service, webhook (values) and kind. The rules follow. */ -}}
{{- define "linkerd.webhook" -}}
{{- include "linkerd.webhookValidate" (dict "name" .values "webhook" .webhook) -}}
{{- $host := printf "%s.%s.svc" .service .root.Release.Namespace -}}
{{- $crt := .webhook.crtPEM -}}
{{- $key := .webhook.keyPEM -}}
{{- if and (not .webhook.externalSecret) (not $crt) -}}
{{- $pair := genSelfSignedCert $host (list) (list $host) 365 -}}
{{- $crt = $pair.Cert -}}
{{- $key = $pair.Key -}}
{{- end -}}
{{- if not .webhook.externalSecret -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ .service }}-k8s-tls
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "linkerd.labels" . | nindent 4 }}
  annotations:
    linkerd.io/created-by: {{ include "linkerd.createdBy" .root }}
type: kubernetes.io/tls
data:
  tls.crt: {{ $crt | trim | b64enc }}
  tls.key: {{ $key | trim | b64enc }}
---
{{ end -}}
apiVersion: admissionregistration.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ .service }}-webhook-config
  labels:
    {{- include "linkerd.labels" . | nindent 4 }}
  {{- if .webhook.injectCaFrom }}
  annotations:
    cert-manager.io/inject-ca-from: {{ .webhook.injectCaFrom }}
  {{- else if .webhook.injectCaFromSecret }}
  annotations:
    cert-manager.io/inject-ca-from-secret: {{ .webhook.injectCaFromSecret }}
  {{- end }}
webhooks:
- name: {{ .service }}.linkerd.io
  namespaceSelector:
    {{- toYaml .webhook.namespaceSelector | nindent 4 }}
  {{- with .webhook.objectSelector }}
  objectSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  clientConfig:
    service:
      name: {{ .service }}
      namespace: {{ .root.Release.Namespace }}
      path: "/"
    {{- if not (or .webhook.injectCaFrom .webhook.injectCaFromSecret) }}
    caBundle: {{ .webhook.caBundle | default $crt | trim | b64enc }}
    {{- end }}
  failurePolicy: {{ .root.Values.webhookFailurePolicy }}
  admissionReviewVersions: ["v1", "v1beta1"]
  sideEffects: None
{{- end -}}
