{{/* Keys that other charts have, and what takes their place here: a key that nothing reads would be ignored in silence. */}}
{{- define "kvpressure.refusals" -}}
args: extraArgs
arguments: extraArgs
command: "extraArgs; the program is always kvpressure run"
containerSecurityContext: securityContext
env: "extraEnv, a list as in a pod"
envFrom: extraEnvFrom
extraConfigMapVolumes: extraVolumes and extraVolumeMounts
extraHostVolumeMounts: extraVolumes and extraVolumeMounts
extraSecretMounts: extraVolumes and extraVolumeMounts
hostNetwork: "nothing: the exporter reads pods by their addresses"
hostPID: "nothing: the exporter reads no process of the node"
kubeletPath: podResources.hostPath
port: web.port
prometheus: podMonitor, serviceMonitor and prometheusRule
rollingUpdate: updateStrategy.rollingUpdate
service: "web.port; the Service is made by itself"
sidecars: "web.configSecret for TLS and passwords"
terminationGracePeriodSeconds: "nothing: the exporter ends within two seconds"
tolerateAll: "tolerations: [{operator: Exists}]"
volumeMounts: extraVolumeMounts
volumes: extraVolumes
{{- end -}}

{{- define "kvpressure.refused" -}}
{{- $values := .Values -}}
{{- range $key, $instead := include "kvpressure.refusals" . | fromYaml -}}
{{- if hasKey $values $key }}{{ fail (printf "%s is not a value of this chart: use %s" $key $instead) }}{{ end -}}
{{- end -}}
{{- end -}}
