// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Codes of NodeResourcesFit. A shortage of any other resource has CodeInsufficientResource.
const (
	CodeTooManyPods                  = "TooManyPods"
	CodeInsufficientCPU              = "InsufficientCPU"
	CodeInsufficientMemory           = "InsufficientMemory"
	CodeInsufficientEphemeralStorage = "InsufficientEphemeralStorage"
	CodeInsufficientResource         = "InsufficientResource"
)

// NodeResourcesFit rejects nodes without room for the pod's requests, and scores nodes by their
// free room. It counts requests, never usage: an idle node is full if its pods request everything,
// and a busy node has room if its pods request little.
//
//	allocatable 4 CPU, requested 3.5, the pod requests 500m   -> fits: 0.5 is not above 0.5
//	allocatable 4 CPU, requested 4.2, the pod requests none   -> fits: nothing is always satisfied
//	allocatable 4 CPU, the pod requests 5                     -> rejected, and unresolvable
type NodeResourcesFit struct {
	// ignored and ignoredGroups are extended resources exempt from the filter because an extender
	// manages them, by full name and by the prefix before the slash.
	ignored       sets.Set[string]
	ignoredGroups sets.Set[string]
	// specs are scored by the strategy; shape applies only to RequestedToCapacityRatio. cpuWeight
	// and memoryWeight are taken from specs, 0 if unlisted, and stored because roomScore runs once
	// per node.
	strategy     config.ScoringStrategyType
	specs        resourceSpecs
	shape        shape
	cpuWeight    int64
	memoryWeight int64
	// stock caches the number of devices backing an extended resource. It is the plugin's only
	// state.
	stock deviceStock
}

// NewNodeResourcesFit returns the plugin; nil args select the defaults.
func NewNodeResourcesFit(args *config.NodeResourcesFitArgs) (*NodeResourcesFit, error) {
	args, err := completeArgs(args)
	if err != nil {
		return nil, err
	}

	f := &NodeResourcesFit{
		ignored:       sets.New(args.IgnoredResources...),
		ignoredGroups: sets.New(args.IgnoredResourceGroups...),
		strategy:      args.ScoringStrategy.Type,
		specs:         args.ScoringStrategy.Resources,
	}

	if ratio := args.ScoringStrategy.RequestedToCapacityRatio; ratio != nil {
		f.shape = newShape(ratio.Shape)
	}
	f.cpuWeight, f.memoryWeight = f.specs.weightOf(v1.ResourceCPU), f.specs.weightOf(v1.ResourceMemory)
	return f, nil
}

// Name implements Filter and Scorer.
func (*NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// Reads implements Filter.
func (*NodeResourcesFit) Reads() Part { return Contents }

// Steady implements Steady.
func (*NodeResourcesFit) Steady() {}

// Filter implements Filter. Upstream computes the pod's requests at PreFilter; here the class holds
// them.
func (f *NodeResourcesFit) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	requests := &p.Class.Requests
	scalars := f.Others(requests)
	classes := classesByResource(c, scalars)
	// Computed once rather than for each node.
	lacks := rules.Mapped(scalars, func(name v1.ResourceName) string { return "Insufficient " + string(name) })
	return Judge{Node: func(n *cluster.Node) *Rejection {
		if f.hasRoom(requests, scalars, classes, n) {
			return nil
		}
		return listShortages(requests, scalars, lacks, classes, n)
	}}
}

