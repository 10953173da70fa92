// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	componentresource "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file proposes changes against insufficient room: lower requests, or fewer other pods on the
// node. Both derive from the node's shortage per resource (plugins.Shortages).

// lowerRequests proposes the smallest reduction of the requests for each set of resources that some
// nodes lack. The node with the smallest shortage determines the reduction. For example, if a pod
// requests 2 CPUs and the roomiest node has 1500m left, it proposes lowering the request from 2 to
// 1500m.
func (f *fixer) lowerRequests(_ string, nodes []verdict) (edits []*edit) {
	type option struct {
		short []plugins.Shortage
		part  float64 // reduction as a fraction of the requests
	}
	best := map[string]option{}
	for _, v := range nodes {
		// The node has no slot for another pod of any size.
		if int64(len(v.node.Pods)) >= v.node.Size.Pods {
			continue
		}
		o := option{short: plugins.Shortages(f.pod, v.node)}
		var names []string
		possible := len(o.short) > 0
		for _, short := range o.short {
			names = append(names, string(short.Name))
			o.part += float64(short.Wanted-short.Free) / float64(short.Wanted)
			// If the resource is exhausted, no positive request fits.
			possible = possible && short.Free > 0
		}
		// Among nodes short of the same resources, use the node with the smallest shortage.
		key := strings.Join(names, ",")
		if known, ok := best[key]; possible && (!ok || o.part < known.part) {
			best[key] = o
		}
	}
	for _, key := range sortedKeys(best) {
		o := best[key]
		var words []string
		var lower alterations
		possible := true
		for _, short := range o.short {
			word, do := f.lowerRequest(short)
			// All resources of a set must fit, or the change does not help.
			if possible = possible && do != nil; possible {
				words, lower = append(words, word), append(lower, do)
			}
		}
		if !possible {
			continue
		}
		e := f.onPod("LowerRequest", strings.Join(words, ", and "), 10*len(words)+int(40*o.part), lower.alter)
		e.otherwise = f.lowerLimits(e)
		edits = append(edits, e)
	}
	return edits
}

// lowerRequest reduces the largest request that determines the pod's total, in an init container or
// a container, and continues with the next such request until the pod fits. It returns nil if a
// container requests no more than the shortage, because no rule divides the reduction among several
// containers.
func (f *fixer) lowerRequest(short plugins.Shortage) (text string, do func(*v1.Pod)) {
	excess := short.Wanted - short.Free
	// Pod-level requests take precedence over requests of containers.
	if own := f.object.Spec.Resources; own != nil && len(own.Requests) > 0 {
		if have := rules.Amount(short.Name, own.Requests[short.Name]); have > excess {
			to := roundAmount(short.Name, have-excess)
			return fmt.Sprintf("lower the pod's %s request from %s to %s", short.Name, short.Text(have), to), func(p *v1.Pod) {
				setAmount(p.Spec.Resources, short.Name, *to)
			}
		}
		return "", nil
	}

	trial := f.object.DeepCopy()
	total := func() int64 {
		return rules.Amount(short.Name, rules.PodRequests(trial, componentresource.PodResourcesOptions{})[short.Name])
	}
	lowered := map[int]resource.Quantity{} // by index in containersOf
	var words []string
	for before := total(); before > short.Free; {
		which, from := f.peakOf(trial, short.Name, total)
		if which < 0 || from <= before-short.Free {
			return "", nil
		}
		to := roundAmount(short.Name, from-(before-short.Free))
		setAmount(&containersOf(trial)[which].Resources, short.Name, *to)
		lowered[which] = *to
		words = append(words, fmt.Sprintf("lower the %s request from %s to %s%s", short.Name, short.Text(from), to, containerNote(trial, which)))
		now := total()
		if now >= before {
			return "", nil
		}
		before = now
	}
	if len(words) == 0 {
		return "", nil
	}
	return strings.Join(words, ", and "), func(p *v1.Pod) {
		for which, to := range lowered {
			setAmount(&containersOf(p)[which].Resources, short.Name, to)
		}
	}
}

// peakOf returns the container with the largest request that determines the pod's total, and that
// request. The container is -1 if no container determines it. total computes the total of the
// trial.
func (f *fixer) peakOf(trial *v1.Pod, name v1.ResourceName, total func() int64) (which int, most int64) {
	which = -1
	before := total()
	for i, c := range containersOf(trial) {
		have := rules.Amount(name, c.Resources.Requests[name])
		if have <= most {
			continue
		}
		kept := c.Resources
		c.Resources = *kept.DeepCopy()
		setAmount(&c.Resources, name, *plugins.Quantity(name, 0))
		if total() < before {
			which, most = i, have
		}
		c.Resources = kept
	}
	return which, most
}

// containersOf lists the pod's containers and init containers.
func containersOf(p *v1.Pod) []*v1.Container {
	return slices.Concat(rules.Pointers(p.Spec.Containers), rules.Pointers(p.Spec.InitContainers))
}

// containerNote names a container if the pod has several.
func containerNote(p *v1.Pod, which int) string {
	switch all := containersOf(p); {
	case which >= len(p.Spec.Containers):
		return " (init container " + all[which].Name + ")"
	case len(p.Spec.Containers) > 1:
		return " (container " + all[which].Name + ")"
	}
	return ""
}

