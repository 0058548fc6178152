{{/*
packgate in pods: for the chart's own (_pod.tpl) and, with `mode: library`, for those of somebody else's chart. In that chart,
where this one is the dependency `packgate`, each is called with its values:

  {{ include "packgate.initContainers" .Subcharts.packgate | nindent 8 }}

  packgate.podLabels                        labels of the pod: Service, NetworkPolicy and the others find it by them
  packgate.podAnnotations                   annotations of the pod: restart when a change cannot be reloaded
  packgate.podSecurityContext               securityContext of the pod; `fsGroup` is what the hook needs
  packgate.terminationGracePeriodSeconds    of the pod
  packgate.initContainers                   packgate.install and packgate.sidecar, in this order, before all others
  packgate.volumes                          volumes of the pod
  packgate.preStop                          lifecycle.preStop of the git server's container
  packgate.hookMount                        a volumeMount of the same container, where the hook is

examples/helm-own-deployment is such a chart.
*/}}

{{- define "packgate.podLabels" -}}
{{ include "packgate.selectorLabels" . }}
{{- end -}}

{{- define "packgate.podAnnotations" -}}
checksum/packgate-restart: {{ include "packgate.restartChecksum" . }}
{{- end -}}

{{- define "packgate.podSecurityContext" -}}
{{ toYaml .Values.podSecurityContext }}
{{- end -}}

{{- define "packgate.initContainers" -}}
{{ include "packgate.install" . }}
{{ include "packgate.sidecar" . }}
{{- end -}}

{{/*
Puts the program where the git server's container can run it: that image is not ours, and need not even have a shell. packgate
is linked statically, so it runs there whatever the image holds.
*/}}
{{- define "packgate.install" -}}
- name: packgate-install
  image: {{ include "packgate.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/usr/local/bin/packgate, install, /run/packgate/packgate]
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: packgate-run, mountPath: /run/packgate}
{{- end -}}

{{/*
A native sidecar: it is started, and its startupProbe has succeeded, before the git server starts, so that no request finds a
Service without a gate; and it is stopped only after the git server has, so that the server's last clones still have one.
*/}}
{{- define "packgate.sidecar" -}}
- name: packgate
  restartPolicy: Always
  {{- include "packgate.container" . | nindent 2 }}
{{- end -}}

{{/* What packgate's container is in every mode. */}}
{{- define "packgate.container" -}}
image: {{ include "packgate.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [/usr/local/bin/packgate, serve, --config, /etc/packgate/config/packgate.yaml]
{{- with .Values.env }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - {name: gate, containerPort: {{ .Values.ports.gate }}}
  - {name: health, containerPort: {{ .Values.ports.health }}}
{{- /* Within a second of its start it is ready or has ended with what is wrong in the configuration. */}}
startupProbe:
  httpGet: {path: /readyz, port: {{ .Values.ports.health }}}
  periodSeconds: 1
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: {{ .Values.ports.health }}}
  periodSeconds: 5
  failureThreshold: 2
{{- /*
A packgate that does not answer for a minute hangs, and will not drain either: no 15 minutes of grace for it. Not /readyz, which
fails in a drain: some kubelets go on probing the sidecars of a pod that ends.
*/}}
livenessProbe:
  httpGet: {path: /livez, port: {{ .Values.ports.health }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
  terminationGracePeriodSeconds: 10
resources:
  {{- include "packgate.resources" . | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  {{- /* The directory, not the file by `subPath`: such a file stays as it was when the pod started. */}}
  - {name: packgate-config, mountPath: /etc/packgate/config, readOnly: true}
  {{- if .Values.tls.secretName }}
  - {name: packgate-tls, mountPath: /etc/packgate/tls, readOnly: true}
  {{- end }}
  {{- if .Values.hashKey.secretName }}
  - {name: packgate-hash-key, mountPath: /etc/packgate/hash-key, readOnly: true}
  {{- end }}
  {{- if eq .Values.mode "embedded" }}
  - {name: repositories, mountPath: {{ .Values.persistence.mountPath | quote }}, readOnly: {{ .Values.persistence.readOnly }}}
  - {name: tmp, mountPath: /tmp}
  {{- else }}
  - {name: packgate-run, mountPath: /run/packgate}
  {{- end }}
{{- end -}}

{{- define "packgate.volumes" -}}
- name: packgate-config
  configMap: {name: {{ include "packgate.fullname" . | quote }}}
{{- with .Values.tls.secretName }}
- name: packgate-tls
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.hashKey.secretName }}
- name: packgate-hash-key
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- if ne .Values.mode "embedded" }}
{{- /*
The program and the control socket. The volume belongs to the group `fsGroup` of the pod and hands it on to what is made in it
(setgid), and every process of the pod is in that group: so the git server's user may connect to the socket, whose mode is 0660.
*/}}
- name: packgate-run
  emptyDir: {sizeLimit: 256Mi}
{{- end }}
{{- end -}}

{{- define "packgate.controlAddress" -}}
unix:/run/packgate/control.sock
{{- end -}}

{{/*
The kubelet stops the git server first and packgate, a sidecar, after it. So the server must not be told before packgate has
drained, or it would cut off the clones that packgate lets finish: this hook comes before its SIGTERM and returns when the last
clone has ended, after config.drain.delay + config.drain.timeout at the latest. _config.tpl has the arithmetic.

The container must have no livenessProbe and no startupProbe: when one fails, the kubelet runs this hook before it restarts the
container, and the gate would stay drained in a pod that lives on.
*/}}
{{- define "packgate.preStop" -}}
exec:
  command: [/run/packgate/packgate, drain, --wait, --control, {{ include "packgate.controlAddress" . | quote }}]
{{- end -}}

{{/* Read-only: the server may run the program and connect to the socket, but not replace either. */}}
{{- define "packgate.hookMount" -}}
- {name: packgate-run, mountPath: /run/packgate, readOnly: true}
{{- end -}}
