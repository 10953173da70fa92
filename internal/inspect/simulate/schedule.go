package simulate

import (
	"fmt"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/inspect/standin"
)

// scheduling is the core that schedules the world's pods, and what the world keeps about them.
type scheduling struct {
	core *cycle.Core
	// behind is how far the core's clock is behind the world's until what is pending has been tried
	// once. A live scheduler has tried it before: its back-off is over.
	behind   time.Duration
	standin  standin.Controllers
	profiles map[string]*plugins.Profile // by scheduler name
	// created are pods that the core has not been shown yet, and pending those without a node that
	// it has been shown. Pods that are refused, or that no profile serves, are in neither once they
	// have been introduced.
	created []*pod
	pending map[types.UID]*pod
	tried   int // of the pending ones, how many have been decided
	// turn are the pods that were shown since the world last settled, in the order in which they
	// are taken, and passed is how many of them have had their turn.
	turn   []*pod
	passed int
	// verdicts are those on every node for the pods that are being decided, with Options.Explain.
	verdicts map[types.UID][]Node
	gates    groups.Gates
	groups   *groups.Set // of the core; nil without the gates
	gangs    bool        // Jobs become gangs
}

// newScheduling makes the core. MaxWait is off: the retry of pods that have waited too long is
// there in case an event is lost, and here none is.
func (w *World) newScheduling(profiles []*plugins.Profile) error {
	s := &w.scheduling
	s.profiles, s.pending, s.verdicts = map[string]*plugins.Profile{}, map[types.UID]*pod{}, map[types.UID][]Node{}
	o := cycle.Options{Seed: w.options.Seed, MaxWait: math.MaxInt64, Groups: s.gates}
	for _, p := range profiles {
		s.profiles[p.SchedulerName] = p
		served := cycle.Profile{Profile: p}
		if w.options.Explain {
			served.Extensions = []cycle.Extension{witness{w}}
		}
		o.Profiles = append(o.Profiles, served)
	}
	var err error
	if s.core, err = cycle.New(o); err != nil {
		return err
	}
	view := s.core.View()
	w.c, s.groups = view.Cluster, view.Groups
	s.standin = standin.Controllers{
		Cluster: w.c, Feed: w.feed, Named: w.nameClaim, Now: func() metav1.Time { return metav1.NewTime(w.clock.time()) },
	}
	if asked := w.lasting && w.options.For == 0; asked {
		s.behind = queue.MaxBackoff
	}
	s.core.Step(w.coreClock(), cycle.Follows{})
	s.core.Step(w.coreClock(), cycle.Led{})
	return nil
}

// witness records every plugin's verdict on every node before a pod, or the first pod of a group,
// is decided.
type witness struct{ *World }

// Name implements [cycle.Extension].
func (witness) Name() string { return "Explain" }

// Begin implements [cycle.Beginner].
func (w witness) Begin(a *cycle.Attempt) { w.verdicts[a.Pod.UID] = w.explain(a.Profile, a.Waiting) }

// show gives the core an object as the API has it now.
func (w *World) show(kind cycle.Kind, object metav1.Object) {
	w.feed(cycle.Seen{Kind: kind, Object: object})
}

// showGone tells the core that an object was deleted.
func (w *World) showGone(kind cycle.Kind, last metav1.Object) {
	w.feed(cycle.Gone{Kind: kind, Object: last})
}

// feed gives the core an event, and carries out the actions that follow. Where no time passes, pods
// that could not make room for themselves are not retried.
func (w *World) feed(e cycle.Event) {
	actions := slices.Clone(w.core.Step(w.coreClock(), e)) // the core's own until the next step
	decided := w.core.Decided()
	heard := w.hearTogether(decided)
	for _, action := range actions {
		w.carryOut(action)
	}
	if w.lasting {
		return
	}
	makesRoom := slices.ContainsFunc(decided, func(d *decision.Decision) bool { return len(d.Victims) > 0 || d.Group != nil && d.NominatedNode != "" })
	for i, d := range decided {
		switch p := heard[i]; {
		case p == nil || d.Result == decision.Placed:
		case makesRoom:
			w.left(d)
		default:
			w.withdraw(p)
		}
	}
}

// left completes an attempt that made room, where no time passes: victims that were terminating
// already are removed.
func (w *World) left(d *decision.Decision) {
	n := w.c.Node(d.NominatedNode)
	if n == nil {
		return
	}
	for _, victim := range slices.Clone(n.Pods) {
		if victim.Terminating && (d.Group != nil || slices.Contains(d.Victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})) {
			w.remove(victim)
		}
	}
}

// coreClock is the core's time.
func (w *World) coreClock() time.Time { return w.clock.time().Add(-w.behind) }

// awake reports whether the core has a pod to try now.
func (w *World) awake() bool { return !w.core.Wake(w.coreClock()).After(w.coreClock()) }

// settle tries pods until nothing is left to do at this time. Pods that an event has requeued are
// tried before those that controllers create because of the same event.
func (w *World) settle() {
	for !w.halted() && (w.awake() || len(w.created) > 0) {
		if w.awake() {
			w.feed(cycle.Tick{})
		} else {
			w.introduce()
		}
	}
	w.behind = 0
	w.pass(len(w.turn))
	for _, p := range w.turn {
		p.turn = 0
	}
	w.turn, w.passed = nil, 0
}

