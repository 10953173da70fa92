// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/world"
)

// The volume and device drivers of these worlds.
const (
	diskDriver   = "disk.example.com"
	deviceDriver = "gpu.example.com"
)

// storesOf returns the objects of a node with disks=N, the number of local volumes, and devices=N.
func storesOf(t testing.TB, w words) (list []metav1.Object) {
	if w.has("disks") {
		count := int32(number(t, w.options["disks"]))
		wait := storagev1.VolumeBindingWaitForFirstConsumer
		list = append(list, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: diskDriver, VolumeBindingMode: &wait})
		list = append(list, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: diskDriver, NodeID: w.name, TopologyKeys: []string{v1.LabelHostname}, Allocatable: &storagev1.VolumeNodeResources{Count: &count},
		}}}})
	}
	if w.has("devices") {
		name := w.name
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: resourcev1.ResourceSliceSpec{
			Driver: deviceDriver, NodeName: &name, Pool: resourcev1.ResourcePool{Name: w.name, ResourceSliceCount: 1},
		}}
		for i := range number(t, w.options["devices"]) {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i)})
		}
		list = append(list, slice, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, &resourcev1.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: oneDevice()},
		})
	}
	return list
}

func oneDevice() resourcev1.ResourceClaimSpec {
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
		Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
	}}}}
}

// claimsOf adds claims to a pod, and returns the claim objects, which are bound or allocated if the
// pod is on a node. The options are ephemeral (a volume), device=N (from a template; N is the index
// of the device on the node) and shares=CLAIM.
func claimsOf(w words, p *v1.Pod) (list []metav1.Object) {
	if w.has("port") {
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 8080, Protocol: v1.ProtocolTCP}}
	}
	owned := []metav1.OwnerReference{*metav1.NewControllerRef(p, v1.SchemeGroupVersion.WithKind("Pod"))}
	if w.has("ephemeral") {
		class := "local"
		spec := v1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}}
		spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
			Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: spec}}}})
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name + "-data", UID: p.UID + "/data", OwnerReferences: owned}, Spec: spec}
		list = append(list, claim)
		if p.Spec.NodeName != "" {
			list = append(list, boundTo(claim, p.Spec.NodeName))
		}
	}
	if w.has("device") {
		template, name := "gpu", p.Name+"-gpu"
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}}
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, UID: p.UID + "/gpu", OwnerReferences: owned}, Spec: oneDevice()}
		if p.Spec.NodeName != "" {
			allocate(claim, p.Spec.NodeName, w.options["device"], p)
		}
		list = append(list, claim)
	}
	if w.has("shares") {
		name := w.options["shares"]
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, UID: types.UID(name)}, Spec: oneDevice()}
		if p.Spec.NodeName != "" {
			allocate(claim, p.Spec.NodeName, "0", p)
		}
		list = append(list, claim)
	}
	return list
}

// boundTo binds a claim to a volume of its node.
func boundTo(claim *v1.PersistentVolumeClaim, node string) *v1.PersistentVolume {
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + claim.Name}}
	volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	volume.Spec.StorageClassName, volume.Spec.PersistentVolumeReclaimPolicy = *claim.Spec.StorageClassName, v1.PersistentVolumeReclaimDelete
	volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: diskDriver, VolumeHandle: volume.Name}
	volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
	volume.Status.Phase = v1.VolumeBound
	claim.Spec.VolumeName, claim.Status.Phase = volume.Name, v1.ClaimBound
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	return volume
}

// allocate gives a claim a device of a node, reserved for a pod.
func allocate(claim *resourcev1.ResourceClaim, node, device string, p *v1.Pod) {
	claim.Finalizers = []string{resourcev1.Finalizer}
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: p.Name, UID: p.UID}}
	claim.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: deviceDriver, Pool: node, Device: "gpu-" + device,
		}}},
		NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}
}

