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

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// karpenter is the state of NodeClaims in the stage: the UIDs by name.
type karpenter struct {
	claims map[string]types.UID
	bought []string // names of NodeClaims ever bought
	taken  string   // pods that are on a bought node from the beginning
	// stuck claims never get a node.
	stuck bool
	// refused is the reason for refusing every NodeClaim.
	refused string
	// pools limit the removal of old nodes, which belong to the pool main.
	pools []disruption.NodePool
	sold  time.Time // time of the last removal
}

// budgets gives the pool main these budgets.
func (k *karpenter) budgets(budgets ...disruption.NodesAtATime) {
	pool := disruption.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "main"}}
	pool.Spec.Disruption.Budgets = budgets
	k.pools = []disruption.NodePool{pool}
}

// claimed returns the object of a line with the owner that Karpenter gives to its nodes.
func (s *stage) claimed(line, claim string) *v1.Node {
	n := object(s.t, line)[0].(*v1.Node)
	n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claim, UID: s.karpenter.claims[claim]}}
	n.UID = types.UID("node of " + claim)
	metav1.SetMetaDataLabel(&n.ObjectMeta, "karpenter.sh/initialized", "true")
	return n
}

// claim adds an old node with a NodeClaim.
func (s *stage) claim(line string) {
	name := "claim-" + strings.Fields(line)[1]
	s.karpenter.claims[name] = types.UID("uid of " + name)
	n := s.claimed(line, name)
	metav1.SetMetaDataLabel(&n.ObjectMeta, disruption.NodePoolLabel, "main")
	s.enter(n)
}

// buy creates a NodeClaim; its object is the line of its node, which is ready after ten seconds.
func (s *stage) buy(a execute.BuyNode) execute.Event {
	answer := execute.Answered{Ticket: a.Ticket}
	switch k := &s.karpenter; {
	case k.refused != "":
		answer.Outcome, answer.Message = response.Refused, k.refused
	case k.claims[a.Claim] == "":
		k.bought = append(k.bought, a.Claim)
		k.claims[a.Claim] = types.UID(fmt.Sprintf("claim %d", len(k.bought)))
		s.say("%s bought", a.Claim)
		s.After(10*time.Second, func() {
			if k.claims[a.Claim] == "" || k.stuck {
				return
			}
			n := s.claimed(string(a.Object), a.Claim)
			n.CreationTimestamp = metav1.NewTime(s.Now)
			metav1.SetMetaDataLabel(&n.ObjectMeta, execute.BoughtLabel, "true")
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, disruption.KarpenterAnnotation, "true")
			if k.taken != "" {
				for _, o := range object(s.t, k.taken) {
					s.write(o)
				}
			}
			s.write(n)
		})
	}
	return answer
}

// sell deletes a NodeClaim. Its node must be empty; it is terminating two seconds later, and gone
// after three more.
func (s *stage) sell(a execute.SellNode) execute.Event {
	k := &s.karpenter
	uid, there := k.claims[a.Claim]
	if !there || a.UID != "" && a.UID != uid {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Gone, Message: "not found"}
	}
	delete(k.claims, a.Claim)
	s.say("%s sold", a.Claim)
	for _, name := range s.nodeNames() {
		n := s.node(name)
		if n.OwnerReferences == nil || n.OwnerReferences[0].UID != uid {
			continue
		}
		if on := s.on(name); len(on) > 0 {
			s.fail("%s is sold, and has %v", name, on)
		}
		if k.pools != nil && n.Labels[disruption.NodePoolLabel] != "" && s.Now.Before(k.sold.Add(5*time.Second)) {
			s.fail("%s is sold while another node of its pool is terminating", name)
		}
		k.sold = s.Now
		s.After(2*time.Second, func() {
			now := metav1.NewTime(s.Now)
			n := s.node(name).DeepCopy()
			n.DeletionTimestamp = &now
			s.write(n)
			s.After(3*time.Second, func() { s.remove(s.node(name)) })
		})
	}
	return execute.Answered{Ticket: a.Ticket}
}

// on returns the names of a node's pods.
func (s *stage) on(node string) (names []string) {
	for _, p := range s.pods() {
		if p.Spec.NodeName == node {
			names = append(names, p.Name)
		}
	}
	return names
}

// exchangeStage is a cluster with two half-empty nodes of NodeClaims, and one without.
func exchangeStage(t *testing.T) *stage {
	s := newStage(t, 1, `deployment web
		budget web of=app:web unavailable=0
		budget api of=app:api unavailable=1`, &rebalance.Policy{})
	s.karpenter.claims = map[string]types.UID{}
	s.claim("node a cpu=8")
	s.claim("node b cpu=8")
	for _, line := range []string{"node c cpu=2", "pods web count=2 on=a cpu=1 label=app:web", "pods api count=2 on=b cpu=1 label=app:api", "pods db count=1 on=c cpu=1"} {
		for _, o := range object(t, line) {
			if n, ok := o.(*v1.Node); ok {
				metav1.SetMetaDataLabel(&n.ObjectMeta, disruption.NodePoolLabel, "main")
			}
			s.enter(o)
		}
	}
	s.draining, s.statuses = true, true
	s.count()
	s.Run(time.Second)
	return s
}