// introduce shows new pods to the core, in the order in which they are to be tried.
func (w *World) introduce() {
	created := w.created
	w.created = nil
	queued(created)
	for _, p := range created {
		p.turn = len(w.turn) + 1
		w.turn = append(w.turn, p)
		fresh := p.fresh
		p.fresh = nil
		if p.refused != "" || w.profiles[p.Spec().SchedulerName] == nil {
			continue
		}
		w.pending[p.UID] = p
		w.show(cycle.Pods, fresh)
	}
}

// pass lists the pods that are not tried, up to the given turn: the API server refuses them, no
// profile serves them, or a gate keeps them out.
func (w *World) pass(turn int) {
	for ; w.passed < turn; w.passed++ {
		p := w.turn[w.passed]
		if p.gone || p.NodeName != "" || p.listed {
			continue
		}
		why, nodes := w.untried(p)
		g := w.groupOf(p.Pod)
		switch {
		case why == "":
		case g != nil && why == w.core.Incomplete(p.UID):
			w.holds(g, why)
		default:
			w.list(p, Pod{Message: why, Nodes: nodes}, false)
		}
	}
}

// untried returns why the pod is not tried, or "" if it is.
func (w *World) untried(p *pod) (why string, nodes []Node) {
	name := p.Spec().SchedulerName
	profile := w.profiles[name]
	switch {
	case p.refused != "":
		return p.refused, nil
	case profile == nil:
		return fmt.Sprintf("no profile serves the scheduler name %q", name), nil
	}
	why = w.Gate(p.Pod)
	if why != "" && len(p.Spec().SchedulingGates) == 0 {
		nodes = w.explain(name, p.Pod)
	}
	return why, nodes
}

// devicesOf returns the plugin for device claims if the profile runs it at PreEnqueue.
func devicesOf(profile *plugins.Profile) *plugins.DynamicResources {
	for _, filter := range profile.Filters {
		if devices, ok := filter.(*plugins.DynamicResources); ok && profile.Has(plugins.PreEnqueue, devices.Name()) {
			return devices
		}
	}
	return nil
}

// progressEvery is how many pods are decided between two calls of Options.Progress: some
// milliseconds' worth.
const progressEvery = 1024

// hear lists a decision about a pod, and returns the entry. A pod that stays pending is not listed
// again; hear then returns nil. together means that the pod waits with its group.
func (w *World) hear(p *pod, d *decision.Decision, together bool) (listed *Pod) {
	if w.decided++; w.options.Progress != nil && w.decided%progressEvery == 0 {
		w.options.Progress(w.decided, w.entered)
	}
	if !p.tried {
		p.tried = true
		w.tried++
	}
	w.pass(p.turn - 1)
	said := Pod{Nodes: w.verdicts[p.UID]}
	delete(w.verdicts, p.UID)
	if d.Group != nil {
		said.Group = d.Group.Name
	}
	if d.Result == decision.Placed {
		said.Node = d.Node
		return w.list(p, said, false)
	}
	if said.Nodes == nil { // a pod like it has just failed, so it was not decided itself
		said.Nodes = w.explain(p.Spec().SchedulerName, p.Pod)
	}
	said.Message, said.NominatedNode = d.Message, d.NominatedNode
	p.refusal, p.reasons = d.Message, d.Reasons
	for _, victim := range d.Victims {
		said.Victims = append(said.Victims, Name{victim.Namespace, victim.Name})
	}
	if len(said.Victims) > 0 || !p.listed {
		listed = w.list(p, said, together)
	}
	p.listed = true
	return listed
}

// list adds a decision about the pod to the answer, and returns the entry, which the caller may
// complete; nil for a quiet pod. together means that there is an event for its whole group.
func (w *World) list(p *pod, said Pod, together bool) *Pod {
	p.refusal = said.Message
	if p.quiet {
		return nil
	}
	said.Namespace, said.Name, said.After = p.Namespace(), p.Name, Seconds(w.clock.now)
	if said.Victims == nil {
		said.Victims = []Name{}
	}
	w.report.said.Pods = append(w.report.said.Pods, said)
	switch {
	case said.Node != "":
		w.report.tell(Event{Kind: "PodPlaced", Namespace: said.Namespace, Name: said.Name, Node: said.Node})
	case len(said.Victims) == 0 && !together:
		w.report.tell(Event{Kind: "PodPending", Namespace: said.Namespace, Name: said.Name, Message: said.Message})
	}
	return &w.report.said.Pods[len(w.report.said.Pods)-1]
}

// landed records that a pending pod has got a node.
func (w *World) landed(p *pod) {
	delete(w.pending, p.UID)
	if p.tried {
		w.tried--
	}
	p.listed = false
	p.Pod = w.c.Pod(p.UID)
	w.settled(p, w.clock.time())
	if w.lasting {
		w.budgetsJoined(p.Pod)
	}
}

// withdraw removes a pod without a node from scheduling.
func (w *World) withdraw(p *pod) {
	p.gone = true
	if w.pending[p.UID] == p {
		delete(w.pending, p.UID)
		if p.tried {
			w.tried--
		}
		w.showGone(cycle.Pods, stub(p.Pod))
	}
	w.created = slices.DeleteFunc(w.created, func(o *pod) bool { return o == p })
}

// stub returns as much of a pod as a deletion needs.
func stub(p *cluster.Pod) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace(), Name: p.Name, UID: p.UID}}
}
