{{/* packgate.yaml: what the chart decides, and behind it what `config` says. */}}

{{/*
The part that the chart decides, because Service, probes, hook and NetworkPolicy rely on it. The control socket stands in the
emptyDir that the git server's container has, too.
*/}}
{{- define "packgate.ownConfig" -}}
{{- if .Values.tls.secretName -}}
listen:
  address: {{ printf "%s:%v" .Values.bind .Values.ports.gate | quote }}
  tls:
    certificate: /etc/packgate/tls/tls.crt
    key: /etc/packgate/tls/tls.key
{{- else -}}
listen: {{ printf "%s:%v" .Values.bind .Values.ports.gate | quote }}
{{- end }}
admin: {{ printf "127.0.0.1:%v" .Values.ports.admin | quote }}
health: {{ printf "%s:%v" .Values.bind .Values.ports.health | quote }}
{{- if eq .Values.mode "embedded" }}
upstream:
  cgi:
    root: {{ .Values.persistence.mountPath | quote }}
{{- else }}
upstream: {{ printf "http://127.0.0.1:%v" .Values.server.port | quote }}
control: {{ include "packgate.controlAddress" . }}
{{- end }}
{{- end -}}

{{/* `config`, with the key's file in it where there is one. */}}
{{- define "packgate.givenConfig" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.hashKey.secretName -}}
{{- $file := printf "/etc/packgate/hash-key/%s" .Values.hashKey.key -}}
{{- $_ := set $config "identity" (merge (dict "hash_key_file" $file) ($config.identity | default dict)) -}}
{{- end -}}
{{- with $config }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- define "packgate.config" -}}
{{ include "packgate.ownConfig" . }}
{{ include "packgate.givenConfig" . }}
{{- end -}}

{{/*
Nothing of this makes pods restart: packgate sees that the file has changed, and reloads. A checksum of the whole ConfigMap in
the pods' annotations, as usual, would break off or wait for every clone to change a number of seats. What packgate cannot
reload is the exception: of exactly that there is a checksum.
*/}}
{{- define "packgate.restartChecksum" -}}
{{- printf "%s %s %s" (include "packgate.ownConfig" .) (toJson .Values.config.telemetry) (toJson .Values.hashKey) | sha256sum -}}
{{- end -}}

{{/* A key of `config.drain` in milliseconds; packgate's default where it is not given. Takes {root, key, default}. */}}
{{- define "packgate.drainMilliseconds" -}}
{{- $value := dig .key nil (.root.Values.config.drain | default dict) -}}
{{- if kindIs "invalid" $value }}{{ $value = .default }}{{ end -}}
{{- include "packgate.milliseconds" (dict "value" $value "key" (printf "config.drain.%s" .key)) -}}
{{- end -}}

{{/*
The grace period starts when the pod is deleted, and the hook is part of it:

  0              mode sidecar: the server's preStop, `packgate drain --wait`, starts; mode embedded: packgate gets SIGTERM
  delay          listeners close; running clones may finish
  + timeout      at the latest: the last clone has ended or is cut off. The hook returns; the server gets SIGTERM
  + margin       the server has stopped; packgate, as a sidecar, gets SIGTERM after it and ends at once

Shorter than this, the kubelet kills server and gate in the middle of clones; longer costs nothing, because each step ends as
early as it can. Fractions of a second count as one.
*/}}
{{- define "packgate.terminationGracePeriodSeconds" -}}
{{- $delay := include "packgate.drainMilliseconds" (dict "root" . "key" "delay" "default" "5s") | atoi -}}
{{- $timeout := include "packgate.drainMilliseconds" (dict "root" . "key" "timeout" "default" "15m") | atoi -}}
{{- $margin := include "packgate.milliseconds" (dict "value" .Values.terminationMargin "key" "terminationMargin") | atoi -}}
{{- div (add $delay $timeout $margin 999) 1000 -}}
{{- end -}}
