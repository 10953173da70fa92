// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/response"
)

// TestWebhookThatIsGoneDelaysEvictions verifies that a pod is removed although an unreachable
// webhook delays the response by 30 s, the longest timeout allowed by the API server.
func TestWebhookThatIsGoneDelaysEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New()
		api.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}})
		api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Late: 30 * time.Second} })
		r := newRequests(api.Client(), nil)
		answer := r.carryOut(t.Context(), execute.Evict{Namespace: "default", Name: "p", UID: api.Pods()[0].UID, Delete: true})
		if got := answer.(execute.Answered); got.Outcome != response.OK || len(api.Pods()) != 0 {
			t.Errorf("answered %+v, and %d pods are left", got, len(api.Pods()))
		}
	})
}

// TestABudgetIsSpentByEvictions verifies that the first pod is evicted, the second one must wait,
// and a pod with another UID is not touched.
func TestABudgetIsSpentByEvictions(t *testing.T) {
	api, covered := fakeapi.New(), map[string]string{"app": "web"}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: covered}
	budget.Status.DisruptionsAllowed = 1
	api.Put(budget)
	for _, name := range []string{"a", "b"} {
		api.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: covered}})
	}
	api.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "c"}})

	r := newRequests(api.Client(), nil)
	evict := func(name string, uid types.UID) response.Outcome {
		return r.carryOut(t.Context(), execute.Evict{Namespace: "default", Name: name, UID: uid}).(execute.Answered).Outcome
	}
	if a, b, c := evict("a", "a"), evict("b", "b"), evict("c", "another"); a != response.OK || b != response.Busy || c == response.OK {
		t.Errorf("answered %v, %v and %v", a, b, c)
	}
	if left := api.Pods(); len(left) != 2 || left[0].Name != "b" || left[1].Name != "c" {
		t.Errorf("left are %v", left)
	}
}

// TestARoomThatCannotBeShownDoesNotHoldAMoveUp verifies that a slow write of the Lease is abandoned
// after a few seconds, and the pod is evicted.
func TestARoomThatCannotBeShownDoesNotHoldAMoveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New()
		api.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}})
		api.SetFault(func(r *http.Request) fakeapi.Fault {
			if strings.Contains(r.URL.Path, "/leases") {
				return fakeapi.Fault{Late: time.Minute}
			}
			return fakeapi.Fault{}
		})
		said, begun := 0, time.Now()
		r := &requests{client: api.Client(), noReservation: func(string) { said++ }}
		flight := &execute.Flight{Move: rebalance.Move{Namespace: "default", Name: "p", UID: "p", To: "b"}}
		answer := r.carryOut(t.Context(), execute.Evict{Ticket: 1, Namespace: "default", Name: "p", UID: "p", Reservations: execute.Reservations{flight}})
		if got := answer.(execute.Answered); got.Outcome != response.OK || time.Since(begun) > reserveWithin || said != 1 {
			t.Errorf("answered %+v after %v, and said %d times that no room is kept", got, time.Since(begun), said)
		}
	})
}

// TestARefusalForNowIsAnsweredAtOnce verifies that a response with status 429 is returned
// immediately, without a retry by client-go, so that other pods can be evicted meanwhile.
func TestARefusalForNowIsAnsweredAtOnce(t *testing.T) {
	for _, past := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			api, tries, begun := fakeapi.New(), 0, time.Now()
			api.SetFault(func(*http.Request) fakeapi.Fault {
				tries++
				return fakeapi.Fault{Status: http.StatusTooManyRequests}
			})
			r := newRequests(api.Client(), nil)
			answer := r.carryOut(t.Context(), execute.Evict{Namespace: "default", Name: "p", UID: "p", Delete: past})
			if got := answer.(execute.Answered); got.Outcome != response.Busy || tries != 1 || time.Since(begun) > 0 {
				t.Errorf("answered %+v after %d tries and %v", got, tries, time.Since(begun))
			}
		})
	}
}

