{{/* What all pods have. Takes a dict: root, component. */}}
{{- define "strata.pod" -}}
{{- $tier := get .root.Values .component -}}
# A Service's variables, such as STRATA_STORAGE_PORT, are not configuration.
enableServiceLinks: false
automountServiceAccountToken: false
serviceAccountName: {{ include "strata.account" . }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: {{ $tier.terminationGracePeriodSeconds }}
{{- with $tier.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{ include "strata.podSecurity" .root }}
{{- end -}}

{{/* Service account of a component's pods. Takes a dict: root, component. */}}
{{- define "strata.account" -}}
{{- $account := (get .root.Values .component).serviceAccount -}}
{{- if $account.name -}}
{{ $account.name }}
{{- else if $account.create -}}
{{ include "strata.name" . }}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{/* Passes the level "restricted" of the Pod Security standards. */}}
{{- define "strata.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "strata.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Metadata of a pod. Takes a dict: root, component. */}}
{{- define "strata.podMetadata" -}}
{{- $tier := get .root.Values .component -}}
labels:
  {{- include "strata.labels" . | nindent 2 }}
  {{- with $tier.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ include "strata.config" .root | sha256sum }}
  {{- with $tier.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What the container of a process has before its arguments. Takes a dict: root, component. */}}
{{- define "strata.container" -}}
name: strata
image: "{{ include "strata.image" .root }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [python3, /etc/strata-scripts/start.py]
{{ include "strata.containerSecurity" . }}
{{- end -}}

{{/* Variables that say where the pod is: rack, and host of a broker. Takes a dict: root, component. */}}
{{- define "strata.placeEnvironment" -}}
{{- $from := include "strata.rackFrom" . -}}
{{- if eq $from "label" }}
# Kubernetes copies the label from the node to the pod.
- name: CHART_RACK
  valueFrom:
    fieldRef: {fieldPath: "metadata.labels['{{ .root.Values.racks.nodeLabel }}']"}
{{- else if eq $from "node" }}
- name: CHART_RACK_FILE
  value: /run/strata/rack
{{- end }}
{{- end -}}

{{/* Where a pod's rack comes from: value, label, node or none. Takes a dict: root, component. */}}
{{- define "strata.rackFrom" -}}
{{- $copied := list "topology.kubernetes.io/zone" "topology.kubernetes.io/region" -}}
{{- $racks := .root.Values.racks -}}
{{- if not (has .component (list "storage" "broker")) -}}
none
{{- else if (get .root.Values .component).rack -}}
value
{{- else if ne $racks.from "auto" -}}
{{ $racks.from }}
{{- else if and (has $racks.nodeLabel $copied) (semverCompare ">=1.35.0-0" .root.Capabilities.KubeVersion.Version) -}}
label
{{- else -}}
node
{{- end -}}
{{- end -}}

{{/* Reads the rack from a label of the node. Takes a dict: root, component. */}}
{{- define "strata.rackContainer" -}}
{{- if eq (include "strata.rackFrom" .) "node" }}
initContainers:
  - name: rack
    image: "{{ include "strata.image" .root }}"
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command: [python3, /etc/strata-scripts/rack.py, {{ .root.Values.racks.nodeLabel | quote }}, /run/strata/rack]
    {{- include "strata.containerSecurity" . | nindent 4 }}
    env:
      - name: NODE_NAME
        valueFrom:
          fieldRef: {fieldPath: spec.nodeName}
    resources:
      requests: {cpu: 10m, memory: 32Mi}
      limits: {memory: 128Mi}
    volumeMounts:
      - {name: run, mountPath: /run/strata}
      - {name: scripts, mountPath: /etc/strata-scripts, readOnly: true}
      # Only this container may ask the API server.
      - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
{{- end -}}

{{/* Takes a dict: root, component. */}}
{{- define "strata.mounts" -}}
{{- $tier := get .root.Values .component -}}
- {name: data, mountPath: /var/lib/strata}
- {name: config, mountPath: /etc/strata, readOnly: true}
- {name: scripts, mountPath: /etc/strata-scripts, readOnly: true}
- {name: run, mountPath: /run/strata}
- {name: tmp, mountPath: /tmp}
{{- if and (ne .component "standalone") (ne .root.Values.clusterTls.mode "off") }}
- {name: cluster-tls, mountPath: /etc/strata-cluster-tls, readOnly: true}
{{- end }}
{{- if eq .component "broker" "standalone" }}
- {name: tls, mountPath: /etc/strata-tls, readOnly: true}
{{- end }}
{{- if include "strata.makesAdmin" . }}
- {name: first-admin, mountPath: /etc/strata-first-admin, readOnly: true}
{{- end }}
{{- with $tier.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Not empty: the component makes the first admin. Takes a dict: root, component. */}}
{{- define "strata.makesAdmin" -}}
{{- if and .root.Values.accessControl.enabled (eq .component "nameserver" "standalone") -}}yes{{- end -}}
{{- end -}}

{{/* Takes a dict: root, component. */}}
{{- define "strata.volumes" -}}
{{- $tier := get .root.Values .component -}}
- name: config
  configMap:
    name: {{ include "strata.name" (dict "root" .root "component" "config") }}
- name: scripts
  configMap:
    name: {{ include "strata.name" (dict "root" .root "component" "scripts") }}
# In memory: the first admin's keys as a file.
- name: run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {}
{{- if and (ne .component "standalone") (ne .root.Values.clusterTls.mode "off") }}
- name: cluster-tls
  secret:
    secretName: {{ include "strata.certificateSecret" . }}
    defaultMode: 0440
{{- end }}
{{- if eq .component "broker" "standalone" }}
- name: tls
  secret:
    secretName: {{ include "strata.certificateSecret" (dict "root" .root "component" "edge") }}
    defaultMode: 0440
{{- end }}
{{- if include "strata.makesAdmin" . }}
- name: first-admin
  secret:
    secretName: {{ include "strata.adminSecret" .root }}
    defaultMode: 0440
{{- end }}
{{- if eq (include "strata.rackFrom" .) "node" }}
{{ include "strata.tokenVolume" . }}
{{- end }}
{{- with $tier.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A token for the API server, for the one container that mounts it. */}}
{{- define "strata.tokenVolume" -}}
- name: token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
{{- end -}}

{{/* Variables and sources of variables of the user. Takes a dict: root, component. */}}
{{- define "strata.extraEnv" -}}
{{- with (get .root.Values .component).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "strata.envFrom" -}}
{{- with (get .root.Values .component).extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
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
{{- if $tier.affinity }}
affinity:
  {{- toYaml $tier.affinity | nindent 2 }}
{{- else if eq $tier.antiAffinity "hard" }}
affinity:
  podAntiAffinity:
    # Two pods of the tier never share a node.
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "strata.labels" . | nindent 12 }}
{{- else if eq $tier.antiAffinity "soft" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "strata.labels" . | nindent 14 }}
{{- end }}
{{- if $tier.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml $tier.topologySpreadConstraints | nindent 2 }}
{{- else }}
topologySpreadConstraints:
  {{- range $key := uniq (list "kubernetes.io/hostname" .root.Values.racks.nodeLabel) }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" (and $.root.Values.racks.required (eq $key $.root.Values.racks.nodeLabel)) }}
    labelSelector:
      matchLabels:
        {{- include "strata.labels" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The claim that keeps a pod's data. Takes a tier's persistence. */}}
{{- define "strata.claim" -}}
- metadata:
    name: data
    {{- with .annotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end -}}

{{/* The fate of claims when pods go. Takes a tier's persistence. */}}
{{- define "strata.claimRetention" -}}
persistentVolumeClaimRetentionPolicy:
  whenDeleted: {{ .whenDeleted }}
  whenScaled: {{ .whenScaled }}
{{- end -}}

{{/* Liveness: the event loop runs. Whether the process can serve is for readiness to tell. */}}
{{- define "strata.liveness" -}}
livenessProbe:
  httpGet: {path: /live, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* Health gate: a pod that is to stop serves until the cluster can do without it. Takes a dict: root, component. */}}
{{- define "strata.gate" -}}
{{- $seconds := include "strata.preStopSeconds" . -}}
{{- $host := include "strata.host" (dict "root" .root "component" "broker") -}}
lifecycle:
  preStop:
    exec:
      command: [python3, /etc/strata-scripts/gate.py, "{{ $host }}:{{ .root.Values.ports.metrics }}", {{ $seconds | quote }}]
{{- end -}}
