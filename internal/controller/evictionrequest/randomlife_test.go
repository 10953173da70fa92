// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// others are responders that pods may have, in the order they act: by priority, and the last two by
// domain.
var others = []v1.EvictionResponder{
	{Name: "acme.io/controller", Priority: ptr.To[int32](10000)}, {Name: "b.example.com/migrate", Priority: ptr.To[int32](5000)},
	{Name: "example.com/checkpoint", Priority: ptr.To[int32](5000)},
}

// Life plays some hours of a few pods: requests that are created, deleted and changed, budgets,
// other responders, deleted or replaced pods, a failing server, a killed controller. Then it runs
// two hours without faults, and returns the remaining errors.
func (w *World) Life(steps int) (wrong []string) {
	w.Process.Start()
	names := []string{"a", "b", "c"}
	for _, name := range names {
		w.comes(name)
	}
	// The faults are set only now, so that the first lists succeed.
	w.Line.Rules = virtual.Every(0.015)
	for _, watch := range w.Watches {
		watch.Jitter = 200 * time.Millisecond
	}
	for range steps {
		w.happen(names[w.Rand.IntN(len(names))])
		w.Run(time.Duration(w.Rand.Int64N(int64(20 * time.Second))))
		if w.Rand.IntN(20) == 0 { // longer than the limit for a silent responder
			w.Run(25 * time.Minute)
		}
	}

	w.Line.Rules, w.Refuses, w.Line.KillAt, w.Process.Ahead = nil, map[string]string{}, 0, 0
	w.restore()
	if !w.Process.Running() {
		w.Process.Start()
	}
	// Longer than the maximum silence of all responders in sequence, and than the longest pause
	// between evictions.
	w.Run(2 * time.Hour)
	return w.judge()
}

// restore ends the breaks of all watches.
func (w *World) restore() {
	for _, watch := range w.Watches {
		watch.Restore(true)
	}
}

// comes creates a pod with some of the responders. Occasionally the pod belongs to a group, and
// cannot be evicted by request.
func (w *World) comes(name string) {
	var responders []v1.EvictionResponder
	for _, r := range others {
		if w.Rand.IntN(3) == 0 {
			responders = append(responders, r)
		}
	}
	w.AddPod(name, w.Rand.IntN(10) == 0, responders...)
}

// happen performs a random action of users, other controllers and machines. An action not
// applicable at the moment does nothing.
func (w *World) happen(name string) {
	p := w.Pod(name)
	request := fmt.Sprintf("%s-%d", name, w.Rand.IntN(3))
	there := w.Request(request) != nil

	switch w.Rand.IntN(19) {
	case 0, 1, 2:
		if p != nil && !there {
			w.AddRequest(request, fmt.Sprintf("acme.io/%d", w.Rand.IntN(3)), name, p.UID)
		}
	case 3:
		if there {
			w.SetIntent(request, lifecyclev1alpha1.EvictionRequestIntentWithdrawn)
		}
	case 4:
		if there {
			w.SetIntent(request, lifecyclev1alpha1.EvictionRequestIntentEviction)
		}
	case 5:
		if there {
			w.DeleteRequest(request)
		}

	// The eviction subresource, and other responders.
	case 6, 7:
		w.Refuses[name] = "disrupted"
	case 8:
		delete(w.Refuses, name)
	case 9, 10, 11:
		w.Respond(name, others[w.Rand.IntN(len(others))].Name, "goes on", w.Rand.IntN(3) == 0)

	// Failures of the pod, this process, the server, and its connection.
	case 12:
		w.disturb(name)
	case 13:
		w.Line.KillAt, w.Line.KillAfter = 1+w.Rand.IntN(4), w.Rand.IntN(2) == 0
	case 14:
		w.Line.Rules = virtual.Every(0.015)
		if w.Rand.IntN(3) == 0 { // an outage
			w.Line.Rules[0].Chance = 1
		}
	case 15:
		if w.Process.Running() {
			w.Cut(w.Between(0, time.Minute))
		}
	case 16: // watches are refused, while lists succeed
		w.blind = w.Now.Add(time.Minute)
		for _, watch := range w.Watches {
			watch.Refuse(10 * time.Second)
		}
		w.After(w.Between(0, time.Minute), w.restore)
	case 17:
		w.blind = w.Now.Add(time.Minute)
		w.Process.Freeze(w.Between(0, time.Minute), func() []evictionrequest.Event { return nil })
	case 18: // the clock steps
		w.Process.Ahead = w.Between(-2*time.Minute, 2*time.Minute)
	}

	if !w.Process.Running() && w.Rand.IntN(2) == 0 {
		w.Process.Start()
	}
}

