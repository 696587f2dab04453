{{- define "agl.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "agl.selector" -}}
app.kubernetes.io/name: agl
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "agl.labels" -}}
{{ include "agl.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "agl.tokens" -}}
{{ .Values.tokens.existingSecret | default (printf "%s-tokens" (include "agl.name" .)) }}
{{- end }}

{{- define "agl.storeUrl" -}}
http://{{ include "agl.name" . }}-store:{{ .Values.store.port }}
{{- end }}

{{- /* What all pods have; arguments: root, part (the values of the component). */}}
{{- define "agl.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  fsGroup: 1000
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .part.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- /* What all containers have; arguments as above. */}}
{{- define "agl.container" -}}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
resources: {{ toJson .part.resources }}
{{- end }}

{{- /* AGL_AUTH_TOKEN; arguments: root, key. */}}
{{- define "agl.token" -}}
- name: AGL_AUTH_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ include "agl.tokens" .root }}
      key: {{ .key }}
{{- end }}