// TestAPodOfANamespaceThatIsBeingDeletedIsWaitedFor verifies that an eviction refused because the
// namespace is terminating counts as Busy, since the pod is deleted soon. Any other response
// Forbidden is a refusal.
func TestAPodOfANamespaceThatIsBeingDeletedIsWaitedFor(t *testing.T) {
	err := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", nil)
	if got := outcomeOf(err); got != response.Refused {
		t.Errorf("a refusal counts as %v", got)
	}
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: v1.NamespaceTerminatingCause})
	if got := outcomeOf(err); got != response.Busy {
		t.Errorf("that the namespace is being deleted counts as %v, want %v", got, response.Busy)
	}
}

// TestAConflictIsNoEvictionWhileThePodIsThere verifies that after a conflict the pod counts as
// deleted only if another pod has its name. The API server also returns 409 if the disruption
// budget is written at the same moment, and webhooks may return it as well.
func TestAConflictIsNoEvictionWhileThePodIsThere(t *testing.T) {
	api := fakeapi.New()
	api.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}})
	api.SetFault(func(r *http.Request) fakeapi.Fault {
		if r.Method != http.MethodGet {
			return fakeapi.Fault{Status: http.StatusConflict}
		}
		return fakeapi.Fault{}
	})
	r := newRequests(api.Client(), nil)
	for uid, want := range map[types.UID]response.Outcome{api.Pods()[0].UID: response.Busy, "before": response.Gone} {
		answer := r.carryOut(t.Context(), execute.Evict{Namespace: "default", Name: "p", UID: uid})
		if got := answer.(execute.Answered); got.Outcome != want {
			t.Errorf("answered %+v for the UID %q, want %v", got, uid, want)
		}
	}
}

// TestAConflictThatIsNotAboutTheVersionOfANodeIsARefusal verifies that only version conflicts are
// retried, because a webhook may return conflicts repeatedly.
func TestAConflictThatIsNotAboutTheVersionOfANodeIsARefusal(t *testing.T) {
	for _, changes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			api := fakeapi.New()
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			api.Put(node)
			tries := 0
			api.SetFault(func(r *http.Request) fakeapi.Fault {
				if r.Method != http.MethodPatch {
					return fakeapi.Fault{}
				}
				if tries++; changes && tries == 4 {
					return fakeapi.Fault{}
				}
				if changes {
					go api.Put(node)
				}
				return fakeapi.Fault{Status: http.StatusConflict, Late: 10 * time.Millisecond}
			})
			r := newRequests(api.Client(), nil)
			got := r.carryOut(t.Context(), execute.SetTaint{Node: "n", Value: "empty"}).(execute.Answered)
			if changes && (got.Outcome != response.OK || tries != 4) || !changes && (got.Outcome != response.Conflict || tries != 1) {
				t.Errorf("changes: %v: answered %+v after %d tries", changes, got, tries)
			}
		})
	}
}

// TestALostAnswerToTheJournalIsNoOtherProcess verifies that a write is recognized on the next try
// if its response was lost. A journal written by another process is a conflict, even with the same
// contents.
func TestALostAnswerToTheJournalIsNoOtherProcess(t *testing.T) {
	for name, before := range map[string]bool{"created": false, "updated": true} {
		t.Run(name, func(t *testing.T) {
			api := &journalAPI{}
			client := &fake.Clientset{}
			client.AddReactor("*", "*", api.react)
			mine, other := newRequests(client, nil), newRequests(client, nil)
			write := func(r *requests, a execute.Note) execute.Answered {
				a.Journal = execute.Journal{Resting: map[string]execute.Rest{"a": {Misses: 1}}}
				return r.carryOut(t.Context(), a).(execute.Answered)
			}
			version := ""
			if before {
				version = write(mine, execute.Note{}).Version
			}
			api.unanswered = true
			if got := write(mine, execute.Note{Version: version}); got.Outcome != response.Failed {
				t.Fatalf("the answer is lost, and said to be %+v", got)
			}
			got := write(mine, execute.Note{Version: version})
			if got.Outcome != response.OK || got.Version == "" || got.Version == version {
				t.Errorf("the next try: %+v", got)
			}
			if got := write(other, execute.Note{Version: version}); got.Outcome != response.Conflict {
				t.Errorf("another process: %+v", got)
			}
			if got := write(mine, execute.Note{Version: got.Version}); got.Outcome != response.OK {
				t.Errorf("later: %+v", got)
			}
		})
	}
}

