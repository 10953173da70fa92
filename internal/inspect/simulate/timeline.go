// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Event is an event of the simulated time: one line of the timeline. It concerns a pod or a pod
// group (Name is set), a node or a zone.
type Event struct {
	After Seconds `json:"after"`
	// Kind is a stable CamelCase name, such as NodeFailed, TaintAdded, PodEvicted, PodPlaced,
	// PodPending, PodGroupPending.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"` // name of the pod or the pod group
	Node      string `json:"node,omitempty"`
	Zone      string `json:"zone,omitempty"`
	Message   string `json:"message,omitempty"`
	// Step is set for a direct effect of a scenario step, as opposed to a later consequence.
	Step bool `json:"step,omitempty"`
}

// Sample is the state of the cluster after a change: one point of the drawn curves. It holds until
// the next one.
type Sample struct {
	After Seconds `json:"after"`
	// Nodes counts all nodes, NotReady counts the nodes without a True Ready condition in the API,
	// and Tainted counts the nodes with a taint that repels pods.
	Nodes    int `json:"nodes"`
	NotReady int `json:"notReady"`
	Tainted  int `json:"tainted"`
	Running  int `json:"running"` // pods on nodes
	Pending  int `json:"pending"`
	Evicted  int `json:"evicted"` // total so far
}

// report collects the result. All components write to it, each when it makes a change. The timeline
// and the samples are in order of time.
type report struct {
	clock    *clock
	said     *Simulation
	timed    bool // time may pass, so there is a timeline
	timeline []Event
	samples  []Sample
	// stepping is set while a scenario step runs; events get its value as Step.
	stepping bool
	// touched is set after a change not recorded in the cluster's log, such as the creation of a
	// pending pod. The next runStep then takes a sample and clears touched.
	touched bool
	failed  error // an operation of the scenario failed, or a decision panicked
}

// addEvent adds an event with the current time to the timeline. Without a timeline, it does
// nothing.
func (r *report) addEvent(e Event) {
	if !r.timed {
		return
	}
	e.After, e.Step = Seconds(r.clock.now), r.stepping
	r.timeline = append(r.timeline, e)
}

// addDecision adds a decision about the pod to the result. It returns the entry, which the caller
// may complete until the next entry is added, or nil for a quiet pod. together means that an event
// covers the whole group, so addDecision adds none for the pod.
func (r *report) addDecision(p *pod, said Pod, together bool) *Pod {
	p.refusal = said.Message
	if p.quiet {
		return nil
	}
	said.Namespace, said.Name, said.After = p.Namespace(), p.Name, Seconds(r.clock.now)
	if said.Victims == nil {
		said.Victims = []Name{}
	}
	r.said.Pods = append(r.said.Pods, said)
	switch {
	case said.Node != "":
		r.addEvent(Event{Kind: "PodPlaced", Namespace: said.Namespace, Name: said.Name, Node: said.Node})
	case len(said.Victims) == 0 && !together:
		r.addEvent(Event{Kind: "PodPending", Namespace: said.Namespace, Name: said.Name, Message: said.Message})
	}
	return &r.said.Pods[len(r.said.Pods)-1]
}

// recordTaints reports added and removed taints. A taint is identified by key and effect; a changed
// value is not reported.
func (r *report) recordTaints(node string, before, after []v1.Taint) {
	missing := func(in []v1.Taint, t *v1.Taint) bool {
		return !slices.ContainsFunc(in, func(o v1.Taint) bool { return o.MatchTaint(t) })
	}
	for i := range after {
		if missing(before, &after[i]) {
			r.addEvent(Event{Kind: "TaintAdded", Node: node, Message: after[i].ToString()})
		}
	}
	for i := range before {
		if missing(after, &before[i]) {
			r.addEvent(Event{Kind: "TaintRemoved", Node: node, Message: before[i].ToString()})
		}
	}
}

// addSample adds the state of the cluster and replaces an earlier sample of the same time. It omits
// a sample equal to the previous one.
func (r *report) addSample(s Sample) {
	s.After, s.Evicted = Seconds(r.clock.now), len(r.said.Evictions)
	if last := len(r.samples) - 1; last >= 0 {
		switch before := r.samples[last]; {
		case before.After == s.After:
			r.samples = r.samples[:last]
		default:
			before.After = s.After
			if before == s {
				return
			}
		}
	}
	r.samples = append(r.samples, s)
}

// Timeline returns the events so far, in order of time. Callers must not modify it.
func (w *World) Timeline() []Event { return w.report.timeline }

// groupPending is the kind of the event of a waiting pod group.
const groupPending = "PodGroupPending"

// Where returns the subject of an event: a pod, a pod group, a node or a zone, named like in
// kubectl. It omits the namespace default. An event without such a subject yields "-".
func (e *Event) Where() string {
	switch {
	case e.Kind == groupPending:
		return "podgroup/" + strings.TrimPrefix(e.Namespace+"/", "default/") + e.Name
	case e.Name != "":
		return "pod/" + strings.TrimPrefix(e.Namespace+"/", "default/") + e.Name
	case e.Node != "":
		return "node/" + e.Node
	case e.Zone != "":
		return "zone/" + e.Zone
	}
	return "-"
}
