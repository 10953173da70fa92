// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

var (
	chaosRuns = flag.Int("chaos", 300, "runs of TestChaos")
	chaosSeed = flag.Uint64("chaos-seed", 1, "seed of the first run of TestChaos")
)

// TestChaos runs a core against random events. Watches lag and restart; requests are refused,
// withdrawn or completed late; pods and nodes appear, disappear and return under their names; room
// is held for successors; and schedulers are killed. The test verifies that no pod is ever bound
// twice, that no node is overcommitted, and that no held room is used by other pods. Once
// everything is calm, every pod is on a node, or waits because the plain evaluator rejects it, and
// no state of finished work remains. If a profile requires preemption to respect disruption
// budgets, preemption removes no more pods than a budget allows in the state shown to the core.
// Each run is then replayed: another core given the same events returns the same actions, byte for
// byte. Every tenth run is also written to files, and continues in another file with another core
// whenever no work is pending; each file is replayed separately. With -chaos 1 a failing run prints
// its journal.
func TestChaos(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1200)) // the test allocates much and retains little
	runChaos(t, *chaosRuns, chaosRun)
	if n := besideRoom.Load(); n == 0 && *chaosRuns >= 500 {
		t.Error("no pod was decided on a node where room was kept")
	}
}

// runChaos runs the given number of seeds on all cores.
func runChaos(t *testing.T, runs int, run func(seed uint64) (binds int, err error)) {
	t.Helper()
	var next atomic.Uint64
	next.Store(*chaosSeed)
	var binds atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed := next.Add(1) - 1; seed < *chaosSeed+uint64(runs) && !t.Failed(); seed = next.Add(1) - 1 {
				n, err := run(seed)
				binds.Add(int64(n))
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d runs, %d bindings", runs, binds.Load())
}

func chaosRun(seed uint64) (binds int, err error) {
	keep := seed%3 == 0
	c := &chaos{world: newWorld(seed, seed%10 == 0, func() []Profile {
		profile := Profile{Profile: plugins.Default()}
		if seed%4 == 0 {
			own := reservesAtItsPoints()
			own.Extension.(*reserves).moody = seed%8 == 0
			profile = profileWith(holdsAtPermit, own)
		}
		profile.KeepBudgets = keep
		gentleInChaos(&profile, seed)
		return []Profile{profile}
	})}
	c.budgets.keep, c.grown = keep, map[string]int{}
	for range 5 {
		c.addNode()
	}
	for _, app := range []string{"x", "y"} {
		c.addBudget(app, int32(c.rng.IntN(4)))
	}
	return c.live(c.something)
}

// live applies 150 random changes, with time and wake-ups in between, and then ends the run.
func (c *chaos) live(something func()) (binds int, err error) {
	for range 150 {
		something()
		if c.rng.IntN(3) == 0 {
			c.now = c.now.Add(time.Duration(c.rng.IntN(2000)) * time.Millisecond)
		}
		if wake := c.core.Wake(c.now); !wake.After(c.now) && c.rng.IntN(8) > 0 {
			c.tell(Tick{})
		}
		c.renew()
		if err := c.core.View().Queue.Check(); err != nil {
			return c.binds, err
		}
	}
	return c.binds, c.end()
}

// end lets the world come to rest, and checks the final state.
func (c *chaos) end() error {
	calm := time.Minute // shorter than the maximum wait for an event, like the values below
	if c.options.Seed%2 == 0 {
		c.putRooms()
	} else {
		calm = 4 * time.Minute // the last reservation of the run ends within this time
	}
	if c.budgets.keep {
		calm = max(calm, 3*time.Minute) // victims count for up to two minutes in the core, and not in the core that judges it
	}
	c.settle(calm)
	for tries := 0; len(c.core.View().Reserved) > 0 && tries < 5; tries++ {
		c.settle(reservedInChaos.For) // until the reservations have ended
	}
	c.judge()
	c.judgeByAnother()
	for _, guest := range c.guests() {
		c.breaks("room is still kept on %s for the successor of %s", guest.Nominated, guest.Name())
	}
	if len(c.broken) > 0 {
		if *chaosRuns == 1 || *gangRuns == 1 {
			for _, t := range c.journal {
				fmt.Printf("%s %s: %s\n", t.at.Sub(begin), described(t.event), t.actions)
			}
		}
		return fmt.Errorf("%q", c.broken)
	}
	if err := c.replayed(); err != nil {
		return err
	}
	return c.replay()
}

// gentleInChaos enables gentle preemption in some runs, and in some of these runs also a delay.
func gentleInChaos(p *Profile, seed uint64) {
	p.GentlePreemption = seed%5 < 2
	if p.GentlePreemption && seed%3 == 1 {
		p.PreemptionDelay = 3 * time.Second
	}
}

type chaos struct {
	*world
	made  int
	grown map[string]int // number of CPUs added to a node, by name
}

func (c *chaos) something() {
	switch n := c.rng.IntN(42); {
	case n < 8:
		c.addPod(fmt.Sprintf("p%d", c.made))
	case n < 10:
		if p := c.anyPod(); p != nil {
			c.remove(p)
		}
	case n == 10: // deleted and created again under its name
		if p := c.anyPod(); p != nil {
			c.remove(p)
			c.addPod(p.Name)
		}
	case n == 11:
		c.addNode()
	case n == 12 && len(c.nodes) > 2:
		names := sorted(c.nodes)
		name := names[c.rng.IntN(len(names))]
		c.removeNode(name)
		if c.rng.IntN(2) == 0 {
			c.putNode(c.nodeOf(name))
		}
	case n == 13 && c.rng.IntN(6) == 0:
		c.list(c.kinds[c.rng.IntN(len(c.kinds))])
	case n == 14 && c.rng.IntN(12) == 0:
		c.start()
	case n == 15: // terminating for an arbitrary time
		if p := c.anyPod(); p != nil && p.DeletionTimestamp == nil {
			c.change(p, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: c.now} })
		}
	case n == 16: // another client's nomination
		if p := c.anyPod(); p != nil && p.Spec.NodeName == "" {
			c.change(p, func(p *v1.Pod) { p.Status.NominatedNodeName = fmt.Sprintf("n%d", c.rng.IntN(10)) })
		}
	case n == 17:
		c.countBudgets()
	case n == 18:
		c.deliver(DisruptionBudgets)
	case n < 25 && len(c.tickets) > 0:
		ticket := c.tickets[c.rng.IntN(len(c.tickets))]
		c.carryOut(ticket, c.drawFault(ticket))
	case n < 32:
		c.deliver(Pods)
	case n < 35:
		c.deliver(Nodes)
	case n == 35:
		c.showRoom()
	case n == 36:
		c.deliver(MoveLeases)
	case n == 37:
		c.changeNode()
	case n == 38: // resized in place to a smaller request, since a decision cannot account for an unseen increase
		if p := c.anyPod(); p != nil && p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() > 200 {
			c.change(p, func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("200m")
			})
		}
	default:
		c.deliver(answers)
	}
}

