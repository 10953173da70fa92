package simulate

import (
	"hash/fnv"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
)

// health stands for the kubelets, their heartbeats and the node health controller. The
// controller's core receives what its watches would deliver, and its writes succeed at once.
//
// A node renews its Lease every ten seconds. The core only cares which nodes have been silent
// for the grace period, so while nothing is about to change the renewals are delivered in
// waves, each renewal with its own time: a thousand nodes renew more than eight million times
// a day. Waves that nothing happens between are left out, except for the last: the core takes
// it that it was not running meanwhile.
//
//	heartbeats  ||||||||||||||||||||||||||||||||||||||||||     every 10 s, by each node
//	waves       |       |       |   (left out)  |       |      grace period - 20 s apart
type health struct {
	clock   *clock
	report  *report
	nodes   *nodes
	pods    *pods
	core    *nodehealth.Core // nil until startHealth, and if node health cannot have any effect
	options nodehealth.Options
	// wave is the time between two waves, and waveAt when the next one is. wave is shorter
	// than the grace period by two renewals, so that no healthy node ever seems silent.
	wave   time.Duration
	waveAt time.Duration // the next one
	// Until alertTo, and while unsettled is set, the core is called whenever it asks to be.
	// Otherwise it is called for waves only.
	alertTo   time.Duration
	unsettled bool
	seen      map[string]bool // the nodes that the core knows
}

// renewEvery is how often a kubelet renews its Lease: a quarter of the Lease's 40 seconds.
const renewEvery = 10 * time.Second

