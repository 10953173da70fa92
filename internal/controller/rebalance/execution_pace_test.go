// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestEveryFaultIsSurvived verifies the properties of virtual.Verify for moves, drains and rolls:
// whatever the responses, they end when they are interrupted, and leave no node tainted or closed
// that was open.
func TestEveryFaultIsSurvived(t *testing.T) {
	drain := func(surge bool) func() core {
		return func() core {
			return execute.NewDrainer(execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a", "b"}, Surge: surge}})
		}
	}
	injected := map[virtual.Injection]int{}
	for name, c := range map[string]struct {
		goals []string
		kinds []string
		make  func() core
	}{
		"moves": {[]string{"consolidate=1"}, []string{"Recall", "Note", "SetTaint", "Evict"},
			func() core { return execute.New(execute.Options{Every: 10 * time.Second}) }},
		"moves with surge": {[]string{"consolidate=1"}, []string{"Note", "Scale", "Mark"},
			func() core { return execute.New(execute.Options{Every: 10 * time.Second, Surge: true}) }},
		"drain":            {nil, []string{"Cordon", "Evict"}, drain(false)},
		"drain with surge": {nil, []string{"Scale", "Mark"}, drain(true)},
		"roll": {nil, []string{"SetNode", "Scale", "Mark"}, func() core {
			return execute.NewRoller(execute.RollOptions{
				DrainOptions: execute.DrainOptions{Leaving: rebalance.Leaving{Surge: true}}, Until: execute.UntilDrained,
				Selector: labels.SelectorFromSet(labels.Set{"pool": "roll"}), AtOnce: func(int) int { return 1 },
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			policy := &rebalance.Policy{}
			if c.goals != nil {
				var err error
				if policy, err = rebalance.ReadGoals(c.goals, "default"); err != nil {
					t.Fatal(err)
				}
			}
			virtual.Add(injected, virtual.Verify(func() *virtual.Subject { return moving(t, policy, c.kinds, c.make) }, t.Errorf))
		})
	}
	t.Log(virtual.Summary(injected))
}

// mover is a process whose core begins its work when it starts.
type mover struct {
	*stage
	make func() core
	twin bool
}

func (m *mover) Start() {
	m.begin(m.make())
	if m.twin {
		m.next = m.make()
		m.process.SetTwin(true)
		m.step(execute.Listed{})
	}
}

// SetTwin makes a second process start with the first one. Both end when they are interrupted.
func (m *mover) SetTwin(on bool) { m.twin = m.twin || on }

// moving returns a cluster in which pods of two nodes are moved.
func moving(t *testing.T, policy *rebalance.Policy, kinds []string, make func() core) *virtual.Subject {
	s := newStage(t, 1, `node a cpu=4 label=pool:roll
		node b cpu=4 label=pool:roll
		node c cpu=8
		deployment web
		pods web count=2 on=a cpu=1 label=app:web
		pods web2 count=1 on=b cpu=1 label=app:web2
		pods web3 count=3 on=c cpu=1
		budget web of=app:web unavailable=1
		budget web2 of=app:web2 unavailable=1`, policy)
	s.draining, s.statuses = true, true
	s.count()
	s.Run(time.Second)
	replicas, process := maps.Clone(s.replicas), &mover{stage: s, make: make}
	return &virtual.Subject{
		Time: s.Time, Process: process, Faults: &s.line.Faults, Requests: &s.line.Requests, Watches: []*virtual.Watch{s.watch},
		Kinds: kinds, SetClock: func(ahead time.Duration) { s.process.Ahead = ahead },
		Policies: map[string]func(bool){
			"no controller acts":                   func(on bool) { s.faults.idle = on },
			"EvictionRequests that stand for ever": func(on bool) { s.faults.stands = on },
			"no scheduler":                         func(on bool) { s.faults.unscheduled = on },
			"containers do not start":              func(on bool) { s.faults.unready = on },
		},
		Stop:     func() { s.step(execute.Stop{}) },
		Recovers: 3 * time.Minute,
		Wrong: func() (wrong []string) {
			if ended := len(s.done) + len(s.drained) + len(s.rolls); ended == 0 || ended == 1 && process.twin {
				wrong = append(wrong, "not over three minutes after it was interrupted")
			}
			if !maps.Equal(s.replicas, replicas) {
				wrong = append(wrong, fmt.Sprintf("workloads have the scales %v, and had %v", s.replicas, replicas))
			}
			for _, o := range s.objects {
				n, ok := o.(*v1.Node)
				// A node that a run emptied keeps the taint for the autoscaler.
				if ok && slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
					return t.Key == rebalance.EmptyingTaint && (t.Value != "empty" || s.occupied(n))
				}) {
					wrong = append(wrong, fmt.Sprintf("node %s has %v", n.Name, n.Spec.Taints))
				}
				if label := o.GetLabels()[rebalance.SurgeLabel]; label != "" {
					wrong = append(wrong, fmt.Sprintf("%s has the label of a surge: %s", o.GetName(), label))
				}
			}
			return wrong
		},
	}
}

// occupied reports whether a node has pods.
func (s *stage) occupied(n *v1.Node) bool {
	return slices.ContainsFunc(s.pods(), func(p *v1.Pod) bool { return p.Spec.NodeName == n.Name })
}

// TestARunEndsWithoutItsRequests verifies that a drain and a roll end within half a minute after
// they are interrupted, and that moves end by themselves, although no scale can be restored and no
// node be written.
func TestARunEndsWithoutItsRequests(t *testing.T) {
	surging := rebalance.Leaving{Nodes: []string{"a"}, Surge: true}
	for name, c := range map[string]struct {
		core   core
		limit  time.Duration
		kind   string
		breaks virtual.Fault
	}{
		"drain": {execute.NewDrainer(execute.DrainOptions{Leaving: surging}), 32 * time.Second, "Scale", virtual.Failing},
		"roll": {execute.NewRoller(execute.RollOptions{
			DrainOptions: execute.DrainOptions{Leaving: rebalance.Leaving{Surge: true}}, Until: execute.UntilDrained,
			Selector: labels.SelectorFromSet(labels.Set{"pool": "roll"}), AtOnce: func(int) int { return 1 },
		}), 32 * time.Second, "SetNode", virtual.Ineffective},
		"moves": {execute.New(execute.Options{Every: 10 * time.Second, Surge: true}), 0, "Scale", virtual.Forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			policy, err := rebalance.ReadGoals([]string{"consolidate=1"}, "default")
			if err != nil {
				t.Fatal(err)
			}
			s := newStage(t, 1, `node a cpu=4 label=pool:roll
				node b cpu=4 label=pool:roll
				node c cpu=8
				deployment web
				pods web count=1 on=a cpu=1 label=app:web
				pods db count=3 on=b cpu=1
				pods web3 count=3 on=c cpu=1`, policy)
			s.draining, s.statuses = true, true
			s.count()
			s.Run(time.Second)
			rules := []virtual.Rule{{Fault: c.breaks, Chance: 1, Kind: c.kind}}
			s.faults.scaled = func(execute.Scale) { s.faults.scaled, s.line.Rules = nil, rules }
			s.begin(c.core)
			s.Run(2 * time.Second)
			limit := 10 * time.Minute
			if c.limit > 0 {
				s.step(execute.Stop{})
				limit = c.limit
			}
			s.Run(limit)
			if len(s.done)+len(s.drained)+len(s.rolls) == 0 {
				t.Errorf("not over after %v\n%s", limit, s.lines.String())
			}
			if len(s.line.Injected) == 0 {
				t.Errorf("no request failed\n%s", s.lines.String())
			}
		})
	}
}

