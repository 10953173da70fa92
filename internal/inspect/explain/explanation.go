package explain

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Kind is the kind of the document; its version is that of package simulate. Fields may be added,
// but are never renamed or removed.
const Kind = "Explanation"

// State is the state of a pod.
type State string

// The states.
const (
	Placed      State = "Placed"      // it is on a node
	Orphaned    State = "Orphaned"    // it is bound to a node that does not exist
	Pending     State = "Pending"     // it waits for one
	Schedulable State = "Schedulable" // it is pending, and there is a node for it: it will go there when its turn comes
	Gated       State = "Gated"       // it may not be scheduled yet
	Unserved    State = "Unserved"    // it is for a scheduler of another name
	Refused     State = "Refused"     // the API server would refuse to create it
	Terminating State = "Terminating" // it is being deleted
	Completed   State = "Completed"   // it has run to its end
)

// Explanation is why a pod is on its node, or on none.
type Explanation struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Pod        Pod             `json:"pod"`
	State      State           `json:"state"`
	// Summary is the explanation in one sentence.
	Summary string `json:"summary"`
	// Message is that of the FailedScheduling event.
	Message string `json:"message,omitempty"`
	// LastDecision is the scheduler's last decision, from its own memory or from the pod's status.
	LastDecision *LastDecision `json:"lastDecision,omitempty"`
	// Decision is the live scheduler's full record of it, if that was asked for.
	Decision *decision.Decision `json:"decision,omitempty"`
	// Scores are those of the pod's node and of the next best feasible nodes.
	Scores   []Score `json:"scores,omitempty"`
	Feasible int     `json:"feasible"`
	Nodes    int     `json:"nodes"`
	// Groups are the nodes that cannot take the pod, by reason.
	Groups []Group `json:"groups,omitempty"`
	// NoNodeHas are resources that the pod requests and that no node has.
	NoNodeHas []string `json:"noNodeHas,omitempty"`
	// Decisive is the plugin that rejects the most nodes when all plugins are asked about all
	// nodes.
	Decisive   *Decisive   `json:"decisive,omitempty"`
	Preemption *Preemption `json:"preemption,omitempty"`
	// Leaving are the terminating pods that make room for this one. If there are any, nothing needs
	// to be done: there is neither Preemption nor a suggestion.
	Leaving *Leaving `json:"leaving,omitempty"`
	Queue   *Queue   `json:"queue,omitempty"`
	// Suggestions are changes that let the pod run, the smallest first. Each of them has been
	// tried.
	Suggestions []Suggestion `json:"suggestions,omitempty"`
	// Withheld are changes that the search found, and that a rehearsal of their commands refuted.
	Withheld []Withheld `json:"withheld,omitempty"`
	// GroupSuggestions are changes with which the pod group of a pod that fits by itself would be
	// placed, the smallest first.
	GroupSuggestions []GroupSuggestion `json:"groupSuggestions,omitempty"`
	Eviction         *Eviction         `json:"eviction,omitempty"`
	// Node is the verdict of every plugin on one node, if asked for.
	Node *NodeReport `json:"node,omitempty"`

	// wakes are those of Decision in the words of their plugins; where and verdict below
	// are for the text output, too, and not part of the document.
	wakes []Wake
	// where says which object has to be changed for the pod to be changed.
	where string
	// verdict is why a pod is on its node, without the names of pod and node.
	verdict string
}

// Alike returns what is the same for pods that are in the same state for the same reason, and that
// leave their nodes for the same taint at the same time, if they have to.
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

// Pod is the pod that is explained.
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

// LastDecision is what the scheduler last decided, from its memory or else from the pod's condition
// PodScheduled.
type LastDecision struct {
	At      metav1.Time `json:"at"`
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
	// Holds is set if the engine comes to the same decision now.
	Holds bool `json:"holds"`
}

// Score is how a node scores for the pod.
type Score struct {
	Node  string `json:"node"`
	Own   bool   `json:"own,omitempty"` // the pod is on it
	Total int64  `json:"total"`
	// Scores are the plugins' normalised scores times their weights.
	Scores map[string]int64 `json:"scores,omitempty"`
	// Words say what some of the scores are made of, by plugin.
	Words map[string]string `json:"words,omitempty"`
}