// changeNode grows a node, removes its zone, or moves it to another zone. Afterwards, running pods
// may violate their constraints, and pending pods may fit.
func (c *chaos) changeNode() {
	if len(c.nodes) == 0 {
		return
	}
	names := sorted(c.nodes)
	n := c.nodes[names[c.rng.IntN(len(names))]].DeepCopy()
	switch c.rng.IntN(3) {
	case 0:
		c.grown[n.Name]++
		n.Status.Allocatable[v1.ResourceCPU] = c.nodeOf(n.Name).Status.Allocatable[v1.ResourceCPU]
	case 1:
		delete(n.Labels, v1.LabelTopologyZone)
	default:
		n.Labels[v1.LabelTopologyZone] = string(rune('a' + c.rng.IntN(3)))
	}
	c.putNode(n)
}

// nodeOf returns a node at the largest size ever used under its name, because a decision cannot
// account for a node that shrinks unseen.
func (c *chaos) nodeOf(name string) *v1.Node {
	var i int
	_, _ = fmt.Sscanf(name, "n%d", &i)
	n := aNode(name, fmt.Sprint(1+i%3+c.grown[name]))
	n.UID = types.UID(fmt.Sprintf("%s-%d", name, c.rng.IntN(1<<30)))
	n.Labels[v1.LabelTopologyZone] = string(rune('a' + i%3))
	return n
}