// TestTheJournalThatThisProcessHasWrittenIsReplaced verifies that after a lost response the next
// journal, with other contents, replaces this process's journal. Another process's journal is a
// conflict.
func TestTheJournalThatThisProcessHasWrittenIsReplaced(t *testing.T) {
	api := &journalAPI{}
	client := &fake.Clientset{}
	client.AddReactor("*", "*", api.react)
	write := func(r *requests, misses int) execute.Answered {
		journal := execute.Journal{Resting: map[string]execute.Rest{"a": {Misses: misses}}}
		return r.carryOut(t.Context(), execute.Note{Journal: journal}).(execute.Answered)
	}
	mine := newRequests(client, nil)
	api.unanswered = true
	if got := write(mine, 1); got.Outcome != response.Failed {
		t.Fatalf("the answer is lost, and said to be %+v", got)
	}
	if got := write(mine, 2); got.Outcome != response.OK || got.Version != api.journal.ResourceVersion || !strings.Contains(api.journal.Data[journalKey], `"misses":2`) {
		t.Errorf("%+v; the journal is %s", got, api.journal.Data[journalKey])
	}
	if got := write(newRequests(client, nil), 3); got.Outcome != response.Conflict {
		t.Errorf("another process: %+v", got)
	}
}

// TestTheRoomOfAMoveThatIsResumedIsFreed verifies that the reservation of a journaled move is
// released: its text is the same in every time zone.
func TestTheRoomOfAMoveThatIsResumedIsFreed(t *testing.T) {
	begun := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	flight := &execute.Flight{Move: rebalance.Move{Namespace: "default", Name: "p", UID: "p", To: "b"}, OwnerUID: "o", Begun: metav1.NewTime(begun)}
	abroad := *flight
	abroad.Begun = metav1.NewTime(begun.In(time.FixedZone("", 3600)))
	api, freed := &journalAPI{}, []string{}
	client := &fake.Clientset{}
	client.AddReactor("patch", "leases", func(action ktesting.Action) (bool, runtime.Object, error) {
		freed = append(freed, string(action.(ktesting.PatchAction).GetPatch()))
		return true, &coordinationv1.Lease{}, nil
	})
	client.AddReactor("*", "*", api.react)
	text, _ := json.Marshal(execute.Journal{Move: flight})
	api.journal = &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "0"}, Data: map[string]string{journalKey: string(text)}}

	r := newRequests(client, nil)
	recalled := r.carryOut(t.Context(), execute.Recall{}).(execute.Recalled)
	r.carryOut(t.Context(), execute.ReleaseReservations{Reservations: execute.Reservations{recalled.Journal.Move}})
	want, _ := json.Marshal(execute.Reservations{&abroad}.Text())
	if len(freed) != 1 || !strings.Contains(freed[0], string(want)) {
		t.Errorf("freed %q, want %q", freed, want)
	}
}

// journalAPI is an API server with only the journal. An unanswered write is carried out, but its
// response is lost.
type journalAPI struct {
	journal    *v1.ConfigMap
	version    int
	unanswered bool
}

func (a *journalAPI) react(action ktesting.Action) (bool, runtime.Object, error) {
	maps := schema.GroupResource{Resource: "configmaps"}
	written, writes := action.(interface{ GetObject() runtime.Object })
	switch {
	case action.GetResource().Resource != "configmaps" || !writes && a.journal == nil:
		return true, nil, apierrors.NewNotFound(maps, "")
	case !writes:
		return true, a.journal.DeepCopy(), nil
	case action.GetVerb() == "create" && a.journal != nil:
		return true, nil, apierrors.NewAlreadyExists(maps, JournalName)
	}
	m := written.GetObject().DeepCopyObject().(*v1.ConfigMap)
	if a.journal != nil && m.ResourceVersion != a.journal.ResourceVersion {
		return true, nil, apierrors.NewConflict(maps, JournalName, errors.New("the object has been modified"))
	}
	a.version++
	m.ResourceVersion = fmt.Sprint(a.version)
	a.journal = m
	if a.unanswered {
		a.unanswered = false
		return true, nil, errors.New("connection reset by peer")
	}
	return true, m.DeepCopy(), nil
}

