{{- /* Labels of everything that belongs to the plugin. */ -}}
{{- define "linkerd-cni.labels" -}}
linkerd.io/cni-resource: "true"
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "linkerd-cni.createdBy" -}}
{{ .Values.cliVersion | default (printf "linkerd/helm %s" .Chart.AppVersion) }}
{{- end -}}

{{- /* Requests and limits, only the keys that are set. */ -}}
{{- define "linkerd-cni.resources" -}}
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
