// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

var claimsOfGroups = Options{Groups: groups.Gates{Generic: true, Claims: true}}

// aSharingGroup returns a PodGroup with a claim template, and the claim that the controller creates
// from it.
func aSharingGroup(least int32) []fakeapi.Object {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g", UID: "uid-g"}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: least}
	g.Spec.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one-gpu")}}
	claim := aClaim("c")
	claim.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: schedulingv1beta1.SchemeGroupVersion.String(), Kind: "PodGroup", Name: "g", UID: "uid-g", Controller: new(true),
	}}
	return []fakeapi.Object{g, claim}
}

// sharing makes the pod a member of the group that shares its claim.
func sharing(pod *v1.Pod) *v1.Pod {
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one-gpu")}}
	pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: new("c")}}
	return pod
}

// checkGroupHolds checks that the claim is allocated and is reserved only for the group.
func (w *world) checkGroupHolds() {
	w.Helper()
	claim := w.claim("c")
	reserved := []resourcev1.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "uid-g"}}
	if claim.Status.Allocation == nil || !slices.Equal(claim.Status.ReservedFor, reserved) || !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
		w.Errorf("claim %v %+v", claim.Finalizers, claim.Status)
	}
	if n := w.s.core.Books().Claims; n != 0 {
		w.Errorf("%d claims held", n)
	}
}

// counted counts the requests for which match returns true, and injects the faults returned by
// then.
func counted(n *atomic.Int32, match func(*http.Request) bool, then func(*http.Request) fakeapi.Fault) func(*http.Request) fakeapi.Fault {
	return func(r *http.Request) fakeapi.Fault {
		if match(r) {
			n.Add(1)
		}
		return then(r)
	}
}

func isClaimPatch(r *http.Request) bool {
	return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/resourceclaims/")
}

// TestClaimOfAGroupIsReservedOnce verifies that the claim of a group is reserved once, for the
// group, so that more pods than the limit of reservations can share it, and that only the first pod
// writes the claim.
func TestClaimOfAGroupIsReservedOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		const pods = resourcev1.ResourceClaimReservedForMaxSize + 4
		var writes atomic.Int32
		w.api.SetFault(counted(&writes, func(r *http.Request) bool { return isClaimWrite(r, "c") }, func(*http.Request) fakeapi.Fault { return fakeapi.Fault{} }))
		n, m := aNode("n", "999"), aNode("m", "999")
		n.Status.Allocatable[v1.ResourcePods], m.Status.Allocatable[v1.ResourcePods] = *many(), *many()
		w.api.Put(n, m)
		w.api.Put(aDriver("n", "gpu-0", "gpu-1")...)
		w.api.Put(aSharingGroup(pods)...)
		var names []string
		for i := range pods {
			names = append(names, fmt.Sprintf("p%03d", i))
			w.api.Put(sharing(aPod(names[i], "1")))
		}
		w.start(claimsOfGroups)
		w.untilBound(names...)
		for _, name := range names {
			if w.nodeOf(name) != "n" {
				t.Fatalf("%s is on %q", name, w.nodeOf(name))
			}
		}
		w.checkGroupHolds()
		if writes.Load() != 2 { // the finalizer and the status
			t.Errorf("the claim was written %d times", writes.Load())
		}
	})
}

// TestLastOfAGroupReleasesItsClaim verifies that if the binding of one member fails, the
// reservation stays for the other members. If the bindings of all members fail, the last member
// removes the reservation, which is written again with the next attempt.
func TestLastOfAGroupReleasesItsClaim(t *testing.T) {
	for refused, releases := range map[int]int32{1: 0, 2: 1} {
		t.Run(fmt.Sprintf("%d of 2 refused", refused), func(t *testing.T) {
			inWorld(t, func(w *world) {
				var patches atomic.Int32
				w.api.SetFault(counted(&patches, isClaimPatch,
					times(refused, func(r *http.Request) bool { return isBinding(r, "") }, fakeapi.Fault{Status: http.StatusForbidden})))
				w.api.Put(aNode("n", "9"))
				w.api.Put(aDriver("n", "gpu-0")...)
				w.api.Put(aSharingGroup(2)...)
				w.api.Put(sharing(aPod("a", "1")), sharing(aPod("b", "1")))
				w.start(claimsOfGroups)
				w.untilBound("a", "b")
				w.checkGroupHolds()
				if patches.Load() != releases {
					t.Errorf("released %d times, want %d", patches.Load(), releases)
				}
			})
		})
	}
}

// TestReservationOfAGroupSurvivesARestart verifies that after a restart, the members of a group are
// bound to the node of the claim that was reserved before, without further writes of the claim.
func TestReservationOfAGroupSurvivesARestart(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if isBinding(r, "") {
				return fakeapi.Fault{Lost: true}
			}
			return fakeapi.Fault{}
		})
		w.api.Put(aNode("n", "9"), aNode("m", "9"))
		w.api.Put(aDriver("n", "gpu-0")...)
		w.api.Put(aDriver("m", "gpu-0")...)
		w.api.Put(aSharingGroup(2)...)
		w.api.Put(sharing(aPod("a", "1")), sharing(aPod("b", "1")))
		w.start(claimsOfGroups)
		w.until("the claim is reserved", func() bool { return len(w.claim("c").Status.ReservedFor) > 0 })
		w.end()
		before := w.claim("c")
		var writes atomic.Int32
		w.api.SetFault(counted(&writes, func(r *http.Request) bool { return isClaimWrite(r, "c") || isClaimPatch(r) },
			func(*http.Request) fakeapi.Fault { return fakeapi.Fault{} }))
		w.start(claimsOfGroups)
		w.untilBound("a", "b")
		w.pass(time.Minute)
		w.checkGroupHolds()
		on := before.Status.Allocation.Devices.Results[0].Pool
		if writes.Load() != 0 || w.nodeOf("a") != on || w.nodeOf("b") != on {
			t.Errorf("%d writes, a on %s, b on %s, the device on %s", writes.Load(), w.nodeOf("a"), w.nodeOf("b"), on)
		}
	})
}

// TestGroupGivesUpDevicesOutOfReach verifies that devices allocated by an earlier scheduler are
// deallocated if the group does not fit on their node, and that the group gets devices of another
// node.
func TestGroupGivesUpDevicesOutOfReach(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n", "1"), aNode("m", "9"))
		w.api.Put(aDriver("n", "gpu-0")...)
		w.api.Put(aDriver("m", "gpu-0")...)
		objects := aSharingGroup(2)
		claim := objects[1].(*resourcev1.ResourceClaim)
		claim.Finalizers = []string{resourcev1.Finalizer}
		claim.Status.Allocation = &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Request: "one", Driver: "gpu.example.com", Pool: "n", Device: "gpu-0"},
			}},
			NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{"n"}},
			}}}},
		}
		claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "uid-g"}}
		w.api.Put(objects...)
		w.api.Put(sharing(aPod("a", "1")), sharing(aPod("b", "1")))
		w.start(claimsOfGroups)
		w.untilBound("a", "b")
		w.pass(time.Minute)
		w.checkGroupHolds()
		if w.nodeOf("a") != "m" || w.nodeOf("b") != "m" {
			t.Errorf("a on %q, b on %q", w.nodeOf("a"), w.nodeOf("b"))
		}
	})
}
