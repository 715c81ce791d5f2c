{{- define "kvpressure.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvpressure.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "kvpressure.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvpressure.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvpressure.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Annotations of one object: those of all objects, and its own. Takes (list root own). */}}
{{- define "kvpressure.annotations" -}}
{{- $all := merge (dict) (index . 1 | default dict) (index . 0).Values.commonAnnotations -}}
{{- with $all }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* The alerts' texts select pods by this name, so nameOverride does not change it. */}}
{{- define "kvpressure.selectorLabels" -}}
app.kubernetes.io/name: kvpressure
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvpressure.labels" -}}
{{ include "kvpressure.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kvpressure.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvpressure.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kvpressure.image" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is empty: no image of kvpressure is published. Build one with deploy/docker/Dockerfile, push it to your registry, and set image.repository to it." -}}
{{- end -}}
{{- with .Values.image -}}
{{ with $.Values.global.imageRegistry | default .registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}

{{/* Names of pull secrets, given as objects or as names, each once. */}}
{{- define "kvpressure.pullSecrets" -}}
{{- $names := .Values.image.pullSecrets -}}
{{- range concat .Values.imagePullSecrets .Values.global.imagePullSecrets -}}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) -}}
{{- end -}}
{{- range uniq $names }}
- name: {{ . }}
{{- end -}}
{{- end -}}

{{/* The pod's securityContext; a user or group of null is left out, so that the platform chooses. */}}
{{- define "kvpressure.podSecurityContext" -}}
{{- $root := .Values.podSecurity.runAsRoot -}}
{{- $context := dict "runAsNonRoot" (not $root) "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- range $field, $id := dict "runAsUser" .Values.podSecurity.user "runAsGroup" .Values.podSecurity.group -}}
{{- if $root }}{{ $_ := set $context $field 0 }}{{ else if not (kindIs "invalid" $id) }}{{ $_ := set $context $field (int $id) }}{{ end -}}
{{- end -}}
{{- with include "kvpressure.groups" . | trim }}
{{- $groups := list -}}
{{- range splitList " " . }}{{ $groups = append $groups (int .) }}{{ end -}}
{{- $_ := set $context "supplementalGroups" $groups -}}
{{- end -}}
{{- toYaml (mergeOverwrite $context (deepCopy .Values.podSecurityContext)) -}}
{{- end -}}

{{/* The container's securityContext. */}}
{{- define "kvpressure.securityContext" -}}
{{- $context := dict "allowPrivilegeEscalation" false "privileged" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- with .Values.podSecurity.seLinuxOptions }}{{ $_ := set $context "seLinuxOptions" . }}{{ end -}}
{{- toYaml (mergeOverwrite $context (deepCopy .Values.securityContext)) -}}
{{- end -}}

{{/* A probe: its path, times of its own, and the user's fields over both. Takes (list root path times own). */}}
{{- define "kvpressure.probe" -}}
{{- $scheme := (index . 0).Values.web.tls | ternary "HTTPS" "HTTP" -}}
{{- $probe := merge (dict "httpGet" (dict "path" (index . 1) "port" "metrics" "scheme" $scheme)) (index . 2) -}}
{{- toYaml (mergeOverwrite $probe (deepCopy (index . 3))) -}}
{{- end -}}

{{/* "true" or "": whether a switch of the Prometheus operator's objects is on. Takes (list root switch). */}}
{{- define "kvpressure.operator" -}}
{{- $root := index . 0 -}}
{{- $switch := index . 1 | toString -}}
{{- if or (eq $switch "true") (and (eq $switch "auto") ($root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}true{{- end -}}
{{- end -}}

{{/* "true" or "": whether inhibitions are brought; the definition of AlertmanagerConfig is one that many clusters lack. */}}
{{- define "kvpressure.inhibition" -}}
{{- $switch := .Values.inhibition.enabled | toString -}}
{{- if or (eq $switch "true") (and (eq $switch "auto") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1alpha1/AlertmanagerConfig")) -}}true{{- end -}}
{{- end -}}

{{/* Settings of the exporter: what the switches mean, then the user's own. */}}
{{- define "kvpressure.settings" -}}
{{- $k := .Values.kubernetes -}}
{{- $kubernetes := dict "enabled" ($k.enabled | toString) -}}
{{- if $k.enabled -}}
{{- $_ := set $kubernetes "events" $k.events -}}
{{- $_ := set $kubernetes "node_conditions" $k.nodeConditions -}}
{{- if $k.configMaps.enabled -}}
{{- $_ := set $kubernetes "config_maps" true -}}
{{- with $k.configMaps.namespaces }}{{ $_ := set $kubernetes "config_map_namespaces" . }}{{ end -}}
{{- end -}}
{{- with $k.namespaces }}{{ $_ := set $kubernetes "namespaces" . }}{{ end -}}
{{- with $k.labelSelector }}{{ $_ := set $kubernetes "label_selector" . }}{{ end -}}
{{- with $k.portName }}{{ $_ := set $kubernetes "port_name" . }}{{ end -}}
{{- with $k.port }}{{ $_ := set $kubernetes "port" (int .) }}{{ end -}}
{{- with $k.path }}{{ $_ := set $kubernetes "path" . }}{{ end -}}
{{- end -}}
{{- $resources := dict "enabled" .Values.podResources.enabled -}}
{{- if .Values.podResources.enabled -}}
{{- $_ := set $resources "socket_dir" "/var/lib/kubelet/pod-resources" -}}
{{- with .Values.podResources.resourceNames }}{{ $_ := set $resources "resource_names" . }}{{ end -}}
{{- end -}}
{{- $logs := dict "enabled" .Values.logs.enabled -}}
{{- if .Values.logs.enabled -}}
{{- $_ := set $logs "directory" "/var/log/pods" -}}
{{- with .Values.logs.linkDirectories }}{{ $_ := set $logs "link_directories" . }}{{ end -}}
{{- with .Values.logs.maxBytesPerSecond }}{{ $_ := set $logs "max_bytes_per_second" (int .) }}{{ end -}}
{{- end -}}
{{- $host := dict "enabled" .Values.host.enabled -}}
{{- if and .Values.host.enabled .Values.host.cgroups }}{{ $_ := set $host "cgroup_dir" "/host/sys/fs/cgroup" }}{{ end -}}
{{- $settings := dict
      "engines" (dict "targets" list)
      "kubernetes" $kubernetes
      "pod_resources" $resources
      "logs" $logs
      "host" $host
      "web" (dict "listen_address" (printf ":%d" (int .Values.web.port)))
-}}
{{- if .Values.web.configSecret }}{{ $_ := set $settings.web "config_file" "/etc/kvpressure-web/web.yaml" }}{{ end -}}
{{- if .Values.thresholds }}{{ $_ := set $settings "thresholds_file" "/etc/kvpressure/thresholds.yaml" }}{{ end -}}
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.config)) -}}
{{- end -}}

{{/* Groups beside the main one, each with its reason in values.yaml. */}}
{{- define "kvpressure.groups" -}}
{{- $groups := .Values.podSecurity.supplementalGroups -}}
{{- if .Values.logs.enabled }}{{ $groups = append $groups .Values.logs.group }}{{ end -}}
{{- if .Values.amd.enabled }}{{ $groups = concat $groups .Values.amd.groups }}{{ end -}}
{{- range $groups }}{{ int . }} {{ end -}}
{{- end -}}

{{/* "true" or "": a ServiceMonitor is used instead of a PodMonitor; both would scrape everything twice. */}}
{{- define "kvpressure.podMonitor" -}}
{{- if .Values.serviceMonitor.enabled -}}
{{- if eq (.Values.podMonitor.enabled | toString) "true" -}}
{{- fail "serviceMonitor.enabled and podMonitor.enabled are both true: every series would be scraped twice. Leave podMonitor.enabled at auto." -}}
{{- end -}}
{{- else -}}
{{- include "kvpressure.operator" (list . .Values.podMonitor.enabled) -}}
{{- end -}}
{{- end -}}

{{/* The endpoint of a monitor, with what is not set of it as in podMonitor. Takes (list root monitor). */}}
{{- define "kvpressure.endpoint" -}}
{{- $root := index . 0 -}}
{{- $own := dict -}}
{{- range $key, $value := index . 1 }}{{ if $value }}{{ $_ := set $own $key $value }}{{ end }}{{ end -}}
{{- $monitor := merge $own $root.Values.podMonitor -}}
- port: metrics
  path: /metrics
  scheme: {{ $root.Values.web.tls | ternary "https" "http" }}
  interval: {{ $monitor.interval }}
  scrapeTimeout: {{ $monitor.scrapeTimeout }}
  # Series of engines name the engine's own namespace and pod. The operator would put the exporter's beside them
  # (and turn the engine's into exported_pod), or onto GPU series, which belong to no pod.
  honorLabels: true
  {{- with $monitor.tlsConfig }}
  tlsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $monitor.basicAuth }}
  basicAuth:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  relabelings:
    # The name that all rules and dashboards look for.
    - {action: replace, targetLabel: job, replacement: kvpressure}
    - {action: replace, sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}
    - {action: labeldrop, regex: namespace|pod|container|endpoint|service}
    {{- with $monitor.relabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $monitor.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
