{{/* What a schema cannot say, or not in words that help. */}}
{{- define "packgate.checks" -}}
{{- $remedies := dict
    "listen" "use `bind`, `ports.gate` and `tls.secretName`"
    "upstream" "use `server.port`, or `persistence.mountPath` in mode embedded"
    "admin" "use `ports.admin`"
    "health" "use `bind` and `ports.health`"
    "control" "the hook of the git server's container relies on it" -}}
{{- range $key, $remedy := $remedies -}}
  {{- if hasKey $.Values.config $key -}}
    {{- fail (printf "config.%s: is set by the chart: %s" $key $remedy) -}}
  {{- end -}}
{{- end -}}
{{- if hasKey .Values.config "admin_token_file" -}}
  {{- fail "config.admin_token_file: is not needed: `admin` listens on 127.0.0.1, and no file is mounted for a token" -}}
{{- end -}}
{{- if hasKey (.Values.config.identity | default dict) "hash_key_file" -}}
  {{- fail "config.identity.hash_key_file: is set by the chart: use `hashKey.secretName`" -}}
{{- end -}}

{{- $ports := list (int .Values.ports.gate) (int .Values.ports.health) (int .Values.ports.admin) -}}
{{- if ne .Values.mode "embedded" }}{{ $ports = append $ports (int .Values.server.port) }}{{ end -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
  {{- fail "ports: gate, health, admin and server.port share the pod's address and must differ" -}}
{{- end -}}

{{- if and (eq .Values.mode "embedded") (not .Values.persistence.enabled) -}}
  {{- fail "persistence.enabled: mode embedded serves the repositories of a volume: set it to true" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") (not .Values.server.image) -}}
  {{- fail "server.image: is missing: the git server that packgate stands in front of" -}}
{{- end -}}
{{- if and (ne .Values.mode "library") .Values.persistence.enabled (gt (int .Values.replicas) 1) -}}
  {{- if not (or (has "ReadWriteMany" .Values.persistence.accessModes) (has "ReadOnlyMany" .Values.persistence.accessModes)) -}}
    {{- fail (printf "replicas: %v pods cannot share a volume of access mode %s: set persistence.accessModes to [ReadWriteMany] for a volume that can, or replicas to 1" .Values.replicas (join ", " .Values.persistence.accessModes)) -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) -}}
  {{- fail "networkPolicy.metricsFrom: is empty, so that Prometheus cannot read the metrics that podMonitor tells it of: name its pods" -}}
{{- end -}}
{{- end -}}
