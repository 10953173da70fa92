package simulate

import "strings"

// Event is something that happened while time passed.
type Event struct {
	After Seconds `json:"after"`
	// Kind is a stable CamelCase name, such as NodeFailed, TaintAdded, PodEvicted, PodPlaced,
	// PodPending, PodGroupPending.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"` // of the pod, or of the pod group
	Node      string `json:"node,omitempty"`
	Zone      string `json:"zone,omitempty"`
	Message   string `json:"message,omitempty"`
	// Step is set if a step of the scenario did it directly, rather than as a later consequence.
	Step bool `json:"step,omitempty"`
}

// Sample is the state of the cluster after something had happened.
type Sample struct {
	After Seconds `json:"after"`
	// Nodes are all; NotReady those whose Ready condition is not True, as the API shows it; Tainted
	// those with a taint that keeps pods off.
	Nodes    int `json:"nodes"`
	NotReady int `json:"notReady"`
	Tainted  int `json:"tainted"`
	Running  int `json:"running"` // pods on nodes
	Pending  int `json:"pending"`
	Evicted  int `json:"evicted"` // so far
}

// tell adds to the timeline.
func (w *World) tell(e Event) {
	if !w.lasting {
		return
	}
	e.After, e.Step = Seconds(w.now), w.stepping
	w.timeline = append(w.timeline, e)
}

// Timeline is what has happened so far.
func (w *World) Timeline() []Event { return w.timeline }

// sample records the state of the cluster, in place of an earlier sample of the same time.
func (w *World) sample() {
	s := Sample{
		After: Seconds(w.now), Nodes: len(w.machines), Running: w.c.Pods(), Pending: w.tried, Evicted: len(w.said.Evictions),
	}
	for _, n := range w.c.Nodes {
		if n == nil {
			continue
		}
		m := w.machines[n.Name]
		if notReady(m.object) {
			s.NotReady++
		}
		if n.Taints.Unschedulable || keepsOff(m.object) {
			s.Tainted++
		}
	}
	if last := len(w.samples) - 1; last >= 0 {
		switch before := w.samples[last]; {
		case before.After == s.After:
			w.samples = w.samples[:last]
		default:
			before.After = s.After
			if before == s {
				return
			}
		}
	}
	w.samples = append(w.samples, s)
}

// groupPending is the kind of the event of a pod group that waits.
const groupPending = "PodGroupPending"

// Where writes what an event is about: a pod, a pod group, a node or a zone.
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
