// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// devices makes a node with pods, each with a separate device.
func (a *api) devices(pods int) *resourcev1.ResourceSlice {
	a.addNode("n")
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n-gpus"}}
	slice.Spec = resourcev1.ResourceSliceSpec{Driver: "gpu.example.com", NodeName: ptr.To("n"), Pool: resourcev1.ResourcePool{Name: "n", ResourceSliceCount: 1}}
	for i := range pods {
		name := fmt.Sprintf("p%d", i)
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: "gpu-" + name})
		a.Put(
			&v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
				Spec:       v1.PodSpec{NodeName: "n", ResourceClaims: []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}},
			},
			&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Status: resourcev1.ResourceClaimStatus{
				ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID(name)}},
				Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
					{Request: "gpu", Driver: "gpu.example.com", Pool: "n", Device: "gpu-" + name},
				}}},
			}},
		)
	}
	a.Put(slice)
	return slice
}

func (a *api) taintDevice(slice *resourcev1.ResourceSlice, device int) {
	now := metav1.Now()
	fakeapi.Change(a.Server, slice, func(s *resourcev1.ResourceSlice) {
		s.Spec.Devices[device].Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &now}}
	})
}

func (a *api) rule() *resourcev1.DeviceTaintRule {
	now := metav1.Now()
	rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "recall", UID: "recall", Generation: 1}}
	rule.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{}
	rule.Spec.Taint = resourcev1.DeviceTaint{Key: "recalled", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &now}
	return rule
}

// TestEvictsFromTaintedDevices verifies that the taint of a device in a slice evicts one pod, that
// a rule then evicts all the others, and that the rule's status counts them.
func TestEvictsFromTaintedDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		slice := a.devices(20)
		e, _ := start(t, a, eviction.Options{InFlight: 8})
		within(t, 10*time.Second, "synced", e.Synced)
		a.taintDevice(slice, 3)
		within(t, 10*time.Second, "the pod of the device is gone", func() bool { return len(a.Pods()) == 19 })
		<-time.After(time.Minute) // of virtual time, in which no other pod may be deleted
		if len(a.Pods()) != 19 {
			t.Errorf("%d pods, want all but one", len(a.Pods()))
		}

		a.Put(a.rule())
		within(t, 30*time.Second, "all are gone", func() bool { return len(a.Pods()) == 0 })
		within(t, 30*time.Second, "the rule says so", func() bool {
			conditions := fakeapi.All(a.Server, &resourcev1.DeviceTaintRule{})[0].Status.Conditions
			return len(conditions) == 1 && conditions[0].Reason == "Completed" && conditions[0].Message == "19 pods evicted since starting the controller."
		})
	})
}

// TestServerWithoutTheAPIs uses an API server without DeviceTaintRules (as before v1.37), without
// any device kinds, or with missing permissions. It verifies that pods are evicted for the
// available kinds, that the missing kinds are retried rarely, and that they take effect when they
// become available.
func TestServerWithoutTheAPIs(t *testing.T) {
	for name, lacks := range map[string]struct {
		path   string
		status int
	}{
		"no rules":          {"/apis/resource.k8s.io/v1/devicetaintrules", http.StatusNotFound},
		"no devices":        {"/apis/resource.k8s.io/", http.StatusNotFound},
		"may not read them": {"/apis/resource.k8s.io/", http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI(t)
				slice := a.devices(2)
				a.Put(a.rule())
				var asked atomic.Int32
				a.SetFault(func(r *http.Request) fakeapi.Fault {
					if strings.HasPrefix(r.URL.Path, lacks.path) {
						asked.Add(1)
						return fakeapi.Fault{Status: lacks.status}
					}
					return a.fault(r)
				})
				e, _ := start(t, a, eviction.Options{})
				within(t, 10*time.Second, "synced", e.Synced)
				a.taintDevice(slice, 0)
				a.fill("m", 1)
				a.addNode("m", taint)
				within(t, 10*time.Second, "the pod of the node is gone", func() bool { return a.podsOn("m") == 0 })
				<-time.After(3 * devicesAgain) // of virtual time, in which the lists are retried
				if left := a.podsOn("n"); left != map[bool]int{true: 1, false: 2}[name == "no rules"] {
					t.Errorf("%d pods are left on n", left)
				}
				if times := asked.Load(); times < 2 || times > 12 {
					t.Errorf("asked %d times in three minutes", times)
				}
				a.repair()
				within(t, 2*devicesAgain, "the rule counts", func() bool { return a.podsOn("n") == 0 })
			})
		})
	}
}

