// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// selecting is a core with two nodes of one device each and asynchronous preparation of slow work.
type selecting struct {
	*testing.T
	core *Core
	now  time.Time
}

func newSelecting(t *testing.T) *selecting {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Seed: 1, PrepareAside: true})
	if err != nil {
		t.Fatal(err)
	}
	s := &selecting{t, core, begin}
	all := []Kind{Nodes, Pods, Namespaces, ResourceSlices, ResourceClaims, DeviceClasses}
	s.tell(Follows{all})
	s.tell(Led{})
	for _, kind := range all {
		s.tell(Listing{kind})
	}
	s.tell(Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}})
	for _, name := range []string{"a", "b"} {
		s.tell(Seen{Nodes, aNode(name, "64")})
		s.tell(Seen{ResourceSlices, &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: "gpu.example.com", NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1},
				Devices: []resourcev1.Device{{Name: "gpu"}},
			},
		}})
	}
	for _, kind := range all {
		s.tell(Listed{kind})
	}
	return s
}

func (s *selecting) tell(e Event) []Action {
	s.now = s.now.Add(time.Millisecond)
	return s.core.Step(s.now, e)
}

// claims shows a pod with a claim selecting devices by the given number of expressions of the given
// length.
func (s *selecting) claims(namespace, name string, expressions, length int) {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	request := resourcev1.DeviceRequest{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
	}}
	for i := range expressions {
		var text strings.Builder
		fmt.Fprintf(&text, `device.driver != "%s-%s-%d"`, namespace, name, i)
		for text.Len() < length {
			text.WriteString(` && device.driver != "x"`)
		}
		request.Exactly.Selectors = append(request.Exactly.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: text.String()}})
	}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{request}
	s.tell(Seen{ResourceClaims, claim})
	pod := aPod(name, "1")
	pod.Namespace, pod.UID = namespace, types.UID("pod "+namespace+name)
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &name}}
	s.tell(Seen{Pods, pod})
}

// decide makes the core decide as far as it can, and returns its asynchronous questions and its
// other actions.
func (s *selecting) decide() (asked []Ask, text string) {
	for range 100 {
		for _, a := range s.tell(Tick{}) {
			if ask, is := a.(Ask); is {
				asked = append(asked, ask)
			} else {
				text += a.String() + "\n"
			}
		}
	}
	return asked, text
}

// TestExpressionsAreCompiledAside verifies that the pods of claims with expressions that take
// minutes to compile wait for the compiler, and that pods with another tenant's claim, or without
// claims, do not wait.
func TestExpressionsAreCompiledAside(t *testing.T) {
	s := newSelecting(t)
	for i := range 8 {
		s.claims("hostile", fmt.Sprint("long-", i), 16, 10_000)
	}
	s.claims("other", "short", 1, 0)
	s.tell(Seen{Pods, aPod("plain", "1")})

	var asked []Ask
	var text string
	if took := timeOf(t, func() { asked, text = s.decide() }); took > time.Second/2 {
		t.Errorf("to decide what can be decided took %v of processor time", took)
	}
	if len(asked) != 9 || !strings.Contains(text, "default/plain") {
		t.Fatalf("%d pods ask aside, want 9; besides: %s", len(asked), text)
	}

	other := slices.IndexFunc(asked, func(a Ask) bool { return a.Attempt.Pod.Namespace == "other" })
	asked[other].Query.Run(context.Background())
	text = ""
	for _, a := range s.tell(Answered{Ticket: asked[other].Ticket}) {
		text += a.String() + "\n"
	}
	if _, more := s.decide(); !strings.Contains(text+more, "other/short") {
		t.Errorf("the pod whose expressions are compiled is not decided: %s", text+more)
	}

	s.claims("other", "again", 1, 0)
	s.claims("hostile", "too-long", 30, 10_000)
	if asked, text := s.decide(); len(asked) != 1 || !strings.Contains(text, "more expressions, or longer ones") {
		t.Errorf("%d pods ask aside, want 1; besides: %s", len(asked), text)
	}
}

// TestPreparationsOfANamespaceAreBounded verifies that only a limited number of pods of one
// namespace may wait for the compiler, and that this does not affect pods of other namespaces.
func TestPreparationsOfANamespaceAreBounded(t *testing.T) {
	s := newSelecting(t)
	for i := range 40 {
		s.claims("hostile", fmt.Sprint("c-", i), 1, 0)
	}
	s.claims("other", "c", 1, 0)
	asked, text := s.decide()
	if others := slices.ContainsFunc(asked, func(a Ask) bool { return a.Attempt.Pod.Namespace == "other" }); len(asked) != 33 || !others {
		t.Errorf("%d pods ask aside, want 32 of one namespace and 1 of the other", len(asked))
	}
	if n := strings.Count(text, "wait for their device selectors"); n < 8 {
		t.Errorf("%d pods are told why they back off, want 8: %s", n, text)
	}
}
