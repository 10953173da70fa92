// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package decision defines the document in which a live scheduler reports its last decision about a
// pod and, for a pending pod, its place in the queue and the awaited events. The scheduler serves
// it below Path, and `berth explain` reads it.
package decision

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// APIVersion and Kind identify the document. Fields may be added, but not renamed or removed.
const (
	APIVersion = "berth.dev/v1alpha1"
	Kind       = "Decision"
)

// Path is followed by NAMESPACE/NAME.
const Path = "/debug/decisions/"

// Decision is the last decision about a pod.
type Decision struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`

	Result Result `json:"result"`
	// At is the time when the pod was taken from the queue, and Took is the duration of the
	// decision in seconds.
	At   *metav1.Time `json:"at,omitempty"`
	Took float64      `json:"took,omitempty"`
	// Nodes is the number of nodes, and Feasible is the number of feasible nodes. Score is the
	// score of Node, which is the highest score. Feasible and Score are 0 for a pod that went to
	// its nominated node.
	Nodes    int    `json:"nodes,omitempty"`
	Feasible int    `json:"feasible,omitempty"`
	Node     string `json:"node,omitempty"`
	Score    int64  `json:"score,omitempty"`
	// Message is the message of the FailedScheduling event. Plugins lists the rejecting plugins,
	// and Reasons holds the number of nodes by reason.
	Message string         `json:"message,omitempty"`
	Plugins []string       `json:"plugins,omitempty"`
	Reasons map[string]int `json:"reasons,omitempty"`
	// NominatedNode is the node where preemption makes or has made room. Victims are the pods
	// evicted for the last decision.
	NominatedNode string `json:"nominatedNode,omitempty"`
	Victims       []Name `json:"victims,omitempty"`

	// Queue is set for a pending pod.
	Queue *Queue `json:"queue,omitempty"`
	// Group is set for a pod of a pod group, if the feature gate GenericWorkload is on.
	Group *Group `json:"group,omitempty"`
	// Held is room reserved for a pod group. It is set for a pending pod that must leave this room
	// to the group, or that belongs to the group.
	Held *Held `json:"held,omitempty"`
}

// Held is room reserved for a pod group after a long wait.
type Held struct {
	Group     Name        `json:"group"`               // of a tree: its root, or the pod's own group
	Composite bool        `json:"composite,omitempty"` // Group is a CompositePodGroup
	Nodes     []string    `json:"nodes"`
	Until     metav1.Time `json:"until"` // at the latest
	// ExpectedStart is the time by which the group is expected to start, if known.
	ExpectedStart metav1.Time `json:"expectedStart,omitzero"`
}

// Group is the state of a pod's group.
type Group struct {
	Name string `json:"name"`
	// Missing reports that the PodGroup does not exist.
	Missing bool `json:"missing,omitempty"`
	// MinCount is the number of pods of a gang that must be placed together; 0 for a basic group.
	// Members is the number of pods in the group. Placed of them are bound or being bound, and
	// Bound of them are bound.
	MinCount int `json:"minCount,omitempty"`
	Members  int `json:"members"`
	Placed   int `json:"placed"`
	Bound    int `json:"bound"`
	// Tried, Fit and Needed describe the last attempt, if it failed: Tried is the number of pods
	// tried together, Fit is the number of them that fit, and Needed is the required number.
	Tried  int `json:"tried,omitempty"`
	Fit    int `json:"fit,omitempty"`
	Needed int `json:"needed,omitempty"`
	// Scheduled reports that the group has been scheduled, and one of its pods is still bound. If
	// not, Message gives the reason.
	Scheduled bool   `json:"scheduled,omitempty"`
	Message   string `json:"message,omitempty"`
}

// GroupTrial is the outcome that an attempt to schedule a group would have.
type GroupTrial struct {
	// Incomplete reports that the group waits for more pods, or for its PodGroup, before an
	// attempt.
	Incomplete bool `json:"incomplete,omitempty"`
	// Tried, Fit and Needed are as in Group.
	Tried  int `json:"tried,omitempty"`
	Fit    int `json:"fit"`
	Needed int `json:"needed,omitempty"`
	// Message gives the reason why the group would not be placed; empty if it would.
	Message string `json:"message,omitempty"`
	// Victims are the pods without which the group fits.
	Victims []Name `json:"victims,omitempty"`
	// ExpectedStart is the time by which the group is expected to fit on the nominated nodes of its
	// members, because pods there end; zero if it is unknown.
	ExpectedStart metav1.Time `json:"expectedStart,omitzero"`
	// Pods are the pending members.
	Pods []GroupPlace `json:"pods,omitempty"`
}

// GroupPlace is the node that a member would get with the rest of its group, or the reason why it
// would get none.
type GroupPlace struct {
	Name    string `json:"name"`
	Node    string `json:"node,omitempty"`
	Message string `json:"message,omitempty"`
}

// Result is the outcome of a decision.
type Result string

// The results.
const (
	None          Result = "None"          // the pod was never decided
	Placed        Result = "Placed"        // it is bound to Node, or about to be
	Unschedulable Result = "Unschedulable" // it fits nowhere, or a plugin rejected it on its node
	Failed        Result = "Failed"        // the decision failed with an error
)

// Name is the name of a pod.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Queue is a pending pod's place in the queue.
type Queue struct {
	// Place is active (it may be decided), backoff, unschedulable (it waits for an event), gated,
	// or taken (being decided or bound).
	Place string `json:"place"`
	// Ahead counts the active pods ahead of the pod, if the pod is active.
	Ahead int `json:"ahead"`
	// Gate is the PreEnqueue plugin that gates the pod.
	Gate     string      `json:"gate,omitempty"`
	Attempts int         `json:"attempts"`
	Since    metav1.Time `json:"since"`
	// NotBefore is the end of its back-off, and NotAfter is the time when it is tried again even
	// without an event.
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	NotAfter  *metav1.Time `json:"notAfter,omitempty"`
	// Wakes are the events after which it is tried again.
	Wakes []Wake `json:"wakes,omitempty"`
}

// Wake lists the events that may change a plugin's verdict. Each event has a resource and actions,
// in kube-scheduler's terms.
type Wake struct {
	Plugin string   `json:"plugin"`
	Events []string `json:"events"`
}
