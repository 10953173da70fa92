package explain

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Kind is the kind of answers; their version is that of package simulate. Fields may be added, none
// is renamed or taken away.
const Kind = "Explanation"

// State is how it stands with a pod.
type State string

// The states.
const (
	Placed      State = "Placed"      // it is on a node
	Pending     State = "Pending"     // it waits for one
	Schedulable State = "Schedulable" // it waits, and there is a node for it: it will go there when its turn comes
	Gated       State = "Gated"       // it may not be scheduled yet
	Unserved    State = "Unserved"    // it is for a scheduler of another name
	Refused     State = "Refused"     // the API server would not let it be created
	Terminating State = "Terminating" // it is leaving
	Completed   State = "Completed"   // it has run to its end
)

// Explanation is why a pod is where it is, or is not.
type Explanation struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Pod        Pod             `json:"pod"`
	State      State           `json:"state"`
	// Summary says it in one sentence.
	Summary string `json:"summary"`
	// Message is what the FailedScheduling event says of the pod, in the scheduler's words.
	Message string `json:"message,omitempty"`
	// LastDecision is what the scheduler wrote into the pod's status, or says itself.
	LastDecision *LastDecision `json:"lastDecision,omitempty"`
	// Decision is all that the live scheduler says of the pod, if it was asked.
	Decision *decision.Decision `json:"decision,omitempty"`
	// Scores has the pod's node and the next best ones, of all that could take it.
	Scores   []Score `json:"scores,omitempty"`
	Feasible int     `json:"feasible"`
	Nodes    int     `json:"nodes"`
	// Groups are the nodes that cannot take the pod, by reason.
	Groups []Group `json:"groups,omitempty"`
	// NoNodeHas are resources that the pod requests and no node has.
	NoNodeHas []string `json:"noNodeHas,omitempty"`
	// Decisive is the plugin that keeps the pod off the most nodes, of all plugins asked about all
	// nodes.
	Decisive   *Decisive   `json:"decisive,omitempty"`
	Preemption *Preemption `json:"preemption,omitempty"`
	Queue      *Queue      `json:"queue,omitempty"`
	// Suggestions are changes that let the pod run, the smallest first. Each has been tried.
	Suggestions []Suggestion `json:"suggestions,omitempty"`
	Eviction    *Eviction    `json:"eviction,omitempty"`
	// Node is every plugin's word on one node, if it was asked for.
	Node *NodeReport `json:"node,omitempty"`
}

// Pod is the pod that is explained.
type Pod struct {
	Namespace     string `json:"namespace"`
	Name          string `json:"name"`
	Node          string `json:"node"`
	NominatedNode string `json:"nominatedNode,omitempty"`
	Priority      int32  `json:"priority"`
	Scheduler     string `json:"schedulerName"`
	// Controller made the pod: Kind/name, or empty.
	Controller string `json:"controller,omitempty"`
}

// LastDecision is the scheduler's own word, from its memory or else from the pod's condition
// PodScheduled.
type LastDecision struct {
	At      metav1.Time `json:"at"`
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
	// Holds tells whether the engine says the same now.
	Holds bool `json:"holds"`
}

// Score is how a node scores for the pod.
type Score struct {
	Node  string `json:"node"`
	Own   bool   `json:"own,omitempty"` // the pod is on it
	Total int64  `json:"total"`
	// Scores are the plugins' normalised scores times their weights.
	Scores map[string]int64 `json:"scores,omitempty"`
}

// Group are nodes that cannot take the pod for the same reason.
type Group struct {
	Plugin  string   `json:"plugin,omitempty"`
	Code    string   `json:"code"`
	Reasons []string `json:"reasons"`
	Count   int      `json:"count"`
	// Nodes has all of them by name.
	Nodes []string `json:"nodes"`
	// Detail names what is behind it: the taints, the labels that are missing.
	Detail []string `json:"detail,omitempty"`
	// PreemptionHelps: removing pods of lower priority could change it. Never set if preemption was
	// tried and helps on no node.
	PreemptionHelps bool `json:"preemptionHelps"`
}

