package cycle_test

import (
	"fmt"
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

// TestAClaimOnItsWayWakesNobody: while the allocation of a claim is being written, what the API
// shows of it has none. That is no device given back: of 1,000 pods that wait for claims, each was
// woken 1,000 times.
func TestAClaimOnItsWayWakesNobody(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
	if err != nil {
		t.Fatal(err)
	}
	now := begin
	tell := func(e Event) (said string) {
		for _, action := range core.Step(now, e) {
			said += action.String() + "\n"
		}
		return said
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
	if said := tell(Tick{}); !strings.Contains(said, "first") || strings.Contains(said, "FailedScheduling") {
		t.Fatalf("the first pod has a device: %s", said)
	}
	tell(Seen{Pods, pod("second")})
	if said := tell(Tick{}); !strings.Contains(said, "FailedScheduling") {
		t.Fatalf("the second pod has none: %s", said)
	}
	now = now.Add(20 * time.Second) // longer than its back-off
	held := claim("first", 3)
	held.Finalizers = []string{resourcev1.Finalizer} // which is written before the allocation
	if said := tell(Seen{ResourceClaims, held}) + tell(Tick{}); strings.Contains(said, "second") {
		t.Errorf("the second pod was tried again: %s", said)
	}
	tell(Gone{ResourceClaims, held})
	if said := tell(Tick{}); !strings.Contains(said, "second") {
		t.Errorf("the second pod was not tried when there was a device: %s", said)
	}
}
