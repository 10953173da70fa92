// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/world/virtual"
)

const (
	// lasts is the duration of a fault. It exceeds the minute for which requests are counted.
	lasts = 75 * time.Second
	// mostSent limits the requests of a kind for an object per minute. It is higher than the limit
	// of virtual.Verify, because users change taints and pods meanwhile, and attempts start over.
	mostSent = 30
	// mostNode limits the reads of a node, which precede each attempt to evict one of its pods.
	mostNode = 20 * nodePods
	// mostStatuses limits the statuses that a scheduler writes, of all pods together: it writes 20
	// deferrable ones per second. The attempts of a pod have no limit: as upstream, a pod in
	// back-off is decided if no other pod waits.
	mostStatuses = 2000
	// mostTries limits the requests about an attempt of a pod: the patches of its event, and the
	// reads after bindings with an unknown outcome. Pods of a StatefulSet share a name.
	mostTries = 80
	// mostRead limits the lists, and the watches, of a resource per minute. A feed repeats them
	// every second when the API server cannot be reached, and watches may also be cut.
	mostRead = 90
	// mostSurge limits the age of the note of a surge. A run that could not remove its note leaves
	// it to the runs that begin 15 min later.
	mostSurge = 20 * time.Minute
)

// trials inject the faults of package virtual into the requests of single components. Unlike a
// storm, they end no process and last for longer than a minute, so that they show requests that are
// repeated too often, and waits that do not end.
type trials struct {
	c      *campaign
	rng    *rand.Rand
	number int
	drains *drains
}

// limitOf returns the limit of a component's requests per minute, for each object or together. The
// creation of an object has no limit, because the request does not contain its name.
func limitOf(component string, t virtual.Target) (limit int, together bool) {
	switch {
	case t.Kind == "patch pods/status" && component == "scheduler":
		return mostStatuses, true
	case t.Kind == "get nodes":
		return mostNode, false
	case t.Kind == "patch events", t.Kind == "get pods" && component == "scheduler":
		return mostTries, false
	case t.Object != "":
		return mostSent, false
	case t.Reads:
		return mostRead, false
	}
	return 0, false
}

// watchFaults are the states of a component's watches during a trial.
var watchFaults = []string{"watches work", "watches lag", "watches stall", "watches refused"}

// liveFaults are the faults of requests, in the order of the trials.
var liveFaults = []virtual.Fault{virtual.Forbidden, virtual.Unanswered, virtual.Ineffective, virtual.Busy, virtual.Gone, virtual.Lost,
	virtual.ConflictingDone, virtual.Slow, virtual.Failing, virtual.Belated, virtual.BusyFor, virtual.GoneDone, virtual.Conflicting}

// runTrials makes trials until the context ends, each with a fault for every component, and drains
// nodes meanwhile.
func (t *trials) runTrials(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { t.drains.runDrains(ctx) })
	for ctx.Err() == nil {
		trial, over := context.WithTimeout(ctx, lasts)
		for i, p := range t.c.networkedParts() {
			if p.kindName() != "nodes" {
				fault := liveFaults[(t.number+3*i)%len(liveFaults)]
				watches := watchFaults[(t.number/2+i)%len(watchFaults)]
				rule := t.makeRule(p, fault)
				rng := rand.New(rand.NewPCG(t.rng.Uint64(), 0))
				both.Go(func() { t.injectFault(trial, p, rule, watches, rng) })
			}
		}
		<-trial.Done()
		over()
		t.number++
	}
	both.Wait()
}

// makeRule returns a rule for all requests, for the requests of a kind that the component has sent,
// or for those in a namespace.
func (t *trials) makeRule(p *part, fault virtual.Fault) virtual.Rule {
	rule := virtual.Rule{Fault: fault, Chance: 1, Delay: time.Second}
	switch fault {
	case virtual.Slow:
		rule.Delay = longestDelay
	case virtual.BusyFor:
		rule.Delay = []time.Duration{time.Second, time.Second, time.Hour}[t.rng.IntN(3)]
	}
	// A drain that cannot read or cordon its node ends.
	rule.Writes = p.kindName() == "drain" && t.rng.IntN(3) > 0
	n := p.network
	n.mu.Lock()
	defer n.mu.Unlock()
	switch t.rng.IntN(4) {
	case 0:
		rule.Chance = 0.5
	case 1:
		rule.Namespace = namespace
	case 2:
		kinds := slices.DeleteFunc(slices.Sorted(maps.Keys(n.kinds)), func(kind string) bool {
			return strings.HasPrefix(kind, "watch ") || strings.HasPrefix(kind, "list ")
		})
		if len(kinds) > 0 {
			rule.Kind = kinds[t.rng.IntN(len(kinds))]
		}
	}
	return rule
}

