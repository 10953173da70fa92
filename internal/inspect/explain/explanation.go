// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Kind is the kind of the document; package simulate defines its version. Fields may be added, but
// are never renamed or removed.
const Kind = "Explanation"

// State is the state of a pod.
type State string

// The states of a pod.
const (
	Placed      State = "Placed"      // on a node
	Orphaned    State = "Orphaned"    // bound to a nonexistent node
	Pending     State = "Pending"     // waiting for a node
	Schedulable State = "Schedulable" // pending with a feasible node, waiting only for its turn
	Gated       State = "Gated"       // not allowed to be scheduled yet
	Unserved    State = "Unserved"    // for a scheduler with another name
	Refused     State = "Refused"     // would be refused by the API server
	Terminating State = "Terminating" // being deleted
	Completed   State = "Completed"   // run to completion
)

// Explanation explains why a pod is on its node, or pending.
type Explanation struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Pod        Pod             `json:"pod"`
	State      State           `json:"state"`
	// Summary is the explanation in one sentence.
	Summary string `json:"summary"`
	// Message is the message of the FailedScheduling event.
	Message string `json:"message,omitempty"`
	// LastDecision is the scheduler's last decision, from its own memory or from the pod's status.
	LastDecision *LastDecision `json:"lastDecision,omitempty"`
	// Decision is the live scheduler's full record of the last decision, if requested.
	Decision *decision.Decision `json:"decision,omitempty"`
	// Scores lists the scores of the pod's node and of the next best feasible nodes.
	Scores   []Score `json:"scores,omitempty"`
	Feasible int     `json:"feasible"`
	Nodes    int     `json:"nodes"`
	// Groups lists the nodes rejected for the pod, by reason.
	Groups []Group `json:"groups,omitempty"`
	// NoNodeHas lists the requested resources missing from every node.
	NoNodeHas []string `json:"noNodeHas,omitempty"`
	// Decisive is the plugin that rejects the most nodes if every plugin judges every node.
	Decisive   *Decisive   `json:"decisive,omitempty"`
	Preemption *Preemption `json:"preemption,omitempty"`
	// Leaving lists the terminating pods about to make room for this one. If set, no change is
	// needed, so Preemption and Suggestions are empty.
	Leaving *Leaving `json:"leaving,omitempty"`
	Queue   *Queue   `json:"queue,omitempty"`
	// Suggestions are changes that let the pod run, smallest first. Each of them has been tried.
	Suggestions []Suggestion `json:"suggestions,omitempty"`
	// Withheld lists changes found by the search but refuted by a rehearsal of their commands.
	Withheld []Withheld `json:"withheld,omitempty"`
	// GroupSuggestions are changes that would place the pod group of a pod that fits by itself,
	// smallest first.
	GroupSuggestions []GroupSuggestion `json:"groupSuggestions,omitempty"`
	Eviction         *Eviction         `json:"eviction,omitempty"`
	// Resize explains, in one sentence, a resize of the pod deferred by its kubelet. Preemption is
	// then about the resize.
	Resize string `json:"resize,omitempty"`
	// Node has the verdict of every plugin on one node, if requested.
	Node *NodeReport `json:"node,omitempty"`

	// wakes has the wake events of Decision in the words of their plugins. Like where and verdict
	// below, wakes is only for the text output and not part of the document.
	wakes []Wake
	// where names the object to change in order to change the pod.
	where string
	// verdict explains why a pod is on its node, without the names of pod and node.
	verdict string
}

// Alike returns a key that is equal for pods in the same state for the same reason. For pods that
// must leave their nodes, the key includes the taint and the deadline.
func (e *Explanation) Alike() string {
	reason := string(e.State) + e.verdict
	if e.Pod.Node == "" {
		reason += e.Message + e.Summary
	}
	if e.Eviction != nil {
		reason += e.Eviction.Taint + e.Eviction.Due.UTC().String()
	}
	return reason
}

// Pod is the explained pod.
type Pod struct {
	Namespace     string `json:"namespace"`
	Name          string `json:"name"`
	Node          string `json:"node"`
	NominatedNode string `json:"nominatedNode,omitempty"`
	Priority      int32  `json:"priority"`
	Scheduler     string `json:"schedulerName"`
	// Controller is the pod's controller as Kind/name, or empty.
	Controller string `json:"controller,omitempty"`
}

// LastDecision is the scheduler's last decision, from its memory or else from the pod's condition
// PodScheduled.
type LastDecision struct {
	At      metav1.Time `json:"at"`
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
	// Holds is set if the engine would make the same decision now.
	Holds bool `json:"holds"`
}

// Score is a node's score for the pod.
type Score struct {
	Node  string `json:"node"`
	Own   bool   `json:"own,omitempty"` // the pod is on this node
	Total int64  `json:"total"`
	// Scores are the plugins' normalised scores times their weights.
	Scores map[string]int64 `json:"scores,omitempty"`
	// Words explains some of the scores, by plugin.
	Words map[string]string `json:"words,omitempty"`
}

