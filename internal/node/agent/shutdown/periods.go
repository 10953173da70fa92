package shutdown

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// critical is the lowest priority of system-critical pods.
const critical = 2_000_000_000

// Period is how much time pods of a priority, up to that of the next period, get to terminate.
type Period struct {
	Priority int32
	Grace    time.Duration
}

// Periods are in ascending order of priority; none: pods are not terminated for a shutdown.
type Periods []Period

// TwoPeriods converts the kubelet's shutdownGracePeriod and shutdownGracePeriodCriticalPods: the
// total, and the part reserved for critical pods.
func TwoPeriods(all, ofCritical time.Duration) (Periods, error) {
	switch {
	case all == 0 && ofCritical == 0:
		return nil, nil
	case all < 0 || ofCritical < 0 || all%time.Second != 0 || ofCritical%time.Second != 0:
		return nil, fmt.Errorf("shutdown grace periods %s and %s: must be whole seconds, 0 or more", all, ofCritical)
	case ofCritical > all:
		return nil, fmt.Errorf("shutdown grace period %s: must not be less than that of critical pods, %s", all, ofCritical)
	}
	return Periods{{0, all - ofCritical}, {critical, ofCritical}}, nil
}

// ByPriority sorts periods and rejects contradictory ones.
func ByPriority(periods []Period) (Periods, error) {
	sorted := slices.SortedFunc(slices.Values(periods), func(a, b Period) int { return cmp.Compare(a.Priority, b.Priority) })
	for i, p := range sorted {
		if p.Grace < 0 || p.Grace%time.Second != 0 {
			return nil, fmt.Errorf("shutdown grace period %s of priority %d: must be whole seconds, 0 or more", p.Grace, p.Priority)
		}
		if i > 0 && sorted[i-1].Priority == p.Priority {
			return nil, fmt.Errorf("shutdown grace periods: priority %d is named twice", p.Priority)
		}
	}
	return sorted, nil
}

// Parse parses periods by priority from a flag: 0=30s,100000=10s.
func Parse(text string) (Periods, error) {
	var periods []Period
	for one := range strings.SplitSeq(text, ",") {
		if one == "" {
			continue
		}
		name, value, _ := strings.Cut(one, "=")
		priority, err := strconv.ParseInt(strings.TrimSpace(name), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q: must be a priority from %d to %d and its period, such as 100000=10s", one, math.MinInt32, math.MaxInt32)
		}
		grace, err := time.ParseDuration(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("%q: must be a priority and its period, such as 100000=10s", one)
		}
		periods = append(periods, Period{int32(priority), grace})
	}
	return ByPriority(periods)
}

// Whole is how long the shutdown may take.
func (p Periods) Whole() (sum time.Duration) {
	for _, period := range p {
		sum += period.Grace
	}
	return sum
}

// Group is the pods that end together.
type Group struct {
	Period
	Pods []*v1.Pod
}

const (
	// reserve is the part of a group's time kept for killing pods that do not end by themselves.
	reserve = 2 * time.Second
	// ofSidecars is reserved in addition for a pod with sidecars, which are stopped after its
	// containers, and get this long whatever is left.
	ofSidecars = 2 * time.Second
)

// Grace is a pod's own grace period, limited to its group's. A pod that does not terminate is
// killed before its group's time is over: nothing would do it afterwards.
func (g Group) Grace(pod *v1.Pod) time.Duration {
	kept := reserve
	if slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return rules.IsSidecar(&c) }) {
		kept += ofSidecars
	}
	grace := max(g.Period.Grace-kept, g.Period.Grace/2)
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = min(grace, lifecycle.Seconds(*own))
	}
	return grace
}

// Groups returns the non-empty groups in the order in which they are terminated. A pod is in the
// group with the highest priority that does not exceed its own; one below all is in the lowest.
func (p Periods) Groups(pods []*v1.Pod) (groups []Group) {
	all := make([]Group, len(p))
	for i := range p {
		all[i].Period = p[i]
	}
	for _, pod := range pods {
		above := sort.Search(len(p), func(i int) bool { return p[i].Priority > rules.Priority(pod) })
		i := max(above-1, 0)
		all[i].Pods = append(all[i].Pods, pod)
	}
	return slices.DeleteFunc(all, func(g Group) bool { return len(g.Pods) == 0 })
}