// lowerLimits extends an edit of requests to the limits above them, because a LimitRange may bound
// the ratio of limits to requests. It returns nil without such limits.
func (f *fixer) lowerLimits(lower *edit) *edit {
	found := false
	alter := func(p *v1.Pod) {
		before := p.DeepCopy()
		lower.pod(p)
		for i, c := range containersOf(p) {
			was := containersOf(before)[i].Resources
			for name, to := range c.Resources.Requests {
				limit, limited := c.Resources.Limits[name]
				if from := was.Requests[name]; limited && to.Cmp(from) != 0 && limit.Cmp(to) > 0 {
					c.Resources.Limits[name], found = to, true
				}
			}
		}
	}

	e := f.onPod("LowerRequest", strings.ReplaceAll(lower.Text, " request ", " request and limit "), lower.size+5, alter)
	if !found {
		return nil
	}
	return e
}

// setAmount sets a request, and also the limit if both must be equal: for devices and other
// extended resources, which cannot be overcommitted.
func setAmount(r *v1.ResourceRequirements, name v1.ResourceName, to resource.Quantity) {
	if r.Requests == nil { // implied by a limit
		r.Requests = v1.ResourceList{}
	}
	r.Requests[name] = to
	if limit, ok := r.Limits[name]; ok && cluster.IsScalar(name) && limit.Cmp(to) != 0 {
		r.Limits[name] = to
	}
}

// roundAmount returns a readable amount, rounded down so that it still fits: whole mebibytes for
// memory and disk.
func roundAmount(name v1.ResourceName, n int64) *resource.Quantity {
	const mi = 1 << 20
	if (name == v1.ResourceMemory || name == v1.ResourceEphemeralStorage) && n > mi {
		n -= n % mi
	}
	return plugins.Quantity(name, n)
}

// makeRoom proposes deleting the fewest and least important pods of a node so that the pending pod
// fits. Unlike preemption, it considers pods of the same or a higher priority, and leaves the
// choice to the user. It proposes the best three nodes: nodes without violated budgets first, then
// nodes with the least important pods.
func (f *fixer) makeRoom(_ string, nodes []verdict) (edits []*edit) {
	const tried, most = 3, 8
	type option struct {
		node    *cluster.Node
		pods    []*cluster.Pod
		highest int32
	}
	var options []option
	for _, v := range nodes {
		if pods := f.leastToGo(v.node, most); len(pods) > 0 {
			options = append(options, option{v.node, pods, slices.MaxFunc(pods, byPriority).Class.Priority})
		}
	}

	slices.SortStableFunc(options, func(a, b option) int {
		return cmp.Or(cmp.Compare(len(f.brokenBudgets(a.pods)), len(f.brokenBudgets(b.pods))),
			cmp.Compare(max(a.highest-f.pod.Class.Priority, 0), max(b.highest-f.pod.Class.Priority, 0)),
			cmp.Compare(len(a.pods), len(b.pods)), cmp.Compare(a.highest, b.highest), cmp.Compare(a.node.Name, b.node.Name))
	})

	for _, o := range options[:min(tried, len(options))] {
		names := f.namesOf(o.pods)
		text := fmt.Sprintf("delete pod %s from %s", names[0], o.node.Name)
		if len(names) > 1 {
			text = fmt.Sprintf("delete %d pods from %s (%s)", len(names), o.node.Name, strings.Join(names, ", "))
		}
		edits = append(edits, f.deletePods("DeletePod", text, o.pods))
	}

	return edits
}

// byPriority orders pods by ascending priority.
func byPriority(a, b *cluster.Pod) int { return cmp.Compare(a.Class.Priority, b.Class.Priority) }

// leastToGo picks pods of the node to remove until the pending pod fits: pods below its priority
// first, then the largest contributors. It is greedy, so a smaller set may exist. It returns nil if
// more removals than most are needed, or if even the empty node is too small for the pod.
func (f *fixer) leastToGo(n *cluster.Node, most int) []*cluster.Pod {
	short := plugins.Shortages(f.pod, n)
	// slots is the number of pods to remove because of the node's pod limit, regardless of
	// resources. It is not positive if a slot is free.
	slots := int64(len(n.Pods)) - n.Size.Pods + 1
	// Even the empty node is too small.
	if slices.ContainsFunc(short, func(s plugins.Shortage) bool { return s.Wanted > s.Size }) {
		return nil
	}

	// Only pods without a replacement are useful.
	pods := slices.DeleteFunc(slices.Clone(n.Pods), func(p *cluster.Pod) bool { return !f.isRemovable(p) })
	// helps returns the sum, over all shortages, of the fraction covered by removing the pod, each
	// at most 1.
	helps := func(p *cluster.Pod) (part float64) {
		for i := range short {
			part += min(1, float64(p.Class.Requests.Amount(short[i].Name))/(float64(short[i].Wanted)-float64(short[i].Free)))
		}
		return part
	}

	slices.SortFunc(pods, func(a, b *cluster.Pod) int {
		x, y := a.Class.Priority >= f.pod.Class.Priority, b.Class.Priority >= f.pod.Class.Priority
		return cmp.Or(rules.FalseFirst(f.isProtected(a), f.isProtected(b)), rules.FalseFirst(x, y),
			cmp.Compare(helps(b), helps(a)), byValue(a, b))
	})

	var going []*cluster.Pod
	for _, p := range pods {
		// Its removal covers no shortage, and its slot is not needed.
		if len(short) > 0 && helps(p) == 0 && int64(len(going)) >= slots {
			continue
		}
		if going = append(going, p); len(going) > most {
			return nil
		}
		// Both the number of pods and each resource must fit.
		enough := int64(len(going)) >= slots
		for i := range short {
			free := short[i].Free
			for _, o := range going {
				free = rules.Sum(free, o.Class.Requests.Amount(short[i].Name))
			}
			enough = enough && free >= short[i].Wanted
		}
		if enough {
			return going
		}
	}

	return nil
}
