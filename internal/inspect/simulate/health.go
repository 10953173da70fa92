// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// health simulates the kubelets, their heartbeats and the node health controller. It feeds the
// controller's core the events of its watches, and the core's writes succeed immediately.
//
// A node renews its Lease every ten seconds, so a thousand nodes renew more than eight million
// times a day. The core only needs to find nodes that were silent for the grace period. While no
// change is imminent, the renewals are therefore delivered in waves, each renewal with its true
// time. Of consecutive waves without other events in between, only the last is delivered. The core
// treats the skipped time as a time during which it was not running (nodehealth.Away).
//
//	heartbeats  ||||||||||||||||||||||||||||||||||||||||||     every 10 s, by each node
//	waves       |       |       |   (left out)  |       |      grace period - 20 s apart
type health struct {
	clock   *clock
	report  *report
	nodes   *nodes
	pods    *pods
	core    *nodehealth.Core // nil before startHealth, and if node health cannot have any effect
	options nodehealth.Options
	// wave is the interval between waves, two renewals shorter than the grace period, so that
	// healthy nodes never seem silent.
	wave   time.Duration
	waveAt time.Duration // time of the next wave
	// Until alertTo, and while unsettled is set, the core is called at every time it requests.
	// Otherwise it is called only for waves.
	alertTo   time.Duration
	unsettled bool
	seen      map[string]bool // nodes known to the core
}

// renewEvery is a kubelet's Lease renewal interval: a quarter of the Lease's 40 seconds.
const renewEvery = 10 * time.Second

// startHealth starts node health in the order of the live controller: it lists the nodes, then the
// Leases, and only then judges the nodes.
func (h *health) startHealth() {
	// Every write completes immediately, so the limit on writes in flight must not delay any.
	h.options.InFlight = len(h.nodes.named) + 1024
	h.core, h.seen = nodehealth.New(h.options), map[string]bool{}
	h.wave = max(h.options.MonitorGracePeriod-2*renewEvery, h.options.MonitorPeriod)
	now := h.clock.time()
	h.core.Step(now, nodehealth.NodesListing{})
	for _, name := range h.nodes.names() {
		h.showNode(h.nodes.named[name])
	}
	h.runActions(h.core.Step(now, nodehealth.NodesListed{}))
	// Healthy nodes have just renewed their Leases. Nodes silent from the start last renewed at the
	// time in their Lease.
	h.deliverRenewals()
	for _, name := range h.nodes.names() {
		if m := h.nodes.named[name]; m.dead && m.silent < 0 && h.seen[name] {
			h.showLease(name, m.silent)
		}
	}
	h.unsettled = true
	h.runActions(h.core.Step(now, nodehealth.LeasesListed{}))
	h.waveAt = h.clock.now + h.wave
}

// ensureStarted starts node health if it is not running.
func (h *health) ensureStarted() {
	if h.core == nil {
		h.reportReady("")
		h.startHealth()
	}
}

// hasSick reports whether any node is unhealthy in a way its taints may not reflect yet. Otherwise
// node health need not run.
func (n *nodes) hasSick() bool {
	for _, m := range n.named {
		if m.dead || slices.ContainsFunc(m.object.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status != v1.ConditionTrue || conditionTaints[c.Type] != "" && c.Status == v1.ConditionTrue
		}) {
			return true
		}
	}
	return false
}

// conditionTaints maps conditions other than Ready to the taints set by the node lifecycle
// controller.
var conditionTaints = map[v1.NodeConditionType]string{
	v1.NodeMemoryPressure: v1.TaintNodeMemoryPressure, v1.NodeDiskPressure: v1.TaintNodeDiskPressure,
	v1.NodePIDPressure: v1.TaintNodePIDPressure, v1.NodeNetworkUnavailable: v1.TaintNodeNetworkUnavailable,
}

