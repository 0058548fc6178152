{{/* packgate's notations of durations and sizes, read. */}}

{{/*
A duration in milliseconds. Takes {value: "1h 30m", key: "config.drain.timeout"}; the key is for the message. `ms`, `s`, `m`,
`h` and `d` in the spellings that packgate takes; what it writes otherwise (`us`, `weeks`) makes no sense here.
*/}}
{{- define "packgate.milliseconds" -}}
{{- $text := .value | toString | nospace -}}
{{- $units := dict
    "ms" 1 "msec" 1
    "s" 1000 "sec" 1000 "secs" 1000 "second" 1000 "seconds" 1000
    "m" 60000 "min" 60000 "mins" 60000 "minute" 60000 "minutes" 60000
    "h" 3600000 "hr" 3600000 "hrs" 3600000 "hour" 3600000 "hours" 3600000
    "d" 86400000 "day" 86400000 "days" 86400000 -}}
{{- $wrong := printf "%s: must be a duration such as `30s`, `15m` or `1h 30m`, not `%s`" .key (toString .value) -}}
{{- if eq $text "0" -}}
0
{{- else -}}
{{- if not (regexMatch "^([0-9]{1,9}[a-z]+)+$" $text) }}{{ fail $wrong }}{{ end -}}
{{- $total := 0 -}}
{{- range regexFindAll "[0-9]+[a-z]+" $text -1 -}}
  {{- $unit := regexFind "[a-z]+" . -}}
  {{- if not (hasKey $units $unit) }}{{ fail $wrong }}{{ end -}}
  {{- $total = add $total (mul (regexFind "[0-9]+" . | atoi) (get $units $unit)) -}}
{{- end -}}
{{- if gt $total 604800000 }}{{ fail (printf "%s: must be at most 7 days, not `%s`" .key (toString .value)) }}{{ end -}}
{{- $total -}}
{{- end -}}
{{- end -}}

{{/* A size in MiB, rounded up: `64MiB`, `500kB`, `1048576`, `512Mi`. Takes {value, key}. */}}
{{- define "packgate.mebibytes" -}}
{{- $text := .value | toString | nospace | lower -}}
{{- if kindIs "float64" .value }}{{ $text = .value | int64 | toString }}{{ end -}}
{{- $units := dict "" 1 "b" 1 "kib" 1024 "ki" 1024 "mib" 1048576 "mi" 1048576 "gib" 1073741824 "gi" 1073741824
    "kb" 1000 "mb" 1000000 "gb" 1000000000 -}}
{{- $unit := regexFind "[a-z]*$" $text -}}
{{- if not (and (regexMatch "^[0-9]{1,13}[a-z]*$" $text) (hasKey $units $unit)) -}}
{{- fail (printf "%s: must be a size such as `64MiB` or a number of bytes, not `%s`" .key (toString .value)) -}}
{{- end -}}
{{- div (add (mul (regexFind "^[0-9]+" $text | atoi) (get $units $unit)) 1048575) 1048576 -}}
{{- end -}}
