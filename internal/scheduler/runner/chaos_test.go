// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

var (
	chaosRuns = flag.Int("chaos", 9, "runs of TestChaos")
	chaosSeed = flag.Uint64("chaos-seed", 1, "seed of the first run of TestChaos")
)

// TestChaos schedules pods while requests are refused, lost, delayed, or carried out without a
// response, watches break or lag, nodes and pods are added and removed, and schedulers are stopped
// and started. It verifies that at the end, pods are pending only if the plain evaluator finds no
// feasible node for them, that no node is overcommitted, and that the scheduler's state equals the
// cluster's.
func TestChaos(t *testing.T) {
	for seed := *chaosSeed; seed < *chaosSeed+uint64(*chaosRuns); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				c := &chaos{world: w, rng: rand.New(rand.NewPCG(seed, 7)), kills: seed%3 == 0}
				if seed%2 == 0 { // the journal continues in another file every few seconds
					w.limits = records.Limits{Size: 1 << 40, Age: 20 * time.Second}
				}
				c.run()
			})
		})
	}
}

// chaos is the state of one run.
type chaos struct {
	*world
	kills bool

	mu    sync.Mutex // guards rng, which the goroutines of requests use as well
	rng   *rand.Rand
	nodes map[string]bool
	pods  int

	// These fields extend a run: with other watched resources, other properties of pods, a function
	// that acts like other clients, and further checks at the end.
	resources []string
	adorn     func(*v1.Pod)
	others    func()
	more      func(truth *cluster.Cluster)
}

// pass advances the time by d. It calls others, if set, every few seconds.
func (c *chaos) pass(d time.Duration) {
	if c.others == nil {
		c.world.pass(d)
		return
	}
	const often = 5 * time.Second
	for ; d > 0; d -= often {
		c.world.pass(min(d, often))
		c.others()
	}
}

func (c *chaos) resource() string { return c.resources[c.n(len(c.resources))] }

func (c *chaos) n(below int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(below)
}

func (c *chaos) fault(r *http.Request) (f fakeapi.Fault) {
	if r.URL.Query().Get("watch") != "" || strings.HasSuffix(r.URL.Path, "/events") {
		return f
	}
	switch c.n(12) {
	case 0:
		f.Lost = true
	case 1:
		f.Unanswered = true
	case 2:
		f.Status = []int{429, 500, 503, 504, 409}[c.n(5)]
		if f.Status == 409 && r.Method == http.MethodGet {
			f.Status = 500
		}
	case 3:
		f.Late = time.Duration(c.n(4000)) * time.Millisecond
	case 4:
		f.Slow = time.Duration(c.n(4000)) * time.Millisecond
	case 5:
		f.Slow, f.Unanswered = time.Duration(c.n(2000))*time.Millisecond, c.n(2) == 0
	}
	return f
}

func (c *chaos) run() {
	c.nodes = map[string]bool{}
	c.resources = append([]string{"pods", "nodes"}, c.resources...)
	for range 6 {
		c.addNode()
	}
	c.api.SetFault(c.fault)
	c.start(Options{})
	for range 120 {
		c.something()
		c.pass(time.Duration(c.n(3000)) * time.Millisecond)
	}
	c.api.SetFault(nil)
	for _, resource := range c.resources {
		c.api.Release(resource)
	}
	c.calm()
	c.judge()
}

func (c *chaos) something() {
	switch c.n(16) {
	case 0:
		c.addNode()
	case 1:
		c.removeNode()
	case 2, 3:
		c.removePod()
	case 4:
		c.api.Cut(c.resource(), c.n(2) == 0)
	case 5:
		c.api.Hold(c.resource())
	case 6, 7:
		c.api.Release(c.resource())
	case 8:
		if c.kills && c.n(4) == 0 {
			c.end()
			c.start(Options{})
		}
	case 9:
		c.recreatePod()
	default:
		for range 1 + c.n(4) {
			c.addPod(fmt.Sprintf("p%d", c.pods))
			c.pods++
		}
	}
}

func (c *chaos) addNode() {
	i := c.n(12) // a recreated node is the same as before, because a change not observed yet would invalidate decisions
	n := aNode(fmt.Sprintf("n%d", i), fmt.Sprint(1+i%3))
	n.Labels[v1.LabelTopologyZone] = string(rune('a' + i%4))
	if !c.nodes[n.Name] {
		c.nodes[n.Name] = true
		c.api.Put(n)
	}
}

// removeNode deletes a node and its pods, like upstream's pod garbage collector.
func (c *chaos) removeNode() {
	for name := range c.nodes {
		if len(c.nodes) < 3 {
			return
		}
		delete(c.nodes, name)
		c.api.Delete(&v1.Node{ObjectMeta: aNode(name, "1").ObjectMeta})
		for _, p := range c.api.Pods() {
			if p.Spec.NodeName == name {
				c.api.Delete(p)
			}
		}
		return
	}
}

