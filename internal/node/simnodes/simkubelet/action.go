// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is the kind of an action.
type Kind int

const (
	// Register creates the node from Object, or reads an existing node.
	Register Kind = iota
	// Renew creates or renews the node's Lease.
	Renew
	// PatchNode patches the node's labels, or its status if Status is set.
	PatchNode
	// PatchPod patches the status of the pod.
	PatchPod
	// DeletePod removes the pod after its processes have ended.
	DeletePod
	// DeleteNode removes a node left behind by an earlier, larger run.
	DeleteNode
	// Report emits an event about the pod.
	Report
)

// String names the kind in logs and tests.
func (k Kind) String() string {
	return [...]string{"register", "renew", "patch-node", "patch-pod", "delete-pod", "delete-node", "report"}[k]
}

// Action is one request to the API server, to be carried out by the caller of Fleet.Take. At most
// one action for a node's status, a Lease or a pod is in flight at a time, until Fleet.Done is
// called for it. Done is not called for reports. The fleet never changes the contents of an action
// later, so it may be carried out at any time.
type Action struct {
	Kind Kind
	Node string
	Pod  types.NamespacedName
	UID  types.UID

	Object *v1.Node // for Register
	Patch  []byte   // for PatchNode and PatchPod
	Status bool     // PatchNode: the patch is for the status subresource
	Event  *Event   // for Report
}

// Event is the content of a Report. Type is Normal or Warning.
type Event struct{ Type, Reason, Message string }

// Outcome is the outcome of an action.
type Outcome int

const (
	// OK means that the action was carried out.
	OK Outcome = iota
	// Gone means that the object no longer exists.
	Gone
	// Failed means that the action was not carried out, but may succeed later.
	Failed
	// Refused means that the API server will never accept the action; retry only after a change.
	Refused
)

// retryDelay returns the delay after n consecutive failures. It doubles from 0.4 s up to half a
// minute, so that a restarting API server is not flooded.
func retryDelay(failures int) time.Duration {
	return min(200*time.Millisecond<<min(failures, 10), 30*time.Second)
}
