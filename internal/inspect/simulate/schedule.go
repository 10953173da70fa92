package simulate

import (
	"fmt"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// schedule tries pods in queue order, each until it is placed or has to wait.
func (w *World) schedule(pods []*pod) {
	queued(pods)
	for _, p := range pods {
		if w.halted() {
			return
		}
		w.try(p)
		w.decided++
		if w.options.Progress != nil && w.decided%progressEvery == 0 {
			w.options.Progress(w.decided, w.entered)
		}
	}
}

// progressEvery is how many pods are decided between two calls of Options.Progress: some milliseconds' worth.
const progressEvery = 1024

// try decides a pod and lists what was decided. A pod that preempts is tried again right after.
func (w *World) try(p *pod) {
	if p.refused != "" {
		w.list(p, Pod{Message: p.refused})
		return
	}
	s := w.schedulers[p.Spec().SchedulerName]
	if s == nil {
		w.list(p, Pod{Message: fmt.Sprintf("no profile serves the scheduler name %q", p.Spec().SchedulerName)})
		return
	}
	if message := s.gate(p.Pod); message != "" {
		w.list(p, Pod{Message: message})
		return
	}
	if devices := s.devices(plugins.PreEnqueue); devices != nil {
		if message := devices.PreEnqueue(w.c, p.Pod); message != "" {
			w.list(p, Pod{Message: message, Nodes: w.explain(s, p.Pod)})
			return
		}
	}
	for {
		said, again := w.decide(s, p)
		waits := said.Node == "" && !again
		if !waits || !p.listed {
			w.list(p, said)
		}
		switch {
		case waits:
			p.listed, p.refusal = true, said.Message
			w.waiting = append(w.waiting, p)
			return
		case !again:
			return
		}
	}
}

// decide finds a node for the pod, places it there and says so, or says why there is none. If something was done to help the pod,
// it is to be decided again.
func (w *World) decide(s *scheduler, p *pod) (said Pod, again bool) {
	if known, ok := s.hopeless[p.Class]; ok && known.log == w.c.Log.Len() && p.Nominated == "" && !w.options.Explain {
		return Pod{Message: known.message}, false
	}
	said.Nodes = w.explain(s, p.Pod)
	d := s.decider.Decide(p.Pod)
	err := d.Err
	if d.Node != nil {
		err = w.place(s, p, d.Node)
	}
	switch {
	case err != nil:
		said.Message = err.Error()
		return said, false
	case d.Node != nil:
		said.Node = d.Node.Name
		return said, false
	}
	return w.fail(s, p, said)
}

// fail says why no node can take the pod, and makes room for it or frees devices if that helps.
func (w *World) fail(s *scheduler, p *pod, said Pod) (_ Pod, again bool) {
	failure := s.decider.Diagnose(p.Pod)
	freed, after := s.freeDevices(w.c, p.Pod)
	said.NominatedNode = p.Nominated
	if s.profile.Preemption {
		preemption := s.decider.Preempt(p.Pod)
		if preemption.Node != nil {
			w.preempt(p, preemption)
			said.Message, said.NominatedNode, said.Victims = failure.Message(""), preemption.Node.Name, names(preemption.Victims)
			return said, true
		}
		after = append(after, "preemption: "+preemption.Message)
		if p.Nominated != "" && !preemption.Ineligible {
			w.c.Nominate(p.Pod, "") // it was tried, and there is no hope there any more
			said.NominatedNode = ""
		}
	}
	said.Message = failure.Message(strings.Join(after, ", "))
	if !freed && p.Nominated == "" {
		s.hopeless[p.Class] = attempt{w.c.Log.Len(), said.Message}
	}
	return said, freed
}

// gate says why the pod may not be tried yet, as the pod itself tells.
func (s *scheduler) gate(p *cluster.Pod) string {
	for _, gate := range s.profile.Gates {
		if message := gate.Admit(p); message != "" {
			return message
		}
	}
	return ""
}

// devices returns the plugin for device claims if the profile has it at the extension point.
func (s *scheduler) devices(at plugins.Point) *plugins.DynamicResources {
	for _, filter := range s.profile.Filters {
		if devices, ok := filter.(*plugins.DynamicResources); ok && s.profile.Has(at, devices.Name()) {
			return devices
		}
	}
	return nil
}

// freeDevices takes allocated devices from the pod's claims that keep it off every node, and says so.
func (s *scheduler) freeDevices(c *cluster.Cluster, p *cluster.Pod) (freed bool, said []string) {
	devices := s.devices(plugins.PostFilter)
	if devices == nil {
		return false, nil
	}
	message, claim, remove := devices.PostFilter(c, p)
	switch {
	case remove:
		c.ResourceClaims.Delete(claim.Namespace, claim.Name)
	case claim != nil:
		c.ResourceClaims.Set(claim)
	}
	return claim != nil, []string{message}
}

// place takes what the pod needs on the node, and counts it there.
func (w *World) place(s *scheduler, p *pod, n *cluster.Node) error {
	var undo []func()
	for _, r := range s.profile.Reservers {
		back, err := r.Reserve(w.c, p.Pod, n)
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
			return fmt.Errorf("running Reserve plugin %q: %w", r.Name(), err)
		}
		undo = append(undo, back)
	}
	w.c.Place(p.Pod, n)
	w.settled(p, w.start.Add(w.now))
	if w.lasting {
		w.budgets.joined(w.c, p.Pod)
	}
	return nil
}

// preempt makes room: the victims leave at once, and pods of lower priority that were to come to the node no longer are.
func (w *World) preempt(p *pod, preemption decide.Preemption) {
	for _, g := range append([]*cluster.Pod(nil), preemption.Node.Nominated...) {
		if g.Class.Priority < p.Class.Priority {
			w.c.Nominate(g, "")
		}
	}
	for _, victim := range preemption.Victims {
		if known := w.placed[victim.UID]; known != nil && w.lasting {
			w.depart(known, ByPreemption, p.Namespace()+"/"+p.Name)
		} else {
			w.remove(victim)
		}
	}
	w.c.Nominate(p.Pod, preemption.Node.Name)
}

// list adds a decision about the pod to the answer.
func (w *World) list(p *pod, said Pod) {
	said.Namespace, said.Name, said.After = p.Namespace(), p.Name, Seconds(w.now)
	if said.Victims == nil {
		said.Victims = []Name{}
	}
	w.said.Pods = append(w.said.Pods, said)
	p.refusal = said.Message
	switch {
	case said.Node != "":
		w.tell(Event{Kind: "PodPlaced", Namespace: said.Namespace, Name: said.Name, Node: said.Node})
	case len(said.Victims) == 0:
		w.tell(Event{Kind: "PodPending", Namespace: said.Namespace, Name: said.Name, Message: said.Message})
	}
}

func names(pods []*cluster.Pod) []Name {
	list := make([]Name, len(pods))
	for i, p := range pods {
		list[i] = Name{p.Namespace(), p.Name}
	}
	return list
}
