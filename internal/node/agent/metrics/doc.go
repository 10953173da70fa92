// Package metrics measures a node and its pods: CPU, memory and tasks from their cgroups, disk from
// filesystems, volumes, logs and the container runtime. The same numbers are /stats/summary and
// /metrics/resource of the node agent, with the kubelet's names, so that metrics-server and
// `kubectl top` understand them, and what node-pressure eviction ranks pods by.
//
// It also has kube_pod_overhead_cpu_cores and kube_pod_overhead_memory_bytes, as kube-state-metrics
// has them, for any list of pods.
package metrics