// TestATenantsLabelDoesNotHoldADrainUp verifies that a drain ends although a tenant's ReplicaSet
// carries the label of an earlier run's surge and can never be scaled back.
func TestATenantsLabelDoesNotHoldADrainUp(t *testing.T) {
	for _, outcome := range []response.Outcome{response.Refused, response.Failed} {
		s := newStage(t, 1, "node a cpu=4\nnode b cpu=4\npods web count=2 on=a cpu=1", &rebalance.Policy{})
		s.draining, s.statuses = true, true
		s.enter(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "tenant", Name: "trap", UID: "trap", Labels: map[string]string{rebalance.SurgeLabel: "0_x_1"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "c", Controller: ptr.To(true)}},
		}})
		s.count()
		fault := map[response.Outcome]virtual.Fault{response.Refused: virtual.Forbidden, response.Failed: virtual.Failing}[outcome]
		s.line.Rules = []virtual.Rule{{Fault: fault, Chance: 1, Kind: "Scale", Object: "ConfigMap/c"}}
		s.begin(execute.NewDrainer(execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a"}}, Timeout: 20 * time.Second}))
		s.Run(time.Minute)
		if text := s.lines.String(); !strings.Contains(text, "a deleted pod of tenant: not replaced: ConfigMap/c") {
			t.Errorf("%v: told\n%s", outcome, text)
		}
		if len(s.drained) != 1 || s.drained[0].Evicted != 2 || s.drained[0].Stopped != "" || len(s.line.Injected) == 0 {
			t.Errorf("%v: %d requests to scale the trap, ended with %+v\n%s", outcome, s.line.Sent["Scale"], s.drained, s.lines.String())
		}
	}
}

// TestANoteOfAKilledRunIsWaitedForUntilItExpires verifies that a drain with surges waits for a
// workload labelled by another run, and scales it back once that note has expired.
func TestANoteOfAKilledRunIsWaitedForUntilItExpires(t *testing.T) {
	s := newStage(t, 1, "node a cpu=4\nnode b cpu=4\nnode c cpu=8\ndeployment web\npod web-0 on=a cpu=1 owner=ReplicaSet/web\npod web-1 on=b cpu=1 owner=ReplicaSet/web",
		&rebalance.Policy{})
	s.draining, s.statuses = true, true
	s.count()
	s.Run(time.Second)
	begin := func(node string) {
		s.begin(execute.NewDrainer(execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{node}, Surge: true}}))
	}
	s.faults.scaled = func(execute.Scale) {
		s.faults.scaled = nil
		s.process.Kill()
	}
	begin("a") // killed right after it has scaled the workload up
	s.Run(time.Second)
	begin("b")
	lines := strings.Count(s.lines.String(), "\n")
	s.Run(10 * time.Minute)
	if more := strings.Count(s.lines.String(), "\n") - lines; len(s.drained) > 0 || more > 100 {
		t.Errorf("%d lines in ten minutes, ended with %+v\n%s", more, s.drained, s.lines.String())
	}
	s.Run(10 * time.Minute)
	if len(s.drained) != 1 || s.drained[0].Stopped != "" {
		t.Errorf("ended with %+v\n%s", s.drained, s.lines.String())
	}
	for key, o := range s.objects {
		if label := o.GetLabels()[rebalance.SurgeLabel]; label != "" {
			t.Errorf("%s still has the label %s", key, label)
		}
	}
	if up := s.up("web"); up != 2 {
		t.Errorf("%d pods are ready, expected 2", up)
	}
}