// disturb terminates, replaces or completes a pod, or creates it if it does not exist.
func (w *World) disturb(name string) {
	p := w.Pod(name)
	switch n := w.Rand.IntN(4); {
	case p == nil:
		w.comes(name)
	case n == 0:
		w.Terminate(p)
	case n == 1:
		w.RemovePod(name, p.UID)
		w.comes(name)
	case n == 2:
		w.EndPod(name)
	}
}

// judge returns the errors once everything has settled: a request without a response, or with a
// false status; an Eviction left over, or waiting for a responder forever.
func (w *World) judge() (wrong []string) {
	wanted := map[types.UID]bool{}
	for _, r := range All[*lifecyclev1alpha1.EvictionRequest](w) {
		evicted := meta.IsStatusConditionTrue(r.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionTargetEvicted))
		failed := meta.FindStatusCondition(r.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionFailed))
		p := w.Pod(r.Spec.Target.Pod.Name)
		// A terminating pod no longer exists after its grace period, which has long passed.
		there := p != nil && p.UID == r.Spec.Target.Pod.UID && p.Status.Phase == v1.PodRunning
		wanted[r.Spec.Target.Pod.UID] = true

		switch wants := r.Spec.Intent == lifecyclev1alpha1.EvictionRequestIntentEviction; {
		case failed == nil || ptr.Deref(r.Status.ObservedGeneration, 0) != r.Generation:
			wrong = append(wrong, fmt.Sprintf("request %s has not been answered: %v", r.Name, r.Status))
		case evicted == there:
			wrong = append(wrong, fmt.Sprintf("request %s: evicted %t, and the pod is there %t", r.Name, evicted, there))
		case there && failed.Status != metav1.ConditionTrue:
			wrong = append(wrong, fmt.Sprintf("request %s goes on for ever: %v", r.Name, r.Status))
		case there && wants && p.Spec.SchedulingGroup == nil:
			wrong = append(wrong, fmt.Sprintf("request %s failed: %s %s", r.Name, failed.Reason, failed.Message))
		}
	}

	for _, e := range All[*lifecyclev1alpha1.Eviction](w) {
		if !wanted[e.Spec.Target.Pod.UID] {
			wrong = append(wrong, fmt.Sprintf("eviction %s is left, and nobody requests it: %v", e.Name, e.Status))
		}
		if activeOf(e) != "" {
			wrong = append(wrong, fmt.Sprintf("eviction %s: %s is active for ever", e.Name, activeOf(e)))
		}
	}
	return append(wrong, w.Wrong...)
}

// activeOf returns the name of the active responder, or "". It shares no code with the core.
func activeOf(e *lifecyclev1alpha1.Eviction) string {
	for _, r := range e.Status.TargetResponders {
		if r.State == lifecyclev1alpha1.ResponderStateActive {
			return r.Name
		}
	}
	return ""
}

// checkEviction records an unauthorized eviction: when it was sent, the last request for it had
// ended longer ago than a change takes to be observed, or it is another responder's turn.
func (w *World) checkEviction(p *v1.Pod, sent time.Time) {
	wanted := slices.ContainsFunc(All[*lifecyclev1alpha1.EvictionRequest](w), func(r *lifecyclev1alpha1.EvictionRequest) bool {
		return r.Spec.Target.Pod.UID == p.UID && r.Spec.Intent == lifecyclev1alpha1.EvictionRequestIntentEviction
	})
	// The eviction is also accepted if the core could not observe the withdrawal, because its
	// watches were broken or it was not running.
	if !wanted && sent.Sub(w.withdrawn[p.UID]) > time.Second && sent.After(w.blind.Add(time.Second)) {
		w.Wrong = append(w.Wrong, fmt.Sprintf("%s: pod %s was evicted, which nobody wants", w.Now.Sub(Begin), p.Name))
	}
	for _, e := range All[*lifecyclev1alpha1.Eviction](w) {
		if active := activeOf(e); e.Spec.Target.Pod.UID == p.UID && active != "" && !strings.HasPrefix(active, "imperative") {
			w.Wrong = append(w.Wrong, fmt.Sprintf("%s: pod %s was evicted in the turn of %s", w.Now.Sub(Begin), p.Name, active))
		}
	}
}
