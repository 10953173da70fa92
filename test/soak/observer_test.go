// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

// story passes events to an observer, in virtual time.
type story struct {
	*testing.T
	*observer
	now   time.Time
	finds []string
}

func newStory(t *testing.T) *story {
	s := &story{T: t, now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	s.observer = newObserver(16*time.Second, func(promise, what string, _ ...string) { s.finds = append(s.finds, promise+": "+what) })
	return s
}

func (s *story) passes(d time.Duration) { s.now = s.now.Add(d) }

// finding expects exactly one finding, of this promise, or no finding if promise is "". It clears
// the findings.
func (s *story) finding(promise string) {
	s.Helper()
	switch {
	case promise == "" && len(s.finds) > 0:
		s.Errorf("found %v, want nothing", s.finds)
	case promise != "" && (len(s.finds) != 1 || !strings.HasPrefix(s.finds[0], promise)):
		s.Errorf("found %v, want %q", s.finds, promise)
	}
	s.finds = nil
}

func (s *story) node(name string, taints ...v1.Taint) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.NodeSpec{Taints: taints}}
	n.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi"),
		v1.ResourcePods: resource.MustParse("3"), widget: resource.MustParse("1")}
	s.seeObject(n, s.now, nil)
	return n
}

func leave(value string) v1.Taint {
	return v1.Taint{Key: evictKey, Value: value, Effect: v1.TaintEffectNoExecute}
}

func (s *story) pod(name, node, cpu string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(name), CreationTimestamp: metav1.Time{Time: s.now}}}
	p.Spec.NodeName = node
	p.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	for _, f := range change {
		f(p)
	}
	s.seeObject(p, s.now, nil)
	return p
}

// becomes passes a changed copy of a pod to the observer, and returns the copy.
func (s *story) becomes(p *v1.Pod, change ...func(*v1.Pod)) *v1.Pod {
	p = p.DeepCopy()
	for _, f := range change {
		f(p)
	}
	s.seeObject(p, s.now, nil)
	return p
}

func (s *story) leaving(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: s.now} }

func marked(reason, message string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: reason, Message: message})
	}
}

func ofPriority(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }

func TestPodThatMovesIsFound(t *testing.T) {
	s := newStory(t)
	p := s.pod("p", "", "1")
	p = s.becomes(p, func(p *v1.Pod) { p.Spec.NodeName = "a" })
	s.finding("")
	s.becomes(p, func(p *v1.Pod) { p.Spec.NodeName = "b" })
	s.finding(boundOnce)
}

func TestNodeThatIsGivenTooMuchIsFound(t *testing.T) {
	overhead := func(p *v1.Pod) { p.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")} }
	withWidget := func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests[widget] = resource.MustParse("1") }
	ended := func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }
	for _, c := range []struct {
		name   string
		before func(*story)
		last   func(*story)
		found  string
	}{
		{"all that there is", func(s *story) { s.pod("a", "n", "2") }, func(s *story) { s.pod("b", "n", "2") }, ""},
		{"too much", func(s *story) { s.pod("a", "n", "2") }, func(s *story) { s.pod("b", "n", "2001m") }, roomKept},
		{"overhead counts", func(s *story) { s.pod("a", "n", "2") }, func(s *story) { s.pod("b", "n", "2", overhead) }, roomKept},
		{"what has ended does not", func(s *story) { s.pod("a", "n", "4", ended) }, func(s *story) { s.pod("b", "n", "4") }, ""},
		{"what leaves does", func(s *story) { s.pod("a", "n", "4", s.leaving) }, func(s *story) { s.pod("b", "n", "1") }, roomKept},
		{"what is gone does not", func(s *story) { s.missObject(s.pod("a", "n", "4"), s.now) },
			func(s *story) { s.pod("b", "n", "4") }, ""},
		{"too many", func(s *story) { s.pod("a", "n", "1"); s.pod("b", "n", "1"); s.pod("c", "n", "1") }, func(s *story) { s.pod("d", "n", "1") }, roomKept},
		{"a device for two", func(s *story) { s.pod("a", "n", "1", withWidget) }, func(s *story) { s.pod("b", "n", "1", withWidget) }, roomKept},
		{"bound later", func(s *story) { s.pod("a", "n", "3") }, func(s *story) { s.becomes(s.pod("b", "", "3"), func(p *v1.Pod) { p.Spec.NodeName = "n" }) }, roomKept},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStory(t)
			s.node("n")
			c.before(s)
			s.finding("")
			c.last(s)
			s.finding(c.found)
		})
	}
}