// TestPlansAreByTheWallClock verifies that plans use the system clock, like timestamps of objects.
// A loop's clock stops while the machine is suspended, and ignores adjustments of the system clock.
func TestPlansAreByTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fakeapi.New().Client()
		loops := time.Now().Add(-time.Hour)
		asOf := func(actions []execute.Action) (at time.Time) {
			for _, action := range actions {
				switch a := action.(type) {
				case execute.MakePlan:
					at = a.State.AsOf
				case execute.PlanDrain:
					at = a.State.AsOf
				}
			}
			return at
		}
		m := New(client, eventlog.New(client, "test"), Options{})
		m.Step(loops, execute.Recalled{})
		if at := asOf(m.Step(loops, execute.Listed{})); !at.Equal(time.Now()) {
			t.Errorf("at %v a plan is made as of %v", time.Now(), at)
		}
		d := NewDrainer(client, nil, execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a"}}}, nil, nil)
		if at := asOf(d.Step(loops, execute.Listed{})); !at.Equal(time.Now()) {
			t.Errorf("at %v a drain is planned as of %v", time.Now(), at)
		}
	})
}

// TestWhatAFailedListHasShownIsForgotten verifies that objects of a failed list are dropped if the
// next list does not contain them.
func TestWhatAFailedListHasShownIsForgotten(t *testing.T) {
	shown := map[string]bool{}
	m := &mirror{
		seen: func(o metav1.Object) { shown[o.GetName()] = true }, gone: func(o metav1.Object) { delete(shown, o.GetName()) }, listed: func() {},
	}
	sink := m.newSink()
	see := func(name string) { sink.Seen(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}) }
	sink.Listing()
	see("a")
	see("b")
	sink.Listing() // b has been deleted meanwhile
	see("a")
	sink.Listed()
	if want := map[string]bool{"a": true}; !maps.Equal(shown, want) {
		t.Errorf("shown %v, want %v", shown, want)
	}
}

// TestRequestsThatAreLeftAreToldOf verifies that a drain that fails to withdraw its requests
// reports it at its end, because the remaining pods will still be evicted.
func TestRequestsThatAreLeftAreToldOf(t *testing.T) {
	request := &lifecyclev1alpha1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "berth-drain-1", Labels: map[string]string{"berth.dev/requester": "drain"}},
		Spec: lifecyclev1alpha1.EvictionRequestSpec{Target: lifecyclev1alpha1.EvictionRequestTarget{
			Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: "web-0", UID: "1"}}},
	}
	for _, may := range []bool{true, false} {
		client := fake.NewClientset(request)
		client.Resources = []*metav1.APIResourceList{{
			GroupVersion: lifecyclev1alpha1.SchemeGroupVersion.String(), APIResources: []metav1.APIResource{{Name: "evictionrequests"}},
		}}
		client.PrependReactor("delete", "evictionrequests", func(ktesting.Action) (bool, runtime.Object, error) {
			return !may, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "evictionrequests"}, request.Name, nil)
		})
		var lines []string
		d := NewDrainer(client, nil, execute.DrainOptions{}, func(a execute.DrainProgress) { lines = append(lines, a.Message) }, nil)
		d.Do(t.Context(), execute.Withdraw{Pods: map[types.UID]bool{"1": true}})(t.Context())
		d.finish(t.Context())
		if said := len(lines) == 1 && strings.Contains(lines[0], "could not be withdrawn"); said == may || len(lines) > 1 {
			t.Errorf("it may withdraw: %t, and it is told: %q", may, lines)
		}
	}
}
