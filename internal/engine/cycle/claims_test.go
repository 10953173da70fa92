// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAClaimOnItsWayWakesNobody verifies that a claim whose allocation is being written does not
// count as a freed device, although the API shows it without the allocation. Otherwise, with 1,000
// pods waiting for claims, each of them would be woken 1,000 times.
func TestAClaimOnItsWayWakesNobody(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
	if err != nil {
		t.Fatal(err)
	}
	now := begin
	tell := func(e Event) (text string) {
		for _, action := range core.Step(now, e) {
			text += action.String() + "\n"
		}
		return text
	}
	kinds := []Kind{Nodes, Pods, ResourceSlices, ResourceClaims, DeviceClasses}
	tell(Follows{kinds})
	tell(Led{})
	for _, kind := range kinds {
		tell(Listing{kind})
	}
	tell(Seen{Nodes, aNode("n", "8")})
	tell(Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}})
	tell(Seen{ResourceSlices, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: new("n"), Pool: resourcev1.ResourcePool{Name: "n", ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "only"}},
	}}})
	claim := func(name string, version int) *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: fmt.Sprint(version)},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
				{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}}},
		}
	}
	pod := func(name string) *v1.Pod {
		p := aPod(name, "1")
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new(name)}}
		return p
	}
	for i, name := range []string{"first", "second"} {
		tell(Seen{ResourceClaims, claim(name, i+1)})
	}
	for _, kind := range kinds {
		tell(Listed{kind})
	}
	tell(Seen{Pods, pod("first")})
	if text := tell(Tick{}); !strings.Contains(text, "first") || strings.Contains(text, "FailedScheduling") {
		t.Fatalf("the first pod has a device: %s", text)
	}
	tell(Seen{Pods, pod("second")})
	if text := tell(Tick{}); !strings.Contains(text, "FailedScheduling") {
		t.Fatalf("the second pod has none: %s", text)
	}
	now = now.Add(20 * time.Second) // longer than its back-off
	held := claim("first", 3)
	held.Finalizers = []string{resourcev1.Finalizer} // the finalizer is written before the allocation
	if text := tell(Seen{ResourceClaims, held}) + tell(Tick{}); strings.Contains(text, "second") {
		t.Errorf("the second pod was tried again: %s", text)
	}
	tell(Gone{ResourceClaims, held})
	if text := tell(Tick{}); !strings.Contains(text, "second") {
		t.Errorf("the second pod was not tried when there was a device: %s", text)
	}
}

// deviceWorld returns a core with a node n and the given number of devices, provided by a class as
// the extended resource example.com/gpu.
func deviceWorld(t *testing.T, devices int, claims ...*resourcev1.ResourceClaim) (tell func(e Event) string, tick func() string) {
	t.Helper()
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Disabled: Disabled{Expectation: true}})
	if err != nil {
		t.Fatal(err)
	}
	now := begin
	tell = func(e Event) (text string) {
		for _, action := range core.Step(now, e) {
			text += action.String() + "\n"
		}
		return text
	}
	tick = func() (text string) {
		for !core.Wake(now).After(now) {
			text += tell(Tick{})
		}
		return text
	}
	kinds := []Kind{Nodes, Pods, ResourceSlices, ResourceClaims, DeviceClasses}
	tell(Follows{kinds})
	tell(Led{})
	for _, kind := range kinds {
		tell(Listing{kind})
	}
	tell(Seen{Nodes, aNode("n", "8")})
	tell(Seen{DeviceClasses, &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")},
	}})
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: new("n"), Pool: resourcev1.ResourcePool{Name: "n", ResourceSliceCount: 1},
	}}
	for i := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i)})
	}
	tell(Seen{ResourceSlices, slice})
	for _, claim := range claims {
		tell(Seen{ResourceClaims, claim})
	}
	for _, kind := range kinds {
		tell(Listed{kind})
	}
	tick() // ready
	return tell, tick
}

// leftFor returns the claim left for a pod by an interrupted attempt, allocated or not.
func leftFor(pod string, allocated bool) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: pod + "-extended-resources-x", UID: types.UID(pod + "-x"), ResourceVersion: "1",
			Annotations:     map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID("uid-" + pod), Controller: new(true)}},
		},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "container-0-request-1", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		}}}},
	}
	if allocated {
		claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "container-0-request-1", Driver: "gpu.example.com", Pool: "n", Device: "gpu-0"},
		}}}
		claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: types.UID("uid-" + pod)}}
	}
	return claim
}

func wantsGPU(name string) *v1.Pod {
	p := aPod(name, "1")
	p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = *resource.NewQuantity(1, resource.DecimalSI)
	return p
}

