{{- define "modelservice.pod" -}}
{{- if eq .role "decode" }}
initContainers:
- name: routing-proxy
  image: ghcr.io/llm-d/llm-d-routing-sidecar:v0.4.0
  args: ["--port=8000", "--vllm-port=8200"]
  restartPolicy: Always
{{- end }}
containers:
- name: vllm
  image: {{ .root.Values.image }}
  command: ["vllm", "serve"]
  args:
  - {{ .root.Values.model | quote }}
  - "--tensor-parallel-size"
  - {{ .spec.tensor | quote }}
  - "--kv-transfer-config={\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}"
  env:
  - name: VLLM_NIXL_SIDE_CHANNEL_HOST
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
  volumeMounts:
  - mountPath: /dev/shm
    name: shm
volumes:
- name: shm
  emptyDir: {medium: Memory, sizeLimit: 16Gi}
{{- end }}
