// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// The required gain of a move for typical pods, in thousandths of a device: leastGain, plus
// leastGain for each hour that the pod has worked, up to mostGain, because its successor may repeat
// the work. See [prices.priceOfWork] for pods losing their work.
const (
	leastGain = 50
	mostGain  = 500
)

// movesPer100 bounds the moves of one plan for typical pods, per 100 pods: each move is worth less
// than the preceding one.
const movesPer100 = 3

// losses is a gauge of the free capacity unusable for typical pods, according to the scheduler's
// plugin Fragmentation. It keeps its own list of each node's pods, since a proof counts a successor
// without placing it.
//
// The plugin's Loss is the expected amount of devices unusable for the next pods, given the
// distribution of pods on a node. It is recomputed only for nodes with changed pods, and only when
// the value is read.
type losses struct {
	w *world
	// plugin is nil if Fragmentation is in no profile; then the gauge is always 0.
	plugin plugins.DeviceValuer
	nodes  map[int32]*nodeLoss
	// dirty lists the nodes with an outdated amount; sum is the total of the amounts of all nodes,
	// including outdated amounts.
	dirty []*nodeLoss
	sum   int64
}

// nodeLoss is the contribution of one node to the gauge.
type nodeLoss struct {
	n      *cluster.Node
	pods   []*cluster.Pod
	amount int64
	dirty  bool
}

func (g *losses) gaugeName() string { return "devices that pods cannot use (thousandths)" }

// countPod implements gauge.
func (g *losses) countPod(p *pod, n *cluster.Node, by int64) {
	loss := g.lossOf(n)
	if by > 0 {
		loss.pods = append(loss.pods, p.Pod)
	} else if at := slices.Index(loss.pods, p.Pod); at >= 0 {
		loss.pods = slices.Delete(loss.pods, at, at+1)
	}
	if !loss.dirty {
		loss.dirty = true
		g.dirty = append(g.dirty, loss)
	}
}

// lossOf returns the record of a node, created without pods on first use.
func (g *losses) lossOf(n *cluster.Node) *nodeLoss {
	loss := g.nodes[n.Index]
	if loss == nil {
		loss = &nodeLoss{n: n}
		g.nodes[n.Index] = loss
	}
	return loss
}

// currentValue implements gauge. It costs one evaluation by the plugin for each changed node.
func (g *losses) currentValue() int64 {
	if g.plugin == nil {
		return 0
	}
	if len(g.nodes) < g.w.c.Len() { // empty nodes also have free capacity
		for _, n := range g.w.c.SortedNodes() {
			if g.nodes[n.Index] == nil {
				loss := g.lossOf(n)
				loss.dirty = true
				g.dirty = append(g.dirty, loss)
			}
		}
	}

	for _, loss := range g.dirty {
		g.sum -= loss.amount
		loss.amount, loss.dirty = g.plugin.Loss(g.w.c, loss.n, loss.pods), false
		g.sum += loss.amount
	}
	g.dirty = g.dirty[:0]
	return g.sum
}

// prices computes the required gain of a move, so that the move is worth the work that the pod must
// repeat. members is valid if membersAt is the number of moves so far; see [prices.membersOf].
//
// Without a price, a plan would move a pod after a week of training to win a fraction of a device.
// Prices are in thousandths of a device, like the gauge losses, so that a price can be compared
// with a gain.
type prices struct {
	w         *world
	members   map[cluster.Name][]*pod // placed pods, by pod group
	membersAt int
}

// deviceValuer returns the DeviceValuer of the first profile with one, or nil.
func (pc *prices) deviceValuer() plugins.DeviceValuer {
	for _, profile := range pc.w.options.Profiles {
		if v := profile.DeviceValuer(); v != nil {
			return v
		}
	}
	return nil
}

// setupTypical sets up the goal of moving pods so that typical pods can use more of the free
// capacity.
func (st *strategy) setupTypical() {
	w := st.w
	g := &losses{w: w, plugin: w.prices.deviceValuer(), nodes: map[int32]*nodeLoss{}}
	st.gauge, st.reselects = g, true
	st.ready = func() string {
		if g.plugin == nil {
			return "no profile of the scheduler has the plugin Fragmentation, which configures the expected pods; only pending pods count"
		}
		return ""
	}

	// Gain and price are compared twice: here to nominate, with the gain from removing the pod, and
	// in the proof, with the gain remaining once the successor has landed.
	st.price = w.prices.priceOf
	st.gain = func(p *pod) int64 {
		if gain := removalGain(g, p); gain >= w.prices.priceOf(p) {
			return gain
		}
		return 0
	}
	// Rounded up, so that a small cluster is allowed one move.
	st.most = func() int { return max(1, (len(w.placed)*movesPer100+99)/100) }
	st.says = func(p *pod) string {
		return fmt.Sprintf("the resources left next to it on %s are of little use", p.Node.Name)
	}
}

