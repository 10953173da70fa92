// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// told is an event with its time and its resulting actions: an entry of a journal.
type told struct {
	at      time.Time
	event   Event
	actions string
}

// world is an API server in virtual time connected to a core. The random generator determines the
// lag of watches, and whether actions are carried out, refused or withdrawn. The core's invariants
// are checked against the state of the world.
type world struct {
	rng      *rand.Rand
	now      time.Time
	core     *Core
	journal  []told
	written  written
	options  Options
	profiles func() []Profile // called for each core, so that cores share no plugins
	reserves *reserves        // the core's plugin; nil if it has none

	version  int
	nodes    map[string]*v1.Node
	pods     map[types.UID]*v1.Pod
	lease    *coordinationv1.Lease // the Lease with the reservations; nil if it does not exist yet
	rooms    []MoveReservation     // the reservations in the Lease
	budgets  budgets
	gentle   gentle
	gangs    gangs
	kinds    []Kind           // existing kinds
	watches  map[Kind][]Event // undelivered events
	under    map[Ticket]Action
	tickets  []Ticket // tickets of under, in order
	broken   []string // violated invariants
	binds    int
	settling bool
}

func newWorld(seed uint64, write bool, profiles func() []Profile) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 3)), now: begin, profiles: profiles, written: written{on: write}, budgets: newBudgets(),
		kinds: []Kind{Nodes, Pods, DisruptionBudgets, MoveLeases}, nodes: map[string]*v1.Node{}, pods: map[types.UID]*v1.Pod{},
		watches: map[Kind][]Event{}, under: map[Ticket]Action{},
	}
	w.options.Seed = seed
	w.start()
	return w
}

// start replaces the core with a new core, which gets its state only from lists. Pending requests
// of the earlier core are lost.
func (w *world) start() {
	w.options.Profiles = w.profiles()
	w.reserves = reservesOf(w.options.Profiles)
	core, err := New(w.options)
	if err != nil {
		panic(err)
	}
	w.core, w.journal = core, nil
	w.written.begin(w)
	clear(w.under)
	delete(w.watches, answers)
	w.tickets = nil
	w.budgets.forget()
	w.gentle.forget()
	w.gangs.forget()
	w.tell(Follows{Kinds: w.kinds})
	w.tell(Led{})
	for _, kind := range w.kinds {
		w.list(kind)
	}
}

// tell passes an event to the core, and takes the resulting actions.
func (w *world) tell(e Event) (text string) {
	var lines []string
	w.budgets.told(e)
	actions := w.core.Step(w.now, e)
	w.written.add(w.now, e, actions)
	w.checkGentle(e, actions)
	for _, action := range actions {
		w.checkBudgets(e, action)
		lines = append(lines, action.String())
		w.take(action)
	}
	w.checkGangs(e, actions)
	if _, is := e.(Tick); is && w.gangs.gates.Composite {
		w.checkTreeVictims(actions)
	}
	w.checkRoomKept(e, actions)
	w.checkReservations()
	for _, r := range w.gangs.reserved {
		if _, ticked := e.(Tick); ticked && !w.now.Before(r.Until) {
			w.breaks("a reservation outlives its time, %s", r.Until.Sub(begin))
		}
	}
	text = strings.Join(lines, "\n")
	w.journal = append(w.journal, told{w.now, e, text})
	return text
}

func (w *world) take(action Action) {
	switch a := action.(type) {
	case Bind:
		for _, other := range w.under {
			if b, ok := other.(Bind); ok && b.Attempt.Pod.UID == a.Attempt.Pod.UID {
				w.breaks("pod %s is being bound twice at once", a.Attempt.Pod.UID)
			}
		}
		w.send(a.Ticket, a)
	case Remove:
		w.send(a.Ticket, a)
	case Preflight:
		w.send(a.Ticket, a)
	case PreBind:
		w.send(a.Ticket, a)
	case Hold:
		if !w.settling && w.rng.IntN(4) == 0 {
			break // the plugin never responds
		}
		w.send(a.Ticket, a)
	case Release:
		w.drop(a.Ticket)
	case Cancel:
		if w.rng.IntN(2) == 0 {
			break // too late to withdraw the action
		}
		switch w.under[a.Ticket].(type) {
		case Bind:
			w.drop(a.Ticket)
			w.watches[answers] = append(w.watches[answers], Answered{a.Ticket, Outcome{Withdrawn: true}})
		case Preflight, PreBind:
			w.drop(a.Ticket)
			w.watches[answers] = append(w.watches[answers], Answered{a.Ticket, Outcome{Fault: &Fault{Message: a.Reason}}})
		}
	case WriteStatus:
		if a.Ticket != 0 {
			w.send(a.Ticket, a)
		}
		if p := w.pods[a.Pod.UID]; p != nil && p.Spec.NodeName == "" && a.Nominate != nil && p.Status.NominatedNodeName != *a.Nominate {
			w.change(p, func(p *v1.Pod) { p.Status.NominatedNodeName = *a.Nominate })
		}
	case WriteGroup:
		w.writeGroup(a)
	case ReadPod:
		for _, p := range w.pods {
			if p.Namespace == a.Name.Namespace && p.Name == a.Name.Name {
				w.watches[answers] = append(w.watches[answers], Read{p})
			}
		}
	case Panicked:
		w.breaks("panic: %s\n%s", a.Value, a.Stack)
	}
}