// TestPodWithALeftClaimIsUnlikeItsClass verifies that a pod gives up a claim that an interrupted
// attempt has left for its extended resources, even if another pod of its class has just failed.
// Conversely, the failure of a pod with such a claim does not apply to its class.
func TestPodWithALeftClaimIsUnlikeItsClass(t *testing.T) {
	tell, tick := deviceWorld(t, 1, leftFor("a", true))
	tell(Seen{Pods, wantsGPU("b")})
	tell(Seen{Pods, wantsGPU("a")})
	if text := tick(); !strings.Contains(text, "FailedScheduling of default/b") || !strings.Contains(text, "delete claim default/a-extended-resources-x") {
		t.Errorf("b is to fail, and a to give up the device: %s", text)
	}
	tell, tick = deviceWorld(t, 2, leftFor("a", false))
	tell(Seen{Pods, wantsGPU("a")})
	tell(Seen{Pods, wantsGPU("b")})
	if text := tick(); !strings.Contains(text, "FailedScheduling of default/a") || !strings.Contains(text, "write claims of default/b") {
		t.Errorf("a is to fail, and b to get a device: %s", text)
	}
}

// TestPodIsTriedOnceItsLeftClaimIsGone verifies that a pod is retried after the deletion of its
// left claim, even if the claim had no devices that the deletion could free.
func TestPodIsTriedOnceItsLeftClaimIsGone(t *testing.T) {
	left := leftFor("a", false)
	tell, tick := deviceWorld(t, 1, left)
	tell(Seen{Pods, wantsGPU("a")})
	if text := tick(); !strings.Contains(text, "delete claim default/a-extended-resources-x") {
		t.Fatalf("a is to give up its claim: %s", text)
	}
	if text := tell(Gone{ResourceClaims, left}) + tick(); !strings.Contains(text, "write claims of default/a") {
		t.Errorf("a is to be tried again: %s", text)
	}
}

// TestWaitForDevicesIsTold verifies that an event reports the wait while a driver attaches a pod's
// devices. If the driver fails, the event with the reason why the pod is not bound contains the
// driver's message.
func TestWaitForDevicesIsTold(t *testing.T) {
	claim := leftFor("p", true)
	claim.Name, claim.Annotations, claim.OwnerReferences, claim.Status.ReservedFor = "c", nil, nil, nil
	result := &claim.Status.Allocation.Devices.Results[0]
	result.BindingConditions, result.BindingFailureConditions = []string{"Attached"}, []string{"AttachFailed"}
	tell, tick := deviceWorld(t, 1, claim)
	p := aPod("p", "1")
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new("c")}}
	tell(Seen{Pods, p})
	var ticket Ticket
	text := tick()
	if _, err := fmt.Sscanf(text, "write claims of default/p #%d", &ticket); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	reserved := claim.DeepCopy()
	reserved.ResourceVersion = "2"
	reserved.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: p.UID}}
	text = tell(Seen{ResourceClaims, reserved}) + tell(Answered{ticket, Outcome{Claims: []*resourcev1.ResourceClaim{reserved}, Written: []bool{false}}}) + tick()
	if want := "tell Normal BindingConditionsPending of default/p: waiting for binding conditions for device on node n\n"; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	failed := reserved.DeepCopy()
	failed.ResourceVersion = "3"
	failed.Status.Devices = []resourcev1.AllocatedDeviceStatus{{
		Driver: "gpu.example.com", Pool: "n", Device: "gpu-0",
		Conditions: []metav1.Condition{{Type: "AttachFailed", Status: metav1.ConditionTrue, Reason: "FabricDown", Message: "port 7 does not answer"}},
	}}
	text = tell(Seen{ResourceClaims, failed}) + tick()
	want := `FailedScheduling of default/p: running PreBind plugin "DynamicResources": device binding failed: claim=c, reason=FabricDown, message="port 7 does not answer"`
	if !strings.Contains(text, want) {
		t.Errorf("got %s, want %s", text, want)
	}
}

// TestAllocationThatMayBeInTheAPIStays verifies that after a failed write, which may or may not
// have allocated the claim, the device stays allocated until a watch shows the claim, even if the
// pod is deleted.
func TestAllocationThatMayBeInTheAPIStays(t *testing.T) {
	for name, end := range map[string]func(claim *resourcev1.ResourceClaim) (shown Event, free bool){
		"allocated": func(claim *resourcev1.ResourceClaim) (Event, bool) {
			claim.Status = leftFor("a", true).Status
			return Seen{ResourceClaims, claim}, false
		},
		"gone": func(claim *resourcev1.ResourceClaim) (Event, bool) { return Gone{ResourceClaims, claim}, true },
	} {
		t.Run(name, func(t *testing.T) {
			claims := []*resourcev1.ResourceClaim{leftFor("a", false), leftFor("b", false)}
			for _, claim := range claims {
				claim.Annotations, claim.OwnerReferences = nil, nil
			}
			tell, tick := deviceWorld(t, 1, claims...)
			claiming := func(name string) *v1.Pod {
				p := aPod(name, "1")
				p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new(name + "-extended-resources-x")}}
				return p
			}
			tell(Seen{Pods, claiming("a")})
			text := tick()
			var ticket Ticket
			if _, err := fmt.Sscanf(text, "write claims of default/a #%d", &ticket); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			tell(Answered{ticket, Outcome{Fault: &Fault{Message: "no answer"}, Written: []bool{true}}})
			tell(Gone{Pods, claiming("a")})
			tell(Seen{Pods, claiming("b")})
			if text := tick(); !strings.Contains(text, "FailedScheduling of default/b") {
				t.Errorf("b is to wait: %s", text)
			}
			tell(Gone{Pods, claiming("b")})
			shown := claims[0].DeepCopy()
			shown.ResourceVersion = "2"
			event, free := end(shown)
			tell(event)
			tell(Seen{Pods, claiming("b")})
			if text := tick(); strings.Contains(text, "write claims of default/b") != free {
				t.Errorf("is b to get the device? %t: %s", free, text)
			}
		})
	}
}