// isWatched reports whether the node is subject to node health. A node without reported conditions,
// as in a hand-written manifest, keeps its taints.
func (m *machine) isWatched() bool {
	return slices.ContainsFunc(m.object.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
}

// showNode shows a node's current state to the core. It is a no-op before node health has started.
func (h *health) showNode(m *machine) {
	if h.core == nil || !m.isWatched() {
		return
	}
	h.seen[m.object.Name] = true
	h.runActions(h.core.Step(h.clock.time(), nodehealth.NodeSeen{Node: nodehealth.NodeOf(m.object)}))
	h.extendAlert()
}

// removeNode reports the deletion of a node to the core, because the state of its zone may change.
func (h *health) removeNode(name string) {
	if h.core == nil {
		return
	}
	delete(h.seen, name)
	h.runActions(h.core.Step(h.clock.time(), nodehealth.NodeGone{Name: name}))
	h.extendAlert()
}

// extendAlert keeps the core running until it has examined all nodes once more.
func (h *health) extendAlert() { h.alertTo = h.clock.now + 2*h.options.MonitorPeriod }

// nextCall returns the time of the next call of the core; ok is false if the core watches no nodes.
func (h *health) nextCall() (time.Duration, bool) {
	if len(h.seen) == 0 {
		return 0, false
	}
	at := h.waveAt
	if h.unsettled || h.clock.now < h.alertTo {
		at = min(at, max(h.core.Wake(h.clock.time()).Sub(h.clock.start), h.clock.now))
	}
	return at, true
}

// isBusy reports whether node health may act without further events: it has not examined all nodes
// since the last change, or some node's taints do not match its state. Without this check, a world
// might be considered quiet before a failed node is tainted, or never be considered quiet.
func (h *health) isBusy() bool {
	return (h.unsettled || h.clock.now < h.alertTo) &&
		rules.Any(maps.Keys(h.seen), func(name string) bool { return !h.nodes.named[name].hasExpectedTaints() })
}

// hasExpectedTaints reports whether the node has exactly the taints node health assigns to its
// state, out of these:
//
//	Ready=False      not-ready:NoExecute and :NoSchedule
//	Ready=Unknown    unreachable:NoExecute and :NoSchedule
//	cordoned         unschedulable:NoSchedule
//	MemoryPressure   memory-pressure:NoSchedule; likewise for disk, PID and network
func (m *machine) hasExpectedTaints() bool {
	wanted, evicts := map[string]bool{}, "" // evicts: the key of the NoExecute taint
	if m.object.Spec.Unschedulable {
		wanted[v1.TaintNodeUnschedulable] = true
	}
	for _, c := range m.object.Status.Conditions {
		switch {
		case c.Type == v1.NodeReady && c.Status == v1.ConditionFalse:
			evicts = v1.TaintNodeNotReady
		case c.Type == v1.NodeReady && c.Status == v1.ConditionUnknown:
			evicts = v1.TaintNodeUnreachable
		case c.Type == v1.NodeReady && m.dead: // node health will set it to Unknown
			return false
		case conditionTaints[c.Type] != "" && c.Status == v1.ConditionTrue:
			wanted[conditionTaints[c.Type]] = true
		}
	}
	if evicts != "" {
		wanted[evicts] = true
	}
	for _, t := range m.object.Spec.Taints {
		switch {
		// Node health does not touch taints set by users.
		case !ofState[t.Key] || t.Key == v1.TaintNodeOutOfService:
		case t.Effect == v1.TaintEffectNoExecute && t.Key == evicts:
			evicts = ""
		case t.Effect == v1.TaintEffectNoSchedule && wanted[t.Key]:
			delete(wanted, t.Key)
		default:
			return false
		}
	}
	return len(wanted) == 0 && evicts == ""
}

// skipWaves skips the waves before a time, except for the last one, if node health has no pending
// work. The core shifts each node's last sign of life by the skipped time, and the last wave makes
// it exact.
func (h *health) skipWaves(to time.Duration) {
	if len(h.seen) == 0 || h.unsettled || h.clock.now < h.alertTo || to < h.waveAt {
		return
	}
	skipped := (to - h.waveAt) / h.wave * h.wave
	if skipped == 0 {
		return
	}
	last := h.clock.start.Add(h.waveAt - h.wave)
	h.runActions(h.core.Step(last.Add(skipped), nodehealth.Away{From: last}))
	h.waveAt += skipped
}

// runDue calls the core if its next call is due. If a wave is due, it delivers the renewals first.
func (h *health) runDue() {
	if at, ok := h.nextCall(); !ok || at > h.clock.now {
		return
	}
	if h.clock.now >= h.waveAt {
		h.deliverRenewals()
		h.waveAt += h.wave
	}
	h.runActions(h.core.Step(h.clock.time(), nodehealth.Tick{}))
	h.unsettled = h.hasMore()
}

// hasMore reports whether node health has pending work: a dead node not yet marked Unknown, or a
// node with a pending taint.
func (h *health) hasMore() bool {
	return rules.Any(maps.Keys(h.seen), func(name string) bool {
		m := h.nodes.named[name]
		return m.dead && disruption.ReadinessOf(m.object) != v1.ConditionUnknown
	}) || slices.ContainsFunc(h.core.Zones(), func(z nodehealth.Zone) bool { return z.Waiting > 0 && z.Rate > 0 })
}

// deliverRenewals delivers the latest renewal of every Lease, in order of time. Dead nodes do not
// renew.
func (h *health) deliverRenewals() {
	type renewal struct {
		name string
		at   time.Duration
	}
	var list []renewal
	for name := range h.seen {
		if !h.nodes.named[name].dead {
			list = append(list, renewal{name, lastRenewal(name, h.clock.now)})
		}
	}

	slices.SortFunc(list, func(a, b renewal) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name))
	})

	for _, r := range list {
		h.showLease(r.name, r.at)
	}
}

