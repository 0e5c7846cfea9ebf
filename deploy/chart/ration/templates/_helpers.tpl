{{- define "ration.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "ration.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "ration.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "ration.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ration.webhook" -}}{{ include "ration.fullname" . }}-webhook{{- end -}}
{{- define "ration.node" -}}{{ include "ration.fullname" . }}-node{{- end -}}

{{- define "ration.labels" -}}
{{ include "ration.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ration.selector" -}}
app.kubernetes.io/name: {{ include "ration.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ration.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* The secret that holds the certificate, whoever makes it. */}}
{{- define "ration.certificate" -}}
{{- if eq .Values.certificates.mode "secret" -}}
{{ .Values.certificates.secret.name }}
{{- else -}}
{{ include "ration.webhook" . }}-tls
{{- end -}}
{{- end -}}
