// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/controller/evictionrequest/requesttest"
	"github.com/berth-k8s/berth/internal/response"
)

// subject names the kind and the object of a request.
func subject(action evictionrequest.Action) string {
	name := ""
	switch a := action.(type) {
	case evictionrequest.ReadPod:
		name = a.Name.Name
	case evictionrequest.Evict:
		name = a.Name.Name
	case evictionrequest.Create:
		name = a.Eviction.Name
	case evictionrequest.Label:
		name = a.Eviction.Name
	case evictionrequest.WriteEviction:
		name = a.Eviction.Name
	case evictionrequest.WriteRequest:
		name = a.Request.Name
	case evictionrequest.Delete:
		name = a.Eviction.Name
	}
	return fmt.Sprintf("%T %s", action, name)
}

// mostRequests bounds the requests of a kind for an object within a minute, whatever the responses.
const mostRequests = 20

// TestRequestsAreSpacedWhateverTheResponses verifies that the core sends at most mostRequests
// requests of a kind for an object per minute while all requests, or those of one kind, get the
// same response, and that the pod is evicted within a minute after the fault is over.
func TestRequestsAreSpacedWhateverTheResponses(t *testing.T) {
	type do = func() evictionrequest.Answered
	answer := func(outcome response.Outcome, carriedOut bool) func(*requesttest.World, evictionrequest.Action, do) evictionrequest.Answered {
		return func(_ *requesttest.World, _ evictionrequest.Action, do do) evictionrequest.Answered {
			if carriedOut {
				do()
			}
			return evictionrequest.Answered{Outcome: outcome, Message: "a fault"}
		}
	}
	responses := map[string]func(*requesttest.World, evictionrequest.Action, do) evictionrequest.Answered{
		"success without effect":       answer(response.OK, false),
		"success, no object returned":  answer(response.OK, true),
		"404":                          answer(response.Gone, false),
		"404, carried out":             answer(response.Gone, true),
		"409":                          answer(response.Conflict, false),
		"409, carried out":             answer(response.Conflict, true),
		"429":                          answer(response.Busy, false),
		"403, 500 or a time-out":       answer(response.Failed, false),
		"carried out, and no response": answer(response.Failed, true),
		"404 while the watch lags": func(w *requesttest.World, _ evictionrequest.Action, do do) evictionrequest.Answered {
			w.Blind = true
			do()
			return evictionrequest.Answered{Outcome: response.Gone}
		},
		"fields dropped": func(w *requesttest.World, a evictionrequest.Action, do do) evictionrequest.Answered {
			switch a := a.(type) {
			case evictionrequest.Label:
				e := a.Eviction.DeepCopy()
				e.Labels = nil
				return evictionrequest.Answered{Written: e}
			case evictionrequest.WriteEviction:
				e := a.Eviction.DeepCopy()
				e.Status.Conditions = nil
				return evictionrequest.Answered{Written: e}
			case evictionrequest.WriteRequest:
				r := a.Request.DeepCopy()
				r.Status.Conditions = nil
				return evictionrequest.Answered{Written: r}
			}
			return do()
		},
	}
	faults := 0
	for name, respond := range responses {
		for _, kind := range []string{"", "ReadPod", "Evict", "Create", "Label", "WriteEviction", "WriteRequest", "Delete"} {
			w := requesttest.New(1)
			sent := map[string][]time.Time{}
			over := false
			w.RespondTo = func(a evictionrequest.Action, do func() evictionrequest.Answered) evictionrequest.Answered {
				object := subject(a)
				times := append(sent[object], w.Now)
				sent[object] = times
				if i := len(times) - 1 - mostRequests; i >= 0 && w.Now.Sub(times[i]) < time.Minute {
					t.Fatalf("%s to %q: more than %d requests within a minute: %s", name, kind, mostRequests, object)
				}
				if over || kind != "" && fmt.Sprintf("%T", a) != "evictionrequest."+kind {
					return do()
				}
				faults++
				return respond(w, a, do)
			}
			w.AddRequest("one", "acme.io/drain", "web", w.AddPod("web", false).UID)
			w.AddRequest("two", "acme.io/upgrade", "web", w.Pod("web").UID)
			w.Start()
			w.Run(10 * time.Minute)
			over = true
			if w.Blind {
				w.Blind = false
				w.Relist()
			}
			w.Run(time.Minute)
			if w.Pod("web") != nil {
				t.Errorf("%s to %q: the pod has not left a minute later", name, kind)
			}
		}
	}
	if faults < 500 {
		t.Errorf("only %d faults were met", faults)
	}
}
