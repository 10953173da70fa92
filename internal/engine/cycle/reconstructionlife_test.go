// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	config "k8s.io/kube-scheduler/config/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/reconstruct"
)

var shadowSeeds = flag.Int("shadowseeds", 20, "seeds of TestAShadowOfItselfFindsNoDifferenceInAnyLife")

// shadowed is an API server in virtual time with a running scheduler and a shadow. Both receive the
// events of every object in order, with a separate delay for each kind.
type shadowed struct {
	rng    *rand.Rand
	now    time.Time
	own    *Core // the scheduler
	shadow *Core
	life   life

	nodes    map[string]*v1.Node
	pods     map[types.UID]*v1.Pod
	order    []types.UID // pods in creation order
	made     int
	log      map[Kind][]seenAt
	behind   [2]map[Kind]*reader // delayed events of the scheduler and of the shadow
	writes   []write
	leaving  map[types.UID]time.Time // time at which the kubelet removes a terminating pod
	judge    map[string]int          // number of judgements by result: best, worse, unclear
	describe []string                // descriptions of worse placements
}

// life describes the behavior of a shadowed cluster.
type life struct {
	nodes, burst int
	slowest      time.Duration // maximum delay of bindings
	inOrder      bool          // bindings are written one after the other
	deletions    bool          // single pods, pending or placed, are deleted at any time
	sweeps       bool          // all pods of a burst are deleted
	changes      bool          // nodes are changed
	full         bool          // there may be more pods than room
	spread       bool
}

type seenAt struct {
	at    time.Time
	event Event
}

type reader struct {
	next int
	lag  time.Duration
}

// write is a pending write of a binding or a condition to the API.
type write struct {
	due    time.Time
	action Action
	ticket Ticket
}

func newShadowed(t *testing.T, seed uint64, l life, profile *plugins.Profile) *shadowed {
	t.Helper()
	s := &shadowed{
		rng: rand.New(rand.NewPCG(seed, 38)), now: begin, life: l, nodes: map[string]*v1.Node{}, pods: map[types.UID]*v1.Pod{},
		log: map[Kind][]seenAt{}, leaving: map[types.UID]time.Time{}, judge: map[string]int{},
	}
	var err error
	if s.own, err = New(Options{Seed: seed, Profiles: []Profile{{Profile: profile}}}); err != nil {
		t.Fatal(err)
	}
	if s.shadow, err = New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Shadow: reconstruct.New}); err != nil {
		t.Fatal(err)
	}
	for i, core := range []*Core{s.own, s.shadow} {
		s.behind[i] = map[Kind]*reader{Nodes: {}, Pods: {}}
		for _, e := range []Event{Follows{Kinds: []Kind{Nodes, Pods}}, Led{}, Listing{Nodes}, Listing{Pods}, Listed{Nodes}, Listed{Pods}} {
			if e == (Led{}) && core == s.shadow {
				continue
			}
			core.Step(s.now, e)
		}
	}
	for i := range l.nodes {
		s.setNode(aNode(fmt.Sprintf("n%d", i), fmt.Sprint(4+4*(i%4))))
	}
	s.pass(2 * time.Second)
	return s
}

func (s *shadowed) show(kind Kind, e Event) { s.log[kind] = append(s.log[kind], seenAt{s.now, e}) }

func (s *shadowed) setNode(node *v1.Node) {
	s.nodes[node.Name] = node
	s.show(Nodes, Seen{Nodes, node})
}

func (s *shadowed) setPod(pod *v1.Pod) {
	s.pods[pod.UID] = pod
	s.show(Pods, Seen{Pods, pod})
}

func (s *shadowed) removePod(pod *v1.Pod) {
	delete(s.pods, pod.UID)
	delete(s.leaving, pod.UID)
	s.order = slices.DeleteFunc(s.order, func(uid types.UID) bool { return uid == pod.UID })
	s.show(Pods, Gone{Pods, pod})
}

// deletePod deletes a pod like the API server: immediately if it has no node.
func (s *shadowed) deletePod(pod *v1.Pod) {
	switch {
	case pod.Spec.NodeName == "":
		s.removePod(pod)
	case pod.DeletionTimestamp == nil:
		leaving := pod.DeepCopy()
		leaving.DeletionTimestamp = &metav1.Time{Time: s.now}
		s.setPod(leaving)
		s.leaving[pod.UID] = s.now.Add(time.Duration(s.rng.Int64N(int64(5 * time.Second))))
	}
}

// pass advances the time.
func (s *shadowed) pass(d time.Duration) {
	const pause = 50 * time.Millisecond
	for end := s.now.Add(d); s.now.Before(end); s.now = s.now.Add(pause) {
		s.write()
		for _, uid := range slices.Clone(s.order) {
			if at, leaves := s.leaving[uid]; leaves && !s.now.Before(at) {
				s.removePod(s.pods[uid])
			}
		}
		for i, core := range []*Core{s.own, s.shadow} {
			s.read(core, s.behind[i])
		}
		for range 10 { // let the scheduler decide
			s.do(s.own.Step(s.now, Tick{}))
		}
		s.compare(s.shadow.Step(s.now, Tick{}))
	}
}