// injectFault injects a fault into the requests and into the watches of a component until the
// context ends.
func (t *trials) injectFault(ctx context.Context, p *part, rule virtual.Rule, watches string, rng *rand.Rand) {
	n := p.network
	rules := []virtual.Rule{rule}
	p.setCut(true)
	p.journal.writeNote("fault: %s to %q in namespace %q (%.1f), %s", rule.Fault, rule.Kind, rule.Namespace, rule.Chance, watches)
	switch watches {
	case "watches stall":
		n.setStalled(true)
	case "watches refused":
		rules = append([]virtual.Rule{{Fault: virtual.Forbidden, Chance: 1, Kind: "watch"}}, rules...)
		n.cutWatches("", true)
	}
	n.setRules(true, rules...)
	for watches == "watches lag" && ctx.Err() == nil {
		n.stallWatches(ctx, "", randomBetween(rng, time.Second, 5*time.Second))
	}
	<-ctx.Done()
	n.setRules(true)
	n.setStalled(false)
	p.setCut(false)
	t.c.faults.addOne(fmt.Sprintf("%s: %s, %s", p.kindName(), rule.Fault, watches))
	p.journal.writeNote("fault over")
	t.c.checkRequests(p)
}

// checkRequests reports the objects for which a part has sent too many requests.
func (c *campaign) checkRequests(p *part) {
	n := p.network
	n.mu.Lock()
	var excess []string
	for _, r := range n.sent {
		excess, r.Excess = append(excess, r.Excess...), nil
	}
	for injection, number := range n.faults.Injected {
		c.requests.addMany(p.kindName()+": "+injection.Fault.String(), number)
	}
	n.faults.Injected = nil
	n.mu.Unlock()
	c.observer.checks.addOne(spaced)
	kinds := map[string]bool{}
	for _, e := range excess {
		words := strings.Fields(e[strings.Index(e, ":")+1:])
		if kind := words[0] + words[1]; !kinds[kind] { // one object of each kind
			kinds[kind] = true
			c.addViolation(spaced, fmt.Sprintf("%s sent %s (%d such cases)", p.name, e, len(excess)), p.name)
		}
	}
}

// listRemains lists what Berth has written and must have removed when all faults have ended.
func (c *campaign) listRemains(nodes []v1.Node, pods []v1.Pod, workloads []labeled) (left []string) {
	for i := range nodes {
		n := &nodes[i]
		evicts := slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute })
		if _, noted := n.Annotations["berth.dev/taints-since"]; noted && !evicts {
			left = append(left, fmt.Sprintf("node %s has berth.dev/taints-since without a taint", n.Name))
		}
	}
	for i := range pods {
		p := &pods[i]
		for _, key := range []string{"berth.dev/deletion-cost-before", "controller.kubernetes.io/pod-deletion-cost"} {
			if value, ok := p.Annotations[key]; ok {
				left = append(left, fmt.Sprintf("pod %s has the annotation %s=%q", podKey(p), key, value))
			}
		}
	}
	for _, w := range workloads {
		value := w.labels["berth.dev/surge"]
		begun, err := strconv.ParseInt(value[strings.LastIndex(value, "_")+1:], 10, 64)
		if age := time.Since(time.Unix(begun, 0)); value != "" && (err != nil || age > mostSurge) {
			left = append(left, fmt.Sprintf("%s has the label berth.dev/surge=%s, %s old", w.name, value, age.Round(time.Second)))
		}
	}
	return left
}

// labeled is a workload with its labels.
type labeled struct {
	name   string
	labels map[string]string
}

// listWorkloads lists the workloads that a surge may have changed.
func (c *campaign) listWorkloads(ctx context.Context) (all []labeled, err error) {
	deployments, err := c.client.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range deployments.Items {
		all = append(all, labeled{"Deployment " + deployments.Items[i].Name, deployments.Items[i].Labels})
	}
	sets, err := c.client.AppsV1().ReplicaSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range sets.Items {
		all = append(all, labeled{"ReplicaSet " + sets.Items[i].Name, sets.Items[i].Labels})
	}
	return all, nil
}
