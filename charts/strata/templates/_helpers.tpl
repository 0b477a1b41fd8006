{{- define "strata.name" -}}
{{- printf "%s-standalone" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "strata.labels" -}}
app.kubernetes.io/name: strata
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: standalone
{{- end -}}