// Others implements [RoomFilter]. The names are sorted to keep the order of reasons stable;
// upstream iterates over a map.
func (f *NodeResourcesFit) Others(requests *cluster.Resources) []v1.ResourceName {
	var names []v1.ResourceName
	ignores := len(f.ignored)+len(f.ignoredGroups) > 0
	for name, amount := range requests.Scalars {
		if amount == 0 {
			continue
		}
		if ignores && isExtended(name) {
			group, _, _ := strings.Cut(string(name), "/")
			if f.ignored.Has(string(name)) || f.ignoredGroups.Has(group) {
				continue
			}
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// isExtended distinguishes extended resources from the native ones of Kubernetes, like upstream:
// configuration can ignore only extended ones. hugepages-2Mi and anything under kubernetes.io/ are
// native.
func isExtended(name v1.ResourceName) bool {
	s := string(name)
	return strings.Contains(s, "/") && !strings.Contains(s, v1.ResourceDefaultNamespacePrefix) && cluster.IsScalar(name)
}

// hasRoom is the fast path for nodes without shortages. It does not allocate, and must agree with
// listShortages, which runs only to collect the reasons.
func (*NodeResourcesFit) hasRoom(r *cluster.Resources, scalars []v1.ResourceName, classes map[v1.ResourceName]bool, n *cluster.Node) bool {
	if int64(len(n.Pods)) >= n.Size.Pods || lacksAmount(r.MilliCPU, n.Size.MilliCPU, n.Requested.MilliCPU) ||
		lacksAmount(r.Memory, n.Size.Memory, n.Requested.Memory) ||
		lacksAmount(r.EphemeralStorage, n.Size.EphemeralStorage, n.Requested.EphemeralStorage) {
		return false
	}
	for _, name := range scalars {
		if lacksAmount(r.Scalars[name], n.Size.Scalars[name], n.Requested.Scalars[name]) && !isDelegated(name, classes, n) {
			return false
		}
	}
	return true
}

// lacksAmount reports whether a request exceeds the remaining allocatable amount. A request of zero
// is always satisfied, even on an overcommitted node.
func lacksAmount(request, allocatable, requested int64) bool {
	return request > 0 && request > allocatable-requested
}

// isDelegated reports whether DynamicResources provides the resource: a DeviceClass provides it,
// and the node has none of it allocatable.
func isDelegated(name v1.ResourceName, classes map[v1.ResourceName]bool, n *cluster.Node) bool {
	return classes[name] && n.Size.Scalars[name] <= 0
}

// mostShort is the maximum number of shortages named per node. A pod may request thousands of
// resources that no node has, and the message of its condition would repeat each name for every
// such node. Upstream names all shortages.
const mostShort = 64

// listShortages names up to mostShort shortages, and summarizes the rest in one reason. If a
// request exceeds the node's whole size, preemption cannot help. lacks holds the reason for each of
// the scalars.
func listShortages(r *cluster.Resources, scalars []v1.ResourceName, lacks []string, classes map[v1.ResourceName]bool,
	n *cluster.Node) *Rejection {
	rejection := &Rejection{Reasons: make([]string, 0, 1)}
	add := func(code, reason string, unresolvable bool) {
		rejection.Code = cmp.Or(rejection.Code, code)
		rejection.Reasons = append(rejection.Reasons, reason)
		rejection.Unresolvable = rejection.Unresolvable || unresolvable
	}

	if int64(len(n.Pods)) >= n.Size.Pods {
		add(CodeTooManyPods, "Too many pods", false)
	}
	if lacksAmount(r.MilliCPU, n.Size.MilliCPU, n.Requested.MilliCPU) {
		add(CodeInsufficientCPU, "Insufficient cpu", r.MilliCPU > n.Size.MilliCPU)
	}

	if lacksAmount(r.Memory, n.Size.Memory, n.Requested.Memory) {
		add(CodeInsufficientMemory, "Insufficient memory", r.Memory > n.Size.Memory)
	}
	if lacksAmount(r.EphemeralStorage, n.Size.EphemeralStorage, n.Requested.EphemeralStorage) {
		add(CodeInsufficientEphemeralStorage, "Insufficient ephemeral-storage", r.EphemeralStorage > n.Size.EphemeralStorage)
	}

	// Sorting by name gives equal nodes equal reasons, which are counted together.
	for i, name := range scalars {
		request, allocatable := r.Scalars[name], n.Size.Scalars[name]
		switch {
		case !lacksAmount(request, allocatable, n.Requested.Scalars[name]) || isDelegated(name, classes, n):
		case len(rejection.Reasons) < mostShort:
			add(CodeInsufficientResource, lacks[i], request > allocatable)
		case len(rejection.Reasons) == mostShort:
			add(CodeInsufficientResource, "Insufficient further resources", request > allocatable)
		default:
			rejection.Unresolvable = rejection.Unresolvable || request > allocatable
		}
		if len(rejection.Reasons) > mostShort && rejection.Unresolvable {
			break // further shortages would not change the rejection
		}
	}
	return rejection
}

// Score implements Scorer with the weighted mean of the resource scores, computed with the pod on
// the node.
func (f *NodeResourcesFit) Score(c *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	reader := f.readerFor(c, p)
	return Scoring{Node: func(n *cluster.Node) (int64, error) {
		var sum, weights int64
		for i := range reader.specs {
			a := reader.amountsOn(i, n)
			f.addScore(&sum, &weights, f.specs[i].Weight, rules.Sum(a.allocated, reader.wanted[i]), a.allocatable)
		}
		return f.meanScore(sum, weights), nil
	}}
}

// readerFor prepares the amounts for a pod. CPU and memory count with defaults for containers
// without requests, so that pods without requests spread as well. The filter counts a missing
// request as zero.
func (f *NodeResourcesFit) readerFor(c *cluster.Cluster, p *cluster.Pod) *resourceReader {
	reader := &resourceReader{specs: f.specs, wanted: f.specs.requestsOf(p, rules.ScoreRequests), nonZero: true, cluster: c}
	reader.devices = f.stock.countsFor(c, f.specs, reader.wanted)
	return reader
}

// Scored implements [RoomFilter].
func (f *NodeResourcesFit) Scored() []config.ResourceSpec { return f.specs }

// ScoreByRoom implements [RoomScorer]. Equal weights cancel out of the mean, so LeastAllocatedRule
// omits them; any other weights require a call of RoomScore.Score.
func (f *NodeResourcesFit) ScoreByRoom(c *cluster.Cluster, p *cluster.Pod) RoomScore {
	reader := f.readerFor(c, p)
	score := RoomScore{Only: reader.roomOnly(), Score: f.roomScore}
	score.CPU, score.Memory = reader.cpuAndMemory()
	if f.strategy == config.LeastAllocated && f.cpuWeight == f.memoryWeight && f.cpuWeight > 0 {
		score.Rule = LeastAllocatedRule
	}
	return score
}

// roomScore is Score for pods that need only CPU and memory. It also counts the defaults of
// containers without a request, and must give the same number as Score.
func (f *NodeResourcesFit) roomScore(room *cluster.Room, cpu, memory int64) int64 {
	var sum, weights int64
	f.addScore(&sum, &weights, f.cpuWeight, rules.Sum(room.NonZeroCPU, cpu), room.CPU)
	f.addScore(&sum, &weights, f.memoryWeight, rules.Sum(room.NonZeroMemory, memory), room.Memory)
	return f.meanScore(sum, weights)
}

// Interests implements Requeuer. An event helps by making sufficient room on its node. For a pod
// that may preempt, an event also helps if the room suffices after the departure of all pods that
// the pod could preempt. A deleted pod that the pod could have preempted does not count, because
// the room could have been made before.
func (*NodeResourcesFit) Interests(setting Setting) []queue.Interest {
	interests := []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeAllocatable, Narrowing: setting.byRoom(true),
			Hint: func(item *queue.Item, e *queue.Event) bool {
				return e.Node != nil && (e.NodeBefore == nil || nodeGrew(&item.Class.Requests, e)) &&
					(setting.fitsOn(item, e.Node) || setting.fitsWithoutLower(item, e.Node))
			}},
		{Resource: queue.Pod, Action: queue.Delete | queue.UpdatePodScaleDown, Narrowing: setting.byRoom(false),
			Hint: func(item *queue.Item, e *queue.Event) bool {
				switch {
				case !isOthers(e):
					return Own(item, e)
				case e.Node == nil || e.PodBefore == nil || !podShrank(&item.Class.Requests, e):
					return false
				case setting.fitsOn(item, e.Node):
					return true
				}
				return !setting.couldRemove(item, e.PodBefore) && setting.fitsWithoutLower(item, e.Node)
			}},
		{Resource: queue.DeviceClass, Action: queue.Add | queue.Update, Hint: func(item *queue.Item, e *queue.Event) bool {
			return extendedNameChanged(e) && ofExtendedClass(item, e)
		}},
	}
	// With gentle preemption, a pod may wait for the room of another preemptor's victims. The
	// preemption of these victims then matters to the pod before they depart.
	if setting.Profile.GentlePreemption {
		interests = append(interests, queue.Interest{Resource: queue.Pod, Action: queue.Update,
			Hint: func(item *queue.Item, e *queue.Event) bool {
				return isOthers(e) && e.Node != nil && e.PodBefore != nil && e.Pod != nil && e.Pod.Preempted && !e.PodBefore.Preempted &&
					setting.mayPreempt(item) && setting.fitsOn(item, withoutPreempted(e.Node))
			}})
	}
	return interests
}

// fitsWithoutLower reports whether the pod would fit on the node after the departure of all pods it
// could preempt. It returns false if there are no such pods: fitsOn covers that case. It copies the
// node only if there is a pod to remove.
func (setting Setting) fitsWithoutLower(item *queue.Item, n *cluster.Node) bool {
	if !setting.mayPreempt(item) {
		return false
	}
	var without *cluster.Node
	for _, p := range n.Pods {
		if setting.mayDisplace(item, p) {
			if without == nil {
				without = n.Copy(nil)
			}
			without.Take(p)
		}
	}
	return without != nil && setting.fitsOn(item, without)
}

// withoutPreempted returns a copy of the node without its remaining victims. The node itself must
// not be modified: it belongs to the cluster.
func withoutPreempted(n *cluster.Node) *cluster.Node {
	without := n.Copy(nil)
	for _, p := range n.Pods {
		if p.Preempted {
			without.Take(p)
		}
	}
	return without
}

// mayPreempt reports whether the profile enables preemption and the pod's preemptionPolicy allows
// it. nil is PreemptLowerPriority, the default.
func (setting Setting) mayPreempt(item *queue.Item) bool {
	return setting.Profile.Preemption && !item.Class.Spec.NeverPreempts()
}

// nodeGrew reports whether the node has more of a requested resource than before. A higher limit on
// pods counts for every pod, because each takes a slot.
func nodeGrew(wanted *cluster.Resources, e *queue.Event) bool {
	was, is := e.NodeBefore.Size, e.Node.Size
	return is.Pods > was.Pods || hasMore(wanted, &was.Resources, &is.Resources)
}

// podShrank reports whether the pod takes less of a requested resource than before. A deleted pod
// always does: it frees at least its slot.
func podShrank(wanted *cluster.Resources, e *queue.Event) bool {
	return e.Pod == nil || hasMore(wanted, &e.Pod.Class.Requests, &e.PodBefore.Class.Requests)
}

// hasMore reports whether b has more than a of a requested resource.
func hasMore(wanted, a, b *cluster.Resources) bool {
	if wanted.MilliCPU > 0 && b.MilliCPU > a.MilliCPU || wanted.Memory > 0 && b.Memory > a.Memory ||
		wanted.EphemeralStorage > 0 && b.EphemeralStorage > a.EphemeralStorage {
		return true
	}
	for name, amount := range wanted.Scalars {
		// Devices may now provide a resource that the node no longer has.
		if amount > 0 && (b.Scalars[name] > a.Scalars[name] || b.Scalars[name] == 0 && a.Scalars[name] > 0) {
			return true
		}
	}
	return false
}

// Wakes implements Waker.
func (*NodeResourcesFit) Wakes() []string {
	return []string{"a node is added", "a node's allocatable grows", "a pod leaves its node or is resized", "the pod asks for less"}
}

// Fixes implements Fixer.
func (*NodeResourcesFit) Fixes() []Fix { return []Fix{AskForLess, MakeRoom} }

// Detail implements Detailer. It lists the shortages and their amounts.
func (*NodeResourcesFit) Detail(_ *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	return func(n *cluster.Node) string {
		var list []string
		for _, s := range Shortages(p, n) {
			wanted, free := s.Text(s.Wanted), s.Text(max(s.Free, 0))
			if wanted == free { // the shortage is below the displayed precision
				wanted, free = Quantity(s.Name, s.Wanted).String(), Quantity(s.Name, s.Free).String()
			}
			list = append(list, fmt.Sprintf("%s: wants %s, %s free of %s", s.Name, wanted, free, s.Text(s.Size)))
		}
		if int64(len(n.Pods)) >= n.Size.Pods {
			list = append(list, fmt.Sprintf("%d pods of %d", len(n.Pods), n.Size.Pods))
		}
		return strings.Join(list, "; ")
	}
}
