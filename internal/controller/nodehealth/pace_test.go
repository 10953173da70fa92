// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/response"
)

// mostWrites is the maximum number of writes of a kind to a node per minute, whatever the
// responses.
const mostWrites = 20

// TestWritesAreSpacedWhateverTheResponses verifies that node health sends at most mostWrites
// identical writes for a node per minute while every write gets the same response, and that nodes
// reach their correct state soon after the responses become normal.
func TestWritesAreSpacedWhateverTheResponses(t *testing.T) {
	type do = func() (response.Outcome, *nodehealth.Node)
	respond := func(outcome response.Outcome, carriedOut, returned bool) func(c *cluster) {
		return func(c *cluster) {
			c.respond = func(write nodehealth.Action, do do) (response.Outcome, *nodehealth.Node) {
				if carriedOut {
					do()
				}
				if !returned {
					return outcome, nil
				}
				name, _, _ := strings.Cut(subject(write), " ")
				node := nodehealth.NodeOf(c.nodes[name].DeepCopy())
				return outcome, &node
			}
		}
	}
	dropped := func(policy func(m *machine)) func(c *cluster) { return func(c *cluster) { c.policy = policy } }
	for name, begins := range map[string]func(c *cluster){
		"success without effect":                respond(response.OK, false, true),
		"success without effect or object":      respond(response.OK, false, false),
		"404":                                   respond(response.Gone, false, false),
		"409":                                   respond(response.Conflict, false, false),
		"409 with the object":                   respond(response.Conflict, false, true),
		"403, 429 or 500":                       respond(response.Failed, false, false),
		"carried out, no response":              respond(response.Failed, true, false),
		"carried out, 404":                      respond(response.Gone, true, false),
		"a policy drops taints":                 dropped(func(m *machine) { m.Spec.Taints = nil }),
		"a policy drops NoExecute":              dropped(func(m *machine) { m.Spec.Taints = slices.DeleteFunc(m.Spec.Taints, evicts) }),
		"a policy drops the condition":          dropped(func(m *machine) { condition(m.Node, v1.NodeReady).Status = v1.ConditionTrue }),
		"a policy drops conditions and taints":  dropped(func(m *machine) { condition(m.Node, v1.NodeReady).Status, m.Spec.Taints = v1.ConditionTrue, nil }),
		"carried out, and the watch is stalled": func(c *cluster) { c.cut = true },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(nodehealth.Defaults())
			for _, node := range []string{"a", "b", "c", "d"} {
				c.add(node, "z")
			}
			sent, faults, events := map[string][]time.Time{}, 0, 0
			c.told = func(_ nodehealth.Event, actions []nodehealth.Action) {
				for _, action := range actions {
					if _, ok := action.(nodehealth.Dropped); ok {
						events++
					}
					object := subject(action)
					if object == "" {
						continue
					}
					faults++
					times := append(sent[object], c.now)
					sent[object] = times
					if i := len(times) - 1 - mostWrites; i >= 0 && c.now.Sub(times[i]) < time.Minute {
						t.Fatalf("more than %d writes within a minute: %s", mostWrites, object)
					}
				}
			}
			c.run(time.Minute)
			begins(c)
			c.nodes["a"].silent = true
			c.run(10 * time.Minute)
			if faults < 3 {
				t.Errorf("only %d writes", faults)
			}
			if strings.HasPrefix(name, "a policy") && (events == 0 || events > 40) {
				t.Errorf("%d events say that a write was dropped", events)
			}

			c.respond, c.policy = nil, nil
			if c.cut {
				c.cut = false
				c.start() // begins with a list, as after a stalled watch
			}
			c.run(2 * time.Minute)
			a := c.nodes["a"]
			if !a.has(v1.TaintNodeUnreachable+":NoExecute") || condition(a.Node, v1.NodeReady).Status != v1.ConditionUnknown {
				t.Errorf("the silent node has %v and is %s", a.Spec.Taints, condition(a.Node, v1.NodeReady).Status)
			}
			a.silent = false
			c.run(time.Minute)
			if len(a.Spec.Taints) > 0 || condition(a.Node, v1.NodeReady).Status != v1.ConditionTrue {
				t.Errorf("the node is back, has %v and is %s", a.Spec.Taints, condition(a.Node, v1.NodeReady).Status)
			}
		})
	}
}

