// Package lifecycle decides what a node does next for one pod, and what the pod's status is: from
// the pod as the API (or a file) wants it, what the container runtime shows of it, what probes and
// hooks found, whether it has to end, and the time.
//
// It makes sandboxes, runs the chain of init containers, keeps sidecars and main containers running
// by their restart policy with the kubelet's back-off, and ends pods in order: main containers
// first, sidecars after them in reverse, each with what is left of the grace period. Reasons and
// messages are the kubelet's, word for word, since people and tools read them.
//
// It is a core: it asks nobody and waits for nothing. Package agent runs it, one goroutine a pod.
// The state of a pod is in the runtime and in the API; what it remembers besides (Memory) can be
// lost and is worked out anew.
package lifecycle
