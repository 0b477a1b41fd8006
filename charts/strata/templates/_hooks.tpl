{{/* Metadata of a hook. Takes a dict: root, component, when, weight. */}}
{{- define "strata.hookMetadata" -}}
name: {{ include "strata.name" . }}
labels:
  {{- include "strata.allLabels" . | nindent 2 }}
annotations:
  helm.sh/hook: {{ .when }}
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: {{ .delete | default "before-hook-creation" }}
{{- end -}}

{{/* The connection of the command in hooks and the toolbox: a profile, and the first admin's keys. */}}
{{- define "strata.operatorEnvironment" -}}
- name: STRATA_CONFIG
  value: /etc/strata-profile/profiles.toml
- name: STRATA_PROFILE
  value: cluster
{{- if .Values.accessControl.enabled }}
- name: STRATA_ACCESS_KEY
  valueFrom:
    secretKeyRef: {name: {{ include "strata.operatorSecret" . }}, key: access_key}
- name: STRATA_SECRET_KEY
  valueFrom:
    secretKeyRef: {name: {{ include "strata.operatorSecret" . }}, key: secret_key}
{{- end }}
{{- end -}}

{{/* Name of the secret with the keys that hooks and the toolbox use. */}}
{{- define "strata.operatorSecret" -}}
{{- .Values.hooks.existingSecret | default (include "strata.adminSecret" .) -}}
{{- end -}}

{{/* host:port of the operators' port. */}}
{{- define "strata.operators" -}}
{{- $component := ternary "operators" "standalone" (eq .Values.mode "cluster") -}}
{{ include "strata.host" (dict "root" . "component" $component) }}:{{ .Values.ports.operators }}
{{- end -}}

{{/* host:port for clients in the cluster. */}}
{{- define "strata.clients" -}}
{{- $component := ternary "broker" "standalone" (eq .Values.mode "cluster") -}}
{{ include "strata.host" (dict "root" . "component" $component) }}:{{ .Values.ports.grpc }}
{{- end -}}

{{- define "strata.profile" -}}
[cluster]
endpoint = "{{ include "strata.operators" . }}"
ca = "/etc/strata-tls/ca.crt"
{{- end -}}

{{/* Pod of a hook. Takes a dict: root, component, script, env, asks_api, talks (to the cluster), profile. */}}
{{- define "strata.hookPod" -}}
metadata:
  labels:
    {{- include "strata.allLabels" . | nindent 4 }}
spec:
  enableServiceLinks: false
  automountServiceAccountToken: false
  {{- if .asks_api }}
  serviceAccountName: {{ include "strata.name" (dict "root" .root "component" "hooks") }}
  {{- end }}
  restartPolicy: Never
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.hooks.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.hooks.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- include "strata.podSecurity" .root | nindent 2 }}
  containers:
    - name: {{ .script }}
      image: "{{ include "strata.image" .root }}"
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: [python3, /etc/strata-scripts/{{ .script }}.py]
      {{- include "strata.containerSecurity" . | nindent 6 }}
      env:
        {{- toYaml .env | nindent 8 }}
        {{- if .talks }}
        {{- include "strata.operatorEnvironment" .root | nindent 8 }}
        {{- end }}
      resources:
        {{- toYaml .root.Values.hooks.resources | nindent 8 }}
      volumeMounts:
        - {name: scripts, mountPath: /etc/strata-scripts, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if .asks_api }}
        - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
        {{- end }}
        {{- if .talks }}
        - {name: profile, mountPath: /etc/strata-profile, readOnly: true}
        - {name: tls, mountPath: /etc/strata-tls, readOnly: true}
        {{- end }}
  volumes:
    - name: scripts
      configMap:
        name: {{ include "strata.name" (dict "root" .root "component" (ternary "scripts" "hook-scripts" (eq .script "check"))) }}
    - name: tmp
      emptyDir: {}
    {{- if .asks_api }}
    {{- include "strata.tokenVolume" . | nindent 4 }}
    {{- end }}
    {{- if .talks }}
    {{- include "strata.operatorVolumes" .root | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The profile, and the authority alone: no key goes to those who only check. */}}
{{- define "strata.operatorVolumes" -}}
- name: profile
  configMap:
    name: {{ include "strata.name" (dict "root" . "component" "profile") }}
- name: tls
  secret:
    secretName: {{ include "strata.certificateSecret" (dict "root" . "component" "edge") }}
    optional: true
    items: [{key: ca.crt, path: ca.crt}]
{{- end -}}
