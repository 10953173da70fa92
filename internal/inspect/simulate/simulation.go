package simulate

import (
	"strconv"
	"time"
)

// The version and kind of answers. Fields may be added; none is renamed or removed.
const (
	APIVersion = "berth.dev/v1alpha1"
	Kind       = "Simulation"
)

// Simulation is what becomes of a set of manifests.
type Simulation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Pods are those that had no node, in the order in which they were decided. One that preempts
	// is listed with its victims, and again when it is placed.
	Pods []Pod `json:"pods"`
	// Groups are the pod groups that were not placed, in the order in which they were decided.
	// Their pods are in Pods, each with its own reason.
	Groups []Group `json:"groups,omitempty"`
	// Evictions are those that NoExecute taints and pressure cause, by when they are due. Those
	// that are due after the time that passed have not happened yet.
	Evictions []Eviction `json:"evictions"`
	// Timeline is what happened while time passed, and Samples the state of the cluster after each
	// change. Both are set only if a scenario was played.
	Timeline []Event  `json:"timeline,omitempty"`
	Samples  []Sample `json:"samples,omitempty"`

	// Bound is how many pods have a node already, if there is none to place.
	Bound int `json:"bound,omitempty"`
	// Assumed is what was assumed about the scheduler's configuration.
	Assumed string `json:"assumed,omitempty"`
	// Notes are things that a user should know, such as steps beyond the time that passed.
	Notes []string `json:"notes,omitempty"`
	// For is how much time passed.
	For Seconds `json:"for,omitempty"`
}

// Pod is a decision about one pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// After is how much time had passed; left out at the beginning.
	After Seconds `json:"after,omitempty"`
	// Group is the pod group that the pod was decided with.
	Group string `json:"group,omitempty"`
	// Node is where the pod was placed; empty if it is pending.
	Node string `json:"node"`
	// NominatedNode is where it has made room for itself by removing Victims.
	NominatedNode string `json:"nominatedNode"`
	Victims       []Name `json:"victims"`
	// Message is why it is pending, in the words of the FailedScheduling event.
	Message string `json:"message"`
	// Nodes has the verdicts on every node, sorted by name, with Options.Explain.
	Nodes []Node `json:"nodes,omitempty"`
}

// Name names a pod.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Node is the plugins' verdict on one node for a pod.
type Node struct {
	Name     string `json:"name"`
	Feasible bool   `json:"feasible"`

	// Plugin is the first in the profile's order to reject the node, for these Reasons; Code is the
	// first reason's stable name.
	Plugin  string   `json:"plugin,omitempty"`
	Code    string   `json:"code,omitempty"`
	Reasons []string `json:"reasons,omitempty"`

	// Total is the sum of Scores: of each plugin that scored, the normalised score times its
	// weight. Nothing is scored where only one node is feasible. Total is nil for nodes that are
	// not feasible.
	Total  *int64           `json:"total,omitempty"`
	Scores map[string]int64 `json:"scores,omitempty"`
}

// Eviction is a pod that a NoExecute taint removes from its node, or its kubelet under pressure.
type Eviction struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	// After is when, counted from the beginning.
	After Seconds `json:"after"`
	// Taint is the one that is due first, as key=value:effect.
	Taint string `json:"taint"`
	// Message is the kubelet's, and Taint then empty.
	Message string `json:"message,omitempty"`
}

// Seconds is a time that has passed, written as "300s".
type Seconds time.Duration

// String writes whole seconds without a fraction: "300s", "0.5s". It is also the JSON
// form, which time.ParseDuration reads.
func (s Seconds) String() string {
	return strconv.FormatFloat(time.Duration(s).Seconds(), 'f', -1, 64) + "s"
}

// Duration is the same for arithmetic.
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// MarshalText implements encoding.TextMarshaler.
func (s Seconds) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Seconds) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*s = Seconds(d)
	return err
}

// Totals counts what a simulation lists.
type Totals struct {
	// Placed and Pending are pods, Victims those that had to make room, Evicted those that taints
	// and kubelets remove, Drained those that drains do.
	Placed, Pending, Victims, Evicted, Drained int
}

// Totals counts every pod once, by what became of it last: one that was pending and
// is placed later is placed. A victim for which several pods wait is one, too.
func (s *Simulation) Totals() Totals {
	t := Totals{Evicted: len(s.Evictions)}
	placed, victims := make(map[Name]bool, len(s.Pods)), map[Name]bool{}
	for i := range s.Pods {
		p := &s.Pods[i]
		placed[Name{p.Namespace, p.Name}] = p.Node != ""
		for _, victim := range p.Victims {
			victims[victim] = true
		}
	}

	for i := range s.Groups {
		for _, victim := range s.Groups[i].Victims {
			victims[victim] = true
		}
	}

	t.Victims = len(victims)
	for i := range s.Timeline {
		if s.Timeline[i].Kind == eventOf[ByDrain] {
			t.Drained++
		}
	}

	for _, ok := range placed {
		if ok {
			t.Placed++
		} else {
			t.Pending++
		}
	}
	return t
}
