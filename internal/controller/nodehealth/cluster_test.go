// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

var begin = time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)

// Indexes of a cluster's watches.
const (
	nodes = iota
	leases
)

const beat = 10 * time.Second // interval of Lease renewals by a kubelet

// cluster simulates nodes with kubelets, an API server and the controller, in virtual time.
type cluster struct {
	*virtual.Time
	process *virtual.Process[nodehealth.Event, nodehealth.Action]
	line    virtual.Line[nodehealth.Event, nodehealth.Action]
	watches []*virtual.Watch  // of nodes and of Leases
	lost    map[int]time.Time // time of the last list instead of a broken watch
	core    *nodehealth.Core
	options nodehealth.Options
	nodes   map[string]*machine
	order   []string
	rev     int
	say     func(string)
	began   func() // called after the creation of a core

	stale  int           // number of upcoming writes with a conflict
	marks  time.Duration // duration of marking a node's pods
	skew   time.Duration // offset of the nodes' clocks
	leases int           // the latest version of a Lease

	// policy, if set, changes each written node before it is stored.
	policy func(m *machine)
}

// waking adapts Wake, which returns a time always.
type waking struct {
	*nodehealth.Core
	cluster *cluster
}

func (w waking) Wake() (time.Time, bool) { return w.Core.Wake(w.cluster.Now), true }

type machine struct {
	*v1.Node
	silent bool
	skew   time.Duration // offset of its own clock, added to the cluster's
	renews int
	lease  int        // version of its Lease
	marked int        // number of times its pods were marked
	others []v1.Taint // foreign taints
}

func newCluster(options nodehealth.Options) *cluster {
	options.ReadsLeases = true
	c := &cluster{
		Time: virtual.NewTime(begin, 1, 1), options: options, nodes: map[string]*machine{}, lost: map[int]time.Time{}, say: func(string) {}, began: func() {},
	}
	c.process = &virtual.Process[nodehealth.Event, nodehealth.Action]{Time: c.Time, Tick: nodehealth.Tick{}, Do: c.carryOut,
		New: func() virtual.Core[nodehealth.Event, nodehealth.Action] {
			clear(c.lost)
			c.core = nodehealth.New(c.options)
			c.began()
			return waking{c.core, c}
		}}
	c.process.Add()
	c.options.Wall = c.process.Wall
	c.line = virtual.Line[nodehealth.Event, nodehealth.Action]{Process: c.process, Least: time.Millisecond, Most: time.Millisecond}
	for i, list := range []func(){nodes: c.listNodes, leases: c.listLeases} {
		w := virtual.NewWatch(c.process, time.Millisecond, list)
		w.Lost = func() { c.lost[i] = time.Time{}; c.step(nodehealth.Blind{}) }
		w.Polled = func() { c.polled(i) }
		w.Back = func() { c.back(i) }
		c.watches = append(c.watches, w)
	}
	c.process.Start()
	return c
}

func (c *cluster) step(e nodehealth.Event) { c.process.Step(e) }

func (c *cluster) listNodes() {
	c.step(nodehealth.NodesListing{})
	for _, name := range c.order {
		c.step(nodehealth.NodeSeen{Node: nodehealth.NodeOf(c.nodes[name].Node.DeepCopy())})
	}
	c.step(nodehealth.NodesListed{})
}

func (c *cluster) listLeases() {
	for _, name := range c.order {
		c.step(c.leaseOf(c.nodes[name]))
	}
	c.step(nodehealth.LeasesListed{})
}

// polled and back report lists and restored watches, like nodecontroller.
func (c *cluster) polled(watch int) {
	c.lost[watch] = c.Now
	for _, listed := range c.lost {
		if c.Now.Sub(listed) > 45*time.Second {
			return
		}
	}
	c.step(nodehealth.Polled{})
}

func (c *cluster) back(watch int) {
	if delete(c.lost, watch); len(c.lost) == 0 {
		c.step(nodehealth.Sighted{})
	}
}