// Decisive is what has to change before anything else: a plugin that rejects all nodes, or else
// most of them.
type Decisive struct {
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons"` // the commonest that it gives
	Nodes   int      `json:"nodes"`   // that it rejects, for whatever reason
}

// Preemption is whether removing pods of lower priority helps.
type Preemption struct {
	Helps      bool            `json:"helps"`
	Node       string          `json:"node,omitempty"`
	Victims    []simulate.Name `json:"victims,omitempty"`
	Violations int             `json:"violations,omitempty"` // of disruption budgets
	Message    string          `json:"message,omitempty"`
}

// Queue is the pod's place among those that wait, and what it waits for.
type Queue struct {
	Position int `json:"position"` // from 1
	Length   int `json:"length"`
	// Ahead is who comes before it: those of higher priority, and the older ones of the same.
	AheadByPriority int `json:"aheadByPriority"`
	AheadByAge      int `json:"aheadByAge"`
	// Wakes are what can help against the plugins that reject the pod: it is tried again when one
	// of these happens, and after five minutes in any case.
	Wakes []Wake `json:"wakes,omitempty"`
}

// Wake is what can change a plugin's mind.
type Wake struct {
	Plugin string   `json:"plugin"`
	Events []string `json:"events"`
}

// Suggestion is what, if it is done, lets the pod run.
type Suggestion struct {
	// Text says it in one line.
	Text string `json:"text"`
	// Node is where the pod would go then.
	Node    string   `json:"node"`
	Changes []Change `json:"changes"`
	// Size orders suggestions: a small number is a small change.
	Size int `json:"size"`
}

// Change is one thing to do.
type Change struct {
	// Kind is a stable CamelCase name, such as Tolerate, LowerRequest, RemoveTaint, AddNode.
	Kind string `json:"kind"`
	// Object is what is changed, as pod/NAMESPACE/NAME, node/NAME, ...
	Object string `json:"object"`
	// Template is the controller whose pod template has to be changed for the change to last.
	Template string `json:"template,omitempty"`
	Text     string `json:"text"`
	// Command does it, where kubectl can do it in one command.
	Command string `json:"command,omitempty"`
	// Patch is the strategic merge patch of the object.
	Patch json.RawMessage `json:"patch,omitempty"`
	// Delete are the pods that have to go.
	Delete []simulate.Name `json:"delete,omitempty"`
}

// Eviction is when and why the pod has to leave its node.
type Eviction struct {
	Taint string      `json:"taint"`
	Since metav1.Time `json:"since"`
	Due   metav1.Time `json:"due"`
	// In is how long that is from the state that was read.
	In simulate.Seconds `json:"in"`
	// TolerationSeconds is how long the pod tolerates the taint; nil: not at all.
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
	// Cancel is what would let it stay.
	Cancel []Change `json:"cancel,omitempty"`
}

// NodeReport is what all plugins say of the pod on one node.
type NodeReport struct {
	Name     string   `json:"name"`
	Feasible bool     `json:"feasible"`
	Plugins  []Word   `json:"plugins"`
	Total    *int64   `json:"total,omitempty"`
	Rank     int      `json:"rank,omitempty"` // among the feasible nodes, from 1
	Preempt  string   `json:"preemption,omitempty"`
	Victims  []string `json:"victims,omitempty"`
}

// Word is what one plugin says.
type Word struct {
	Plugin string `json:"plugin"`
	// Rejects: the node cannot take the pod, for these Reasons; Code is the first one's stable
	// name.
	Rejects bool     `json:"rejects"`
	Code    string   `json:"code,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
	Detail  string   `json:"detail,omitempty"`
	Score   *int64   `json:"score,omitempty"`
	Weight  int64    `json:"weight,omitempty"`
}
