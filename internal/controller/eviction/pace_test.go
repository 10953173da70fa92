// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/eviction/evictiontest"
	"github.com/berth-k8s/berth/internal/response"
)

// subject names the kind and the object of a request.
func subject(action eviction.Action) string {
	switch a := action.(type) {
	case eviction.ReadNode:
		return "read node " + a.Node
	case eviction.ReadPod:
		return "read pod " + a.Name.Name
	case eviction.Mark:
		return "mark pod " + a.Name.Name
	case eviction.Delete:
		return "delete pod " + a.Name.Name
	case eviction.Evict:
		return "evict pod " + a.Name.Name
	case eviction.Annotate:
		return "annotate node " + a.Node
	}
	return fmt.Sprintf("%T", action)
}

// most is the maximum number of requests of a kind for an object per minute, whatever the
// responses.
const most = 20

// TestRequestsAreSpacedWhateverTheResponses verifies that taint eviction sends few requests of a
// kind for an object per minute while all requests, or those of one kind, get the same response,
// and that the pod is deleted within a minute after the responses become normal.
func TestRequestsAreSpacedWhateverTheResponses(t *testing.T) {
	type do = func() eviction.Answered
	answer := func(outcome response.Outcome, carriedOut bool, after time.Duration) func(do) eviction.Answered {
		return func(do do) eviction.Answered {
			if carriedOut {
				do()
			}
			return eviction.Answered{Outcome: outcome, RetryAfter: after}
		}
	}
	faults := 0
	for name, respond := range map[string]func(do) eviction.Answered{
		"success without effect":       answer(response.OK, false, 0),
		"404":                          answer(response.Gone, false, 0),
		"409":                          answer(response.Conflict, false, 0),
		"429":                          answer(response.Busy, false, 0),
		"429 with Retry-After":         answer(response.Busy, false, time.Second),
		"403":                          answer(response.Refused, false, 0),
		"500 or a time-out":            answer(response.Failed, false, 0),
		"404, carried out":             answer(response.Gone, true, 0),
		"carried out, and no response": answer(response.Failed, true, 0),
	} {
		for _, kind := range []string{"", "ReadNode", "ReadPod", "Mark", "Delete", "Annotate"} {
			w := evictiontest.New(0)
			w.AddNode("n")
			w.AddPod("p", "n", nil)
			sent := map[string][]time.Time{}
			over := false
			w.Requests.Respond = func(action eviction.Action, do func() eviction.Answered) eviction.Answered {
				object := subject(action)
				times := append(sent[object], w.Now)
				sent[object] = times
				reads := strings.HasPrefix(object, "read ")
				if i := len(times) - 1 - most; i >= 0 && w.Now.Sub(times[i]) < time.Minute {
					t.Fatalf("%s to %q: more than %d requests within a minute: %s", name, kind, most, object)
				}
				if over || reads && name == "success without effect" || kind != "" && fmt.Sprintf("%T", action) != "eviction."+kind {
					return do()
				}
				faults++
				answer := respond(do)
				if _, marks := action.(eviction.Mark); marks && answer.Outcome == response.OK {
					unmarked := w.PodNamed("p").Pod
					answer.Pod = &unmarked
				}
				return answer
			}
			w.Controller.Start()
			w.Run(time.Second)
			w.Taint("n", "key", "value", false)
			w.Run(10 * time.Minute)
			over = true
			w.Run(time.Minute)
			if p := w.PodNamed("p"); p != nil && !p.Terminating {
				t.Errorf("%s to %q: the pod is still there a minute later", name, kind)
			}
		}
	}
	if faults < 200 {
		t.Errorf("only %d faults were met", faults)
	}
}

// TestPodsShareTheFailedReadsOfTheirNode verifies that many pods do not increase the number of
// failed reads of their node, and that the pods are evicted soon after the node can be read.
func TestPodsShareTheFailedReadsOfTheirNode(t *testing.T) {
	const pods, within = 20, 6 * time.Second
	w := evictiontest.New(0)
	w.AddNode("n")
	w.AddNode("other")
	for i := range pods {
		after := int64(i)
		for _, node := range []string{"n", "other"} {
			w.AddPod(fmt.Sprintf("%s-%d", node, i), node, []v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: &after}})
		}
	}

	var reads []time.Time
	over := false
	w.Requests.Respond = func(action eviction.Action, do func() eviction.Answered) eviction.Answered {
		if read, ok := action.(eviction.ReadNode); !ok || read.Node != "n" || over {
			return do()
		}
		reads = append(reads, w.Now)
		if i := len(reads) - 1 - most; i >= 0 && w.Now.Sub(reads[i]) < time.Minute {
			t.Fatalf("more than %d reads within a minute", most)
		}
		return eviction.Answered{Outcome: response.Refused}
	}

	w.Controller.Start()
	w.Taint("n", "key", "value", false)
	w.Taint("other", "key", "value", false)
	w.Run(pods * time.Second)
	if w.Requests.Deleted < pods-1 {
		t.Errorf("%d of %d pods of the other node were deleted", w.Requests.Deleted, pods)
	}

	w.Run(10 * time.Minute)
	over = true
	w.Run(within)
	if w.Requests.Deleted != 2*pods {
		t.Errorf("%d of %d pods were deleted within %v of the recovery", w.Requests.Deleted-pods, pods, within)
	}
}