func (c *chaos) addPod(name string) {
	p := aPod(name, fmt.Sprintf("%dm", 100*(1+c.n(8))))
	p.UID = types.UID(fmt.Sprintf("%s-%d", name, c.n(1<<30)))
	p.Labels = map[string]string{"app": string(rune('x' + c.n(3)))}
	if c.n(4) == 0 {
		p.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: string(rune('a' + c.n(3)))}
	}
	withPriority(p, int32(c.n(3)/2*10))
	if c.adorn != nil {
		c.adorn(p)
	}
	c.api.Put(p)
}

func (c *chaos) removePod() {
	if pods := c.api.Pods(); len(pods) > 0 {
		c.api.Delete(pods[c.n(len(pods))])
	}
}

func (c *chaos) recreatePod() {
	if pods := c.api.Pods(); len(pods) > 0 {
		p := pods[c.n(len(pods))]
		c.api.Delete(p)
		c.addPod(p.Name)
	}
}

// calm waits until no more pods are bound. It deletes pods that are bound to deleted nodes.
func (c *chaos) calm() {
	c.pass(time.Minute)
	for range 3 {
		for _, p := range c.api.Pods() {
			if p.Spec.NodeName != "" && !c.nodes[p.Spec.NodeName] {
				c.api.Delete(p)
			}
		}
		c.pass(time.Minute)
	}
	last := -1
	c.until("calm", func() bool {
		n := len(c.api.Bindings())
		calm := n == last
		last = n
		c.pass(20 * time.Second)
		return calm
	})
}

// judge compares the scheduler's state with the cluster, and the pending pods with the verdicts of
// the plain evaluator.
func (c *chaos) judge() {
	c.checkRoom()
	pods := c.api.Pods()
	truth := cluster.New()
	for _, n := range fakeapi.All(c.api, &v1.Node{}) {
		truth.SetNode(n)
	}
	if c.more != nil {
		c.more(truth)
	}
	waiting := 0
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			truth.SetPod(p)
		}
	}
	for _, p := range pods {
		if p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
			waiting++
			e := decide.NewPlain(truth, plugins.Default()).Evaluate(truth.Pending(p))
			if e.Err != nil || e.Feasible > 0 {
				c.Errorf("pod %s waits (%s), and %d nodes could take it (%v)", p.Name, c.condition(p.Name), e.Feasible, e.Err)
			}
		}
	}
	c.do(func() {
		if err := c.s.core.View().Queue.Check(); err != nil {
			c.Error(err)
		}
		if len(c.s.core.Books().Assumed) != 0 || c.s.core.View().Cluster.Pods() != truth.Pods() || c.s.core.View().Cluster.Len() != truth.Len() {
			c.Errorf("%d on their way, %d on nodes (want %d), %d nodes (want %d)", len(c.s.core.Books().Assumed), c.s.core.View().Cluster.Pods(), truth.Pods(), c.s.core.View().Cluster.Len(), truth.Len())
		}
		if n := c.s.core.View().Queue.Len(queue.Waiting) + c.s.core.View().Queue.Len(queue.Backoff); n != waiting || c.s.core.View().Queue.Len(queue.Active) != 0 || c.s.core.View().Queue.Len(queue.Taken) != 0 {
			c.Errorf("%d wait in the queue, %d active, %d taken; want %d, 0, 0", n, c.s.core.View().Queue.Len(queue.Active), c.s.core.View().Queue.Len(queue.Taken), waiting)
		}
		if c.Failed() {
			c.dump()
		}
		// Every action must have ended with an event, whatever the outcome of its requests.
		if len(c.s.core.Books().Preemptor)+len(c.s.core.Books().Leaving)+len(c.s.core.Books().Held)+c.s.core.Books().Handlers != 0 {
			c.Errorf("left over: %v, %v, %d, %d unanswered", c.s.core.Books().Preemptor, c.s.core.Books().Leaving, len(c.s.core.Books().Held), c.s.core.Books().Handlers)
		}
	})
}

// dump prints the scheduler's state. It runs on the owner's goroutine.
func (c *chaos) dump() {
	for _, n := range c.s.core.View().Cluster.SortedNodes() {
		c.Logf("%s: %d of %d", n.Name, n.Requested.MilliCPU, n.Size.MilliCPU)
		for _, p := range n.Pods {
			c.Logf("  has %s, %d, priority %d, leaves: %t", p.UID(), p.Class.Requests.MilliCPU, p.Class.Priority, p.Terminating)
		}
		for _, p := range n.Nominated {
			c.Logf("  kept for %s, %d, priority %d", p.UID(), p.Class.Requests.MilliCPU, p.Class.Priority)
		}
	}
	for item := range c.s.core.View().Queue.Each {
		c.Logf("%s is %s by %s %v, after %d attempts, ready %v", item.Pod.UID, item.Place(), item.Gate, item.Rejectors, item.Attempts, item.Ready())
	}
}