// permitWaits records the finished waits for devices.
type permitWaits struct {
	NoObserver
	seen []string
}

func (w *permitWaits) AwaitedDevice(profile, driver, how string, conditions bool, took time.Duration) {
	w.seen = append(w.seen, fmt.Sprint(profile, " ", driver, " ", how, " ", conditions, " ", took))
}

// TestWaitsForDevicesAreObserved verifies that the result and duration of a wait are observed for
// each device of the pod, including devices that did not cause the wait.
func TestWaitsForDevicesAreObserved(t *testing.T) {
	status := func(condition string) []resourcev1.AllocatedDeviceStatus {
		return []resourcev1.AllocatedDeviceStatus{{
			Driver: "gpu.example.com", Pool: "n", Device: "gpu-0", Conditions: []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue}},
		}}
	}
	for how, end := range map[string]struct {
		after time.Duration
		event func(claim *resourcev1.ResourceClaim, p *v1.Pod) Event
	}{
		"success": {3 * time.Second, func(claim *resourcev1.ResourceClaim, _ *v1.Pod) Event {
			claim.Status.Devices = status("Attached")
			return Seen{ResourceClaims, claim}
		}},
		"failure": {3 * time.Second, func(claim *resourcev1.ResourceClaim, _ *v1.Pod) Event {
			claim.Status.Devices = status("AttachFailed")
			return Seen{ResourceClaims, claim}
		}},
		"error":   {3 * time.Second, func(_ *resourcev1.ResourceClaim, p *v1.Pod) Event { return Gone{Pods, p} }},
		"timeout": {10 * time.Minute, func(*resourcev1.ResourceClaim, *v1.Pod) Event { return Tick{} }},
	} {
		t.Run(how, func(t *testing.T) {
			claim := leftFor("p", true)
			claim.Name, claim.Annotations, claim.OwnerReferences, claim.Status.ReservedFor = "c", nil, nil, nil
			results := append(claim.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Request: "nic", Driver: "nic.example.com", Pool: "n", Device: "nic-0"})
			results[0].BindingConditions, results[0].BindingFailureConditions = []string{"Attached"}, []string{"AttachFailed"}
			claim.Status.Allocation.Devices.Results = results
			seen := &permitWaits{}
			core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Disabled: Disabled{Expectation: true}, Observer: seen})
			if err != nil {
				t.Fatal(err)
			}
			p := aPod("p", "1")
			p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new("c")}}
			for _, e := range []Event{Follows{}, Led{}, Tick{}, Seen{Nodes, aNode("n", "4")}, Seen{ResourceClaims, claim}, Seen{Pods, p}} {
				core.Step(begin, e)
			}
			text := ""
			for _, action := range core.Step(begin, Tick{}) {
				text += action.String()
			}
			var ticket Ticket
			if _, err := fmt.Sscanf(text, "write claims of default/p #%d", &ticket); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			reserved := claim.DeepCopy()
			reserved.ResourceVersion = "2"
			reserved.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: p.UID}}
			core.Step(begin, Seen{ResourceClaims, reserved})
			core.Step(begin, Answered{ticket, Outcome{Claims: []*resourcev1.ResourceClaim{reserved}, Written: []bool{false}}})
			core.Step(begin, Tick{})
			if len(seen.seen) > 0 {
				t.Fatalf("not over yet: %q", seen.seen)
			}
			ended := reserved.DeepCopy()
			ended.ResourceVersion = "3"
			core.Step(begin.Add(end.after), end.event(ended, p))
			core.Step(begin.Add(end.after), Tick{})
			want := []string{
				fmt.Sprint("default-scheduler gpu.example.com ", how, " true ", end.after), fmt.Sprint("default-scheduler nic.example.com ", how, " false ", end.after),
			}
			if !slices.Equal(seen.seen, want) {
				t.Errorf("got %q, want %q", seen.seen, want)
			}
		})
	}
}
