// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/engine/config"
)

// APIVersion and Kind identify results. Fields may be added to results, but none is renamed or
// removed.
const (
	APIVersion = "berth.dev/v1alpha1"
	Kind       = "Simulation"
)

// Simulation is the result of simulating a set of manifests.
type Simulation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Pods lists the pods that had no node, in order of decision. A preempting pod is listed with
	// its victims, and listed again when it is placed.
	Pods []Pod `json:"pods"`
	// Groups lists the unplaced pod groups, in order of decision. Their pods are in Pods, each with
	// a separate reason.
	Groups []Group `json:"groups,omitempty"`
	// Evictions lists the evictions caused by NoExecute taints and pressure, by due time. Evictions
	// due after the simulated time have not happened yet.
	Evictions []Eviction `json:"evictions"`
	// Timeline lists the events as time passed, and Samples lists the states of the cluster after
	// each change. Both are set only for a scenario.
	Timeline []Event  `json:"timeline,omitempty"`
	Samples  []Sample `json:"samples,omitempty"`

	// Bound is the number of pods with a node; it is set only if no pods need placing.
	Bound int `json:"bound,omitempty"`
	// Assumed describes an assumption about the scheduler's configuration.
	Assumed string `json:"assumed,omitempty"`
	// Notes are messages for the user, such as steps beyond the simulated time.
	Notes []string `json:"notes,omitempty"`
	// For is the simulated time.
	For Seconds `json:"for,omitempty"`
}

// Pod is a decision about one pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// After is the time passed since the start; omitted at the start.
	After Seconds `json:"after,omitempty"`
	// Group is the pod group decided together with the pod.
	Group string `json:"group,omitempty"`
	// Node is the pod's node; empty if it is pending.
	Node string `json:"node"`
	// NominatedNode is the node where the pod has made room for itself by removing Victims.
	NominatedNode string `json:"nominatedNode"`
	Victims       []Name `json:"victims"`
	// Message is the reason the pod is pending, in the words of the FailedScheduling event.
	Message string `json:"message"`
	// Nodes holds the verdicts on every node, sorted by name, with Options.Explain.
	Nodes []Node `json:"nodes,omitempty"`
}

// Name identifies a pod.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Node is the plugins' verdict on one node for a pod.
type Node struct {
	Name     string `json:"name"`
	Feasible bool   `json:"feasible"`

	// Plugin is the first plugin in the profile's order that rejects the node. Reasons holds its
	// reasons, and Code is the stable name of the first one.
	Plugin  string   `json:"plugin,omitempty"`
	Code    string   `json:"code,omitempty"`
	Reasons []string `json:"reasons,omitempty"`

	// Total is the sum of Scores: the normalised score times the weight of each plugin that scored.
	// A single feasible node is not scored. Total is nil for infeasible nodes.
	Total  *int64           `json:"total,omitempty"`
	Scores map[string]int64 `json:"scores,omitempty"`
}

// Eviction is the removal of a pod from its node by a NoExecute taint, or by a kubelet under
// pressure.
type Eviction struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	// After is the time since the start.
	After Seconds `json:"after"`
	// Taint is the first taint to fall due, as key=value:effect. The device and the
	// DeviceTaintRule follow, if any.
	Taint string `json:"taint"`
	// Message is the kubelet's message. If it is set, Taint is empty.
	Message string `json:"message,omitempty"`
}

// Seconds is a duration with the JSON form "300s".
type Seconds time.Duration

// String formats the duration in seconds, without trailing zeros: "300s", "0.5s". The result is
// also the JSON form, and can be parsed by time.ParseDuration.
func (s Seconds) String() string {
	return strconv.FormatFloat(time.Duration(s).Seconds(), 'f', -1, 64) + "s"
}

// Duration returns s as a time.Duration.
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// MarshalText implements encoding.TextMarshaler.
func (s Seconds) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Seconds) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*s = Seconds(d)
	return err
}

// Totals summarizes a simulation's lists.
type Totals struct {
	// Placed and Pending count the decided pods by outcome. Victims counts the preempted pods.
	// Evicted counts evictions by taints and kubelets, and Drained counts evictions by drains.
	Placed, Pending, Victims, Evicted, Drained int
}

// Totals counts every decided pod once, by its last outcome: a pod that was pending first and
// placed later counts as placed. A victim listed by several preemptors also counts once.
func (s *Simulation) Totals() Totals {
	t := Totals{Evicted: len(s.Evictions)}
	placed, victims := make(map[Name]bool, len(s.Pods)), sets.New[Name]()
	for i := range s.Pods {
		p := &s.Pods[i]
		placed[Name{p.Namespace, p.Name}] = p.Node != ""
		victims.Insert(p.Victims...)
	}

	for i := range s.Groups {
		victims.Insert(s.Groups[i].Victims...)
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

// Source describes the origin of the state behind a result: its location, time and configuration.
// Every result has a Source, so that it can be assessed later.
type Source struct {
	// From is the place the state was read from: an API server, or files.
	From string `json:"from"`
	// AsOf is the time of the state; zero if the files do not contain it.
	AsOf metav1.Time `json:"asOf"`
	// ResourceVersion is the version of the newest list read; empty for files.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Assumed describes the assumed scheduler configuration. It is empty if the configuration is a
	// running scheduler's, or was named by the user.
	Assumed string `json:"assumed,omitempty"`
	// Stopped lists the schedulers that no longer run. The result applies once they run again.
	Stopped []config.Stopped `json:"stopped,omitempty"`
}

// IsStopped reports whether the scheduler of this name no longer runs.
func (s *Source) IsStopped(scheduler string) bool {
	return slices.ContainsFunc(s.Stopped, func(stopped config.Stopped) bool { return slices.Contains(stopped.Names, scheduler) })
}

// String returns the last line of the text output. Times are in UTC.
func (s Source) String() string {
	text := "Read from " + s.From + " as of " + s.AsOf.UTC().Format("2006-01-02 15:04:05Z")
	if s.ResourceVersion != "" {
		text += ", resourceVersion " + s.ResourceVersion
	}
	return text
}
