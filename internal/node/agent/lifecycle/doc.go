// Package lifecycle decides what a node does next for one pod, and what the pod's status is: from
// the pod as the API (or a file) specifies it, what the container runtime shows of it, the results
// of probes and hooks, whether it has to end, and the time.
//
// It creates sandboxes, runs init containers in order, keeps sidecars and main containers running
// by their restart policy with the kubelet's back-off, and ends pods in order: main containers
// first, sidecars after them in reverse, each with what is left of the grace period. Reasons and
// messages are literally the kubelet's, since people and tools read them.
//
// It is a core: it calls nothing and waits for nothing. Package agent runs it, with one goroutine
// per pod. The state of a pod is in the runtime and in the API; what Memory holds in addition can
// be lost, and is recomputed.
package lifecycle
