{{/* Name of a component's objects. Takes a dict: root, component. */}}
{{- define "strata.name" -}}
{{- printf "%s-%s" .root.Release.Name .component | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select a component's pods. Takes a dict: root, component. */}}
{{- define "strata.labels" -}}
app.kubernetes.io/name: strata
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "strata.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* DNS name of a component's service. Takes a dict: root, component. */}}
{{- define "strata.host" -}}
{{ include "strata.name" . }}.{{ .root.Release.Namespace }}.svc
{{- end -}}

{{/* host:port of every pod of a StatefulSet, with commas. Takes a dict: root, component. */}}
{{- define "strata.endpoints" -}}
{{- $name := include "strata.name" . -}}
{{- $host := include "strata.host" . -}}
{{- $port := get .root.Values.ports .component -}}
{{- $endpoints := list -}}
{{- range $ordinal := until (int (get .root.Values .component).replicas) -}}
{{- $endpoints = append $endpoints (printf "%s-%d.%s:%v" $name $ordinal $host $port) -}}
{{- end -}}
{{- join "," $endpoints -}}
{{- end -}}

{{/* What every container has: who it is, its drain, its mounts. Takes a dict: root, component. */}}
{{- define "strata.environment" -}}
{{- $tier := get .root.Values .component -}}
- name: POD_NAME
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
- name: STRATA_NODE_METRICS_PORT
  value: {{ .root.Values.ports.metrics | quote }}
- name: STRATA_NODE_DRAIN_MS
  value: {{ mul 1000 (sub (sub $tier.terminationGracePeriodSeconds (default 0 $tier.preStopSeconds)) 5) | quote }}
{{- end -}}

{{/* Certificate of the client port. */}}
{{- define "strata.tlsEnvironment" -}}
{{- if .Values.tls.secretName }}
- name: STRATA_EDGE_CERTIFICATE_FILE
  value: /etc/strata-tls/tls.crt
- name: STRATA_EDGE_KEY_FILE
  value: /etc/strata-tls/tls.key
{{- end }}
{{- end -}}

{{- define "strata.mounts" -}}
- name: data
  mountPath: /var/lib/strata
- name: config
  mountPath: /etc/strata
  readOnly: true
{{- end -}}

{{- define "strata.tlsMount" -}}
{{- if .Values.tls.secretName }}
- name: tls
  mountPath: /etc/strata-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "strata.configVolume" -}}
- name: config
  configMap:
    name: {{ include "strata.name" (dict "root" . "component" "config") }}
{{- end -}}

{{- define "strata.tlsVolume" -}}
{{- if .Values.tls.secretName }}
- name: tls
  secret:
    secretName: {{ .Values.tls.secretName }}
{{- end }}
{{- end -}}

{{/* Where pods may run and how they are spread. Takes a dict: root, component. */}}
{{- define "strata.placement" -}}
{{- $tier := get .root.Values .component -}}
{{- with $tier.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $tier.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "strata.labels" $ | nindent 8 }}
  {{- end }}
{{- end -}}

{{/* The claim that keeps a pod's data. Takes a tier's persistence. */}}
{{- define "strata.claim" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end -}}

{{/* Liveness: the event loop runs. Whether the process can serve is for readiness to tell. */}}
{{- define "strata.liveness" -}}
livenessProbe:
  httpGet: {path: /live, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{- define "strata.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
{{- end -}}
