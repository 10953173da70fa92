// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// gangIn passes the objects, and a gang made of the members, to a core, and lets the core decide
// once. It returns the nodes of the placed members by name, the victims, and the gang's message.
func gangIn(t *testing.T, o Options, g *groups.PodGroup, objects []Seen, members []*v1.Pod) (on map[string]string, victims []string, text string) {
	t.Helper()
	if o.Profiles == nil {
		o.Profiles = []Profile{{Profile: plugins.Default()}}
	}
	o.Groups = groups.Gates{Generic: true, Topology: true}
	core, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	for _, seen := range append(objects, Seen{PodGroups, g}) {
		core.Step(begin, seen)
	}
	for _, p := range members {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &g.Name}
		core.Step(begin, Seen{Pods, p})
	}
	for _, action := range core.Step(begin, Tick{}) {
		switch a := action.(type) {
		case Remove:
			victims = append(victims, a.Victim.Name)
		case WriteGroup:
			text = a.Condition.Message
		}
	}
	on = map[string]string{}
	for _, p := range members {
		if placed := core.View().Cluster.Pod(p.UID); placed != nil {
			on[p.Name] = placed.NodeName
		}
	}
	return on, victims, text
}

const gpu = v1.ResourceName("example.com/gpu")

func withGPUs(list v1.ResourceList, count int) {
	list[gpu] = *resource.NewQuantity(int64(count), resource.DecimalSI)
}

// TestTheLargestInGPUsComeFirst verifies that in a gang whose pods differ only in GPUs, the largest
// requests are placed first, before smaller requests occupy a few GPUs of every node.
func TestTheLargestInGPUsComeFirst(t *testing.T) {
	var objects []Seen
	for i := range 17 {
		n := aNode(fmt.Sprint("n", i), "64")
		withGPUs(n.Status.Allocatable, 8)
		objects = append(objects, Seen{Nodes, n})
	}
	var members []*v1.Pod
	for _, of := range []struct{ count, gpus int }{{30, 1}, {5, 5}, {10, 8}} {
		for range of.count {
			p := aPod(fmt.Sprint("p", len(members)), "1")
			withGPUs(p.Spec.Containers[0].Resources.Requests, of.gpus)
			members = append(members, p)
		}
	}
	on, _, text := gangIn(t, Options{Seed: 1}, gangOf("g", len(members)), objects, members)
	if len(on) != len(members) {
		t.Errorf("%d of %d are placed: %s", len(on), len(members), text)
	}
}

// TestTheDomainWhereFewestGPUsAreLostIsFound verifies that the right domain is found among more
// domains than an attempt can try. All nodes have spare CPU and memory. In one rack, the pods that
// use the GPUs have a lower priority than those in the other racks.
func TestTheDomainWhereFewestGPUsAreLostIsFound(t *testing.T) {
	var objects []Seen
	for i := range 600 {
		n := aNode(fmt.Sprint("n", i), "64")
		n.Labels["rack"] = fmt.Sprintf("r%03d", i)
		withGPUs(n.Status.Allocatable, 8)
		objects = append(objects, Seen{Nodes, n})
		for j := range 8 {
			p := aPod(fmt.Sprintf("on-%d-%d", i, j), "1")
			p.Spec.NodeName, *p.Spec.Priority = n.Name, 10
			if i == 300 {
				*p.Spec.Priority = 5
			}
			withGPUs(p.Spec.Containers[0].Resources.Requests, 1)
			objects = append(objects, Seen{Pods, p})
		}
	}
	var members []*v1.Pod
	for i := range 8 {
		p := aPod(fmt.Sprint("p", i), "1")
		*p.Spec.Priority = 100
		withGPUs(p.Spec.Containers[0].Resources.Requests, 1)
		members = append(members, p)
	}
	g := gangOf("g", 8)
	g.Spec.SchedulingConstraints, g.Spec.Priority = oneOf("rack"), new(int32(100))
	_, victims, text := gangIn(t, Options{Seed: 1}, g, objects, members)
	if len(victims) != 8 {
		t.Errorf("%d leave: %s", len(victims), text)
	}
	for _, name := range victims {
		if !strings.HasPrefix(name, "on-300-") {
			t.Errorf("%s leaves", name)
		}
	}
}

// TestAGangGoesWhereItsVolumeCanBeMadeForAll verifies that a gang sharing a volume, which is
// provisioned on the node of the first pod, is placed on a node with room for all pods. The best
// node for the first pod has too little room for the others.
func TestAGangGoesWhereItsVolumeCanBeMadeForAll(t *testing.T) {
	late, class := storagev1.VolumeBindingWaitForFirstConsumer, "made"
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: "data", UID: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	there := aPod("there", "9")
	there.Spec.NodeName = "large"
	objects := []Seen{
		{StorageClasses, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "example.com/made", VolumeBindingMode: &late}},
		{Nodes, aNode("small", "2")}, {Nodes, aNode("large", "12")}, {Pods, there}, {Claims, claim},
	}
	var members []*v1.Pod
	for i := range 3 {
		p := aPod(fmt.Sprint("p", i), "1")
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}}}
		members = append(members, p)
	}
	on, _, text := gangIn(t, Options{Seed: 1}, gangOf("g", 3), objects, members)
	for _, p := range members {
		if on[p.Name] != "large" {
			t.Errorf("%s is on %q: %s", p.Name, on[p.Name], text)
		}
	}
}

// TestNodesWithOtherDevicesAreNotAlike verifies that the search for a placement distinguishes nodes
// by their devices, even if the nodes have the same labels and sizes and no pods.
func TestNodesWithOtherDevicesAreNotAlike(t *testing.T) {
	objects := []Seen{{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}}}
	for name, count := range map[string]int{"m": 5, "n": 4} {
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1},
		}}
		for i := range count {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("d", i)})
		}
		objects = append(objects, Seen{ResourceSlices, slice})
	}
	objects = append(objects, Seen{Nodes, aNode("m", "8")}, Seen{Nodes, aNode("n", "8")})
	var members []*v1.Pod
	for i, count := range []int64{4, 3, 2} {
		p := aPod(fmt.Sprint("p", i), "1")
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &p.Name}}
		members = append(members, p)
		objects = append(objects, Seen{ResourceClaims, &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
				{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}}}}},
		}})
	}
	astray := map[string]string{"p0": "m", "p2": "n"} // with p0 and p2 on these nodes, p1 fits nowhere
	on, _, text := gangIn(t, Options{Prefer: func(p *cluster.Pod) string { return astray[p.Name()] }}, gangOf("g", 3), objects, members)
	if on["p0"] != "n" || on["p1"] != "m" || on["p2"] != "m" {
		t.Errorf("they are on %v: %s", on, text)
	}
}
