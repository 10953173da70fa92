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
	"github.com/berth-k8s/berth/internal/world/agenda"
)

var begin = time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)

const beat = 10 * time.Second // interval of Lease renewals by a kubelet

// cluster simulates nodes with kubelets, an API server and the controller, in virtual time.
type cluster struct {
	now     time.Time
	core    *nodehealth.Core
	life    int
	options nodehealth.Options
	nodes   map[string]*machine
	order   []string
	rev     int
	agenda  agenda.Agenda
	wakeAt  time.Time
	say     func(string)
	began   func() // called after the creation of a core
	told    func(nodehealth.Event, []nodehealth.Action)

	stale  int           // number of upcoming writes with a conflict
	failed int           // number of upcoming failed writes
	cut    bool          // watches are broken
	marks  time.Duration // duration of marking a node's pods
	frozen bool          // the controller process is stopped
	skew   time.Duration // offset of the nodes' clocks
	lags   bool          // the Lease watch lags without being broken
	unread int           // number of upcoming failed Lease reads
	leases int           // the latest version of a Lease

	// respond, if set, returns the response to each write. It may call do to carry out the write.
	respond func(write nodehealth.Action, do func() (response.Outcome, *nodehealth.Node)) (response.Outcome, *nodehealth.Node)
	// policy, if set, changes each written node before it is stored.
	policy func(m *machine)
}

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
	c := &cluster{now: begin, options: options, nodes: map[string]*machine{}, say: func(string) {}, began: func() {}, told: func(nodehealth.Event, []nodehealth.Action) {}}
	c.start()
	return c
}

// start replaces the controller by a new one without state.
func (c *cluster) start() {
	c.life++
	c.core, c.wakeAt = nodehealth.New(c.options), time.Time{}
	c.began()
	c.step(nodehealth.NodesListing{})
	for _, name := range c.order {
		c.step(nodehealth.NodeSeen{Node: nodehealth.NodeOf(c.nodes[name].Node)})
	}
	c.step(nodehealth.NodesListed{})
	for _, name := range c.order {
		c.showLease(c.nodes[name])
	}
	c.step(nodehealth.LeasesListed{})
}

func (c *cluster) add(name, zone string) *machine {
	m := c.addUnreported(name, zone)
	c.setCondition(m, v1.NodeReady, v1.ConditionTrue)
	c.changed(m)
	c.after(time.Duration(len(c.order)*37%10_000)*time.Millisecond, func() { c.beats(m) })
	return m
}

// addUnreported adds a node without a kubelet.
func (c *cluster) addUnreported(name, zone string) *machine {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), CreationTimestamp: metav1.Time{Time: c.now},
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
	c.after(beat, func() { c.beats(m) })
}

func (c *cluster) showLease(m *machine) {
	if !c.cut && !c.lags {
		c.step(c.leaseOf(m))
	}
}

func (c *cluster) leaseOf(m *machine) nodehealth.LeaseSeen {
	return nodehealth.LeaseSeen{
		Name: m.Name, ResourceVersion: strconv.Itoa(m.lease), Renewed: begin.Add(c.skew + m.skew + time.Duration(m.renews)*beat),
	}
}

func (c *cluster) setCondition(m *machine, t v1.NodeConditionType, status v1.ConditionStatus) {
	now := metav1.Time{Time: c.now.Truncate(time.Second)} // with the precision of the API
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
	if !c.cut {
		c.step(nodehealth.NodeSeen{Node: nodehealth.NodeOf(m.DeepCopy())})
	}
}

func (c *cluster) remove(name string) {
	delete(c.nodes, name)
	c.order = slices.DeleteFunc(c.order, func(n string) bool { return n == name })
	c.step(nodehealth.NodeGone{Name: name})
}

// has reports whether the node has a taint in the form KEY:EFFECT.
func (m *machine) has(taint string) bool {
	return slices.ContainsFunc(m.Spec.Taints, func(t v1.Taint) bool { return t.Key+":"+string(t.Effect) == taint })
}

