{{- define "pgherd.labels" -}}
app.kubernetes.io/name: pgherd-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pgherd.selector" -}}
app.kubernetes.io/name: pgherd-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* What the operator does in the namespaces of herds; a test compares it with what it calls. */}}
{{- define "pgherd.rules" -}}
- apiGroups: [pgherd.dev]
  resources: [replicatedclusters]
  verbs: [get, list, watch, patch]
- apiGroups: [pgherd.dev]
  resources: [replicatedclusters/status]
  verbs: [patch]
- apiGroups: [pgherd.dev]
  resources: [replicatedclusters/finalizers]  # for owner references that block deletion
  verbs: [update]
- apiGroups: [pgherd.dev]
  resources: [snapshots]
  verbs: [get, list, watch, create, delete]
- apiGroups: [pgherd.dev]
  resources: [consistencychecks]
  verbs: [get, list, watch, delete]
- apiGroups: [pgherd.dev]
  resources: [snapshotschedules, maintenanceschedules]
  verbs: [get, list, watch]
- apiGroups: [pgherd.dev]
  resources: [replicationsets, subscriptions]
  verbs: [get, list, watch, patch]  # their finalizers: the herd hears of their end
- apiGroups: [pgherd.dev]
  resources: [snapshots/status, consistencychecks/status, snapshotschedules/status, maintenanceschedules/status, replicationsets/status, subscriptions/status]
  verbs: [patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, create, delete]
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [get, list, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, create, patch, delete]  # of members that have left
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch, delete]  # by name: no list, no watch
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]  # what is said of pods and volumes that wait
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, create, patch]
{{- if .Values.certManager }}
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- if .Values.podMonitors }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- end }}