// read delivers to a core the events due by now.
func (s *shadowed) read(core *Core, behind map[Kind]*reader) {
	for _, kind := range []Kind{Nodes, Pods} {
		r := behind[kind]
		if s.rng.IntN(20) == 0 {
			r.lag = time.Duration(s.rng.Int64N(int64(400 * time.Millisecond)))
		}
		for ; r.next < len(s.log[kind]) && !s.now.Before(s.log[kind][r.next].at.Add(r.lag)); r.next++ {
			actions := core.Step(s.now, s.log[kind][r.next].event)
			if core == s.own {
				s.do(actions)
			} else {
				s.compare(actions)
			}
		}
	}
}

// do starts the scheduler's actions.
func (s *shadowed) do(actions []Action) {
	for _, action := range actions {
		w := write{due: s.now.Add(time.Duration(s.rng.Int64N(int64(100 * time.Millisecond)))), action: action}
		switch a := action.(type) {
		case Bind:
			w.ticket = a.Ticket
			w.due = s.now.Add(time.Duration(s.rng.Int64N(int64(s.life.slowest))))
			if s.life.inOrder {
				w.due = s.now
				for i := range s.writes {
					if _, bind := s.writes[i].action.(Bind); bind && s.writes[i].due.After(w.due) {
						w.due = s.writes[i].due
					}
				}
				w.due = w.due.Add(time.Duration(s.rng.Int64N(int64(s.life.slowest) / int64(s.life.burst))))
			}
		case WriteStatus:
			w.ticket = a.Ticket
		case Cancel:
			s.cancel(a.Ticket)
			continue
		default:
			continue
		}
		s.writes = append(s.writes, w)
	}
}

// cancel withdraws a binding not written yet.
func (s *shadowed) cancel(ticket Ticket) {
	for i := range s.writes {
		if _, bind := s.writes[i].action.(Bind); bind && s.writes[i].ticket == ticket {
			s.writes = slices.Delete(s.writes, i, i+1)
			s.do(slices.Clone(s.own.Step(s.now, Answered{ticket, Outcome{Withdrawn: true}})))
			return
		}
	}
}

// write carries out the due writes.
func (s *shadowed) write() {
	for i := 0; i < len(s.writes); i++ {
		w := s.writes[i]
		if w.due.After(s.now) {
			continue
		}
		s.writes = slices.Delete(s.writes, i, i+1)
		i--
		var o Outcome
		switch a := w.action.(type) {
		case Bind:
			if pod := s.pods[a.Attempt.Pod.UID]; pod == nil {
				o.Fault = &Fault{Message: "gone"}
			} else {
				s.setPod(onNode(pod, a.Attempt.Node))
			}
		case WriteStatus:
			if pod := s.pods[a.Pod.UID]; pod != nil && pod.Spec.NodeName == "" && a.Condition != nil {
				told := pod.DeepCopy()
				told.Status.Conditions = []v1.PodCondition{*a.Condition}
				s.setPod(told)
			}
		}
		if w.ticket != 0 {
			s.do(slices.Clone(s.own.Step(s.now, Answered{w.ticket, o})))
			i = -1 // the call may have changed the writes
		}
	}
}

// compare counts the shadow's judgments.
func (s *shadowed) compare(actions []Action) {
	for _, action := range actions {
		a, ok := action.(Compared)
		switch {
		case !ok:
		case slices.ContainsFunc(a.Evaluation.Best(), func(v *decide.NodeVerdict) bool { return v.Node.Name == a.Node }):
			s.judge["best"]++
		case a.Unclear:
			s.judge["unclear"]++
		default:
			s.judge["worse"]++
			s.describe = append(s.describe, fmt.Sprintf("%s: %s on %s", s.now.Sub(begin), a.Pod.Name, a.Node))
		}
	}
}

// create creates pods.
func (s *shadowed) create(pods int) {
	for range pods {
		name := fmt.Sprintf("p%d", s.made)
		s.made++
		pod := aPod(name, fmt.Sprintf("%dm", 50+50*s.rng.IntN(4)))
		if s.life.full && s.rng.IntN(3) == 0 {
			pod = aPod(name, fmt.Sprint(2+2*s.rng.IntN(3)))
		}
		never := v1.PreemptNever
		pod.Spec.PreemptionPolicy = &never
		pod.Labels = map[string]string{"app": "a"}
		if s.life.spread {
			pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			}}
		}
		s.order = append(s.order, pod.UID)
		s.setPod(pod)
	}
}