func evicts(t v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }

// subject returns a write with its node, or "" for other actions.
func subject(action nodehealth.Action) string {
	switch a := action.(type) {
	case nodehealth.WriteStatus:
		return a.Node + " " + a.String()
	case nodehealth.WriteNode:
		return a.Node + " " + a.String()
	case nodehealth.MarkPods:
		return a.Node + " " + a.String()
	}
	return ""
}

// TestAnAnnotatedLeaseIsNoSignOfLife verifies that a write of a Lease without a renewal is no sign
// of life, neither of its node nor of another silent node.
func TestAnAnnotatedLeaseIsNoSignOfLife(t *testing.T) {
	c := newCluster(nodehealth.Defaults())
	for _, node := range []string{"a", "b", "c", "d"} {
		c.add(node, "z")
	}
	c.run(time.Minute)
	c.nodes["a"].silent, c.nodes["b"].silent = true, true
	var annotate func()
	annotate = func() {
		c.leases++
		c.nodes["a"].lease = c.leases
		c.showLease(c.nodes["a"])
		c.after(3*time.Second, annotate)
	}
	annotate()
	c.run(5 * time.Minute)
	for _, name := range []string{"a", "b"} {
		if m := c.nodes[name]; !m.has(v1.TaintNodeUnreachable + ":NoExecute") {
			t.Errorf("%s has been silent for five minutes, and has %v", name, m.Spec.Taints)
		}
	}
}

// TestAWatchThatNeverCatchesUpHidesNoNode verifies that a silent node is detected by reads of
// Leases if the watch permanently lags without being broken.
func TestAWatchThatNeverCatchesUpHidesNoNode(t *testing.T) {
	c := newCluster(nodehealth.Defaults())
	for _, node := range []string{"a", "b", "c", "d"} {
		c.add(node, "z")
	}
	c.run(time.Minute)
	c.lags = true
	c.run(2 * time.Minute)
	c.nodes["a"].silent = true
	c.run(10 * time.Minute)
	for _, name := range c.order {
		if m := c.nodes[name]; m.has(v1.TaintNodeUnreachable+":NoExecute") != m.silent {
			t.Errorf("%s, silent: %v, has %v", name, m.silent, m.Spec.Taints)
		}
	}
}

// TestListsReplaceAWatchThatIsRefused verifies that silent nodes are detected by lists if a watch
// is refused, and that after an outage, in which no node could renew its Lease, no node counts as
// silent.
func TestListsReplaceAWatchThatIsRefused(t *testing.T) {
	for _, outage := range []time.Duration{0, 30 * time.Second, 5 * time.Minute} {
		c := newCluster(nodehealth.Defaults())
		for _, node := range []string{"a", "b", "c", "d"} {
			c.add(node, "z")
		}
		c.run(time.Minute)
		c.step(nodehealth.Blind{})
		c.lags = true
		for _, m := range c.nodes {
			m.silent = m.Name == "a" || outage > 0
		}
		c.run(outage)
		list := func() {
			for _, name := range c.order {
				c.step(c.leaseOf(c.nodes[name]))
			}
			c.step(nodehealth.LeasesListed{})
			c.step(nodehealth.Polled{})
		}
		list()
		c.run(time.Second)
		for _, name := range c.order {
			if taints := c.nodes[name].Spec.Taints; len(taints) > 0 {
				t.Errorf("after an outage of %v: %s has %v", outage, name, taints)
			}
		}
		for _, m := range c.nodes {
			m.silent = m.Name == "a" && outage == 0
		}
		for range 10 {
			c.run(30 * time.Second)
			list()
		}
		c.run(30 * time.Second)
		for _, name := range c.order {
			if m := c.nodes[name]; m.has(v1.TaintNodeUnreachable+":NoExecute") != m.silent {
				t.Errorf("outage of %v: %s, silent: %v, has %v", outage, name, m.silent, m.Spec.Taints)
			}
		}
	}
}
