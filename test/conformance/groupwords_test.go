// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestMembersSayWhatUpstreamSays verifies that both schedulers set the same message on the members
// of a gang of identical pods that neither can place: the message of the gang, followed by the
// message of pod group preemption. Members that fit on no node are not compared.
func TestMembersSayWhatUpstreamSays(t *testing.T) {
	for _, topology := range []bool{false, true} {
		t.Run(fmt.Sprintf("topology=%t", topology), func(t *testing.T) {
			featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
				features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: topology,
			})
			compared := map[string]int{}
			for i := range uint64(*gangClusters) * 3 {
				w := generateGang(*first+i, true)
				w.setWordy(rand.New(rand.NewPCG(*first+i, 23)))
				theirs, err := w.wordsOfUpstream(t.Context())
				if err != nil {
					t.Fatalf("seed %d: %v", *first+i, err)
				}
				ours, err := w.wordsOfBerth(topology)
				if err != nil {
					t.Fatalf("seed %d: %v", *first+i, err)
				}
				for name, text := range ours {
					want := withoutCounts(theirs[name])
					if !saidOfGroup(text) || !saidOfGroup(want) || !strings.Contains(want, "pod group preemption") {
						continue // the pod fits no node, or kube-scheduler did not try it in its first domain
					}
					compared[kindOfWords(text)]++
					if got := withoutCounts(text); got != want && withoutFirst(got) != withoutFirst(want) {
						t.Errorf("seed %d: %s:\nupstream %s\nBerth    %s", *first+i, name, want, got)
					}
				}
			}
			for _, kind := range slices.Sorted(maps.Keys(compared)) {
				t.Logf("%4d %s", compared[kind], kind)
			}
			if *gangClusters >= 40 && len(compared) < 4 {
				t.Error("too few kinds of words")
			}
		})
	}
}

// setWordy gives the gang the priority 100 and the placed pods random priorities. In a third of the
// worlds it gives the placed pods a higher priority, and in a quarter it forbids the gang to
// preempt.
func (w *gangWorld) setWordy(rng *rand.Rand) {
	w.setPriorities(rng)
	for _, p := range w.gang {
		p.Spec.Priority = new(int32(100))
	}
	if rng.IntN(4) == 0 {
		for _, p := range w.gang {
			p.Spec.PreemptionPolicy = new(v1.PreemptNever)
		}
	}
	if rng.IntN(3) == 0 {
		for _, p := range w.placed {
			p.Spec.Priority = new(int32(200))
		}
	}
}

// saidOfGroup reports whether the message describes the group rather than the nodes rejected for
// the pod.
func saidOfGroup(message string) bool {
	return strings.HasPrefix(message, "pod group is") || strings.HasPrefix(message, "minCount") || strings.HasPrefix(message, "no feasible")
}

var number = regexp.MustCompile(`\d+`)

// kindOfWords replaces all numbers in the message by N.
func kindOfWords(message string) string { return number.ReplaceAllString(message, "N") }

var counts = regexp.MustCompile(`(pod group preemption: .*minCount \(\d+\) cannot be satisfied): \d+ scheduled, \d+ remaining`)

var howMany = regexp.MustCompile(`preempting \d+ victims`)

// withoutCounts removes from a message the numbers of members that are scheduled and remaining
// after all possible victims have left, which Berth does not compute, and the number of victims,
// which may be lower in Berth.
func withoutCounts(message string) string {
	return howMany.ReplaceAllString(counts.ReplaceAllString(message, "$1"), "preempting N victims")
}

var firstOfMany = regexp.MustCompile(`(0/(?:[2-9]|\d\d+) placements .*first placement status: minCount \(\d+\) cannot be satisfied): \d+ scheduled, \d+ remaining`)

// withoutFirst removes the number of members that fit in the first of several domains.
// kube-scheduler reports a random domain first, and Berth reports the domain in which most members
// fit.
func withoutFirst(message string) string { return firstOfMany.ReplaceAllString(message, "$1") }

// wordsOfUpstream returns the messages that the Kubernetes scheduler sets on the members, by pod
// name. The result is nil if it places the gang.
func (w *gangWorld) wordsOfUpstream(ctx context.Context) (map[string]string, error) {
	ctx, stop := context.WithTimeout(klog.NewContext(ctx, klog.Logger{}), time.Minute)
	defer stop()
	client := w.newClient()
	if c, err := decideByUpstream(ctx, client); err != nil || c.Status == metav1.ConditionTrue {
		return nil, err
	}
	for {
		said := map[string]string{}
		settled := true
		for _, p := range w.gang {
			is, err := client.CoreV1().Pods("default").Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			at := slices.IndexFunc(is.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodScheduled })
			if at >= 0 {
				said[p.Name] = is.Status.Conditions[at].Message
			}
			settled = settled && at >= 0
		}
		if settled {
			return said, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("not all pods got a condition: %v", said)
		case <-time.After(time.Millisecond):
		}
	}
}

// wordsOfBerth returns the messages that Berth's core sets on the members, by pod name.
func (w *gangWorld) wordsOfBerth(topology bool) (map[string]string, error) {
	core, err := cycle.New(cycle.Options{
		Profiles: []cycle.Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Topology: topology},
	})
	if err != nil {
		return nil, err
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

	said := map[string]string{}
	for _, action := range core.Step(now, cycle.Tick{}) {
		if write, ok := action.(cycle.WriteStatus); ok && write.Condition != nil {
			said[write.Pod.Name] = write.Condition.Message
		}
	}
	return said, nil
}