func (c *cluster) add(name, zone string) *machine {
	m := c.addUnreported(name, zone)
	c.setCondition(m, v1.NodeReady, v1.ConditionTrue)
	c.changed(m)
	c.After(time.Duration(len(c.order)*37%10_000)*time.Millisecond, func() { c.beats(m) })
	return m
}

// addUnreported adds a node without a kubelet.
func (c *cluster) addUnreported(name, zone string) *machine {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(fmt.Sprintf("%s-%d", name, c.rev)), CreationTimestamp: metav1.Time{Time: c.Now},
		Labels: map[string]string{v1.LabelTopologyRegion: "r", v1.LabelTopologyZone: zone},
	}}
	m := &machine{Node: node}
	c.nodes[name] = m
	c.order = append(c.order, name)
	c.changed(m)
	return m
}

func (c *cluster) beats(m *machine) {
	if c.nodes[m.Name] != m {
		return
	}
	if !m.silent {
		m.renews++
		c.leases++
		m.lease = c.leases
		c.showLease(m)
		if condition(m.Node, v1.NodeReady).Status == v1.ConditionUnknown {
			c.setCondition(m, v1.NodeReady, v1.ConditionTrue)
			c.changed(m)
		}
	}
	c.After(beat, func() { c.beats(m) })
}

func (c *cluster) showLease(m *machine) {
	lease := c.leaseOf(m)
	c.watches[leases].Show(func() { c.step(lease) })
}

func (c *cluster) leaseOf(m *machine) nodehealth.LeaseSeen {
	return nodehealth.LeaseSeen{
		Name: m.Name, ResourceVersion: strconv.Itoa(m.lease), Renewed: begin.Add(c.skew + m.skew + time.Duration(m.renews)*beat),
	}
}

func (c *cluster) setCondition(m *machine, t v1.NodeConditionType, status v1.ConditionStatus) {
	now := metav1.Time{Time: c.Now.Truncate(time.Second)} // with the precision of the API
	if existing := condition(m.Node, t); existing != nil {
		existing.Status, existing.LastHeartbeatTime, existing.Reason, existing.Message = status, now, "", ""
		return
	}
	m.Status.Conditions = append(m.Status.Conditions, v1.NodeCondition{Type: t, Status: status, LastHeartbeatTime: now, LastTransitionTime: now})
}