// startHealth starts node health. It follows the start of the live controller: list nodes,
// list Leases, and only then judge.
func (h *health) startHealth() {
	// Every write is answered at once, so the limit of writes in flight must not delay any.
	h.options.InFlight = len(h.nodes.named) + 1024
	h.core, h.seen = nodehealth.New(h.options), map[string]bool{}
	h.wave = max(h.options.MonitorGracePeriod-2*renewEvery, h.options.MonitorPeriod)
	now := h.clock.time()
	h.core.Step(now, nodehealth.NodesListing{})
	for _, name := range h.nodes.names() {
		h.showNode(h.nodes.named[name])
	}
	h.runActions(h.core.Step(now, nodehealth.NodesListed{}))
	// Healthy nodes have renewed their Leases just now. Nodes that are silent from the
	// beginning did so last at the time that their Lease says.
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

// ensureStarted has node health act, if it does not yet.
func (h *health) ensureStarted() {
	if h.core == nil {
		h.reportReady("")
		h.startHealth()
	}
}

// hasSick reports whether the state of some node differs from a healthy one's in a way that
// its taints may not show yet. If there is none, node health need not run.
func (n *nodes) hasSick() bool {
	for _, m := range n.named {
		if m.dead {
			return true
		}
		for _, c := range m.object.Status.Conditions {
			bad := c.Type == v1.NodeReady && c.Status != v1.ConditionTrue ||
				c.Type != v1.NodeReady && conditionTaints[c.Type] != "" && c.Status == v1.ConditionTrue
			if bad {
				return true
			}
		}
	}
	return false
}

// conditionTaints are the taints that stand for conditions other than Ready, as the node
// lifecycle controller sets them.
var conditionTaints = map[v1.NodeConditionType]string{
	v1.NodeMemoryPressure: v1.TaintNodeMemoryPressure, v1.NodeDiskPressure: v1.TaintNodeDiskPressure,
	v1.NodePIDPressure: v1.TaintNodePIDPressure, v1.NodeNetworkUnavailable: v1.TaintNodeNetworkUnavailable,
}

// isWatched reports whether the node is subject to node health. A node that reports nothing, as in
// a hand-written manifest, keeps the taints that it has.
func (m *machine) isWatched() bool {
	return slices.ContainsFunc(m.object.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
}

// showNode gives the core a node's newest state. Before node health has started it does
// nothing.
func (h *health) showNode(m *machine) {
	if h.core == nil || !m.isWatched() {
		return
	}
	h.seen[m.object.Name] = true
	h.runActions(h.core.Step(h.clock.time(), nodehealth.NodeSeen{Node: nodehealth.NodeOf(m.object)}))
	h.extendAlert()
}

// removeNode tells the core that a node was deleted: its zone may be in another state without
// it.
func (h *health) removeNode(name string) {
	if h.core == nil {
		return
	}
	delete(h.seen, name)
	h.runActions(h.core.Step(h.clock.time(), nodehealth.NodeGone{Name: name}))
	h.extendAlert()
}

// extendAlert has the core called until it has looked at all nodes once more.
func (h *health) extendAlert() { h.alertTo = h.clock.now + 2*h.options.MonitorPeriod }

// nextCall is when the core has to be called again; ok is false without nodes that it
// watches.
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

// isBusy reports whether node health may change something although nothing else happens: it
// has not looked at all nodes since the last change, and some node's taints are not those of
// its state. Without this, a world would be quiet before a failed node is tainted, or never.
func (h *health) isBusy() bool {
	if !h.unsettled && h.clock.now >= h.alertTo {
		return false
	}
	for name := range h.seen {
		if !h.nodes.named[name].hasExpectedTaints() {
			return true
		}
	}
	return false
}

// hasExpectedTaints reports whether the node has the taints that node health gives a node in
// its state, and no others of these:
//
//	Ready=False      not-ready:NoExecute and :NoSchedule
//	Ready=Unknown    unreachable:NoExecute and :NoSchedule
//	cordoned         unschedulable:NoSchedule
//	MemoryPressure   memory-pressure:NoSchedule; disk, PID and network alike
func (m *machine) hasExpectedTaints() bool {
	wanted, evicts := map[string]bool{}, "" // the key of the taint that evicts
	if m.object.Spec.Unschedulable {
		wanted[v1.TaintNodeUnschedulable] = true
	}
	for _, c := range m.object.Status.Conditions {
		switch {
		case c.Type == v1.NodeReady && c.Status == v1.ConditionFalse:
			evicts = v1.TaintNodeNotReady
		case c.Type == v1.NodeReady && c.Status == v1.ConditionUnknown:
			evicts = v1.TaintNodeUnreachable
		case c.Type == v1.NodeReady && m.dead: // it will be Unknown
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
		// Users set these; node health leaves them alone.
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

// skipWaves leaves out the waves before a time, except for the last one, if node health is waiting
// for nothing. The core takes each node's last sign of life for as much later as the waves would
// have made it; the last wave makes it exact.
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

// runDue calls the core if its time has come: after a wave, if one is due.
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

// hasMore reports whether node health has work left: a dead node that is not marked Unknown yet, or
// a node whose taint is pending.
func (h *health) hasMore() bool {
	for name := range h.seen {
		if m := h.nodes.named[name]; m.dead && readyOf(m.object) != v1.ConditionUnknown {
			return true
		}
	}
	return slices.ContainsFunc(h.core.Zones(), func(z nodehealth.Zone) bool { return z.Waiting > 0 && z.Rate > 0 })
}

// deliverRenewals delivers the newest renewal of every Lease, in the order in which they were
// made. Dead nodes have none.
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
		if a.at != b.at {
			return int(a.at - b.at)
		}
		if a.name < b.name {
			return -1
		}
		return 1
	})

	for _, r := range list {
		h.showLease(r.name, r.at)
	}
}

// showLease shows the core a Lease that was renewed at a time from the beginning, negative
// for before. The core's clock is that time as well: a watch would have delivered it then.
func (h *health) showLease(name string, at time.Duration) {
	if h.core == nil {
		return
	}
	now := h.clock.start.Add(at)
	h.runActions(h.core.Step(now, nodehealth.LeaseSeen{Name: name, Renewed: now}))
}

// lastRenewal is when the node last renewed its Lease: each has its own offset within the ten
// seconds, from a hash of its name, so that nodes that fail together are not noticed in the
// same instant.
func lastRenewal(name string, now time.Duration) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(name))
	phase := time.Duration(h.Sum32()%uint32(renewEvery/time.Second)) * time.Second
	return now - (now-phase+renewEvery)%renewEvery
}

// runActions carries out the core's actions, which succeed at once. The answers lead to
// further actions, which are carried out before it returns.
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
				h.report.tellTaints(a.Node, m.object.Spec.Taints, a.Taints)
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
			h.runActions(h.core.Step(h.clock.time(), nodehealth.Answered{Ticket: a.Ticket, Outcome: nodehealth.OK}))
		case nodehealth.ZoneChanged:
			if a.From != nodehealth.Initial {
				h.report.addEvent(Event{Kind: "ZoneChanged", Zone: nodehealth.ZoneName(a.Zone), Message: a.String()})
			}
		}
	}
}

// writeNode carries out a write of node health, and answers it with the node as it is then:
// the core does not have to wait for its watch.
func (h *health) writeNode(node string, ticket nodehealth.Ticket, alter func(n *v1.Node)) {
	m := h.nodes.named[node]
	h.nodes.alterNode(m, alter)
	seen := nodehealth.NodeOf(m.object)
	h.runActions(h.core.Step(h.clock.time(), nodehealth.Answered{Ticket: ticket, Outcome: nodehealth.OK, Node: &seen}))
}