// exchange returns the options of an exchange of nodes for a new one; without nodes, it only
// finishes an earlier one.
func exchange(buy string, nodes ...string) execute.RollOptions {
	o := execute.RollOptions{
		DrainOptions: execute.DrainOptions{Leaving: rebalance.Leaving{Surge: true, Nodes: nodes,
			DrainRules: disruption.DrainRules{Undisturbed: true}}, Timeout: 30 * time.Minute}, Until: execute.UntilRemoved,
		AtOnce: func(int) int { return 1 },
	}
	if buy != "" {
		o.Buy = map[string][]byte{buy: []byte("node " + buy + " cpu=6")}
	}
	return o
}

// finish runs until the process has ended its exchange, or was killed. At the end, no
// unused bought node remains.
func (s *stage) finish(o execute.RollOptions) {
	if s.rolls = nil; s.karpenter.pools != nil { // only budgets limit the turns
		o.AtOnce = func(nodes int) int { return nodes }
	}
	s.begin(execute.NewRoller(o))
	for i := 0; i < 12000 && s.process.Running() && len(s.rolls) == 0; i++ {
		s.Run(200 * time.Millisecond)
		if up := s.up("web"); up < 2 {
			s.fail("%d pods of web are ready", up)
		}
	}
	for _, name := range s.nodeNames() {
		if n := s.node(name); len(s.rolls) > 0 && n.Labels[execute.BoughtLabel] != "" {
			s.fail("%s is unused", name)
		}
	}
}

// TestAnExchangeGoesOnAfterAKill verifies that an exchange is completed although the process is
// killed before or after any of its requests: as a user would, the test first finishes the earlier
// exchange, and begins a new one if the old nodes are still there. In the end the old nodes with
// NodeClaims were deleted, the other one is empty and cordoned, a single new node exists, which
// Karpenter may manage, and all pods are ready.
func TestAnExchangeGoesOnAfterAKill(t *testing.T) {
	kills, repeated := 0, 0
	for _, done := range []bool{false, true} {
		for at := 1; ; at++ {
			s := exchangeStage(t)
			s.karpenter.budgets(disruption.NodesAtATime{Nodes: "1"})
			requests := 0
			s.faults.request = func() bool {
				if requests++; requests != at {
					return true
				}
				s.process.Kill()
				kills++
				return done
			}
			s.finish(exchange("new", "a", "b", "c"))
			if !s.process.Running() {
				s.finish(exchange(""))
				left := slices.DeleteFunc([]string{"a", "b", "c"}, func(name string) bool {
					n := s.node(name)
					return n == nil || n.DeletionTimestamp != nil || n.Spec.Unschedulable && len(s.on(name)) == 0
				})
				if len(left) > 0 {
					repeated++
					s.finish(exchange("newer", left...))
				}
			}
			s.Run(time.Minute)
			s.judgeExchange()
			if len(s.wrong) > 0 {
				t.Fatalf("killed at request %d (carried out: %v): %v\n%s", at, done, s.wrong, s.lines.String())
			}
			if requests < at {
				break
			}
		}
	}
	t.Logf("killed at %d requests; %d exchanges began again", kills, repeated)
}

// judgeExchange verifies the invariants of a complete exchange.
func (s *stage) judgeExchange() {
	if len(s.rolls) != 1 || s.rolls[0].Stopped != "" {
		s.fail("ended with %+v", s.rolls)
	}
	if names := s.nodeNames(); len(names) != 2 || names[0] != "c" {
		s.fail("the nodes are %v", names)
	}
	if len(s.karpenter.claims) != 1 {
		s.fail("the NodeClaims are %v", slices.Sorted(maps.Keys(s.karpenter.claims)))
	}
	for _, name := range s.nodeNames() {
		if n := s.node(name); len(n.Annotations) > 0 || n.Labels[execute.BoughtLabel] != "" || n.Spec.Unschedulable != (name == "c") {
			s.fail("node %s: cordoned %v, annotations %v", name, n.Spec.Unschedulable, n.Annotations)
		}
	}
	for _, p := range s.pods() {
		if !isReady(p) || p.Spec.NodeName == "c" {
			s.fail("%s is on %q, ready: %v", p.Name, p.Spec.NodeName, isReady(p))
		}
	}
	if count := len(s.pods()); count != 5 {
		s.fail("there are %d pods", count)
	}
}

