{{/* Keys that other charts have, and what takes their place here: a key that nothing reads would be ignored in silence. */}}
{{- define "kvpressure.refusals" -}}
args: extraArgs
arguments: extraArgs
autoscaling: "nothing: one exporter runs on each node with GPUs"
command: "extraArgs; the program is always kvpressure run"
configmaps: extraVolumes and extraVolumeMounts
containerSecurityContext: securityContext
customLabels: commonLabels
env: "extraEnv, a list as in a pod"
envFrom: extraEnvFrom
extraConfigMapVolumes: extraVolumes and extraVolumeMounts
extraHostVolumeMounts: extraVolumes and extraVolumeMounts
extraHostVolumes: extraVolumes and extraVolumeMounts
extraSecretMounts: extraVolumes and extraVolumeMounts
hostNetwork: "nothing: the exporter reads pods by their addresses"
hostPID: "nothing: the exporter reads no process of the node"
hostProcFsMount: "nothing: /proc/pressure is readable in the pod"
hostRootFsMount: "nothing: the exporter reads no file system of the node"
hostSysFsMount: host.cgroups
image.sha: image.digest
ingress: "an Ingress of your own to the Service"
kubeRBACProxy: "web.configSecret for TLS and passwords"
kubeletPath: podResources.hostPath
lifecycle: "nothing: the exporter ends within two seconds"
podDisruptionBudget: "nothing: a drain does not evict the pods of a DaemonSet"
podMonitor.honorLabels: "nothing: it is on, as series have the labels of engines"
port: web.port
prometheus: podMonitor, serviceMonitor and prometheusRule
prometheusScrape: podMonitor.enabled
replicaCount: "nothing: one exporter runs on each node with GPUs"
replicas: "nothing: one exporter runs on each node with GPUs"
rollingUpdate: updateStrategy.rollingUpdate
secrets: extraVolumes and extraVolumeMounts
service: "web.port; the Service is made by itself"
serviceAccount.automountServiceAccountToken: kubernetes.enabled
serviceMonitor.honorLabels: "nothing: it is on, as series have the labels of engines"
sidecars: "web.configSecret for TLS and passwords"
terminationGracePeriodSeconds: "nothing: the exporter ends within two seconds"
tolerateAll: "tolerations: [{operator: Exists}]"
verticalPodAutoscaler: resources
volumeMounts: extraVolumeMounts
volumes: extraVolumes
{{- end -}}

{{- define "kvpressure.refused" -}}
{{- $values := .Values -}}
{{- range $key, $instead := include "kvpressure.refusals" . | fromYaml -}}
{{- $at := dict "here" $values -}}
{{- range splitList "." $key -}}
{{- $inner := get $at "here" -}}
{{- $at = dict -}}
{{- if kindIs "map" $inner }}{{ if hasKey $inner . }}{{ $at = dict "here" (get $inner .) }}{{ end }}{{ end -}}
{{- end -}}
{{- if hasKey $at "here" -}}
{{- if hasPrefix "nothing: " $instead -}}
{{- fail (printf "%s is not a value of this chart, and nothing takes its place: %s" $key (trimPrefix "nothing: " $instead)) -}}
{{- end -}}
{{- fail (printf "%s is not a value of this chart: use %s" $key $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}