// live runs a number of bursts.
func (s *shadowed) live(bursts int) {
	for range bursts {
		s.create(1 + s.rng.IntN(s.life.burst))
		for range s.rng.IntN(40) {
			s.pass(time.Duration(s.rng.Int64N(int64(2 * time.Second))))
			s.happen()
		}
		if s.life.sweeps && s.rng.IntN(2) == 0 {
			if s.rng.IntN(2) == 0 { // all pods are placed by then
				s.pass(s.life.slowest * 2)
			}
			for _, uid := range slices.Clone(s.order) {
				s.deletePod(s.pods[uid])
			}
			s.pass(time.Duration(s.rng.Int64N(int64(10 * time.Second))))
		}
	}
	s.pass(4*s.life.slowest + 3*reconstruct.MaxBindingDelay)
}

// happen triggers one random event in addition to the burst.
func (s *shadowed) happen() {
	switch draw := s.rng.IntN(12); {
	case draw < 2:
		s.create(1 + s.rng.IntN(3))
	case draw < 4 && s.life.deletions && len(s.order) > 0:
		s.deletePod(s.pods[s.order[s.rng.IntN(len(s.order))]])
	case draw == 4 && s.life.changes:
		name := fmt.Sprintf("n%d", s.rng.IntN(s.life.nodes))
		s.setNode(aNode(name, fmt.Sprint(4+4*s.rng.IntN(4))))
	}
}

// drawLife draws the behavior of a cluster.
func drawLife(rng *rand.Rand) life {
	odds := func(n int) bool { return rng.IntN(n) == 0 }
	l := life{
		nodes: 2 + rng.IntN(8), burst: 1 + rng.IntN(60), slowest: 2 * time.Second, inOrder: odds(4), deletions: odds(2), sweeps: odds(2),
		changes: odds(4), full: odds(4), spread: odds(3),
	}
	if odds(2) {
		l.slowest = time.Duration(1+rng.IntN(120)) * time.Second
	}
	return l
}

// TestAShadowOfItselfFindsNoDifferenceInAnyLife verifies that a shadow of the same scheduler finds
// no difference, although bindings arrive late and in any order, and pods and nodes are created,
// deleted and changed in between.
func TestAShadowOfItselfFindsNoDifferenceInAnyLife(t *testing.T) {
	all := map[string]int{}
	for seed := range uint64(*shadowSeeds) {
		l := drawLife(rand.New(rand.NewPCG(seed, 1)))
		s := newShadowed(t, seed, l, plugins.Default())
		s.live(6)
		if s.judge["worse"] > 0 {
			t.Errorf("seed %d, %+v: %v\n%s", seed, l, s.judge, s.describe[0])
		}
		for outcome, n := range s.judge {
			all[outcome] += n
		}
	}
	t.Logf("%v", all)
}

// TestAWrongSchedulerIsFoundOutInAnyLife verifies that a shadow detects a scheduler that always
// fills the fullest node. If the order of decisions is unknown, many placements cannot be judged.
func TestAWrongSchedulerIsFoundOutInAnyLife(t *testing.T) {
	for name, row := range map[string]struct {
		life
		least float64 // minimum share of placements judged to be worse
	}{
		"bursts":                             {life{nodes: 6, burst: 60, slowest: 2 * time.Second}, 0.95},
		"bindings that are late, in order":   {life{nodes: 6, burst: 60, slowest: 2 * time.Minute, inOrder: true}, 0.95},
		"nodes change":                       {life{nodes: 6, burst: 60, slowest: 2 * time.Second, changes: true}, 0.8},
		"bursts that are swept away":         {life{nodes: 6, burst: 60, slowest: 2 * time.Second, sweeps: true}, 0.65},
		"deletions":                          {life{nodes: 6, burst: 60, slowest: 2 * time.Second, deletions: true}, 0.5},
		"bindings that are late":             {life{nodes: 6, burst: 60, slowest: time.Minute}, 0.5},
		"bindings that are late, swept away": {life{nodes: 6, burst: 60, slowest: time.Minute, sweeps: true}, 0.25},
	} {
		all, pods := map[string]int{}, 0
		for seed := range uint64(5) {
			s := newShadowed(t, seed, row.life, packing(t))
			s.live(6)
			for outcome, n := range s.judge {
				all[outcome] += n
				pods += n
			}
		}
		if found := float64(all["worse"]); found < row.least*float64(pods) || found < 0.9*float64(pods-all["unclear"]) {
			t.Errorf("%s: %v", name, all)
		}
	}
}

// packing returns a profile that scores nodes only by their fill level.
func packing(t *testing.T) *plugins.Profile {
	t.Helper()
	at := map[plugins.Point][]string{}
	for point, names := range plugins.Default().At {
		at[point] = names
	}
	at[plugins.Score] = []string{"NodeResourcesFit"}
	p, err := plugins.NewProfile(plugins.DefaultSchedulerName, at, map[string]int64{"NodeResourcesFit": 1}, map[string]any{
		"NodeResourcesFit": &config.NodeResourcesFitArgs{ScoringStrategy: &config.ScoringStrategy{
			Type: config.MostAllocated, Resources: []config.ResourceSpec{{Name: "cpu", Weight: 1}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