func (c *cluster) step(event nodehealth.Event) {
	if c.frozen {
		return
	}
	actions := c.core.Step(c.now, event)
	c.told(event, actions)
	for _, action := range actions {
		if _, reads := action.(nodehealth.ReadLease); !reads {
			c.say(action.String())
		}
		c.carryOut(action)
	}
	if at := c.core.Wake(c.now); !at.Equal(c.wakeAt) {
		c.wakeAt = at
		life := c.life
		c.after(at.Sub(c.now), func() {
			if c.life == life && c.wakeAt.Equal(at) {
				c.wakeAt = time.Time{}
				c.step(nodehealth.Tick{})
			}
		})
	}
}

func (c *cluster) carryOut(action nodehealth.Action) {
	life := c.life
	takes := 2 * time.Millisecond
	answer := func(ticket response.Ticket, do func() (response.Outcome, *nodehealth.Node)) {
		if c.respond != nil {
			carryOut := do
			do = func() (response.Outcome, *nodehealth.Node) { return c.respond(action, carryOut) }
		}
		c.after(takes, func() {
			outcome, node := do()
			if c.life == life {
				c.step(nodehealth.Answered{Ticket: ticket, Outcome: outcome, Node: node})
			}
		})
	}
	switch a := action.(type) {
	case nodehealth.ReadLease:
		c.after(takes, func() {
			read := nodehealth.Answered{Ticket: a.Ticket, Outcome: response.Gone}
			if m := c.nodes[a.Node]; m != nil && m.lease > 0 {
				seen := c.leaseOf(m)
				read.Outcome, read.Lease = response.OK, &seen
			}
			if c.unread > 0 {
				c.unread--
				read.Outcome, read.Lease = response.Failed, nil
			}
			if c.life == life {
				c.step(read)
			}
		})
	case nodehealth.WriteStatus:
		answer(a.Ticket, func() (response.Outcome, *nodehealth.Node) {
			return c.written(a.Node, a.ResourceVersion, func(m *machine) {
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
		answer(a.Ticket, func() (response.Outcome, *nodehealth.Node) {
			return c.written(a.Node, a.ResourceVersion, func(m *machine) {
				if a.SetTaints {
					m.Spec.Taints = a.Taints
				}
				for k, v := range a.Labels {
					m.Labels[k] = v
				}
			})
		})
	case nodehealth.MarkPods:
		takes += c.marks
		answer(a.Ticket, func() (response.Outcome, *nodehealth.Node) {
			if c.failed > 0 {
				c.failed--
				return response.Failed, nil
			}
			if m := c.nodes[a.Node]; m != nil {
				m.marked++
			}
			return response.OK, nil
		})
	}
}

func (c *cluster) written(name, version string, change func(*machine)) (response.Outcome, *nodehealth.Node) {
	m := c.nodes[name]
	if m == nil {
		return response.Gone, nil
	}
	if c.failed > 0 {
		c.failed--
		return response.Failed, nil
	}
	if c.stale > 0 {
		c.stale--
		c.rev++
		m.ResourceVersion = strconv.Itoa(c.rev) // another client wrote first
	}
	outcome := response.OK
	if m.ResourceVersion != version {
		outcome = response.Conflict
	} else {
		change(m)
		if c.policy != nil {
			c.policy(m)
		}
		c.rev++
		m.ResourceVersion = strconv.Itoa(c.rev)
		if !c.cut {
			c.after(time.Millisecond, func() { c.step(nodehealth.NodeSeen{Node: nodehealth.NodeOf(m.DeepCopy())}) })
		}
	}
	node := nodehealth.NodeOf(m.DeepCopy())
	return outcome, &node
}

// freeze stops the controller process for some time. Afterwards, the controller first gets Away and
// Tick, and then the missed changes.
func (c *cluster) freeze(d time.Duration) {
	c.frozen = true
	from := c.now
	c.run(d)
	c.frozen = false
	c.step(nodehealth.Away{From: from})
	c.step(nodehealth.Tick{})
	c.run(10 * time.Millisecond)
	for _, name := range c.order {
		c.step(nodehealth.NodeSeen{Node: nodehealth.NodeOf(c.nodes[name].DeepCopy())})
		c.showLease(c.nodes[name])
	}
}

func (c *cluster) after(wait time.Duration, do func()) {
	c.agenda.Add(c.now.Add(max(0, wait)), do)
}

func (c *cluster) run(d time.Duration) {
	end := c.now.Add(d)
	c.agenda.RunUntil(end, func(now time.Time) { c.now = now })
	c.now = end
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