// keepPod forbids to move the pod web-1.
func (s *stage) keepPod() {
	for _, p := range s.pods() {
		if p.Name == "web-1" {
			p = p.DeepCopy()
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, disruption.KarpenterAnnotation, "true")
			s.write(p)
		}
	}
}

// TestAnExchangeThatDeviatesIsUndone verifies that an exchange stops when reality deviates from its
// plan: unused bought nodes are deleted again, nodes that still have pods are open, and no pod is
// pending.
func TestAnExchangeThatDeviatesIsUndone(t *testing.T) {
	for what, c := range map[string]struct {
		deviate func(s *stage)
		why     string
		evicted int
	}{
		"no node for the NodeClaim": {func(s *stage) { s.karpenter.stuck = true }, "NodeClaim new has no ready node after 15m0s", 0},
		"a pod must not be moved":   {(*stage).keepPod, "it is annotated karpenter.sh/do-not-disrupt: default/web-1", 0},
		"a refused NodeClaim":       {func(s *stage) { s.karpenter.refused = "forbidden" }, "cannot buy NodeClaim new: forbidden", 0},
		"other pods use the node":   {func(s *stage) { s.karpenter.taken = "pods other count=5 cpu=1 on=new" }, "cannot evict Pods", 0},
		"other pods use the node later": {func(s *stage) {
			s.After(12*time.Second, func() {
				for _, o := range object(s.t, "pods other count=5 cpu=1 on=new") {
					s.write(o)
				}
			})
		}, "cannot evict Pods", 1}, // db leaves c first, which is then empty
		"a node must not be removed": {func(s *stage) {
			s.After(5*time.Second, func() {
				n := s.node("b").DeepCopy()
				metav1.SetMetaDataAnnotation(&n.ObjectMeta, disruption.KarpenterAnnotation, "true")
				s.write(n)
			})
		}, "node b is annotated karpenter.sh/do-not-disrupt", 0},
		"no node may be removed": {func(s *stage) { s.karpenter.budgets(disruption.NodesAtATime{Nodes: "0"}) },
			"the disruption budgets of NodePools allow no removal now, for 30m0s", 0},
	} {
		s := exchangeStage(t)
		c.deviate(s)
		o := exchange("new", "a", "b", "c")
		o.Pays = func(stay []string) bool { return false }
		s.finish(o)
		s.Run(time.Minute)
		if len(s.rolls) != 1 || !strings.Contains(s.rolls[0].Stopped, c.why) || s.rolls[0].Evicted != c.evicted {
			s.fail("ended with %+v", s.rolls)
		}
		if used := s.on("new"); len(used) == 0 && (s.karpenter.claims["new"] != "" || s.node("new") != nil) {
			s.fail("an unused node is left")
		}
		for _, name := range s.nodeNames() {
			n := s.node(name).DeepCopy()
			delete(n.Annotations, disruption.KarpenterAnnotation)
			if n.Spec.Unschedulable != (len(s.on(name)) == 0) || len(n.Annotations) > 0 || n.Labels[execute.BoughtLabel] != "" {
				s.fail("node %s: cordoned %v, annotations %v", name, n.Spec.Unschedulable, n.Annotations)
			}
		}
		for _, p := range s.pods() {
			if p.Spec.NodeName == "" {
				s.fail("%s is pending", p.Name)
			}
		}
		if len(s.wrong) > 0 {
			t.Errorf("%s: %v\n%s", what, s.wrong, s.lines.String())
		}
	}
}

// TestAnExchangeKeepsNodesThatCannotBeEmptied verifies that an exchange removes the other nodes if
// pods of some nodes must not be moved or have no room, and that these nodes are open afterwards.
func TestAnExchangeKeepsNodesThatCannotBeEmptied(t *testing.T) {
	use := func(s *stage) {
		for _, o := range object(s.t, "pods other count=4 cpu=1 on=new") {
			s.write(o)
		}
	}
	for what, c := range map[string]struct {
		deviate func(s *stage)
		stay    []string
	}{
		"a pod must not be moved":               {(*stage).keepPod, []string{"a"}},
		"other pods use the node":               {func(s *stage) { s.karpenter.taken = "pods other count=4 cpu=1 on=new" }, []string{"a"}},
		"other pods use the node later":         {func(s *stage) { s.After(14*time.Second, func() { use(s) }) }, []string{"a"}},
		"other pods use the node during a turn": {func(s *stage) { s.After(16300*time.Millisecond, func() { use(s) }) }, []string{"a"}},
	} {
		s, asked := exchangeStage(t), [][]string(nil)
		c.deviate(s)
		o := exchange("new", "a", "b", "c")
		o.Pays = func(stay []string) bool {
			asked = append(asked, slices.Clone(stay))
			return len(stay) < 2
		}
		s.finish(o)
		s.Run(time.Minute)
		if len(s.rolls) != 1 || s.rolls[0].Stopped != "" || s.rolls[0].Done != 2 || s.rolls[0].Nodes != 2 || !slices.Equal(asked[len(asked)-1], c.stay) {
			s.fail("ended with %+v, asked about %v", s.rolls, asked)
		}
		for _, name := range c.stay {
			if n := s.node(name); n.Spec.Unschedulable || len(n.Annotations) > 0 || len(s.on(name)) == 0 || s.karpenter.claims["claim-"+name] == "" {
				s.fail("node %s: cordoned %v, annotations %v, pods %v", name, n.Spec.Unschedulable, n.Annotations, s.on(name))
			}
		}
		if n := s.node("new"); n == nil || n.Labels[execute.BoughtLabel] != "" {
			s.fail("the new node is %+v", n)
		}
		if s.node("b") != nil || len(s.on("c")) > 0 {
			s.fail("b exists: %v, pods on c: %v", s.node("b") != nil, s.on("c"))
		}
		for _, p := range s.pods() {
			if p.Spec.NodeName == "" {
				s.fail("%s is pending", p.Name)
			}
		}
		if len(s.wrong) > 0 {
			t.Errorf("%s: %v\n%s", what, s.wrong, s.lines.String())
		}
	}
}