// answers is the pseudo-kind for results of requests, also delivered in order.
const answers Kind = "answers"

func (w *world) send(ticket Ticket, a Action) {
	w.under[ticket] = a
	w.tickets = append(w.tickets, ticket)
}

func (w *world) drop(ticket Ticket) {
	delete(w.under, ticket)
	w.tickets = slices.DeleteFunc(w.tickets, func(t Ticket) bool { return t == ticket })
}

func (w *world) breaks(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf("%s: ", w.now.Sub(begin))+fmt.Sprintf(format, args...))
}

// drawFault draws the fault of an action. One action in five is refused, or carried out without a
// response, or succeeds without effect if it is a binding. No policy can drop a deletion.
func (w *world) drawFault(ticket Ticket) virtual.Fault {
	if w.rng.IntN(5) > 0 {
		return virtual.None
	}
	faults := []virtual.Fault{virtual.Failing, virtual.Unanswered}
	if _, binds := w.under[ticket].(Bind); binds {
		faults = append(faults, virtual.Ineffective)
	}
	return faults[w.rng.IntN(len(faults))]
}

// carryOut makes the API carry out one of the pending actions, with a fault.
func (w *world) carryOut(ticket Ticket, fault virtual.Fault) {
	action := w.under[ticket]
	outcome, done := fault.Outcome()
	refuse := outcome != response.OK
	var o Outcome
	switch a := action.(type) {
	case Bind:
		if fault != virtual.Ineffective {
			o = w.bind(a, !done) // without a response, the scheduler reads the pod
		}
	case Remove:
		if refuse {
			o.Fault = &Fault{Message: fault.String()}
		}
		switch p := w.pods[a.Victim.UID]; {
		case !done:
		case p != nil && p.Spec.NodeName == "": // no kubelet delays the deletion
			w.remove(p)
		case p != nil && p.DeletionTimestamp == nil:
			w.change(p, func(p *v1.Pod) {
				p.DeletionTimestamp = &metav1.Time{Time: w.now}
				p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
					Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
				})
			})
		}
	case Preflight:
		for range a.By.PreBind {
			o.Work = append(o.Work, PreBindWork{Needed: w.rng.IntN(3) > 0, Parallel: w.rng.IntN(2) == 0})
		}
	case PreBind:
		if refuse {
			o.Fault = &Fault{Message: "refused"}
		}
	case Hold:
		e := Event(PermitAllowed{a.Ticket, "Holds"})
		if refuse {
			e = PermitRejected{a.Ticket, "Holds", "no", w.rng.IntN(2) == 0}
		}
		w.watches[answers] = append(w.watches[answers], e)
		return // the core releases held pods
	}
	w.drop(ticket)
	w.watches[answers] = append(w.watches[answers], Answered{ticket, o})
}

func (w *world) bind(a Bind, refuse bool) (o Outcome) {
	p := w.pods[a.Attempt.Pod.UID]
	switch {
	case refuse:
		o.Fault = &Fault{Message: "refused"}
	case p == nil || p.DeletionTimestamp != nil:
		o.Fault = &Fault{Message: "the pod was deleted"}
	case p.Spec.NodeName != "":
		o.Fault = &Fault{Message: "the pod was bound by another client"}
		if p.Spec.NodeName == a.Attempt.Node {
			o.Fault = nil
		}
	default:
		w.binds++
		w.change(p, func(p *v1.Pod) { p.Spec.NodeName = a.Attempt.Node })
		w.checkRoom(a.Attempt.Node)
	}
	return o
}

// checkRoom checks that a node has room for its pods.
func (w *world) checkRoom(node string) {
	n := w.nodes[node]
	if n == nil {
		return // the node was deleted, and pod garbage collection will delete its pods
	}
	room := n.Status.Allocatable.Cpu().MilliValue()
	for _, p := range w.pods {
		if p.Spec.NodeName == node {
			room -= p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		}
	}
	if room < 0 {
		w.breaks("node %s has %dm more than it can take", node, -room)
	}
}

