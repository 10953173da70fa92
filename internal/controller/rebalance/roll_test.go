// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// rolled holds the parsed arguments of the command roll.
type rolled struct{ rebalance.Rolling }

// rollingOf parses the arguments of the command roll; the nodes are selected by the label
// pool:roll.
func rollingOf(t *testing.T, objects []metav1.Object, args []datadriven.CmdArg) (r rolled) {
	var rest []datadriven.CmdArg
	for _, arg := range args {
		switch arg.Key {
		case "at-once":
			r.AtOnce, _ = strconv.Atoi(arg.Vals[0])
		case "begun":
			r.Begun = arg.Vals
		case "done":
			r.Done = arg.Vals
		default:
			rest = append(rest, arg)
		}
	}
	r.Leaving = draining(t, rest).Leaving
	r.Closed = map[string]bool{}
	for _, o := range objects {
		if n, ok := o.(*v1.Node); ok && n.Labels["pool"] == "roll" && !slices.Contains(r.Done, n.Name) {
			r.Nodes = append(r.Nodes, n.Name)
			r.Closed[n.Name] = n.Spec.Unschedulable
		}
	}
	slices.Sort(r.Nodes)
	return r
}

func showRoll(plan *rebalance.Roll) string {
	var b strings.Builder
	for i := range plan.Turns {
		turn := &plan.Turns[i]
		fmt.Fprintf(&b, "turn %d: %s", i+1, strings.Join(turn.Nodes, " "))
		if turn.Zone != "" {
			fmt.Fprintf(&b, " in %s", turn.Zone)
		}
		if len(turn.Opens) > 0 {
			fmt.Fprintf(&b, "; opens %s", strings.Join(turn.Opens, " "))
		}
		b.WriteString("\n")
		if text := showDraining(&turn.Draining); text != "" {
			b.WriteString(text + "\n")
		}
	}
	fmt.Fprintf(&b, "%d pods, %d moves", plan.Pods, plan.Moves)
	for _, again := range plan.Again {
		fmt.Fprintf(&b, "; %s %d times", again.Name, again.Times)
	}
	return b.String() + "\n"
}

// rollOptions parses the arguments of the command roll of TestExecution.
func (s *stage) rollOptions(t *testing.T, args []datadriven.CmdArg) execute.RollOptions {
	o := execute.RollOptions{Selector: labels.SelectorFromSet(labels.Set{"pool": "roll"}), Until: execute.UntilDrained}
	atOnce := 1
	var rest []datadriven.CmdArg
	for _, arg := range args {
		switch arg.Key {
		case "at-once":
			atOnce, _ = strconv.Atoi(arg.Vals[0])
		case "until":
			o.Until = map[string]execute.Until{"ready": execute.UntilReady, "new": execute.UntilNew}[arg.Vals[0]]
		case "restart":
			o.Restart = true
		default:
			rest = append(rest, arg)
		}
	}
	o.AtOnce = func(int) int { return atOnce }
	o.DrainOptions = draining(t, rest)
	return o
}

// setNode handles a request to cordon or uncordon a node.
func (s *stage) setNode(a execute.SetNode) execute.Event {
	n := s.node(a.Node)
	if n == nil {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Gone, Message: "not found"}
	}
	n = n.DeepCopy()
	n.Spec.Unschedulable = a.Cordoned
	s.After(300*time.Millisecond, func() { s.taintCordoned(a.Node) })
	if metav1.SetMetaDataAnnotation(&n.ObjectMeta, execute.RollAnnotation, a.Note); a.Note == "" {
		delete(n.Annotations, execute.RollAnnotation)
	}
	if a.Release {
		delete(n.Labels, execute.BoughtLabel)
		delete(n.Annotations, disruption.KarpenterAnnotation)
	}
	s.write(n)
	return execute.Answered{Ticket: a.Ticket}
}

// taintCordoned updates a node's cordon taint like the node controller.
func (s *stage) taintCordoned(name string) {
	n := s.node(name)
	if n == nil {
		return
	}
	n = n.DeepCopy()
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeUnschedulable })
	if n.Spec.Unschedulable {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
	}
	s.write(n)
}

// restart restarts a node.
func (s *stage) restart(name string) {
	n := s.node(name).DeepCopy()
	n.Status.NodeInfo.BootID += "+"
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse, LastTransitionTime: metav1.NewTime(s.Now)}}
	s.write(n)
	s.After(5*time.Second, func() {
		n := s.node(name).DeepCopy()
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.Now)}}
		s.write(n)
	})
}

// exchange removes a node, and adds another one five seconds later.
func (s *stage) exchange(t *testing.T, name, line string) {
	s.remove(s.node(name))
	s.After(5*time.Second, func() {
		for _, o := range object(t, line) {
			if n, ok := o.(*v1.Node); ok {
				n.UID, n.CreationTimestamp = "new", metav1.NewTime(s.Now)
			}
			s.write(o)
		}
	})
}