func (c *chaos) addNode() {
	if name := fmt.Sprintf("n%d", c.rng.IntN(10)); c.nodes[name] == nil {
		c.putNode(c.nodeOf(name))
	}
}

func (c *chaos) addPod(name string) {
	c.put(c.newPod(name))
}

func (c *chaos) newPod(name string) *v1.Pod {
	c.made++
	p := aPod(name, fmt.Sprintf("%dm", 200*(1+c.rng.IntN(5))))
	p.UID = types.UID(fmt.Sprintf("%s-%d", name, c.made))
	p.Labels = map[string]string{"app": string(rune('x' + c.rng.IntN(3)))}
	if c.made%2 == 0 { // only owned pods can have successors, for which room is reserved
		ownedBy(p)
	}
	*p.Spec.Priority = int32(c.rng.IntN(3) * 10)
	if c.rng.IntN(8) == 0 {
		p.Spec.PreemptionPolicy = new(v1.PreemptNever)
	}
	switch c.rng.IntN(8) {
	case 0:
		p.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: string(rune('a' + c.rng.IntN(3)))}
	case 1:
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}},
		}}
	case 2:
		p.Labels["hold"] = "yes"
	case 3:
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}},
		}}}}
	}
	return p
}

func (c *chaos) anyPod() *v1.Pod {
	uids := sorted(c.pods)
	if len(uids) == 0 {
		return nil
	}
	return c.pods[uids[c.rng.IntN(len(uids))]]
}

// judge compares the core's state in a calm world with the true state, and with the verdicts of the
// plain evaluator.
func (c *chaos) judge() {
	truth, pending := cluster.New(), 0
	for _, name := range sorted(c.nodes) {
		truth.SetNode(c.nodes[name])
	}
	for _, uid := range sorted(c.pods) {
		if p := c.pods[uid]; p.Spec.NodeName != "" {
			truth.SetPod(p)
		}
	}
	for _, uid := range sorted(c.pods) { // a pod that may not preempt keeps the room on the node to which another client has nominated it
		if p := c.core.View().Cluster.Nominated(uid); p != nil && p.Class.Spec.PreemptionPolicy != nil {
			truth.Nominate(truth.Pending(c.pods[uid]), c.pods[uid].Status.NominatedNodeName)
		}
	}
	own := reservesOf(c.options.Profiles)
	moody := own != nil && own.moody
	for _, uid := range sorted(c.pods) {
		if p := c.pods[uid]; p.Spec.NodeName == "" {
			pending++
			if c.gangs.gates.Generic && groups.NameOf(p) != "" {
				continue // checked as a group
			}
			item := c.core.View().Queue.Get(uid)
			if item != nil && (slices.Contains(item.Rejectors, "Holds") || moody && slices.Contains(item.Rejectors, "Reserves")) {
				continue // timed out at Permit, or rejected at random by the plugin; retried after an event
			}
			if e := decide.NewPlain(truth, plugins.Default()).Evaluate(truth.Pending(p)); e.Err != nil || e.Feasible > 0 {
				where := "in no queue"
				if item != nil {
					where = fmt.Sprintf("%s for %v", item.Place(), item.Rejectors)
				}
				c.breaks("pod %s is %s, and %d nodes could take it (%v)", p.Name, where, e.Feasible, e.Err)
			}
		}
	}
	gated := c.judgeGangs(truth)
	q, known := c.core.View().Queue, c.core.View().Cluster
	if n := q.Len(queue.Waiting) + q.Len(queue.Backoff); n+gated != pending || q.Len(queue.Active)+q.Len(queue.Taken) != 0 || q.Len(queue.Gated) != gated {
		c.breaks("%d pods wait in the queue, %d active, %d taken, %d gated; %d are pending", n, q.Len(queue.Active), q.Len(queue.Taken), q.Len(queue.Gated), pending)
	}
	if known.Pods() != truth.Pods() || known.Len() != truth.Len() {
		c.breaks("it knows %d pods on %d nodes; there are %d on %d", known.Pods(), known.Len(), truth.Pods(), truth.Len())
	}
	c.judgeWhereabouts(known)
	books := c.core.Books()
	if n := len(books.Assumed) + len(books.Held) + len(books.Preemptor) + len(books.Leaving) + len(books.Unserved) + len(books.Yielding) + books.Awaiting + books.Handlers; n != 0 {
		c.breaks("left over: %+v", books)
	}
	if c.reserves != nil && len(c.reserves.open) > 0 {
		c.breaks("reserved for ever: %v", slices.Sorted(maps.Values(c.reserves.open)))
	}
}

