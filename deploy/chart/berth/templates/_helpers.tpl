{{- define "berth.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Release and chart, or the release alone if it has the chart's name in it. Short enough for a component's name behind it. */}}
{{- define "berth.fullname" -}}
{{- $name := include "berth.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What tells a component's pods apart: (list . "scheduler") */}}
{{- define "berth.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "berth.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "berth.labels" -}}
{{- $ := index . 0 -}}
{{ include "berth.selector" . }}
app.kubernetes.io/part-of: berth
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "berth.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- define "berth.replacesDefault" -}}
{{- if eq .Values.mode "replace-default" }}true{{ end }}
{{- end }}

{{- define "berth.hasController" -}}
{{- $enabled := toString .Values.controller.enabled -}}
{{- if or (eq $enabled "true") (and (eq $enabled "") (include "berth.replacesDefault" .)) }}true{{ end }}
{{- end }}

{{/* The scheduler's configuration, as YAML. */}}
{{- define "berth.configuration" -}}
{{- if .Values.scheduler.configuration -}}
{{ toYaml .Values.scheduler.configuration }}
{{- else -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceNamespace: {{ if include "berth.replacesDefault" . }}kube-system{{ else }}{{ .Release.Namespace }}{{ end }}
  resourceName: {{ if include "berth.replacesDefault" . }}kube-scheduler{{ else }}{{ include "berth.fullname" . }}-scheduler{{ end }}
profiles:
- schedulerName: {{ if include "berth.replacesDefault" . }}default-scheduler{{ else }}{{ include "berth.fullname" . }}-scheduler{{ end }}
{{- end }}
{{- end }}

{{/* ServiceAccount and the bindings of a component's ClusterRole: (list . "scheduler") */}}
{{- define "berth.account" -}}
{{- $ := index . 0 -}}
{{- $name := printf "%s-%s" (include "berth.fullname" $) (index . 1) -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- include "berth.labels" . | nindent 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "berth.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
- kind: ServiceAccount
  name: {{ $name }}
  namespace: {{ $.Release.Namespace }}
{{- end }}

{{/* The binding of a Role of the component's name in a namespace: (list . "scheduler" "kube-system") */}}
{{- define "berth.roleBinding" -}}
{{- $ := index . 0 -}}
{{- $name := printf "%s-%s" (include "berth.fullname" $) (index . 1) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ index . 2 }}
  labels:
    {{- include "berth.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
- kind: ServiceAccount
  name: {{ $name }}
  namespace: {{ $.Release.Namespace }}
{{- end }}

{{/* A Role for a Lease: (list . "scheduler" namespace name) */}}
{{- define "berth.leaseRole" -}}
{{- $ := index . 0 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "berth.fullname" $ }}-{{ index . 1 }}
  namespace: {{ index . 2 }}
  labels:
    {{- include "berth.labels" . | nindent 4 }}
rules:
# The Lease by which replicas agree who leads; creating cannot be limited by name.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ index . 3 | quote }}]
  verbs: [get, update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
---
{{ include "berth.roleBinding" (list $ (index . 1) (index . 2)) }}
{{- end }}

{{- define "berth.podMetadata" -}}
{{- $ := index . 0 -}}
{{- with $.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
labels:
  {{- with $.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- include "berth.selector" . | nindent 2 }}
  app.kubernetes.io/part-of: berth
{{- end }}

{{/* What the pods of all components have in common: (list . "scheduler") */}}
{{- define "berth.podSpec" -}}
{{- $ := index . 0 -}}
{{- $own := index $.Values (index . 1) -}}
{{- $page := has (index . 1) (list "ui" "serve" "shadow") -}}
{{- $controlPlane := and (include "berth.replacesDefault" $) (ne (index . 1) "webhook") (not $page) -}}
serviceAccountName: {{ include "berth.fullname" $ }}-{{ index . 1 }}
{{- with $.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and $.Values.priorityClassName (not $page) }}
priorityClassName: {{ $.Values.priorityClassName }}
{{- end }}
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- if not $page }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "berth.selector" . | nindent 6 }}
{{- end }}
{{- with $own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $own.nodeSelector }}
nodeSelector:
  {{- toYaml $own.nodeSelector | nindent 2 }}
{{- else if $controlPlane }}
nodeSelector:
  node-role.kubernetes.io/control-plane: ""
{{- end }}
{{- if $own.tolerations }}
tolerations:
  {{- toYaml $own.tolerations | nindent 2 }}
{{- else if $controlPlane }}
tolerations:
- {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
- {operator: Exists, effect: NoExecute}
{{- end }}
{{- end }}

{{- define "berth.containerSecurity" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{/* PodDisruptionBudget: (list . "scheduler") */}}
{{- define "berth.budget" -}}
{{- $ := index . 0 -}}
{{- $own := index $.Values (index . 1) -}}
{{- if $own.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "berth.fullname" $ }}-{{ index . 1 }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- include "berth.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ $own.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "berth.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* NetworkPolicy: (list . "scheduler" ports for everybody, ports for scraping) */}}
{{- define "berth.networkPolicy" -}}
{{- $ := index . 0 -}}
{{- if $.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "berth.fullname" $ }}-{{ index . 1 }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- include "berth.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "berth.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  {{- if or (index . 2) (index . 3) }}
  ingress:
  {{- else }}
  ingress: []
  {{- end }}
  {{- range index . 2 }}
  - ports:
    - {protocol: TCP, port: {{ . }}}
  {{- end }}
  {{- range index . 3 }}
  - from:
    - namespaceSelector:
        matchLabels:
          {{- toYaml $.Values.networkPolicy.scrapeFrom | nindent 10 }}
    ports:
    - {protocol: TCP, port: {{ . }}}
  {{- end }}
  egress:
  - ports:
    {{- range $.Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- if eq (index . 1) "scheduler" }}
  {{- with $.Values.networkPolicy.schedulerEgress }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Nine tenths of the memory limit, for Go, which collects more eagerly then, before the kernel ends the process: .Values.scheduler. A limit that
is not in whole Mi or Gi is handed on as it is. */}}
{{- define "berth.memory" -}}
{{- $limit := dig "limits" "memory" "" .resources | toString -}}
{{- if $limit -}}
env:
{{- if regexMatch "^[0-9]+Gi$" $limit }}
- {name: GOMEMLIMIT, value: {{ div (mul (trimSuffix "Gi" $limit | atoi) 1024 9) 10 }}MiB}
{{- else if regexMatch "^[0-9]+Mi$" $limit }}
- {name: GOMEMLIMIT, value: {{ div (mul (trimSuffix "Mi" $limit | atoi) 9) 10 }}MiB}
{{- else }}
- name: GOMEMLIMIT
  valueFrom:
    resourceFieldRef: {resource: limits.memory}
{{- end }}
{{- end }}
{{- end }}