// TestAnAPIThatFailsIsAskedRarely verifies that if the first list of a kind fails, it is repeated
// at most 20 times per minute.
func TestAnAPIThatFailsIsAskedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		var asked atomic.Int32
		a.SetFault(func(r *http.Request) fakeapi.Fault {
			if strings.HasPrefix(r.URL.Path, "/apis/resource.k8s.io/v1/devicetaintrules") {
				asked.Add(1)
				return fakeapi.Fault{Status: http.StatusInternalServerError}
			}
			return a.fault(r)
		})
		start(t, a, eviction.Options{})
		time.Sleep(time.Minute)
		if times := asked.Load(); times < 10 || times > 20 {
			t.Errorf("asked %d times in a minute", times)
		}
	})
}

// TestDeviceCountdownSurvivesAChangeOfLeader verifies that countdowns continue when an evictor ends
// while pods tolerate the taints of their devices, and another evictor begins immediately or some
// time later. Every pod must be evicted at its deadline, or when the second evictor begins, and no
// pod may be evicted early. The same must hold if the first evictor is killed: some of its last
// requests are lost, and others are carried out without a response.
func TestDeviceCountdownSurvivesAChangeOfLeader(t *testing.T) {
	for _, gap := range []time.Duration{0, 7 * time.Second} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v later, killed %t", gap, killed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { changeLeader(t, gap, killed) })
			})
		}
	}
}

func changeLeader(t *testing.T, gap time.Duration, killed bool) {
	a := newAPI(t)
	const pods = 40
	slice := a.devices(pods)
	first, stop := start(t, a, eviction.Options{})
	within(t, 10*time.Second, "synced", first.Synced)
	tainted := a.taintDevicesOf(slice)

	// Two pods are due shortly before and shortly after the first evictor ends, at 14 s and at 15
	// s. The test sleeps in virtual time to control these moments.
	time.Sleep(time.Until(tainted.Add(15*time.Second - 2*time.Millisecond)))
	if killed {
		a.SetFault(func(r *http.Request) fakeapi.Fault {
			f := a.fault(r)
			f.Unanswered, f.Lost = r.Method == http.MethodDelete, r.Method == http.MethodPatch
			return f
		})
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	left := time.Now()
	time.Sleep(gap)
	a.repair()
	began := time.Now()
	start(t, a, eviction.Options{})
	within(t, pods*time.Second, "all are gone", func() bool { return len(a.Pods()) == 0 })

	for i := range pods {
		due := tainted.Add(time.Duration(i) * time.Second)
		latest := due
		if due.Add(time.Second).After(left) && due.Before(began) {
			latest = began
		}
		if at := a.deletedAt(fmt.Sprintf("p%d", i)); at.Before(due) || at.After(latest.Add(time.Second)) {
			t.Errorf("the pod that tolerates %d s left after %v, and the change took from %v to %v", i, at.Sub(tainted), left.Sub(tainted), began.Sub(tainted))
		}
	}
}

// taintDevicesOf taints all devices: devices with even numbers in the slice, and each other device
// by a rule. Each pod tolerates its taint for as many seconds as its number.
func (a *api) taintDevicesOf(slice *resourcev1.ResourceSlice) (at time.Time) {
	at = time.Now()
	for i := range slice.Spec.Devices {
		claim := fakeapi.All(a.Server, &resourcev1.ResourceClaim{})[i]
		fakeapi.Change(a.Server, claim, func(c *resourcev1.ResourceClaim) {
			var seconds int64
			_, _ = fmt.Sscanf(c.Name, "p%d", &seconds)
			c.Status.Allocation.Devices.Results[0].Tolerations = []resourcev1.DeviceToleration{
				{Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute, TolerationSeconds: &seconds},
			}
		})
	}
	for i := range slice.Spec.Devices {
		if i%2 == 0 {
			a.taintDevice(slice, i)
			slice = fakeapi.All(a.Server, slice)[0]
			continue
		}
		rule := a.rule()
		rule.Name = fmt.Sprintf("recall-%d", i)
		rule.UID = types.UID(rule.Name)
		rule.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{Device: &slice.Spec.Devices[i].Name}
		a.Put(rule)
	}
	return at
}