// judgeByAnother starts another core on the current state and checks that it finds nothing to do
// for pods waiting for an event. The verdicts of Permit and Reserve plugins, and the room held for
// a group, differ between the two cores.
func (c *chaos) judgeByAnother() {
	own := reservesOf(c.options.Profiles)
	if own != nil && own.moody || len(c.core.View().Reserved) > 0 || len(c.broken) > 0 {
		return
	}
	o := c.options
	o.Profiles = c.profiles()
	core, err := New(o)
	if err != nil {
		c.breaks("%v", err)
		return
	}
	show(core, c.now, c.kinds, c.objects)
	uid, action, does := firstThing(core, c.now)
	if item := c.core.View().Queue.Get(uid); !does || takesBack(c.core.View(), action, func(uid types.UID) *v1.Pod { return c.pods[uid] }) ||
		item != nil && slices.Contains(item.Rejectors, "Holds") {
		return
	}
	if of := c.core.View().Groups; of != nil && of.ByUID(uid) != nil {
		// The search for victims of a group is bounded, and its order differs after a restart. In
		// addition, a newly bound pod that is a potential victim does not wake the groups. Upstream
		// does not wake them either: its GangScheduling is notified only of added pods of the same
		// group, its NodeResourcesFit is not notified of added pods, and its DefaultPreemption
		// wakes no pods.
		return
	}
	if text, asleep := sleeping(c.core.View(), uid); asleep {
		c.breaks("another core begins with %s%s", action, text)
	}
}

// described formats an event on one line.
func described(e Event) string {
	switch e := e.(type) {
	case Seen:
		if p, ok := e.Object.(*v1.Pod); ok {
			return fmt.Sprintf("pod %s on %q, nominated %q, leaving %t", p.UID, p.Spec.NodeName, p.Status.NominatedNodeName, p.DeletionTimestamp != nil)
		}
		return fmt.Sprintf("%s %s", e.Kind, e.Object.GetName())
	case Gone:
		return fmt.Sprintf("gone: %s %s", e.Kind, e.Object.GetUID())
	}
	return fmt.Sprintf("%T %+v", e, e)
}

// judgeWhereabouts checks that the Whereabouts shared by the pods of a node, and the Whereabouts
// shared by pods without a node, were never overwritten.
func (c *chaos) judgeWhereabouts(known *cluster.Cluster) {
	if nowhere := *cluster.NewPod(nil, "", "").Whereabouts; nowhere != (cluster.Whereabouts{}) {
		c.breaks("all pods without a node say %v", nowhere)
	}
	for _, n := range known.SortedNodes() {
		for _, p := range n.Pods {
			if p.Node != n || p.NodeName != n.Name {
				c.breaks("pod %s is on %s, and says %v", p.Name(), n.Name, *p.Whereabouts)
			}
		}
		for _, p := range n.Nominated {
			if p.Node != nil || p.Nominated != n.Name {
				c.breaks("pod %s is nominated to %s, and says %v", p.Name(), n.Name, *p.Whereabouts)
			}
		}
	}
}
