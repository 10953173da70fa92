// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestStories runs testdata/*.txt against an API in virtual time. A story consists of these
// commands:
//
//	story [grace=DURATION]         begins a cluster, and starts its controller
//	pod NAME [grouped]             creates a pod with the given responders, a line "NAME PRIORITY" each
//	end-pod NAME; terminate NAME   the pod completes; a client deletes the pod
//	replace NAME                   the pod is replaced by another pod of the same name
//	request NAME REQUESTER POD     a client requests the eviction of the pod, or with uid=UID of another
//	                               pod of that name
//	withdraw NAME; again NAME      the requester withdraws the request; renews it
//	delete NAME                    the requester deletes the request
//	budget POD MESSAGE             a disruption budget refuses the eviction; without a message it allows it
//	respond POD NAME MESSAGE [completes]   a responder other than Berth's reports
//	down; up                       the API server fails; recovers
//	kill; start; relist            kills the controller; starts it; relists all objects for it
//	run DURATION                   lets time pass, and prints the events
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &story{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.tell(t, d) })
	})
}

type story struct {
	world *World
	lines strings.Builder
}

func (s *story) tell(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "story" {
		s.world = New(1)
		s.world.Trace = func(at time.Time, what string) {
			fmt.Fprintf(&s.lines, "%7.1fs %s\n", at.Sub(Begin).Seconds(), what)
		}
		if text := ""; d.HasArg("grace") {
			d.ScanArgs(t, "grace", &text)
			s.world.Grace = mustDuration(t, text)
		}
		s.world.Process.Start()
	}
	w := s.world
	s.lines.Reset()
	word := make([]string, 3)
	for i, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 && i < len(word) {
			word[i] = arg.Key
		}
	}

	switch d.Cmd {
	case "story":
	case "pod":
		w.AddPod(word[0], d.HasArg("grouped"), respondersOf(t, d.Input)...)
	case "end-pod":
		w.EndPod(word[0])
	case "terminate":
		w.Terminate(w.Pod(word[0]))
	case "replace":
		w.RemovePod(word[0], w.Pod(word[0]).UID)
		w.AddPod(word[0], false)
	case "request":
		uid := ""
		if d.MaybeScanArgs(t, "uid", &uid); uid == "" {
			uid = string(w.Pod(word[2]).UID)
		}
		w.AddRequest(word[0], word[1], word[2], types.UID(uid))
	case "withdraw":
		w.SetIntent(word[0], lifecyclev1alpha1.EvictionRequestIntentWithdrawn)
	case "again":
		w.SetIntent(word[0], lifecyclev1alpha1.EvictionRequestIntentEviction)
	case "delete":
		w.DeleteRequest(word[0])
	case "budget":
		w.Refuses[word[0]] = strings.TrimSpace(d.Input)
	case "respond":
		if !w.Respond(word[0], word[1], strings.TrimSpace(d.Input), d.HasArg("completes")) {
			return "it is not its turn"
		}
	case "down", "up":
		w.Line.Rules = nil
		if d.Cmd == "down" {
			w.Line.Rules = []virtual.Rule{{Fault: virtual.Lost, Chance: 1}}
		}
	case "kill":
		w.Process.Kill()
	case "start":
		w.Process.Start()
	case "relist":
		w.Relist()
	case "run":
		w.Run(mustDuration(t, word[0]))
	default:
		return "unknown command " + d.Cmd
	}
	return s.lines.String()
}

func respondersOf(t *testing.T, text string) (list []v1.EvictionResponder) {
	t.Helper()
	for line := range strings.Lines(text) {
		var name string
		var priority int32
		if _, err := fmt.Sscan(line, &name, &priority); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, v1.EvictionResponder{Name: name, Priority: ptr.To(priority)})
	}
	return list
}

func mustDuration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