func number(t testing.TB, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// misclaimed describes the errors in the claims of a state: placed pods without their volume or
// device, devices and ports used by two pods, and nodes with too many volumes.
func misclaimed(s *rebalance.State) (wrong []string) {
	claims, devices, volumes := map[string]metav1.Object{}, map[string]string{}, map[string]*v1.PersistentVolume{}
	disks, most, ports := map[string]int{}, map[string]int{}, map[string]string{}
	for o := range s.World.Objects() {
		switch o := o.(type) {
		case *v1.PersistentVolumeClaim:
			claims["volume/"+o.Name] = o
		case *v1.PersistentVolume:
			volumes[o.Name] = o
		case *storagev1.CSINode:
			most[o.Name] = int(*o.Spec.Drivers[0].Allocatable.Count)
		case *resourcev1.ResourceClaim:
			claims["device/"+o.Name] = o
			if o.Status.Allocation == nil {
				continue
			}
			r := o.Status.Allocation.Devices.Results[0]
			if by := devices[r.Pool+"/"+r.Device]; by != "" {
				wrong = append(wrong, fmt.Sprintf("%s and %s have the device %s of %s", by, o.Name, r.Device, r.Pool))
			}
			devices[r.Pool+"/"+r.Device] = o.Name
		}
	}
	for o := range s.World.Objects() {
		p, ok := o.(*v1.Pod)
		if !ok || p.Spec.NodeName == "" {
			continue
		}
		node := p.Spec.NodeName
		if len(p.Spec.Containers[0].Ports) > 0 {
			if by := ports[node]; by != "" {
				wrong = append(wrong, fmt.Sprintf("%s and %s have a port of %s", by, p.Name, node))
			}
			ports[node] = p.Name
		}
		for _, v := range p.Spec.Volumes {
			if v.Ephemeral == nil {
				continue
			}
			disks[node]++
			claim, _ := claims["volume/"+p.Name+"-"+v.Name].(*v1.PersistentVolumeClaim)
			if claim == nil || !metav1.IsControlledBy(claim, p) || volumes[claim.Spec.VolumeName] == nil ||
				volumes[claim.Spec.VolumeName].Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != node {
				wrong = append(wrong, fmt.Sprintf("%s has no volume of its own on %s", p.Name, node))
			}
		}
		for _, c := range p.Spec.ResourceClaims {
			name := c.ResourceClaimName
			if name == nil && len(p.Status.ResourceClaimStatuses) > 0 {
				name = p.Status.ResourceClaimStatuses[0].ResourceClaimName
			}
			if name == nil {
				wrong = append(wrong, p.Name+" has no claim of a device")
				continue
			}
			claim, _ := claims["device/"+*name].(*resourcev1.ResourceClaim)
			if claim == nil || claim.Status.Allocation == nil || claim.Status.Allocation.Devices.Results[0].Pool != node ||
				!slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == p.UID }) {
				wrong = append(wrong, fmt.Sprintf("%s has no device of %s", p.Name, node))
			}
		}
	}
	for node, count := range disks {
		if count > most[node] {
			wrong = append(wrong, fmt.Sprintf("%d volumes are on %s, which takes %d", count, node, most[node]))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// claimed reports whether a pod has device claims or ephemeral volumes.
func claimed(p *v1.Pod) bool {
	return len(p.Spec.ResourceClaims) > 0 || slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.Ephemeral != nil })
}

// TestExtendedResourcesMayBeDevices verifies that the state reached by a plan has a claim for a
// moved pod that requests an extended resource, if a device class provides it.
func TestExtendedResourcesMayBeDevices(t *testing.T) {
	s := &rebalance.State{AsOf: begin, World: world.Open(nil)}
	for _, line := range []string{"node n1 devices=1 taint=a:NoSchedule", "node n2 devices=1", "pod a-1 on=n1 owner=ReplicaSet/a"} {
		for _, o := range object(t, line) {
			switch o := o.(type) {
			case *resourcev1.DeviceClass:
				o.Spec.ExtendedResourceName = new("example.com/gpu")
			case *v1.Pod:
				o.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
			}
			put(s, o)
		}
	}
	plan := rebalance.Make(s, &rebalance.Policy{Goals: []rebalance.Goal{*rebalance.OwnGoal("heal", 0)}}, rebalance.Options{Profiles: profiles(t, "")})
	if claims := slices.Collect(world.All[*resourcev1.ResourceClaim](plan.After(s).World)); len(plan.Moves) != 1 || len(claims) != 1 {
		t.Errorf("moves %v, claims %v", plan.Moves, claims)
	}
}

// stores draws the volumes and devices of nodes, and gives them to pods on these nodes.
type stores struct {
	r              *rand.Rand
	disks, devices []int // free disks and all devices, by node
	taken          []int // devices in use, by node
	ports          map[int]bool
}

// node draws the stores of another node.
func (s *stores) node() string {
	disks, devices := 1+s.r.IntN(3), 1+s.r.IntN(3)
	s.disks, s.devices, s.taken = append(s.disks, disks), append(s.devices, devices), append(s.taken, 0)
	return fmt.Sprintf(" disks=%d devices=%d", disks, devices)
}

// pod returns the options for the claims of a pod; node is -1 for a pending pod. ok is false if the
// node cannot satisfy the claims.
func (s *stores) pod(claims string, node int) (options string, ok bool) {
	if node < 0 {
		return claims, true
	}
	switch claims {
	case " ephemeral":
		s.disks[node]--
		return claims, s.disks[node] >= 0
	case " device":
		s.taken[node]++
		return fmt.Sprintf(" device=%d", s.taken[node]-1), s.taken[node] <= s.devices[node]
	case " port":
		defer func() { s.ports[node] = true }()
		return claims, !s.ports[node]
	}
	return claims, true
}