func TestTaintsAskAsDocumented(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	key := func(key string, seconds ...int64) v1.Toleration {
		tol := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
		if len(seconds) > 0 {
			tol.TolerationSeconds = &seconds[0]
		}
		return tol
	}
	never := 24 * time.Hour
	for _, c := range []struct {
		name        string
		tolerations []v1.Toleration
		bound       time.Duration
		want        time.Duration
	}{
		{"not tolerated", nil, 0, 0},
		{"tolerated", []v1.Toleration{key(evictKey)}, 0, never},
		{"for a time", []v1.Toleration{key(evictKey, 7)}, 0, 7 * time.Second},
		{"for a time, bound later", []v1.Toleration{key(evictKey, 7)}, 5 * time.Second, 12 * time.Second},
		{"for no time", []v1.Toleration{key(evictKey, -3)}, 0, 0},
		{"the first that matches counts", []v1.Toleration{key("x", 1), key(evictKey, 9), key(evictKey, 1)}, 0, 9 * time.Second},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{Tolerations: c.tolerations}}
		taints := []heldTaint{{Taint: leave("1"), early: start, late: start}}
		due := func(at time.Duration) bool {
			return dueBy(start.Add(at), pod, start.Add(c.bound), taints, func(h heldTaint) time.Time { return h.late })
		}
		if due(c.want-time.Second) || due(c.want) != (c.want != never) {
			t.Errorf("%s: due at %s: %t, a second before: %t", c.name, c.want, due(c.want), due(c.want-time.Second))
		}
	}
}

func TestPodThatStaysIsFoundByFairTime(t *testing.T) {
	s := newStory(t)
	s.node("n")
	p := s.pod("p", "n", "1", func(p *v1.Pod) {
		p.Spec.Tolerations = []v1.Toleration{{Key: evictKey, Operator: v1.TolerationOpExists, TolerationSeconds: pointerTo(int64(7))}}
	})
	s.node("n", leave("1"))
	s.passes(6 * time.Second)
	if late := s.checkLate(s.now, 6*time.Second); late != 0 {
		t.Errorf("%d are late before their time", late)
	}
	s.passes(time.Second)
	s.checkLate(s.now, time.Second)
	s.passes(time.Hour) // the controllers were down during this time
	if late := s.checkLate(s.now, 0); late != 1 {
		t.Errorf("%d are late, want 1", late)
	}
	s.checkLate(s.now, evictionDelayLimit)
	s.finding("")
	s.checkLate(s.now, time.Second)
	s.finding(evictionDone)

	s.becomes(p, s.leaving)
	if late := s.checkLate(s.now, 0); late != 0 {
		t.Errorf("%d are late, and leave", late)
	}
}

func TestTaintThatCameAgainCountsAnew(t *testing.T) {
	s := newStory(t)
	s.node("n", leave("1"))
	s.pod("p", "n", "1", func(p *v1.Pod) {
		p.Spec.Tolerations = []v1.Toleration{{Key: evictKey, Operator: v1.TolerationOpExists, TolerationSeconds: pointerTo(int64(60))}}
	})
	s.passes(59 * time.Second)
	s.node("n")
	s.passes(time.Second)
	s.node("n", leave("1"))
	s.passes(59 * time.Second)
	if late := s.checkLate(s.now, 59*time.Second); late != 0 {
		t.Errorf("%d are late before their time", late)
	}
	s.passes(time.Second)
	if late := s.checkLate(s.now, time.Second); late != 1 {
		t.Errorf("%d are late, want 1", late)
	}
}

func TestEvictionWithoutATaintIsFound(t *testing.T) {
	const taints = "DeletionByTaintManager"
	sent := func(s *story) { s.noteDeletion(namespace+"/p", s.now) }
	for _, c := range []struct {
		name  string
		tells func(s *story, p *v1.Pod)
		found string
	}{
		{"never a taint", func(s *story, p *v1.Pod) { sent(s) }, evictionJust},
		{"marked, and deleted by somebody else", func(s *story, p *v1.Pod) {}, ""},
		{"a taint now", func(s *story, p *v1.Pod) { s.node("n", leave("1")); sent(s) }, ""},
		{"a taint lately", func(s *story, p *v1.Pod) {
			s.node("n", leave("1"))
			s.passes(time.Second)
			s.node("n")
			s.passes(window - time.Second)
			sent(s)
		}, ""},
		{"a taint long ago", func(s *story, p *v1.Pod) {
			s.node("n", leave("1"))
			s.passes(time.Second)
			s.node("n")
			s.passes(window + time.Second)
			sent(s)
		}, evictionJust},
		{"a taint that it tolerates", func(s *story, p *v1.Pod) {
			s.becomes(p, func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}} })
			s.node("n", leave("1"))
			sent(s)
		}, evictionJust},
		{"before its time", func(s *story, p *v1.Pod) {
			s.becomes(p, func(p *v1.Pod) {
				p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: pointerTo(int64(20))}}
			})
			s.node("n", leave("1"))
			s.passes(20*time.Second - inexact - time.Second)
			sent(s)
		}, evictionJust},
		{"when changes may have been missed", func(s *story, p *v1.Pod) {
			s.seeListed("nodes", map[types.UID]bool{"n": true}, s.now, &span{s.now.Add(-time.Second), s.now})
			sent(s)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStory(t)
			s.node("n")
			p := s.pod("p", "n", "1")
			s.passes(10 * time.Minute)
			c.tells(s, p)
			s.becomes(s.pods["p"].pod, marked(taints, ""), s.leaving)
			s.finding(c.found)
		})
	}
}

