// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/response"
)

// TestALateResponseDoesNotBringBackARequest: a request is deleted, and the watch shows that before
// the response to the last write of its status arrives. The pod must stay.
func TestALateResponseDoesNotBringBackARequest(t *testing.T) {
	now, version := Begin, 10
	core := evictionrequest.New(evictionrequest.Options{})
	pod := evictionrequest.Pod{Name: types.NamespacedName{Namespace: "default", Name: "web"}, UID: "u"}
	request := &lifecyclev1alpha1.EvictionRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r", UID: "r", Generation: 1, ResourceVersion: "1"},
		Spec: lifecyclev1alpha1.EvictionRequestSpec{Requester: "acme.io/drain", Intent: lifecyclev1alpha1.EvictionRequestIntentEviction,
			Target: lifecyclev1alpha1.EvictionRequestTarget{Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: "web", UID: "u"}}}}
	var actions []evictionrequest.Action
	step := func(e evictionrequest.Event) { actions = append(actions, core.Step(now, e)...) }
	for kind, seen := range []evictionrequest.Event{evictionrequest.RequestSeen{Request: request}, evictionrequest.Tick{}, evictionrequest.PodSeen{Pod: pod}} {
		step(evictionrequest.Listing{Kind: evictionrequest.Kind(kind)})
		step(seen)
		step(evictionrequest.Listed{Kind: evictionrequest.Kind(kind)})
	}
	deleted, evictions := false, 0
	for range 2000 {
		todo := actions
		actions = nil
		for _, a := range todo {
			version++
			switch a := a.(type) {
			case evictionrequest.ReadPod:
				step(evictionrequest.Answered{Ticket: a.Ticket, Pod: &pod})
			case evictionrequest.Create, evictionrequest.WriteEviction, evictionrequest.Label:
				var ticket response.Ticket
				var e *lifecyclev1alpha1.Eviction
				switch a := a.(type) {
				case evictionrequest.Create:
					ticket, e = a.Ticket, a.Eviction.DeepCopy()
					e.UID, e.Generation = "e", 1
				case evictionrequest.WriteEviction:
					ticket, e = a.Ticket, a.Eviction.DeepCopy()
				case evictionrequest.Label:
					ticket, e = a.Ticket, a.Eviction.DeepCopy()
				}
				e.ResourceVersion = fmt.Sprint(version)
				step(evictionrequest.Answered{Ticket: ticket, Written: e})
			case evictionrequest.WriteRequest:
				if deleted {
					step(evictionrequest.Answered{Ticket: a.Ticket, Outcome: response.Gone})
					continue
				}
				w := a.Request.DeepCopy()
				w.ResourceVersion = fmt.Sprint(version)
				step(evictionrequest.RequestSeen{Request: w})
				step(evictionrequest.RequestGone{Request: w}) // the user withdraws it
				deleted = true
				step(evictionrequest.Answered{Ticket: a.Ticket, Written: w}) // late
			case evictionrequest.Evict:
				if deleted {
					evictions++
				}
				step(evictionrequest.Answered{Ticket: a.Ticket, Outcome: response.Busy, Message: "disrupted"})
			case evictionrequest.Delete:
				step(evictionrequest.EvictionGone{Eviction: a.Eviction})
				step(evictionrequest.Answered{Ticket: a.Ticket})
			}
		}
		at, ok := core.Wake()
		if len(actions) == 0 && (!ok || now.Sub(Begin) > 10*time.Minute) {
			break
		}
		if len(actions) == 0 && at.After(now) {
			now = at
		}
		step(evictionrequest.Tick{})
	}
	if !deleted {
		t.Fatal("no write of the request")
	}
	if evictions > 0 {
		t.Errorf("%d evictions of the pod within %v after its only request was deleted", evictions, now.Sub(Begin))
	}
}

// TestRequestersDoNotFillTheEviction covers a tenant that creates and deletes requests of many
// requesters for its pod, which a budget keeps. The request of an administrator must still be
// carried out.
func TestRequestersDoNotFillTheEviction(t *testing.T) {
	w := New(1)
	w.Process.Start()
	w.Validate = func(next, _ metav1.Object) error {
		if data, err := json.Marshal(next); err != nil || len(data) > 3<<17 { // etcd's limit; managed fields are not counted
			return errors.New("etcdserver: request is too large")
		}
		return nil
	}
	w.AddPod("db", false)
	w.Refuses["db"] = "disrupted"
	uid := w.Pod("db").UID
	w.AddRequest("drain", "zzz.io/drain", "db", uid)
	long, rounds := strings.Repeat(strings.Repeat("a", 60)+".", 4)+"io/"+strings.Repeat("r", 50), 0
	ask := func(requester string) {
		for i := range 90 {
			w.AddRequest(fmt.Sprint("r-", i), fmt.Sprintf("%s-%d-%d", requester, rounds, i), "db", uid)
		}
		rounds++
		w.Run(20 * time.Second)
	}
	forget := func() {
		for i := range 90 {
			w.DeleteRequest(fmt.Sprint("r-", i))
		}
		w.Run(20 * time.Second)
	}
	for range 20 {
		ask(long)
		forget()
	}
	for range 15 {
		ask("a.io/r")
		forget()
	}
	ask(long)
	for _, e := range All[*lifecyclev1alpha1.Eviction](w) {
		t.Logf("%d labels", len(e.Labels))
	}
	delete(w.Refuses, "db") // the budget allows it now
	w.Run(30 * time.Minute)
	if w.Pod("db") != nil {
		t.Error("the pod still exists half an hour after its budget allows the eviction")
	}
}