// priceOf returns the required gain for moving a pod. A pod group works only as a whole: moving one
// of its pods costs the work of all.
//
//	a web server, 3 hours   50 * (1+3) = 200, and never more than 500
//	a Job's pod, 3 hours, 4 devices   50 + 50*3*4 = 650
//
// The first resumes its work immediately, so its price is bounded. The second may lose all of it.
func (pc *prices) priceOf(p *pod) int64 {
	switch {
	case isInGroup(p):
		sum := int64(0)
		for _, member := range pc.membersOf(p) {
			sum += pc.priceOfWork(member)
		}
		return sum
	case rules.ControllerKind(p.object) == rules.Job:
		return pc.priceOfWork(p)
	}
	return min(leastGain*(1+pc.hoursOf(p)), mostGain)
}

// priceOfWork returns the price of a pod that loses its work: it grows, unbounded, with each hour
// and each device of the pod. A pod without devices has the price of a pod with one device. Without
// the plugin no devices can be counted.
func (pc *prices) priceOfWork(p *pod) int64 {
	price := int64(leastGain)
	if v := pc.deviceValuer(); v != nil {
		kind := v.ComingOf(p.Pod)
		price += leastGain * pc.hoursOf(p) * max(kind.Devices(), 1000) / 1000
	}
	return price
}

// hoursOf returns the pod's working time: the whole hours since its start, or 0 for an unready pod.
func (pc *prices) hoursOf(p *pod) int64 {
	if !disruption.IsReady(p.object) {
		return 0
	}
	return max(0, int64(disruption.AgeOf(p.object, pc.w.now).Hours()))
}

// isInGroup reports whether a pod belongs to a pod group, which works only as a whole.
func isInGroup(p *pod) bool { return p.Spec().SchedulingGroup != nil }

// groupNameOf returns the name of a pod's group. The pod must be in one.
func groupNameOf(p *pod) cluster.Name {
	return cluster.Name{Namespace: p.Namespace(), Name: ptr.Deref(p.Spec().SchedulingGroup.PodGroupName, "")}
}

// membersOf lists the placed pods in the group of a pod.
func (pc *prices) membersOf(p *pod) []*pod {
	// Prices are read between attempts, never within one, so the number of moves identifies the
	// state of the world.
	if pc.members == nil || pc.membersAt != pc.w.moved {
		pc.members, pc.membersAt = map[cluster.Name][]*pod{}, pc.w.moved
		for _, of := range pc.w.placed {
			if isInGroup(of) {
				pc.members[groupNameOf(of)] = append(pc.members[groupNameOf(of)], of)
			}
		}
	}
	return pc.members[groupNameOf(p)]
}

// whyGroupStays returns why a pod of a group must not be moved by itself, or "". Members are moved
// one at a time, and the first successor could land in a different domain than the rest.
func (pc *prices) whyGroupStays(p *pod, goal *Defragment) string {
	name := groupNameOf(p)
	group, _ := objects.Get[*schedulingv1beta1.PodGroup](pc.w.World, name.Namespace, name.Name)
	switch {
	case !goal.typical:
		return "it belongs to a pod group, which would have to restart as a whole"
	case group == nil:
		return "it belongs to a pod group that is not known, which would have to restart as a whole"
	case group.Spec.SchedulingConstraints != nil:
		return "it belongs to a pod group that must stay in one domain"
	}
	return ""
}

// jobSurvives reports whether a pod's Job recreates the pod after an eviction without counting it
// as a failure. The rule that ignores disruptions must be the first, because an earlier rule could
// match an exit code of the evicted pod.
//
// Without such a rule, evictions count towards the Job's backoffLimit, at which the whole Job
// fails.
func (pc *prices) jobSurvives(p *pod) bool {
	job := pc.w.Workloads().JobOf(p.object)
	if job == nil {
		return false
	}
	number, action := workload.DisruptionRule(job)
	return number == 1 && action == batchv1.PodFailurePolicyActionIgnore
}