func TestPreemptionForNobodyIsFound(t *testing.T) {
	for _, c := range []struct {
		name  string
		tells func(*story)
		found string
	}{
		{"somebody who matters more waits", func(s *story) { s.pod("q", "", "1", ofPriority(11)) }, ""},
		{"he has a node since", func(s *story) {
			s.becomes(s.pod("q", "", "1", ofPriority(11)), func(p *v1.Pod) { p.Spec.NodeName = "n" })
		}, ""},
		{"he is gone since", func(s *story) { s.missObject(s.pod("q", "", "1", ofPriority(11)), s.now) }, ""},
		{"that was long ago", func(s *story) {
			s.missObject(s.pod("q", "", "1", ofPriority(11)), s.now)
			s.passes(window + time.Second)
		}, victimJust},
		{"who waits matters as much", func(s *story) { s.pod("q", "", "1", ofPriority(10)) }, victimJust},
		{"nobody waits", func(*story) {}, victimJust},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStory(t)
			s.node("n")
			p := s.pod("p", "n", "1", ofPriority(10))
			s.passes(10 * time.Minute)
			c.tells(s)
			s.becomes(p, marked(v1.PodReasonPreemptionByScheduler, "default-scheduler: preempting"), s.leaving)
			s.finding(c.found)
		})
	}
}

func TestBudgetThatIsBrokenIsFound(t *testing.T) {
	none := intstr.FromInt32(0)
	for _, c := range []struct {
		name            string
		reason, message string
		allowed         int32
		since           time.Duration
		found           string
	}{
		{"careful, and allowed", v1.PodReasonPreemptionByScheduler, careful + ": preempting", 1, time.Hour, ""},
		{"careful, and not allowed", v1.PodReasonPreemptionByScheduler, careful + ": preempting", 0, time.Hour, budgetsKept},
		{"careful, and not allowed only now", v1.PodReasonPreemptionByScheduler, careful + ": preempting", 0, time.Second, ""},
		{"not careful", v1.PodReasonPreemptionByScheduler, "default-scheduler: preempting", 0, time.Hour, ""},
		{"evicted", "EvictionByEvictionAPI", "", 0, time.Hour, budgetsKept},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStory(t)
			s.node("n")
			budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: namespace, UID: "b"}}
			budget.Spec = policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &none, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}}
			budget.Status.DisruptionsAllowed, budget.Status.ObservedGeneration = c.allowed, 1
			s.seeObject(budget, s.now, nil)
			p := s.pod("p", "n", "1", ofPriority(10), func(p *v1.Pod) { p.Labels = map[string]string{"app": "guarded"} })
			s.pod("q", "", "1", ofPriority(11))
			s.passes(c.since)
			s.becomes(p, marked(c.reason, c.message), s.leaving)
			s.finding(c.found)
		})
	}
}

func TestSilentNodeThatNobodyNoticesIsFound(t *testing.T) {
	s := newStory(t)
	n := s.node("n").DeepCopy()
	n.Annotations = map[string]string{simkubelet.AnnotationHeartbeat: simkubelet.HeartbeatStopped}
	s.seeObject(n, s.now, nil)
	s.checkLate(s.now, s.silence+evictionDelayLimit)
	s.finding("")
	s.checkLate(s.now, time.Second)
	s.finding(silenceSeen)
	n = n.DeepCopy()
	n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoSchedule}}
	s.seeObject(n, s.now, nil)
	if late := s.checkLate(s.now, 0); late != 0 {
		t.Errorf("%d things are late, want none", late)
	}
}

func TestStateThatGoesBackIsFound(t *testing.T) {
	s := newStory(t)
	f := &follower{resource: "pods", observer: s.observer}
	f.noteVersion("100")
	f.noteVersion("101")
	s.finding("")
	f.noteVersion("99")
	s.finding(stateKept)
}

func TestWhatGrowsIsFound(t *testing.T) {
	sizes := newSizes()
	for _, c := range []struct {
		pid, memory, goroutines int
		over                    int
	}{
		{1, 50 << 20, 100, 0},
		{1, 90 << 20, 300, 0},
		{1, 200 << 20, 300, 1},
		{2, 200 << 20, 300, 0}, // another process
		{2, 200 << 20, 800, 1},
		{3, mostMemory + 1, mostGoroutines + 1, 2},
	} {
		if over := sizes.noteSize("x", c.pid, size{int64(c.memory), int64(c.goroutines)}); len(over) != c.over {
			t.Errorf("%+v: %v", c, over)
		}
	}
}

// TestWitnessForgets verifies that the observer's memory stays bounded during a campaign of hours.
func TestWitnessForgets(t *testing.T) {
	s := newStory(t)
	for i := range 1000 {
		s.node("n", leave(fmt.Sprint(i)))
		p := s.pod(fmt.Sprintf("p%d", i), "", "1m")
		s.noteDeletion(podKey(p), s.now)
		s.missObject(p, s.now)
		s.passes(time.Second)
		s.checkLate(s.now, 0)
	}
	limit := int(remembers/time.Second) + 5
	if n := []int{len(s.waited), len(s.deleted), len(s.nodes["n"].history), len(s.pods)}; slices.Max(n) > limit {
		t.Errorf("kept %v, want at most %d", n, limit)
	}
}