func condition(node *v1.Node, t v1.NodeConditionType) *v1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == t {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

func (c *cluster) changed(m *machine) {
	c.rev++
	m.ResourceVersion = strconv.Itoa(c.rev)
	seen := nodehealth.NodeOf(m.DeepCopy())
	c.watches[nodes].Show(func() { c.step(nodehealth.NodeSeen{Node: seen}) })
}

func (c *cluster) remove(name string) {
	delete(c.nodes, name)
	c.order = slices.DeleteFunc(c.order, func(n string) bool { return n == name })
	c.watches[nodes].Show(func() { c.step(nodehealth.NodeGone{Name: name}) })
	c.watches[leases].Show(func() { c.step(nodehealth.LeaseGone{Name: name}) }) // garbage-collected
}

// has reports whether the node has a taint in the form KEY:EFFECT.
func (m *machine) has(taint string) bool {
	return slices.ContainsFunc(m.Spec.Taints, func(t v1.Taint) bool { return t.Key+":"+string(t.Effect) == taint })
}

func (c *cluster) carryOut(action nodehealth.Action) {
	if _, reads := action.(nodehealth.ReadLease); !reads {
		c.say(action.String())
	}
	switch a := action.(type) {
	case nodehealth.ReadLease:
		c.send("ReadLease", a.Node, a.Ticket, func(bool) nodehealth.Answered {
			if m := c.nodes[a.Node]; m != nil && m.lease > 0 {
				seen := c.leaseOf(m)
				return nodehealth.Answered{Lease: &seen}
			}
			return nodehealth.Answered{Outcome: response.Gone}
		})
	case nodehealth.WriteStatus:
		c.send("WriteStatus", a.Node, a.Ticket, func(effect bool) nodehealth.Answered {
			return c.written(a.Node, a.ResourceVersion, effect, func(m *machine) {
				for _, changed := range a.Conditions {
					if existing := condition(m.Node, changed.Type); existing != nil {
						*existing = changed
					} else {
						m.Status.Conditions = append(m.Status.Conditions, changed)
					}
				}
			})
		})
	case nodehealth.WriteNode:
		c.send("WriteNode", a.Node, a.Ticket, func(effect bool) nodehealth.Answered {
			return c.written(a.Node, a.ResourceVersion, effect, func(m *machine) {
				if a.SetTaints {
					m.Spec.Taints = a.Taints
				}
				for k, v := range a.Labels {
					m.Labels[k] = v
				}
			})
		})
	case nodehealth.MarkPods:
		c.send("MarkPods", a.Node, a.Ticket, func(effect bool) nodehealth.Answered {
			if m := c.nodes[a.Node]; m != nil && effect {
				m.marked++
			}
			return nodehealth.Answered{}
		})
	}
}

// send sends a request. do carries it out, if it has an effect.
func (c *cluster) send(kind, node string, ticket response.Ticket, do func(effect bool) nodehealth.Answered) {
	event := func(effect bool) func() nodehealth.Event {
		return func() nodehealth.Event {
			e := do(effect)
			e.Ticket = ticket
			return e
		}
	}
	r := virtual.Request[nodehealth.Event]{
		Kind: kind, Object: node, Reads: kind == "ReadLease", Do: event(true), Ineffective: event(false),
		Fail: func(outcome response.Outcome, after time.Duration) nodehealth.Event {
			e := nodehealth.Answered{Ticket: ticket, Outcome: outcome, RetryAfter: after}
			// After a conflict the process reads the node, which may fail.
			if m := c.nodes[node]; m != nil && outcome == response.Conflict && kind != "MarkPods" && c.Chance(0.5) {
				read := nodehealth.NodeOf(m.DeepCopy())
				e.Node = &read
			}
			return e
		},
	}
	if kind == "MarkPods" {
		r.Takes, r.Ineffective = c.marks, nil // the core does not watch pods, so it cannot notice a dropped mark
	}
	c.line.Send(r)
}

// written changes a node, unless the write has no effect or its version is outdated.
func (c *cluster) written(name, version string, effect bool, change func(*machine)) nodehealth.Answered {
	m := c.nodes[name]
	if m == nil {
		return nodehealth.Answered{Outcome: response.Gone}
	}
	if c.stale > 0 {
		c.stale--
		c.rev++
		m.ResourceVersion = strconv.Itoa(c.rev) // another client wrote first
	}
	outcome := response.OK
	if m.ResourceVersion != version {
		outcome = response.Conflict
	} else if effect {
		change(m)
		if c.policy != nil {
			c.policy(m)
		}
		c.changed(m)
	}
	node := nodehealth.NodeOf(m.DeepCopy())
	return nodehealth.Answered{Outcome: outcome, Node: &node}
}

// freeze stops the controller process for some time. Afterwards, the controller first gets Away and
// Tick, and then the missed changes.
func (c *cluster) freeze(d time.Duration) {
	from := c.Now
	c.process.Freeze(d, func() []nodehealth.Event { return []nodehealth.Event{nodehealth.Away{From: from}, nodehealth.Tick{}} })
	c.Run(d + 10*time.Millisecond)
}

// table prints one line per zone with its state and the number of evicting nodes.
func (c *cluster) table() string {
	var out strings.Builder
	for _, z := range c.core.Zones() {
		evicting := 0
		for _, name := range c.order {
			m := c.nodes[name]
			if nodehealth.NodeOf(m.Node).Zone == z.Name && (m.has(v1.TaintNodeUnreachable+":NoExecute") || m.has(v1.TaintNodeNotReady+":NoExecute")) {
				evicting++
			}
		}
		fmt.Fprintf(&out, "%-5s %-17s %4g/s  nodes %4d  not ready %4d  evicting %4d\n",
			nodehealth.ZoneName(z.Name), z.State, z.Rate, z.Size, z.Unhealthy, evicting)
	}
	return out.String()
}
