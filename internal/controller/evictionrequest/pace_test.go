// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest_test

import (
	"fmt"
	"testing"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestEveryFaultIsSurvived verifies the properties of virtual.Verify: a pod with two requests is
// evicted within a minute after any fault, and the requests report it.
func TestEveryFaultIsSurvived(t *testing.T) {
	injected := virtual.Verify(func() *virtual.Subject { return subject(New(1)) }, t.Errorf)
	t.Log(virtual.Summary(injected))
}

func subject(w *World) *virtual.Subject {
	w.AddPod("web", false)
	w.AddPod("db", false)
	w.Refuses["db"] = "disrupted"
	drop := func(drops func(metav1.Object)) func(bool) {
		return func(on bool) {
			if w.Policy = nil; on {
				w.Policy = drops
			}
		}
	}
	return &virtual.Subject{
		Time: w.Time, Process: w.Process, Faults: &w.Line.Faults, Requests: &w.Line.Requests, Watches: w.Watches[:],
		Kinds:    []string{"ReadPod", "Evict", "Create", "Label", "WriteEviction", "WriteRequest", "Delete"},
		SetClock: func(ahead time.Duration) { w.Process.Ahead = ahead },
		Policies: map[string]func(bool){
			"labels dropped": drop(func(o metav1.Object) { o.SetLabels(nil) }),
			"conditions dropped": drop(func(o metav1.Object) {
				switch o := o.(type) {
				case *lifecyclev1alpha1.Eviction:
					o.Status.Conditions = nil
				case *lifecyclev1alpha1.EvictionRequest:
					o.Status.Conditions = nil
				}
			}),
			"responders dropped": drop(func(o metav1.Object) {
				if e, ok := o.(*lifecyclev1alpha1.Eviction); ok {
					e.Status.Responders, e.Status.TargetResponders = nil, nil
				}
			}),
		},
		Begin: func() {
			uid := w.Pod("web").UID
			w.AddRequest("one", "acme.io/drain", "web", uid)
			w.AddRequest("three", "acme.io/drain", "db", w.Pod("db").UID)
			w.After(time.Second, func() { w.AddRequest("two", "acme.io/upgrade", "web", uid) })
			w.After(time.Minute, func() { w.DeleteRequest("three") })
		},
		Recovers: time.Minute,
		Wrong: func() (wrong []string) {
			if w.Pod("web") != nil || w.Pod("db") == nil {
				wrong = append(wrong, "the pod web still exists, or the pod db does not")
			}
			for _, r := range All[*lifecyclev1alpha1.EvictionRequest](w) {
				if !meta.IsStatusConditionTrue(r.Status.Conditions, string(lifecyclev1alpha1.EvictionConditionTargetEvicted)) {
					wrong = append(wrong, fmt.Sprintf("request %s: %v", r.Name, r.Status.Conditions))
				}
			}
			return wrong
		},
		Clear:   w.Clear,
		Entries: func() int { return w.Process.Core().(*evictionrequest.Core).Entries() },
	}
}
