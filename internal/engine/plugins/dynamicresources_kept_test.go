// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// keptWorld is a cluster with a device held by the pod holder of priority 5, and a pending pod of
// priority 6 that needs a device.
type keptWorld struct {
	*testing.T
	*cluster.Cluster
	waiting *cluster.Pod
}

// edit changes copies of the slice of the node, of the holder's claim, or of the pending pod.
func (w *keptWorld) slice(name string, edit func(*resourcev1.ResourceSlice)) {
	s, _ := w.ResourceSlices.Get("", "s")
	s = s.DeepCopy()
	s.Name = name
	edit(s)
	w.ResourceSlices.Set(s)
}

func (w *keptWorld) claim(edit func(*resourcev1.ResourceClaim)) {
	claim, _ := w.ResourceClaims.Get("default", "holder")
	claim = claim.DeepCopy()
	edit(claim)
	w.ResourceClaims.Set(claim)
}

func (w *keptWorld) pending(edit func(*v1.Pod)) {
	p := w.waiting.Object().DeepCopy()
	edit(p)
	w.waiting = w.Pending(p)
}

// user adds another pod with a priority, which uses the holder's claim.
func (w *keptWorld) user(name string, priority int32, placed bool) {
	p := w.Pending(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: &priority}})
	if placed {
		w.Place(p, w.Node("n"))
	} else {
		w.IsPending = func(uid types.UID) bool { return uid == p.UID() }
	}
	w.claim(func(c *resourcev1.ResourceClaim) {
		c.Status.ReservedFor = append(c.Status.ReservedFor, podAsHolder(p.Object()))
	})
}

// TestKeptDevice verifies that the message of a pod that cannot preempt for devices names the
// device, its user, and the reason why preemption does not release it.
func TestKeptDevice(t *testing.T) {
	taint := resourcev1.DeviceTaint{Key: "broken", Value: "fan", Effect: resourcev1.DeviceTaintEffectNoSchedule}
	for name, row := range map[string]struct {
		change func(*keptWorld)
		want   string
	}{
		"equal priority": {
			func(w *keptWorld) { w.pending(func(p *v1.Pod) { p.Spec.Priority = new(int32(5)) }) },
			"Device d/n/gpu-0 on node n is held by pod default/holder, which has priority 5 (this pod: 5).",
		},
		"preemptionPolicy": {
			func(w *keptWorld) { w.pending(func(p *v1.Pod) { p.Spec.PreemptionPolicy = new(v1.PreemptNever) }) },
			"Device d/n/gpu-0 on node n is held by pod default/holder, which a preemptionPolicy, a disruption budget or its pod group protects.",
		},
		"shared claim": {
			func(w *keptWorld) { w.user("important", 9, true) },
			"Device d/n/gpu-0 on node n is held by pod default/important, which has priority 9 (this pod: 6).",
		},
		"claim shared with a pending pod": {
			func(w *keptWorld) { w.user("later", 0, false) },
			"Device d/n/gpu-0 on node n is held by pod default/later, which has no node yet.",
		},
		"claim of a group": {
			func(w *keptWorld) {
				w.claim(func(c *resourcev1.ResourceClaim) {
					c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{
						{APIGroup: schedulingv1beta1.GroupName, Resource: "podgroups", Name: "gang", UID: "gang"}}
				})
			},
			"Device d/n/gpu-0 on node n is held by podgroup default/gang, which keeps its claims.",
		},
		"claim without users": {
			func(w *keptWorld) { w.claim(func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil }) },
			"Device d/n/gpu-0 on node n is held by claim default/holder, which is reserved for no pod.",
		},
		"less important pod": { // preemption has excluded it before
			func(*keptWorld) {},
			"Device d/n/gpu-0 on node n is held by pod default/holder, which a preemptionPolicy, a disruption budget or its pod group protects.",
		},
		"tainted device": {
			func(w *keptWorld) {
				w.slice("s", func(s *resourcev1.ResourceSlice) { s.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{taint} })
			},
			"Device d/n/gpu-0 on node n has the taint broken=fan:NoSchedule, which the pod does not tolerate.",
		},
		"device attached to a network": {
			func(w *keptWorld) {
				w.slice("s", func(s *resourcev1.ResourceSlice) {
					s.Spec.NodeName, s.Spec.AllNodes, s.Spec.Pool.Name = nil, new(true), "fabric"
				})
				w.claim(func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Pool = "fabric" })
			},
			"Device d/fabric/gpu-0 on node n is held by pod default/holder, which preemption spares because several nodes reach the device.",
		},
		"admin access holds nothing": {
			func(w *keptWorld) {
				w.slice("s", func(s *resourcev1.ResourceSlice) {
					s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: "gpu-1"})
				})
				w.claim(func(c *resourcev1.ResourceClaim) {
					results := &c.Status.Allocation.Devices.Results
					watched := (*results)[0]
					(*results)[0].Device, watched.AdminAccess = "gpu-1", new(true)
					*results = append([]resourcev1.DeviceRequestAllocationResult{watched}, *results...)
				})
				w.pending(func(p *v1.Pod) { p.Spec.Priority = new(int32(5)) })
				w.needs(2)
			},
			"Device d/n/gpu-1 on node n is held by pod default/holder, which has priority 5 (this pod: 5).",
		},
		"partition of the same device": {
			func(w *keptWorld) {
				counters := map[string]resourcev1.Counter{"slots": {Value: resource.MustParse("1")}}
				w.slice("s", func(s *resourcev1.ResourceSlice) {
					use := []resourcev1.DeviceCounterConsumption{{CounterSet: "set", Counters: counters}}
					s.Spec.Pool.ResourceSliceCount = 2
					s.Spec.Devices = []resourcev1.Device{{Name: "gpu-0", ConsumesCounters: use}, {Name: "gpu-1", ConsumesCounters: use}}
				})
				w.slice("counters", func(s *resourcev1.ResourceSlice) {
					s.Spec.Devices, s.Spec.Pool.ResourceSliceCount = nil, 2
					s.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "set", Counters: counters}}
				})
				w.claim(func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = "gpu-1" })
				w.pending(func(p *v1.Pod) { p.Spec.Priority = new(int32(5)) })
			},
			"Device d/n/gpu-1 on node n is held by pod default/holder, which has priority 5 (this pod: 5).",
		},
		"no such device": {func(w *keptWorld) { w.needs(2) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, waiting := heldDevice(t, 6)
			w := &keptWorld{t, c, waiting}
			row.change(w)
			d, err := NewDynamicResources(nil)
			if err != nil {
				t.Fatal(err)
			}
			d.preempts = true
			if rejection := d.Filter(c, w.waiting).Node(c.Node("n")); rejection == nil || !rejection.Held {
				t.Fatalf("the node does not lack devices: %+v", rejection)
			}
			if text := d.KeptDevice(c, w.waiting, func(*cluster.Node) bool { return true }); text != row.want {
				t.Errorf("got  %q\nwant %q", text, row.want)
			}
		})
	}
}

// needs changes the number of devices that the pending pod needs.
func (w *keptWorld) needs(count int64) {
	claim, _ := w.ResourceClaims.Get("default", "waiting")
	claim = claim.DeepCopy()
	claim.Spec.Devices.Requests[0].Exactly.Count = count
	w.ResourceClaims.Set(claim)
}