// TestAnExchangeWaitsForNodePools verifies that no pod leaves while a disruption budget of the
// NodePool allows no removal, and that the exchange continues afterwards.
func TestAnExchangeWaitsForNodePools(t *testing.T) {
	s := exchangeStage(t)
	from, minutes := s.Now.UTC(), metav1.Duration{Duration: 7 * time.Minute}
	schedule := fmt.Sprintf("%d %d * * *", from.Minute(), from.Hour())
	s.karpenter.budgets(disruption.NodesAtATime{Nodes: "0", Schedule: &schedule, Duration: &minutes}, disruption.NodesAtATime{Nodes: "1"})
	ends := from.Truncate(time.Minute).Add(minutes.Duration)
	s.faults.request = func() bool {
		if s.Now.Before(ends) && (len(s.on("a")) != 2 || len(s.on("b")) != 2) {
			s.fail("pods leave before %s", ends)
		}
		return true
	}
	s.finish(exchange("new", "a", "b", "c"))
	if s.Now.Before(ends) {
		s.fail("the exchange ended early")
	}
	s.Run(time.Minute)
	s.judgeExchange()
	if len(s.wrong) > 0 {
		t.Errorf("%v\n%s", s.wrong, s.lines.String())
	}
}

// TestAnExchangeFindsTheNodesOfEarlierOnes verifies that a pod is planned to move to the node of
// the NodeClaim that is intended for it, also if this exchange has not bought it.
func TestAnExchangeFindsTheNodesOfEarlierOnes(t *testing.T) {
	for _, node := range []string{"a", "b"} {
		s := exchangeStage(t)
		o := exchange("", "c")
		o.Surge = false
		for _, p := range s.pods() {
			if p.Spec.NodeName == "c" {
				o.Targets = plugins.Targets{metav1.GetControllerOf(p).UID: {"claim-" + node: 1}}
			}
		}
		s.finish(o)
		if plan := "db-0 c -> " + node; !strings.Contains(s.lines.String(), plan) {
			t.Errorf("the plan lacks %q:\n%s", plan, s.lines.String())
		}
	}
}

// TestAnExchangeCountsOnTheRoomOfTerminatingPods verifies that the plan of an exchange uses the
// room of pods that are terminating, and that the plan of a roll does not.
func TestAnExchangeCountsOnTheRoomOfTerminatingPods(t *testing.T) {
	for _, removes := range []bool{true, false} {
		s := newStage(t, 1, `node a cpu=2
			node b cpu=2
			pods web count=1 on=a cpu=1
			pods old count=2 on=b cpu=1`, &rebalance.Policy{})
		var list []metav1.Object
		for o := range s.state().World.Objects() {
			if p, ok := o.(*v1.Pod); ok && p.Spec.NodeName == "b" {
				p = p.DeepCopy()
				p.DeletionTimestamp = &metav1.Time{Time: s.Now.Add(time.Minute)}
				o = p
			}
			list = append(list, o)
		}
		state := &rebalance.State{AsOf: s.Now, World: world.Open(list)}
		leaving := rebalance.Leaving{Nodes: []string{"a"}}
		plan := rebalance.PlanRoll(state, &rebalance.Rolling{Leaving: leaving, Removes: removes}, rebalance.Options{Profiles: s.profiles})
		if have, want := plan.Stranded(), boolToInt(!removes); have != want || plan.Pods != 1 {
			t.Errorf("removes %t: %d of %d pods find no node, want %d of 1", removes, have, plan.Pods, want)
		}
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
