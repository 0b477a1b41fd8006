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

{{/* Labels of objects and pods: those that select, and the version. Takes a dict: root, component. */}}
{{- define "strata.allLabels" -}}
{{ include "strata.labels" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "strata.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Number of pods of a component; replicaCount is the same in the words of other charts. Takes a dict: root, component. */}}
{{- define "strata.replicas" -}}
{{- $tier := get .root.Values .component -}}
{{- $tier.replicaCount | default $tier.replicas -}}
{{- end -}}

{{/* Pods of a tier that may be away at once without a raft group losing its majority. Takes a dict: root, component. */}}
{{- define "strata.spare" -}}
{{- $replicas := int (include "strata.replicas" .) -}}
{{- $factor := int (dig "nameserver" "replication_factor" 3 .root.Values.config) -}}
{{- $voters := ternary (min $factor $replicas) $replicas (eq .component "storage") -}}
{{- div (sub $voters 1) 2 -}}
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
{{- range $ordinal := until (int (include "strata.replicas" .)) -}}
{{- $endpoints = append $endpoints (printf "%s-%d.%s:%v" $name $ordinal $host $port) -}}
{{- end -}}
{{- join "," $endpoints -}}
{{- end -}}

{{/* The configuration file: config, and the values that are keys of it under another name. */}}
{{- define "strata.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- with .Values.clusterName -}}
{{- $config = mustMergeOverwrite (dict "observability" (dict "cluster" .)) $config -}}
{{- end -}}
{{- with .Values.objectStore.url -}}
{{- $config = mustMergeOverwrite (dict "tier" (dict "url" .)) $config -}}
{{- end -}}
{{- toToml $config -}}
{{- end -}}

{{/* Seconds between the order to stop and SIGTERM. Takes a dict: root, component. */}}
{{- define "strata.preStopSeconds" -}}
{{- $tier := get .root.Values .component -}}
{{- if eq .component "storage" "nameserver" -}}
{{- min (int $tier.gateSeconds) (div (int $tier.terminationGracePeriodSeconds) 2) -}}
{{- else -}}
{{- default 0 $tier.preStopSeconds -}}
{{- end -}}
{{- end -}}

{{/* Variables that every container has: the pod, its drain, access control. Takes a dict: root, component. */}}
{{- define "strata.environment" -}}
{{- $tier := get .root.Values .component -}}
{{- $preStop := int (include "strata.preStopSeconds" .) -}}
- name: POD_NAME
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
- name: POD_IP
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
- name: STRATA_NODE_METRICS_PORT
  value: {{ .root.Values.ports.metrics | quote }}
- name: STRATA_NODE_DRAIN_MS
  value: {{ mul 1000 (sub (sub (int $tier.terminationGracePeriodSeconds) $preStop) 5) | quote }}
- name: STRATA_ACCESS_CONTROL_MODE
  value: {{ ternary "on" "off" .root.Values.accessControl.enabled | quote }}
{{- if or (not .root.Values.accessControl.enabled) (ne .root.Values.clusterTls.mode "required") }}
# Allowed by accessControl.enabled or clusterTls.mode: keep others out by network policies.
- name: STRATA_ACCESS_CONTROL_INSECURE
  value: "true"
{{- end }}
{{- end -}}

{{/* Certificate of the ports for clients and operators. */}}
{{- define "strata.tlsEnvironment" -}}
- name: STRATA_EDGE_CERTIFICATE_FILE
  value: /etc/strata-tls/tls.crt
- name: STRATA_EDGE_KEY_FILE
  value: /etc/strata-tls/tls.key
{{- if .Values.tls.only }}
- name: STRATA_EDGE_TLS_ONLY
  value: "true"
{{- end }}
{{- end -}}

{{/* Keys of the object store, never in a ConfigMap. */}}
{{- define "strata.storeEnvironment" -}}
{{- with .Values.objectStore }}
{{- if .existingSecret }}
- name: STRATA_TIER_ACCESS_KEY
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret }}, key: {{ .accessKeyKey }}}
- name: STRATA_TIER_SECRET_KEY
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret }}, key: {{ .secretKeyKey }}}
- name: STRATA_TIER_SESSION_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret }}, key: {{ .sessionTokenKey }}, optional: true}
{{- end }}
{{- end }}
{{- end -}}

{{/* Name of the secret with the certificate of a role: nameserver, storage, broker or edge. Takes a dict: root, component. */}}
{{- define "strata.certificateSecret" -}}
{{- $own := ternary .root.Values.tls.secretName (get .root.Values.clusterTls.secretNames .component) (eq .component "edge") -}}
{{- $own | default (printf "%s-tls" (include "strata.name" .)) -}}
{{- end -}}

{{/* Name of the secret with the keys of the first admin. */}}
{{- define "strata.adminSecret" -}}
{{- .Values.accessControl.existingSecret | default (include "strata.name" (dict "root" . "component" "first-admin")) -}}
{{- end -}}

{{/* Names under which a role's certificate is checked, as a list in JSON. Takes a dict: root, component. */}}
{{- define "strata.certificateHosts" -}}
{{- $root := .root -}}
{{- $namespace := $root.Release.Namespace -}}
{{- if eq .component "edge" -}}
{{- $hosts := list "localhost" -}}
{{- $components := ternary (list "broker" "operators") (list "standalone") (eq $root.Values.mode "cluster") -}}
{{- if and $root.Values.console.enabled $root.Values.console.tls -}}
{{- $components = append $components "console" -}}
{{- end -}}
{{- range $component := $components -}}
{{- $name := include "strata.name" (dict "root" $root "component" $component) -}}
{{- $short := printf "%s.%s" $name $namespace -}}
{{- $hosts = concat $hosts (list $name $short (printf "%s.svc" $short) (printf "%s.svc.%s" $short $root.Values.clusterDomain)) -}}
{{- end -}}
{{- $advertised := ternary $root.Values.broker.advertisedHost $root.Values.standalone.advertisedHost (eq $root.Values.mode "cluster") -}}
{{- toJson (uniq (compact (concat $hosts (list $advertised) $root.Values.tls.hosts))) -}}
{{- else if eq .component "broker" -}}
{{- toJson (list (printf "*.%s.pod" $namespace)) -}}
{{- else -}}
{{- toJson (list (printf "*.%s" (include "strata.host" .))) -}}
{{- end -}}
{{- end -}}
