// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestGangsPreemptWhereUpstreamDoes verifies, for gangs blocked by pods of lower, equal or higher
// priority, that Berth places a gang or preempts for it if the Kubernetes scheduler does, and that
// Berth does not preempt more pods. In a few worlds a member's priority differs from the gang's:
// both schedulers must refuse such a gang.
func TestGangsPreemptWhereUpstreamDoes(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true,
	})
	var told gangTally
	for i := range uint64(*gangClusters) * 2 {
		w := generateGang(*first+i, (*first+i)%2 == 1)
		w.setPriorities(rand.New(rand.NewPCG(*first+i, 19)))
		theirs, err := w.roomByUpstream(t.Context())
		if err != nil {
			t.Fatalf("seed %d: %v", *first+i, err)
		}
		ours, err := w.roomByBerth()
		if err != nil {
			t.Fatalf("seed %d: %v", *first+i, err)
		}
		if fault := told.compare(theirs, ours, w.repels()); fault != "" {
			t.Errorf("seed %d: %s: upstream %v, Berth %v\n%v", *first+i, fault, theirs, ours, w)
		}
	}
	t.Logf("%+v", told)
	if *gangClusters >= 40 && (told.Preempted == 0 || told.Refused == 0) {
		t.Error("too little to compare")
	}
}

// gangRoom is the immediate result for a gang.
type gangRoom struct {
	placed  bool
	victims int // number of pods preempted for the gang
	refused bool
}

// gangTally counts worlds by the results of both schedulers.
type gangTally struct {
	Placed, Preempted, Fewer, Neither, Refused, OnlyBerth, Repelled int
}

// compare counts a world, and describes the forbidden difference between the results, if any.
func (g *gangTally) compare(theirs, ours gangRoom, repels bool) (fault string) {
	helps := func(r gangRoom) bool { return r.placed || r.victims > 0 }
	switch {
	case theirs.refused != ours.refused:
		return "one refuses it"
	case theirs.refused:
		g.Refused++
	case helps(theirs) && !helps(ours) && repels: // upstream ignores the anti-affinity of members placed in the same cycle
		g.Repelled++
	case helps(theirs) && !helps(ours):
		return "Berth does nothing"
	case !helps(theirs) && helps(ours):
		g.OnlyBerth++
	case !helps(theirs):
		g.Neither++
	case ours.placed:
		g.Placed++
	case theirs.placed:
		if !repels {
			return "Berth preempts where upstream places"
		}
		g.Repelled++
	case ours.victims > theirs.victims && !repels:
		return "more pods leave"
	default:
		g.Preempted++
		if ours.victims < theirs.victims {
			g.Fewer++
		}
	}
	return ""
}

// setPriorities gives the gang the priority 100 and the running pods random priorities. It removes
// running members of the gang.
func (w *gangWorld) setPriorities(rng *rand.Rand) {
	w.placed = slices.DeleteFunc(w.placed, func(p *v1.Pod) bool { return p.Spec.SchedulingGroup != nil })
	for _, p := range w.placed {
		p.Spec.Priority = new([]int32{0, 0, 10, 100, 200}[rng.IntN(5)])
		p.Status.StartTime = &metav1.Time{Time: p.CreationTimestamp.Add(time.Duration(rng.IntN(100)) * time.Minute)}
	}

	w.group.Spec.Priority = new(int32(100))
	w.group.Spec.SchedulingPolicy.Gang.MinCount = int32(max(1, len(w.gang)-rng.IntN(2)))
	for _, p := range w.gang {
		p.Spec.Priority = new(int32(100))
	}
	if rng.IntN(12) == 0 {
		w.gang[0].Spec.Priority = new(int32(99))
	}
}

var preempting = regexp.MustCompile(`preempting (\d+) victims`)

// roomByUpstream runs one cycle of the Kubernetes scheduler on the gang.
func (w *gangWorld) roomByUpstream(ctx context.Context) (r gangRoom, err error) {
	ctx, stop := context.WithTimeout(klog.NewContext(ctx, klog.Logger{}), time.Minute)
	defer stop()
	c, err := decideByUpstream(ctx, w.newClient())
	if err != nil {
		return r, err
	}
	r.placed, r.refused = c.Status == metav1.ConditionTrue, c.Reason == schedulingv1beta1.PodGroupReasonSchedulerError
	if found := preempting.FindStringSubmatch(c.Message); found != nil {
		r.victims, err = strconv.Atoi(found[1])
	}
	return r, err
}

// roomByBerth runs one step of Berth's core on the gang.
func (w *gangWorld) roomByBerth() (r gangRoom, err error) {
	core, err := cycle.New(cycle.Options{
		Profiles: []cycle.Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Topology: true},
	})
	if err != nil {
		return r, err
	}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	core.Step(now, cycle.Follows{})
	core.Step(now, cycle.Led{})
	for _, n := range w.nodes {
		core.Step(now, cycle.Seen{Kind: cycle.Nodes, Object: n})
	}
	core.Step(now, cycle.Seen{Kind: cycle.PodGroups, Object: w.group})
	for _, p := range slices.Concat(w.placed, w.gang) {
		core.Step(now, cycle.Seen{Kind: cycle.Pods, Object: p})
	}

	for _, action := range core.Step(now, cycle.Tick{}) {
		switch a := action.(type) {
		case cycle.Bind:
			r.placed = true
		case cycle.Remove:
			r.victims++
		case cycle.WriteGroup:
			r.refused = a.Condition.Reason == schedulingv1beta1.PodGroupReasonSchedulerError
		}
	}
	return r, nil
}