// change stores a pod's new state in the API, and queues its watch event.
func (w *world) change(p *v1.Pod, how func(*v1.Pod)) {
	next := p.DeepCopy()
	how(next)
	w.put(next)
}

func (w *world) put(p *v1.Pod) {
	w.version++
	p.ResourceVersion = fmt.Sprint(w.version)
	w.pods[p.UID] = p
	w.watches[Pods] = append(w.watches[Pods], Seen{Pods, p})
}

func (w *world) putNode(n *v1.Node) {
	w.nodes[n.Name] = n
	w.watches[Nodes] = append(w.watches[Nodes], Seen{Nodes, n})
}

func (w *world) remove(p *v1.Pod) {
	delete(w.pods, p.UID)
	w.watches[Pods] = append(w.watches[Pods], Gone{Pods, p})
}

func (w *world) removeNode(name string) {
	w.watches[Nodes] = append(w.watches[Nodes], Gone{Nodes, w.nodes[name]})
	delete(w.nodes, name)
}

// list shows all objects of a kind, replacing the undelivered events.
func (w *world) list(kind Kind) {
	w.watches[kind] = nil
	w.tell(Listing{kind})
	for _, object := range w.objects(kind) {
		w.tell(Seen{kind, object})
	}
	w.tell(Listed{kind})
}

// objects returns all objects of a kind.
func (w *world) objects(kind Kind) (all []metav1.Object) {
	switch kind {
	case Nodes:
		for _, name := range sorted(w.nodes) {
			all = append(all, w.nodes[name])
		}
	case Pods:
		for _, uid := range sorted(w.pods) {
			all = append(all, w.pods[uid])
		}
	case DisruptionBudgets:
		for _, name := range sorted(w.budgets.all) {
			all = append(all, w.budgets.all[name])
		}
	case MoveLeases:
		if w.lease != nil {
			all = append(all, w.lease)
		}
	case CompositePodGroups:
		for _, name := range sorted(w.gangs.composites) {
			all = append(all, w.gangs.composites[name])
		}
	case PodGroups:
		for _, name := range sorted(w.gangs.all) {
			all = append(all, w.gangs.all[name])
		}
	}
	return all
}

// deliver delivers the next event of a watch, or the next result.
func (w *world) deliver(kind Kind) bool {
	if len(w.watches[kind]) == 0 {
		return false
	}
	e := w.watches[kind][0]
	w.watches[kind] = w.watches[kind][1:]
	w.tell(e)
	return true
}

// settle delivers all events, completes all actions, and advances the time, until no more events
// occur.
func (w *world) settle(most time.Duration) {
	w.settling = true
	for end, rounds := w.now.Add(most), 0; ; rounds++ {
		if rounds > 10_000 {
			w.breaks("the core never comes to rest")
			return
		}
		busy := false
		w.countBudgets()
		for _, kind := range append(slices.Clone(w.kinds), answers) {
			for w.deliver(kind) {
				busy = true
			}
		}
		for _, ticket := range slices.Clone(w.tickets) {
			if w.under[ticket] != nil {
				w.carryOut(ticket, virtual.None)
				busy = true
			}
		}
		for _, uid := range sorted(w.pods) { // simulate the kubelets
			if p := w.pods[uid]; p.DeletionTimestamp != nil || p.Spec.NodeName != "" && w.nodes[p.Spec.NodeName] == nil {
				w.remove(p)
				busy = true
			}
		}
		if busy {
			continue
		}
		if wake := w.core.Wake(w.now); wake.After(w.now) {
			if !w.now.Before(end) {
				return
			}
			w.now = wake
		}
		w.tell(Tick{})
	}
}

// replay plays the journal to another core, and reports the first difference.
func (w *world) replay() error {
	o := w.options
	o.Profiles = w.profiles()
	core, err := New(o)
	if err != nil {
		return err
	}
	for i, t := range w.journal {
		var lines []string
		for _, action := range core.Step(t.at, t.event) {
			lines = append(lines, action.String())
		}
		if again := strings.Join(lines, "\n"); again != t.actions {
			return fmt.Errorf("event %d, %#v: said\n%s\nand when it was replayed\n%s", i, t.event, t.actions, again)
		}
	}
	return nil
}

func sorted[K ~string, V any](m map[K]V) []K {
	var keys []K
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func aNode(name, cpu string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}},
	}
}

func aPod(name, cpu string) *v1.Pod {
	priority := int32(0)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Time{Time: begin}},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName, Priority: &priority,
			Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)},
			}}},
		},
	}
}
