// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestRequestsAreSpacedWhateverTheResponses verifies that the cycle sends at most 20 requests of a
// kind for a pod per minute while all of them fail, take no effect, or have an effect that is never
// observed: bindings, the release of devices, and the removal of victims.
func TestRequestsAreSpacedWhateverTheResponses(t *testing.T) {
	device := func(pod string) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod, UID: "c"}}
		c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}
		c.Status.Allocation = &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "d", Pool: "small", Device: "g"}}},
			NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{"small"}}}}}},
		}
		return c
	}
	for name, outcome := range map[string]Outcome{
		"refused":                {Fault: &Fault{Message: "forbidden"}},
		"success without effect": {},
	} {
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
		if err != nil {
			t.Fatal(err)
		}
		now, sent := begin, map[string][]time.Time{}
		var step func(e Event)
		step = func(e Event) {
			var tickets []Ticket
			for _, action := range core.Step(now, e) {
				key, ticket := "", Ticket(0)
				switch a := action.(type) {
				case Bind:
					key, ticket = "bind "+a.Attempt.Pod.Name, a.Ticket
				case DeallocateClaim:
					key, ticket = "release devices of "+a.Claim.Name, a.Ticket
				case Remove:
					key, ticket = "remove "+a.Victim.Name, a.Ticket
				default:
					continue
				}
				times := append(sent[key], now)
				sent[key] = times
				if i := len(times) - 21; i >= 0 && now.Sub(times[i]) < time.Minute {
					t.Fatalf("%s: more than 20 times within a minute: %s", name, key)
				}
				tickets = append(tickets, ticket)
			}
			for _, ticket := range tickets {
				step(Answered{Ticket: ticket, Outcome: outcome})
			}
		}
		for _, e := range []Event{
			Follows{}, Led{}, Seen{Nodes, aNode("small", "1")}, Seen{Nodes, aNode("large", "4")},
			Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}},
		} {
			step(e)
		}
		for _, node := range []string{"small", "large"} {
			step(Seen{ResourceSlices, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
				Driver: "d", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "g"}},
			}}})
		}
		step(Seen{ResourceClaims, device("devices")})
		p := aPod("devices", "2")
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new("devices")}}
		step(Seen{Pods, p})
		victim := aPod("victim", "1")
		victim.Spec.NodeName = "small"
		step(Seen{Pods, victim})
		preemptor := aPod("preemptor", "1")
		preemptor.Spec.Priority = new(int32(100))
		preemptor.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "small"}
		step(Seen{Pods, preemptor})
		step(Seen{Pods, aPod("plain", "1")})

		for end := begin.Add(10 * time.Minute); now.Before(end); {
			step(Tick{})
			if wake := core.Wake(now); wake.After(now) {
				now = wake
			} else {
				now = now.Add(time.Millisecond)
			}
		}
		for _, key := range []string{"bind plain", "release devices of devices", "remove victim"} {
			if len(sent[key]) == 0 {
				t.Errorf("%s: never: %s; sent %s", name, key, fmt.Sprint(len(sent)))
			}
		}
	}
}
