package admit

import (
	"fmt"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// need is what is still missing, by resource. Every amount is positive. It is ordered, so that the
// choice is deterministic.
type need []struct {
	name   v1.ResourceName
	amount int64
}

func (n need) String() string {
	parts := make([]string, len(n))
	for i, one := range n {
		parts[i] = fmt.Sprintf("(res: %v, q: %d), ", one.name, one.amount)
	}
	return "[" + strings.Join(parts, "") + "]"
}

// without is what is missing once these pods have gone.
func (n need) without(pods ...*v1.Pod) need {
	var out need
	for _, one := range n {
		for _, pod := range pods {
			one.amount = max(one.amount-frees(pod, one.name), 0)
		}
		if one.amount > 0 {
			out = append(out, one)
		}
	}
	return out
}

// distance is how far a pod is from covering the need: the sum of the squared fractions that it
// leaves missing, 0 if there are none.
func (n need) distance(pod *v1.Pod) float64 {
	var sum float64
	for _, one := range n {
		if left := float64(one.amount - frees(pod, one.name)); left > 0 {
			sum += math.Pow(left/float64(one.amount), 2)
		}
	}
	return sum
}

func frees(pod *v1.Pod, name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	return requests(pod, true)[name]
}

// makeRoom chooses the pods to evict for a critical pod: BestEffort before Burstable before
// Guaranteed ones, and within each class as few and as small pods as suffice.
func makeRoom(pod *v1.Pod, taken []*v1.Pod, short []shortage) ([]*v1.Pod, error) {
	var missing need
	for _, s := range short {
		missing = append(missing, struct {
			name   v1.ResourceName
			amount int64
		}{s.name, s.missing()})
	}
	var bestEffort, burstable, guaranteed []*v1.Pod
	for _, other := range taken {
		if !yields(pod, other) {
			continue
		}
		switch qos.GetPodQOS(other) {
		case v1.PodQOSBestEffort:
			bestEffort = append(bestEffort, other)
		case v1.PodQOSBurstable:
			burstable = append(burstable, other)
		default:
			guaranteed = append(guaranteed, other)
		}
	}
	all := slices.Concat(bestEffort, burstable, guaranteed)
	if left := missing.without(all...); len(left) > 0 {
		return nil, fmt.Errorf("no set of running pods found to reclaim resources: %v", left)
	}
	// Guaranteed pods are evicted only for what all others cannot free; Burstable ones only for
	// what the chosen Guaranteed and all BestEffort pods cannot.
	g := nearest(guaranteed, missing.without(slices.Concat(bestEffort, burstable)...))
	b := nearest(burstable, missing.without(slices.Concat(bestEffort, g)...))
	e := nearest(bestEffort, missing.without(slices.Concat(b, g)...))
	return slices.Concat(e, b, g), nil
}

// yields reports whether other has to make room for pod.
func yields(pod, other *v1.Pod) bool {
	if Critical(pod) && !Critical(other) {
		return true
	}
	return pod.Spec.Priority != nil && other.Spec.Priority != nil && *pod.Spec.Priority > *other.Spec.Priority
}

// nearest repeatedly picks the pod that comes closest to what is still missing; among equals, the
// smaller one.
func nearest(pods []*v1.Pod, missing need) []*v1.Pod {
	pods = slices.Clone(pods)
	var out []*v1.Pod
	for len(missing) > 0 && len(pods) > 0 {
		best := 0
		for i := range pods {
			d, least := missing.distance(pods[i]), missing.distance(pods[best])
			if d < least || d == least && i != best && smaller(pods[i], pods[best]) {
				best = i
			}
		}
		missing = missing.without(pods[best])
		out = append(out, pods[best])
		pods = slices.Delete(pods, best, best+1)
	}
	return out
}

func smaller(a, b *v1.Pod) bool {
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		if x, y := requests(a, true)[name], requests(b, true)[name]; x != y {
			return x < y
		}
	}
	return true
}