func (s *stage) rollTold(a execute.RollProgress) {
	switch {
	case a.Plan != nil:
		s.say("planned:\n%s", strings.TrimSuffix(showRoll(a.Plan), "\n"))
	case a.Node != "":
		s.say("%s %s", a.Node, a.Message)
	default:
		s.say("%s", a.Message)
	}
}

// showNodes prints the nodes, with their cordons and their progress in a roll.
func (s *stage) showNodes() {
	for _, name := range s.nodeNames() {
		n := s.node(name)
		fmt.Fprintf(&s.lines, "%s", name)
		if n.Spec.Unschedulable {
			s.lines.WriteString(" cordoned")
		}
		if note := n.Annotations[execute.RollAnnotation]; note != "" {
			s.lines.WriteString(" " + note)
		}
		s.lines.WriteString("\n")
	}
}

func (s *stage) nodeNames() (names []string) {
	for _, o := range s.objects {
		if n, ok := o.(*v1.Node); ok {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// TestARollGoesOnAfterAKill verifies that a roll is completed although the process is killed before
// or after any of its requests, and restarted. In the end all nodes are done and uncordoned, all
// pods are replaced and ready, and there were never fewer ready pods than in the beginning.
func TestARollGoesOnAfterAKill(t *testing.T) {
	const world = `node a cpu=4 label=pool:roll
		node b cpu=4 label=pool:roll
		node c cpu=4 label=pool:roll
		deployment web
		pods web count=2 on=a cpu=1 label=app:web
		pods web2 count=1 on=b cpu=1 label=app:web2
		pods web3 count=3 on=c cpu=1
		budget web of=app:web unavailable=0
		budget web2 of=app:web2 unavailable=0`
	for _, done := range []bool{false, true} {
		for at := 1; ; at++ {
			s := newStage(t, 1, world, &rebalance.Policy{})
			s.draining, s.statuses = true, true
			s.count()
			s.Run(time.Second)
			requests := 0
			s.faults.request = func() bool {
				if requests++; requests != at {
					return true
				}
				s.process.Kill()
				return done
			}
			options := execute.RollOptions{
				DrainOptions: execute.DrainOptions{Leaving: rebalance.Leaving{Surge: true}}, Until: execute.UntilDrained,
				Selector: labels.SelectorFromSet(labels.Set{"pool": "roll"}), AtOnce: func(int) int { return 1 },
			}
			for try := 0; len(s.rolls) == 0 && try < 10; try++ {
				if !s.process.Running() {
					s.begin(execute.NewRoller(options))
				}
				for range 600 {
					s.Run(200 * time.Millisecond)
					if up := s.up("web") + s.up("web2"); up < 3 {
						s.fail("%d pods are ready", up)
					}
				}
			}
			s.judgeRoll()
			if len(s.wrong) > 0 {
				t.Fatalf("killed at request %d (carried out: %v): %v\n%s", at, done, s.wrong, s.lines.String())
			}
			if requests < at {
				break
			}
		}
	}
}

// judgeRoll verifies the invariants of a finished roll.
func (s *stage) judgeRoll() {
	if len(s.rolls) != 1 || s.rolls[0].Stopped != "" || s.rolls[0].Done != s.rolls[0].Nodes {
		s.fail("the roll ended with %+v", s.rolls)
	}
	for _, name := range s.nodeNames() {
		if n := s.node(name); n.Spec.Unschedulable || n.Annotations[execute.RollAnnotation] != "" {
			s.fail("node %s: cordoned: %v, %v", name, n.Spec.Unschedulable, n.Annotations)
		}
	}
	if count := len(s.pods()); count != 6 {
		s.fail("there are %d pods, and 6 were", count)
	}
	for _, p := range s.pods() {
		if strings.HasSuffix(string(p.UID), "-0") || strings.HasSuffix(string(p.UID), "-1") || !isReady(p) || execute.Marked(p) {
			s.fail("%s is on %q, ready: %v, marked: %v", p.Name, p.Spec.NodeName, isReady(p), execute.Marked(p))
		}
	}
}

// unansweredEvictions is a core that collects its evictions: they are neither made nor answered.
type unansweredEvictions struct {
	core
	list []execute.Evict
}

func (u *unansweredEvictions) Step(now time.Time, event execute.Event) (actions []execute.Action) {
	for _, action := range u.core.Step(now, event) {
		if eviction, ok := action.(execute.Evict); ok {
			u.list = append(u.list, eviction)
			continue
		}
		actions = append(actions, action)
	}
	return actions
}

// TestATurnEndsWhenItsEvictionIsAnswered verifies that a turn waits for the response to its
// eviction even after its timeout, so that the eviction counts. Otherwise the response would arrive
// in the next turn, which has another eviction in flight.
func TestATurnEndsWhenItsEvictionIsAnswered(t *testing.T) {
	s := newStage(t, 1, `node a cpu=4 label=pool:roll
		node b cpu=4 label=pool:roll
		node spare cpu=4
		pods x count=1 on=a cpu=1
		pods y count=1 on=b cpu=1`, &rebalance.Policy{})
	s.draining = true
	unanswered := &unansweredEvictions{core: execute.NewRoller(execute.RollOptions{
		DrainOptions: execute.DrainOptions{Timeout: 10 * time.Second}, Until: execute.UntilDrained,
		Selector: labels.SelectorFromSet(labels.Set{"pool": "roll"}), AtOnce: func(int) int { return 1 },
	})}
	s.begin(unanswered)
	s.Run(time.Second)
	for _, p := range s.pods() {
		if p.Spec.NodeName == "a" {
			s.terminate(p)
		}
	}
	s.Run(10 * time.Second)
	if len(unanswered.list) != 1 {
		t.Fatalf("evictions %+v, want that of the first turn\n%s", unanswered.list, s.lines.String())
	}

	s.step(execute.Answered{Ticket: unanswered.list[0].Ticket})
	s.Run(time.Second)
	if text := s.lines.String(); len(unanswered.list) != 2 || unanswered.list[1].Name != "y-0" || !strings.Contains(text, "x-0 Evicted") {
		t.Errorf("evictions %+v, want one of each turn, the first of which counts:\n%s", unanswered.list, text)
	}
}

// TestARollFinishesItsZone verifies that a roll finishes a zone before it begins the next one,
// whichever nodes are done.
func TestARollFinishesItsZone(t *testing.T) {
	s := newStage(t, 1, `node a1 cpu=4 label=topology.kubernetes.io/zone:a
		node a2 cpu=4 label=topology.kubernetes.io/zone:a
		node b1 cpu=4 label=topology.kubernetes.io/zone:b
		node b2 cpu=4 label=topology.kubernetes.io/zone:b
		node c1 cpu=4 label=topology.kubernetes.io/zone:c
		pods x count=3 on=b2 cpu=1
		pods y count=1 on=c1 cpu=1`, &rebalance.Policy{})
	for _, c := range []struct {
		done, nodes []string
		next        string
	}{
		{[]string{"b1"}, []string{"a1", "a2", "b2", "c1"}, "b2"},
		{[]string{"a1", "a2", "b1"}, []string{"b2", "c1"}, "b2"}, // zone a is done, zone b is not
		{[]string{"a1", "a2", "b1", "b2"}, []string{"c1"}, "c1"},
		{nil, []string{"gone"}, ""},
		{[]string{"a1"}, nil, ""},
	} {
		cluster := world.Open(nil)
		for _, o := range s.objects {
			cluster.Put(o)
		}
		turn := rebalance.PlanTurn(&rebalance.State{AsOf: s.Now, World: cluster}, &rebalance.Rolling{
			Leaving: rebalance.Leaving{Nodes: c.nodes}, AtOnce: 1, Done: c.done,
		}, rebalance.Options{Profiles: s.profiles})
		switch {
		case turn == nil && c.next == "":
		case turn == nil || len(turn.Nodes) != 1 || turn.Nodes[0] != c.next:
			t.Errorf("%v are done: the next turn is %+v, expected %q", c.done, turn, c.next)
		}
	}
}

// TestARollSurvivesTheLossOfItsNodes verifies that a roll ends properly even if all of its nodes
// are deleted or lose their label at some time: all remaining nodes are uncordoned and have no
// note.
func TestARollSurvivesTheLossOfItsNodes(t *testing.T) {
	for at := time.Duration(0); at < 15*time.Second; at += 200 * time.Millisecond {
		for _, relabel := range []bool{false, true} {
			s := newStage(t, 1, `node a cpu=4 label=pool:roll
				node b cpu=4 label=pool:roll
				node c cpu=8
				pods web count=2 on=a cpu=1
				pods web2 count=2 on=b cpu=1`, &rebalance.Policy{})
			s.draining, s.statuses = true, true
			s.count()
			s.begin(execute.NewRoller(s.rollOptions(t, nil)))
			s.Run(at)
			for _, name := range []string{"a", "b"} {
				n := s.node(name).DeepCopy()
				if n.Labels = nil; relabel {
					s.write(n)
				} else {
					s.remove(n)
				}
			}
			s.Run(15 * time.Minute)
			if len(s.rolls) != 1 {
				t.Errorf("nodes lost after %s (relabeled: %v): ended with %+v\n%s", at, relabel, s.rolls, s.lines.String())
			}
			for _, name := range s.nodeNames() {
				if n := s.node(name); n.Spec.Unschedulable || n.Annotations[execute.RollAnnotation] != "" {
					t.Errorf("nodes lost after %s (relabeled: %v): %s is cordoned (%v), its note is %q\n%s", at, relabel, name, n.Spec.Unschedulable, n.Annotations[execute.RollAnnotation], s.lines.String())
				}
			}
		}
	}
}
