// Package agent makes a Linux machine a node of a Kubernetes cluster: it registers the node, sends
// its Lease and status, and runs the pods that are bound to it (or that lie in a folder) in a
// container runtime, through CRI.
//
// Decisions are made by others: what a pod needs next in internal/node/agent/lifecycle, whether the
// node takes it in internal/node/admit, whom to evict under pressure in
// internal/node/agent/pressure. This package feeds them and does what they answer, one goroutine a
// pod, so that a pod that hangs is nobody else's trouble. Nothing is kept but what the runtime, the
// API and the pods' folders hold: an agent that was killed takes up its pods again as they are, and
// an API server that is away stops nothing.
package agent
