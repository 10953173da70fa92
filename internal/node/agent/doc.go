// Package agent makes a Linux machine a node of a Kubernetes cluster: it registers the node, sends
// its Lease and status, and runs the pods that are bound to it (or that a folder has as files) in a
// container runtime, through CRI.
//
// Other packages decide: internal/node/agent/lifecycle what a pod needs next, internal/node/admit
// whether the node takes it, internal/node/agent/pressure which pods to evict under pressure,
// internal/node/agent/devices which devices a container gets. This package gives them their input
// and carries out their answers, with one goroutine per pod, so that a pod that hangs affects no
// other. It keeps no state apart from what the runtime, the API, the pods' folders and the record
// of devices hold: an agent that was killed takes over its pods as they are, and an API server that
// cannot be reached stops nothing.
package agent
