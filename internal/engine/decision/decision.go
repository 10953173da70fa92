// Package decision is what the live scheduler tells of a pod that it has decided: when and how, and
// if the pod waits, where it stands and what it waits for. The scheduler serves it below Path;
// `berth explain` reads it. Plain data for both.
package decision

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kind and APIVersion name the document. Fields may be added, none is renamed or taken away.
const (
	APIVersion = "berth.dev/v1alpha1"
	Kind       = "Decision"
)

// Path is followed by NAMESPACE/NAME.
const Path = "/debug/decisions/"

// Decision is the last one of a pod.
type Decision struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`

	Result Result `json:"result"`
	// At is when the pod was taken from the queue, and Took how long it was decided, in seconds.
	At   *metav1.Time `json:"at,omitempty"`
	Took float64      `json:"took,omitempty"`
	// Nodes is how many there were. Feasible of them could take the pod; Score is the highest, that
	// of Node. Both are 0 for a pod that went where it had made room for itself.
	Nodes    int    `json:"nodes,omitempty"`
	Feasible int    `json:"feasible,omitempty"`
	Node     string `json:"node,omitempty"`
	Score    int64  `json:"score,omitempty"`
	// Message is what the FailedScheduling event says. Plugins rejected the pod; Reasons counts
	// nodes.
	Message string         `json:"message,omitempty"`
	Plugins []string       `json:"plugins,omitempty"`
	Reasons map[string]int `json:"reasons,omitempty"`
	// NominatedNode is where room is made, or was; Victims had to leave, for the last decision.
	NominatedNode string `json:"nominatedNode,omitempty"`
	Victims       []Name `json:"victims,omitempty"`

	// Queue is set for a pod that waits.
	Queue *Queue `json:"queue,omitempty"`
	// Group is set for a pod of a pod group, where the scheduler looks at these.
	Group *Group `json:"group,omitempty"`
}

// Group is the pod group of a pod, in its namespace.
type Group struct {
	Name string `json:"name"`
	// Missing: there is no such PodGroup.
	Missing bool `json:"missing,omitempty"`
	// MinCount is how many pods a gang asks for at once; 0 for a basic group. Of Members pods,
	// Placed have a node or are on their way to one, Bound of them for good.
	MinCount int `json:"minCount,omitempty"`
	Members  int `json:"members"`
	Placed   int `json:"placed"`
	Bound    int `json:"bound"`
	// Tried, Fit and Needed are of the last attempt, if it failed: so many pods were tried
	// together, of which Fit found a place, and Needed were needed at once.
	Tried  int `json:"tried,omitempty"`
	Fit    int `json:"fit,omitempty"`
	Needed int `json:"needed,omitempty"`
	// Scheduled: the group was placed as a whole once. Else Message is why it is not.
	Scheduled bool   `json:"scheduled,omitempty"`
	Message   string `json:"message,omitempty"`
}

// GroupTrial is what an attempt for a group would come to.
type GroupTrial struct {
	// Incomplete: it is not tried before there are more pods, or a PodGroup.
	Incomplete bool `json:"incomplete,omitempty"`
	// Tried, Fit and Needed are as in Group.
	Tried  int `json:"tried,omitempty"`
	Fit    int `json:"fit"`
	Needed int `json:"needed,omitempty"`
	// Message says why the group is not placed as things are; empty if it would be.
	Message string `json:"message,omitempty"`
	// Victims would have to leave, and then the group fits.
	Victims []Name `json:"victims,omitempty"`
	// Pods are the members that wait.
	Pods []GroupPlace `json:"pods,omitempty"`
}

// GroupPlace is where a member would go, with the others of its group, or why it would not.
type GroupPlace struct {
	Name    string `json:"name"`
	Node    string `json:"node,omitempty"`
	Message string `json:"message,omitempty"`
}

// Result is how a decision ended.
type Result string

// The results.
const (
	None          Result = "None"          // the pod was never decided
	Placed        Result = "Placed"        // it is bound to Node, or about to be
	Unschedulable Result = "Unschedulable" // it fits nowhere, or a plugin rejected it on its node
	Failed        Result = "Failed"        // something went wrong
)

// Name is a pod's.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Queue is where a pod waits.
type Queue struct {
	// Place is active (it may be decided), backoff, unschedulable (it waits for an event), gated,
	// or taken (being decided or bound).
	Place string `json:"place"`
	// Ahead counts the active pods before it, if it is active.
	Ahead int `json:"ahead"`
	// Gate is the plugin that keeps it out.
	Gate     string      `json:"gate,omitempty"`
	Attempts int         `json:"attempts"`
	Since    metav1.Time `json:"since"`
	// NotBefore is when its back-off ends, and NotAfter when it is tried again if nothing happens.
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	NotAfter  *metav1.Time `json:"notAfter,omitempty"`
	// Wakes is what has it tried again.
	Wakes []Wake `json:"wakes,omitempty"`
}

// Wake is what can change a plugin's mind: events as kube-scheduler names them, kind and actions.
type Wake struct {
	Plugin string   `json:"plugin"`
	Events []string `json:"events"`
}
