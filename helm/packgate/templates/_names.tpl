{{/* Names and labels. */}}

{{- define "packgate.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "packgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "packgate.name" .) .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "packgate.name" .) | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
The labels by which Service, NetworkPolicy, PodDisruptionBudget and PodMonitor find the pods. The pods of somebody's own
chart have their own app.kubernetes.io/name, so one more label marks them.
*/}}
{{- define "packgate.selectorLabels" -}}
{{- if eq .Values.mode "library" -}}
packgate: {{ include "packgate.fullname" . | quote }}
{{- else -}}
app.kubernetes.io/name: {{ include "packgate.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}
{{- end -}}

{{- define "packgate.labels" -}}
app.kubernetes.io/name: {{ include "packgate.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Of the `helm test` pod. Not those of the pods: the Service must not take it for one of them. */}}
{{- define "packgate.testLabels" -}}
app.kubernetes.io/name: {{ include "packgate.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "packgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "packgate.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "packgate.claimName" -}}
{{- .Values.persistence.existingClaim | default (printf "%s-repositories" (include "packgate.fullname" .)) -}}
{{- end -}}

{{- define "packgate.servicePort" -}}
{{- .Values.service.port | default (ternary 443 80 (ne .Values.tls.secretName "")) -}}
{{- end -}}

{{- define "packgate.fullImage" -}}
{{- printf "%s:%s-full" .Values.image.repository .Chart.AppVersion -}}
{{- end -}}

{{- define "packgate.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else if .tag -}}
{{- printf "%s:%s" .repository .tag -}}
{{- else if eq $.Values.mode "embedded" -}}
{{- include "packgate.fullImage" $ -}}
{{- else -}}
{{- printf "%s:%s" .repository $.Chart.AppVersion -}}
{{- end -}}
{{- end -}}
{{- end -}}