// Group are nodes that cannot take the pod for the same reason.
type Group struct {
	Plugin  string   `json:"plugin,omitempty"`
	Code    string   `json:"code"`
	Reasons []string `json:"reasons"`
	Count   int      `json:"count"`
	// Nodes has all of them, sorted by name.
	Nodes []string `json:"nodes"`
	// Detail names the cause: the taints, the missing labels.
	Detail []string `json:"detail,omitempty"`
	// PreemptionHelps is set if removing pods of lower priority could change it. It is never set if
	// preemption was tried and helps on no node.
	PreemptionHelps bool `json:"preemptionHelps"`
}

// Decisive is the plugin that rejects the most nodes. Another one may be what has to change.
type Decisive struct {
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons"` // its most frequent ones
	Nodes   int      `json:"nodes"`   // how many it rejects, for any reason
}

// Preemption is whether removing pods of lower priority helps.
type Preemption struct {
	Helps      bool            `json:"helps"`
	Node       string          `json:"node,omitempty"`
	Victims    []simulate.Name `json:"victims,omitempty"`
	Violations int             `json:"violations,omitempty"` // of disruption budgets
	Message    string          `json:"message,omitempty"`
}

// Queue is the pod's place among the pending pods, and what it waits for.
type Queue struct {
	Position int `json:"position"` // from 1
	Length   int `json:"length"`
	// AheadByPriority counts the pods ahead of it with a higher priority, AheadByAge the older ones
	// with the same.
	AheadByPriority int `json:"aheadByPriority"`
	AheadByAge      int `json:"aheadByAge"`
	// Wakes are the events that can help against the plugins that reject the pod. It is tried again
	// when one of them occurs, and after five minutes in any case.
	Wakes []Wake `json:"wakes,omitempty"`
}

// Wake is what can change a plugin's verdict.
type Wake struct {
	Plugin string   `json:"plugin"`
	Events []string `json:"events"`
}

// Suggestion is a set of changes that together let the pod run.
type Suggestion struct {
	// Text is the suggestion in one line.
	Text string `json:"text"`
	// Node is the node that the pod would then go to.
	Node    string   `json:"node"`
	Changes []Change `json:"changes"`
	// Size orders suggestions: the smaller, the smaller the change.
	Size int `json:"size"`
}

// Withheld is a change with which the engine would place the pod, and which is not suggested
// because the pod would not run after its commands: admission, a quota or a controller interferes.
type Withheld struct {
	Text   string `json:"text"`
	Reason string `json:"reason"`
}

// Command makes those of the changes that kubectl can make; empty if there are none.
func (s *Suggestion) Command() string {
	var commands []string
	for i := range s.Changes {
		if command := s.Changes[i].Command; command != "" {
			commands = append(commands, command)
		}
	}
	return strings.Join(commands, " && ")
}

// Change is one thing to do.
type Change struct {
	// Kind is a stable CamelCase name, such as Tolerate, LowerRequest, RemoveTaint, AddNode.
	Kind string `json:"kind"`
	// Object is what is changed, as pod/NAMESPACE/NAME, node/NAME, ...
	Object string `json:"object"`
	// Template is the object whose pod template has to be changed for the change to last, such as
	// the Deployment of the pod's ReplicaSet.
	Template string `json:"template,omitempty"`
	Text     string `json:"text"`
	// Command makes the change, if kubectl can. One command makes all changes of the pod.
	Command string `json:"command,omitempty"`
	// Patch is the strategic merge patch of the object; of AddNode, how the node differs from it.
	Patch json.RawMessage `json:"patch,omitempty"`
	// Delete are the pods to delete.
	Delete []simulate.Name `json:"delete,omitempty"`
}

// Eviction is when and why the pod has to leave its node.
type Eviction struct {
	Taint string `json:"taint"`
	// Device has the taint, as driver/pool/device; empty for a taint of the node.
	Device string      `json:"device,omitempty"`
	Since  metav1.Time `json:"since"`
	Due    metav1.Time `json:"due"`
	// In is the time until Due, from when the state was read.
	In simulate.Seconds `json:"in"`
	// TolerationSeconds is how long the pod tolerates the taint; nil: not at all.
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
	// Cancel are changes that would let the pod stay.
	Cancel []Change `json:"cancel,omitempty"`
}

// NodeReport is the verdict of all plugins on the pod and one node.
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
	// Rejects is set if the node cannot take the pod, for these Reasons. Code is the stable name of
	// the first.
	Rejects bool     `json:"rejects"`
	Code    string   `json:"code,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
	Detail  string   `json:"detail,omitempty"`
	Score   *int64   `json:"score,omitempty"`
	Weight  int64    `json:"weight,omitempty"`
}
