{{/* The chart's own pods, of the modes `embedded` and `sidecar`. */}}
{{- define "packgate.podTemplate" -}}
metadata:
  labels:
    {{- include "packgate.podLabels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- include "packgate.podAnnotations" . | nindent 4 }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "packgate.serviceAccountName" . | quote }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "packgate.terminationGracePeriodSeconds" . }}
  securityContext:
    {{- include "packgate.podSecurityContext" . | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" }}
  {{- with index $.Values $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - labelSelector:
        matchLabels:
          {{- include "packgate.selectorLabels" $ | nindent 10 }}
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- if eq .Values.mode "embedded" }}
  containers:
    - name: packgate
      {{- include "packgate.container" . | nindent 6 }}
  {{- else }}
  initContainers:
    {{- include "packgate.initContainers" . | nindent 4 }}
  containers:
    {{- include "packgate.server" . | nindent 4 }}
  {{- end }}
  volumes:
    {{- include "packgate.volumes" . | nindent 4 }}
    {{- if .Values.persistence.enabled }}
    - name: repositories
      persistentVolumeClaim: {claimName: {{ include "packgate.claimName" . | quote }}}
    {{- end }}
    {{- if eq .Values.mode "embedded" }}
    - {name: tmp, emptyDir: {sizeLimit: 64Mi}}
    {{- end }}
    {{- with .Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "packgate.server" -}}
{{- $server := .Values.server -}}
- name: server
  image: {{ $server.image | quote }}
  imagePullPolicy: {{ $server.imagePullPolicy }}
  ports:
    - {name: server, containerPort: {{ $server.port }}}
  lifecycle:
    preStop:
      {{- include "packgate.preStop" . | nindent 6 }}
  {{- range $key := list "command" "args" "env" "envFrom" "resources" "readinessProbe" }}
  {{- with index $server $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  securityContext:
    {{- $server.securityContext | default .Values.securityContext | toYaml | nindent 4 }}
  volumeMounts:
    {{- include "packgate.hookMount" . | nindent 4 }}
    {{- if .Values.persistence.enabled }}
    - {name: repositories, mountPath: {{ .Values.persistence.mountPath | quote }}, readOnly: {{ .Values.persistence.readOnly }}}
    {{- end }}
    {{- with $server.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
