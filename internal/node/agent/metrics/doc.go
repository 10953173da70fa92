// Package metrics measures a node and its pods: CPU, memory and tasks from their cgroups, disk from
// filesystems, volumes, logs and the container runtime. The results are the node agent's
// /stats/summary and /metrics/resource, with the kubelet's names, so that metrics-server and
// `kubectl top` understand them, and are what node-pressure eviction ranks pods by.
//
// It also provides kube_pod_overhead_cpu_cores and kube_pod_overhead_memory_bytes, like
// kube-state-metrics, for any list of pods.
package metrics
