{{/*
What packgate's container asks for, unless `resources` says it.

Memory is not given back under pressure: a gate that is killed for it breaks off every clone there is. So the limit is what can
be needed, and the request is the limit. What can be needed is bounded by the configuration:

  classifier.memory   request bodies that are held back, of all requests together
  192Mi               the process itself, and buffers and TLS of about a thousand connections at 128 KiB each

Mode `embedded`: git runs in the same container and takes by far the most, once per seat. Every clone is counted in one of the
global limits, so their seats together are the bound. Without a global limit for everything there is no bound, and no limit is
set: the kernel would choose which clone dies.

CPU has no limit. A container that has used its share of a period is stopped until the next: every stream through the gate would
pause, also fetches and pushes, while cores idle. The request keeps its share when they do not.
*/}}
{{- define "packgate.resources" -}}
{{- if .Values.resources -}}
{{- toYaml .Values.resources -}}
{{- else -}}
{{- $memory := dig "memory" nil (.Values.config.classifier | default dict) | default "64MiB" -}}
{{- $mebibytes := add 192 (include "packgate.mebibytes" (dict "value" $memory "key" "config.classifier.memory") | atoi) -}}
{{- $bounded := true -}}
{{- if eq .Values.mode "embedded" -}}
  {{- $seats := 0 -}}
  {{- $bounded = false -}}
  {{- range .Values.config.limits -}}
    {{- if eq .per "global" -}}
      {{- $seats = add $seats .seats -}}
      {{- if not .match }}{{ $bounded = true }}{{ end -}}
    {{- end -}}
  {{- end -}}
  {{- $clone := include "packgate.mebibytes" (dict "value" .Values.memoryPerClone "key" "memoryPerClone") | atoi -}}
  {{- $mebibytes = add $mebibytes (mul $clone (max $seats 1)) -}}
{{- end -}}
requests:
  cpu: {{ ternary 1 "100m" (eq .Values.mode "embedded") }}
  memory: {{ $mebibytes }}Mi
{{- if $bounded }}
limits:
  memory: {{ $mebibytes }}Mi
{{- end }}
{{- end -}}
{{- end -}}