// Group is a set of nodes that reject the pod for the same reason.
type Group struct {
	Plugin  string   `json:"plugin,omitempty"`
	Code    string   `json:"code"`
	Reasons []string `json:"reasons"`
	Count   int      `json:"count"`
	// Nodes lists all nodes of the group, sorted by name.
	Nodes []string `json:"nodes"`
	// Detail names the cause, such as the taints or the missing labels.
	Detail []string `json:"detail,omitempty"`
	// PreemptionHelps is set if removing lower-priority pods could make the nodes feasible. It is
	// never set if a preemption attempt found no such node.
	PreemptionHelps bool `json:"preemptionHelps"`
}

// Decisive is the plugin rejecting the most nodes. The required change may concern another plugin.
type Decisive struct {
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons"` // the plugin's most frequent reasons
	Nodes   int      `json:"nodes"`   // number of nodes it rejects, for any reason
	// Detail names the objects and amounts, if the reasons do not, such as the users of devices.
	Detail string `json:"detail,omitempty"`
}

// Preemption reports whether removing lower-priority pods helps.
type Preemption struct {
	Helps      bool            `json:"helps"`
	Node       string          `json:"node,omitempty"`
	Victims    []simulate.Name `json:"victims,omitempty"`
	Violations int             `json:"violations,omitempty"` // victims in excess of their disruption budgets
	Message    string          `json:"message,omitempty"`
}

// Queue is the pod's place among the pending pods, and the events it waits for.
type Queue struct {
	Position int `json:"position"` // from 1
	Length   int `json:"length"`
	// AheadByPriority counts the higher-priority pods ahead of the pod, and AheadByAge counts the
	// older pods of the same priority.
	AheadByPriority int `json:"aheadByPriority"`
	AheadByAge      int `json:"aheadByAge"`
	// Wakes lists the events that can resolve the rejections of the pod. The pod is retried after
	// any of them, and after five minutes in any case.
	Wakes []Wake `json:"wakes,omitempty"`
}

// Wake lists the events that can change a plugin's verdict.
type Wake struct {
	Plugin string   `json:"plugin"`
	Events []string `json:"events"`
}

// Suggestion is a set of changes that together let the pod run.
type Suggestion struct {
	// Text is the suggestion in one line.
	Text string `json:"text"`
	// Node is the pod's node after the changes.
	Node    string   `json:"node"`
	Changes []Change `json:"changes"`
	// Size orders suggestions: smaller changes have a smaller Size.
	Size int `json:"size"`
}

// Withheld is a change that would let the scheduler place the pod but is not suggested. After its
// commands the pod would still not run, because admission, a quota or a controller interferes.
type Withheld struct {
	Text   string `json:"text"`
	Reason string `json:"reason"`
}

// Command returns the kubectl commands for the changes, joined by &&. It omits changes that kubectl
// cannot make.
func (s *Suggestion) Command() string {
	commands := answer.Mapped(s.Changes, func(c Change) string { return c.Command })
	return strings.Join(slices.DeleteFunc(commands, func(command string) bool { return command == "" }), " && ")
}

// Change is a single change of a suggestion.
type Change struct {
	// Kind is a stable CamelCase name, such as Tolerate, LowerRequest, RemoveTaint, AddNode.
	Kind string `json:"kind"`
	// Object is the object to change, as pod/NAMESPACE/NAME, node/NAME, ...
	Object string `json:"object"`
	// Template is the object holding the pod template to change for a durable change, such as the
	// Deployment of the pod's ReplicaSet.
	Template string `json:"template,omitempty"`
	Text     string `json:"text"`
	// Command makes the change, if kubectl can. A single command makes all changes of the pod.
	Command string `json:"command,omitempty"`
	// Patch is the strategic merge patch of the object. For AddNode it is the difference between
	// Object and the new node.
	Patch json.RawMessage `json:"patch,omitempty"`
	// Delete lists the pods to delete.
	Delete []simulate.Name `json:"delete,omitempty"`
}

// Eviction reports when and why the pod must leave its node.
type Eviction struct {
	Taint string `json:"taint"`
	// Device is the tainted device as driver/pool/device; empty for a taint of the node.
	Device string      `json:"device,omitempty"`
	Since  metav1.Time `json:"since"`
	Due    metav1.Time `json:"due"`
	// In is the time from reading the state until Due.
	In simulate.Seconds `json:"in"`
	// TolerationSeconds is the pod's toleration time for the taint; nil if the pod does not
	// tolerate it.
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
	// Cancel lists changes that would let the pod stay.
	Cancel []Change `json:"cancel,omitempty"`
}

// NodeReport has the verdicts of all plugins on the pod and one node.
type NodeReport struct {
	Name     string   `json:"name"`
	Feasible bool     `json:"feasible"`
	Plugins  []Word   `json:"plugins"`
	Total    *int64   `json:"total,omitempty"`
	Rank     int      `json:"rank,omitempty"` // among the feasible nodes, from 1
	Preempt  string   `json:"preemption,omitempty"`
	Victims  []string `json:"victims,omitempty"`
}

// Word is the verdict of one plugin.
type Word struct {
	Plugin string `json:"plugin"`
	// Rejects is set if the plugin rejects the node, for these Reasons. Code is the stable name of
	// the first reason.
	Rejects bool     `json:"rejects"`
	Code    string   `json:"code,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
	Detail  string   `json:"detail,omitempty"`
	Score   *int64   `json:"score,omitempty"`
	Weight  int64    `json:"weight,omitempty"`
}
