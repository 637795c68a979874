{{- define "hope.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}-planner
{{- end -}}

{{- define "hope.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "hope.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "hope.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "hope.secret" -}}
{{- if .Values.database.existingSecret -}}
{{ .Values.database.existingSecret }}
{{- else -}}
{{ include "hope.name" . }}-database
{{- end -}}
{{- end -}}

{{- define "hope.environment" -}}
- name: HOPE_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "hope.secret" . }}
      key: {{ .Values.database.key }}
- name: HOPE_GRACE_S
  value: {{ .Values.graceSeconds | quote }}
- name: NUMBA_CACHE_DIR
  value: /tmp/numba
{{- range $name, $value := .Values.settings }}
- name: HOPE_{{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "hope.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "hope.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "hope.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