// showLease shows the core a Lease renewed at a time since the start, possibly negative. It also
// sets the core's clock to that time, at which a watch would deliver the Lease.
func (h *health) showLease(name string, at time.Duration) {
	if h.core == nil {
		return
	}
	now := h.clock.start.Add(at)
	h.runActions(h.core.Step(now, nodehealth.LeaseSeen{Name: name, Renewed: now}))
}

// lastRenewal returns the node's last Lease renewal. Each node renews at an offset within the ten
// seconds that is derived from its name, so nodes failing together are not noticed in the same
// instant.
func lastRenewal(name string, now time.Duration) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(name))
	phase := time.Duration(h.Sum32()%uint32(renewEvery/time.Second)) * time.Second
	return now - (now-phase+renewEvery)%renewEvery
}

// runActions carries out the core's actions, which succeed immediately, and any further actions
// caused by their results.
func (h *health) runActions(actions []nodehealth.Action) {
	for _, action := range actions {
		switch a := action.(type) {
		case nodehealth.WriteStatus:
			h.report.addEvent(Event{Kind: "NodeUnknown", Node: a.Node, Message: "Kubelet stopped posting node status."})
			h.writeNode(a.Node, a.Ticket, func(n *v1.Node) {
				for _, c := range a.Conditions {
					setCondition(n, c)
				}
			})
		case nodehealth.WriteNode:
			m := h.nodes.named[a.Node]
			if a.SetTaints {
				h.report.recordTaints(a.Node, m.object.Spec.Taints, a.Taints)
			}

			h.writeNode(a.Node, a.Ticket, func(n *v1.Node) {
				if a.SetTaints {
					n.Spec.Taints = a.Taints
				}
				for key, value := range a.Labels {
					metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
				}
			})
		case nodehealth.MarkPods:
			// kube-controller-manager sets the pods' Ready condition to False.
			h.pods.markUnready(a.Node)
			h.runActions(h.core.Step(h.clock.time(), nodehealth.Answered{Ticket: a.Ticket, Outcome: response.OK}))
		case nodehealth.ZoneChanged:
			if a.From != nodehealth.Initial {
				h.report.addEvent(Event{Kind: "ZoneChanged", Zone: nodehealth.ZoneName(a.Zone), Message: a.String()})
			}
		}
	}
}

// writeNode carries out a write of node health and returns the updated node to the core, so that
// the core need not wait for a watch event.
func (h *health) writeNode(node string, ticket response.Ticket, alter func(n *v1.Node)) {
	m := h.nodes.named[node]
	h.nodes.alterNode(m, alter)
	seen := nodehealth.NodeOf(m.object)
	h.runActions(h.core.Step(h.clock.time(), nodehealth.Answered{Ticket: ticket, Outcome: response.OK, Node: &seen}))
}
