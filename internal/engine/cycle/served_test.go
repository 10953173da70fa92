// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// This file holds the objects in the clusters of TestARestartFindsNothingToDo, and their changes.

var servedFeatures = []string{
	"room", "plugin-devices", "claims", "class-devices", "volumes", "limits", "labels", "taints", "ports", "spread", "affinity", "anti",
	"priority", "never", "budgets", "resizes", "groups", "groups", "gates",
}

const servedDriver = "csi.example.com"

func (s *served) chance(one int) bool              { return s.rng.IntN(one) == 0 }
func (s *served) has(feature string, one int) bool { return s.features[feature] && s.chance(one) }
func pickOf[T any](s *served, list ...T) T         { return list[s.rng.IntN(len(list))] }
func (s *served) uid(of string) types.UID {
	s.made++
	return types.UID(fmt.Sprintf("%s-%d", of, s.made))
}
func (s *served) named(ns, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: ns, Name: name, UID: s.uid(name), CreationTimestamp: metav1.NewTime(s.now)}
}

func (s *served) begin() {
	for i := range 4 {
		s.put(Nodes, s.node(i))
	}
	for _, name := range []string{"default", "other"} {
		s.put(Namespaces, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": pickOf(s, "a", "b")}}})
	}
	later := storagev1.VolumeBindingWaitForFirstConsumer
	s.put(StorageClasses, &storagev1.StorageClass{ObjectMeta: s.named("", "made"), Provisioner: servedDriver, VolumeBindingMode: &later})
	s.put(StorageClasses, &storagev1.StorageClass{ObjectMeta: s.named("", "found"), Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &later})
	for range 6 {
		s.something()
	}
}

func (s *served) node(i int) *v1.Node {
	n := aNode(fmt.Sprintf("n%d", i), "100")
	if s.features["room"] || s.features["priority"] || s.features["groups"] || s.features["budgets"] || s.features["never"] {
		n.Status.Allocatable[v1.ResourceCPU] = resource.MustParse(pickOf(s, "1", "1", "2"))
	}
	if s.features["spread"] || s.features["room"] {
		n.Status.Allocatable[v1.ResourcePods] = resource.MustParse(pickOf(s, "3", "6"))
	}
	if s.features["plugin-devices"] && s.chance(2) {
		n.Status.Allocatable["example.com/gpu"] = resource.MustParse(pickOf(s, "1", "2"))
	}
	if !s.chance(4) {
		n.Labels[v1.LabelTopologyZone] = pickOf(s, "a", "b")
	}
	if s.chance(4) {
		n.Labels[v1.LabelHostname] = pickOf(s, "n0", "n1", "another")
	}
	if s.chance(2) {
		n.Labels["disk"] = "ssd"
	}
	if s.has("taints", 2) {
		n.Spec.Taints = []v1.Taint{{Key: pickOf(s, "k", "l"), Effect: v1.TaintEffectNoSchedule}}
	}
	n.Spec.Unschedulable = s.has("taints", 6)
	return n
}

func (s *served) pod() *v1.Pod {
	s.made++
	p := aPod(fmt.Sprintf("p%d", s.made), pickOf(s, "100m", "500m", "900m"))
	p.ObjectMeta = s.named(pickOf(s, "default", "default", "other"), p.Name)
	p.Labels = map[string]string{"app": pickOf(s, "x", "y", "z")}
	spec := &p.Spec
	if s.features["priority"] || s.features["groups"] {
		*spec.Priority = pickOf[int32](s, 0, 0, 10, 20)
	}
	if s.has("never", 2) {
		*spec.Priority, spec.PreemptionPolicy = pickOf[int32](s, 10, 20), new(v1.PreemptNever)
	}
	if (s.features["plugin-devices"] || s.features["class-devices"]) && s.chance(2) {
		spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	}
	if s.has("labels", 2) {
		spec.NodeSelector = map[string]string{"disk": "ssd"}
	}
	if s.has("taints", 3) {
		spec.Tolerations = []v1.Toleration{{Key: pickOf(s, "k", "l"), Operator: v1.TolerationOpExists}}
	}
	if s.has("ports", 2) {
		spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	}
	if s.has("spread", 2) {
		spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: pickOf(s, v1.LabelTopologyZone, v1.LabelHostname), WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: s.selector(), NodeTaintsPolicy: pickOf(s, nil, new(v1.NodeInclusionPolicyHonor)), MinDomains: pickOf(s, nil, new(int32(2))),
		}}
	}
	if s.has("affinity", 2) {
		spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{s.term()}}}
	} else if s.has("anti", 2) {
		spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{s.term()}}}
	}
	if s.has("gates", 2) {
		spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/gate"}}
	}
	if (s.features["volumes"] || s.features["limits"]) && !s.chance(3) {
		p.Namespace = "default"
		spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: s.one("c", 6)}}}}
	}
	if s.has("claims", 2) {
		p.Namespace = "default"
		spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new(s.one("d", 5))}}
	}
	if s.has("groups", 2) {
		group := s.one("g", 3)
		p.Namespace, spec.SchedulingGroup = "default", &v1.PodSchedulingGroup{PodGroupName: &group}
		if !s.chance(30) { // otherwise its group fails with an error while the pod exists
			*spec.Priority, spec.PreemptionPolicy = priorityOf(group), nil
		}
	}
	return p
}

// one returns one of n numbered names.
func (s *served) one(of string, n int) string { return fmt.Sprint(of, s.rng.IntN(n)) }

func (s *served) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pickOf(s, "x", "y", "z")}}
}

func (s *served) term() v1.PodAffinityTerm {
	t := v1.PodAffinityTerm{TopologyKey: pickOf(s, v1.LabelTopologyZone, v1.LabelHostname), LabelSelector: s.selector()}
	if s.chance(3) {
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": pickOf(s, "a", "b")}}
	}
	return t
}

// something makes a random change, and returns its description.
func (s *served) something() string {
	pods := s.pods()
	switch n := s.rng.IntN(24); {
	case n < 9:
		for range 3 {
			if len(pods) < 25 {
				s.put(Pods, s.pod())
			}
		}
		return "added pods"
	case n < 13 && len(pods) > 0:
		p := pods[s.rng.IntN(len(pods))]
		s.removePod(p)
		return fmt.Sprintf("removed pod %s from %q", p.Name, p.Spec.NodeName)
	case n < 15 && len(pods) > 0:
		return s.changeAPod(pods[s.rng.IntN(len(pods))])
	case n < 18:
		return s.changeANode()
	}
	return s.changeAnObject()
}

func (s *served) changeAPod(p *v1.Pod) (what string) {
	s.changePod(p, func(p *v1.Pod) {
		switch s.rng.IntN(3) {
		case 0:
			p.Labels, what = map[string]string{"app": pickOf(s, "x", "y", "z")}, "labelled"
		case 1:
			p.Spec.SchedulingGates, what = nil, "opened"
			p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: pickOf(s, "k", "l"), Operator: v1.TolerationOpExists})
		default:
			what = "resized"
			p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse(pickOf(s, "50m", "400m"))
			if s.features["resizes"] && p.Spec.NodeName != "" { // the kubelet has not finished the resize
				p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", AllocatedResources: v1.ResourceList{v1.ResourceCPU: resource.MustParse(pickOf(s, "50m", "900m"))}}}
			}
		}
	})
	return fmt.Sprintf("%s pod %s on %q", what, p.Name, p.Spec.NodeName)
}

func (s *served) changeANode() string {
	name := s.one("n", 6)
	there, _ := s.objects[Nodes][cluster.Name{Name: name}].(*v1.Node)
	var i int
	_, _ = fmt.Sscanf(name, "n%d", &i)
	fresh := s.node(i)
	switch what := s.rng.IntN(5); {
	case there == nil || what == 0:
		s.put(Nodes, fresh)
		return "put node " + name
	case what == 1 && len(s.objects[Nodes]) > 2:
		s.take(Nodes, "", name)
		return "removed node " + name
	case what == 2:
		change(s, Nodes, there, func(n *v1.Node) { n.Spec.Taints, n.Spec.Unschedulable = fresh.Spec.Taints, fresh.Spec.Unschedulable })
		return "tainted node " + name
	case what == 3:
		change(s, Nodes, there, func(n *v1.Node) { n.Status = fresh.Status })
		return "resized node " + name
	}
	change(s, Nodes, there, func(n *v1.Node) { n.Labels = fresh.Labels })
	return "labelled node " + name
}

// changeAnObject creates, changes or deletes an object other than a pod or node.
func (s *served) changeAnObject() string {
	var kinds []func() string
	for _, of := range []struct {
		feature string
		how     []func() string
	}{
		{"affinity", []func() string{s.changeNamespace}}, {"anti", []func() string{s.changeNamespace}}, {"budgets", []func() string{s.changeBudget}},
		{"groups", []func() string{s.changeGroup, s.changeGroup}}, {"volumes", []func() string{s.changeClaim, s.changeVolume}},
		{"limits", []func() string{s.changeLimit, s.changeClaim, s.changeVolume}},
		{"claims", []func() string{s.changeSlice, s.changeDeviceClaim, s.changeClass}}, {"class-devices", []func() string{s.changeSlice, s.changeClass}},
	} {
		if s.features[of.feature] {
			kinds = append(kinds, of.how...)
		}
	}
	if len(kinds) == 0 {
		return "nothing"
	}
	return kinds[s.rng.IntN(len(kinds))]()
}

// goes sometimes deletes the object of a name, if it exists.
func (s *served) goes(kind Kind, namespace, name string) bool {
	return s.chance(3) && s.take(kind, namespace, name)
}

func (s *served) changeNamespace() string {
	name := pickOf(s, "default", "other")
	s.put(Namespaces, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": pickOf(s, "a", "b")}}})
	return "labelled namespace " + name
}

func (s *served) changeBudget() string {
	app := pickOf(s, "x", "y")
	if s.goes(DisruptionBudgets, "default", app) {
		return "removed budget " + app
	}
	least := intstr.FromInt32(s.rng.Int32N(3))
	s.put(DisruptionBudgets, &policyv1.PodDisruptionBudget{ObjectMeta: s.named("default", app), Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
	}})
	return fmt.Sprintf("budget %s keeps %d", app, least.IntVal)
}

func (s *served) changeGroup() string {
	name := s.one("g", 3)
	if s.goes(PodGroups, "default", name) {
		return "removed group " + name
	}
	there, known := s.objects[PodGroups][cluster.Name{Namespace: "default", Name: name}].(*groups.PodGroup)
	if known {
		return "group " + name + " is there, " + there.Name
	}
	g := gangOf(name, 1+s.rng.IntN(4))
	g.UID, g.Spec.Priority = s.uid(name), new(priorityOf(name))
	if s.chance(4) {
		g.Spec.SchedulingPolicy = schedulingv1beta1.PodGroupSchedulingPolicy{Basic: &schedulingv1beta1.BasicSchedulingPolicy{}}
	}
	if s.chance(4) {
		g.Spec.SchedulingConstraints = oneOf(v1.LabelTopologyZone)
	}
	if s.chance(4) {
		g.Spec.DisruptionMode = asOne()
	}
	s.put(PodGroups, g)
	return "made group " + name
}

// changeClaim creates or deletes a claim for an existing volume, for a volume to be matched, or for
// a volume to be provisioned.
func (s *served) changeClaim() string {
	name := s.one("c", 6)
	if s.take(Claims, "default", name) {
		return "removed claim " + name
	}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: s.named("default", name), Spec: v1.PersistentVolumeClaimSpec{
		AccessModes:      []v1.PersistentVolumeAccessMode{pickOf(s, v1.ReadWriteOnce, v1.ReadWriteOncePod)},
		Resources:        v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		StorageClassName: new(pickOf(s, "made", "found")),
	}}
	if s.chance(2) {
		claim.Spec.VolumeName = s.one("v", 5)
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
	}
	s.put(Claims, claim)
	return fmt.Sprintf("made claim %s of %q", name, claim.Spec.VolumeName)
}

func (s *served) changeVolume() string {
	name := s.one("v", 5)
	if s.take(Volumes, "", name) {
		return "removed volume " + name
	}
	volume := &v1.PersistentVolume{ObjectMeta: s.named("", name), Spec: v1.PersistentVolumeSpec{
		Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}, StorageClassName: "found",
		AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteOncePod},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: servedDriver, VolumeHandle: name}},
	}}
	for _, object := range s.all(Claims) {
		if claim := object.(*v1.PersistentVolumeClaim); claim.Spec.VolumeName == name {
			volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		}
	}
	if s.chance(2) {
		volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{pickOf(s, "a", "b")}}},
		}}}}
	}
	s.put(Volumes, volume)
	return "made volume " + name
}

// changeLimit changes the number of volumes accepted by a node.
func (s *served) changeLimit() string {
	node := s.one("n", 6)
	if s.goes(CSINodes, "", node) {
		return "removed the limit of node " + node
	}
	most := 1 + s.rng.Int32N(2)
	s.put(CSINodes, &storagev1.CSINode{ObjectMeta: s.named("", node), Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
		Name: servedDriver, NodeID: node, TopologyKeys: []string{v1.LabelTopologyZone}, Allocatable: &storagev1.VolumeNodeResources{Count: &most},
	}}}})
	return fmt.Sprintf("node %s takes %d volumes", node, most)
}

func (s *served) changeClass() string {
	if s.goes(DeviceClasses, "", "gpu") {
		return "removed the device class"
	}
	class := &resourcev1.DeviceClass{ObjectMeta: s.named("", "gpu")}
	if s.features["class-devices"] {
		class.Spec.ExtendedResourceName = new("example.com/gpu")
	}
	if s.chance(3) {
		class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["gpu.example.com"].i > 0`}}}
	}
	s.put(DeviceClasses, class)
	return "set the device class"
}

func (s *served) changeSlice() string {
	node := s.one("n", 6)
	if s.goes(ResourceSlices, "", node) {
		return "removed slice " + node
	}
	slice := &resourcev1.ResourceSlice{ObjectMeta: s.named("", node), Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1, Generation: int64(s.made)},
	}}
	switch s.rng.IntN(6) {
	case 0:
		slice.Spec.AllNodes = new(true)
	case 1:
		slice.Spec.NodeSelector = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: pickOf(s, v1.LabelHostname, v1.LabelTopologyZone), Operator: v1.NodeSelectorOpIn, Values: []string{"n0", "a"}},
		}}}}
	default:
		slice.Spec.NodeName = &node
	}
	for i := range 1 + s.rng.IntN(2) {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name: fmt.Sprint("gpu-", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"i": {IntValue: new(int64(i))}},
		})
	}
	s.put(ResourceSlices, slice)
	return "set slice " + node
}

func (s *served) changeDeviceClaim() string {
	name := s.one("d", 5)
	if old, ok := s.objects[ResourceClaims][cluster.Name{Namespace: "default", Name: name}].(*resourcev1.ResourceClaim); ok {
		if len(old.Status.ReservedFor) == 0 {
			s.take(ResourceClaims, "default", name)
		}
		return "removed claim " + name
	}
	claim := claimOfDevice(name)
	claim.ObjectMeta = s.named("default", name)
	claim.Spec.Devices.Requests[0].Exactly.Count = int64(1 + s.rng.IntN(2))
	s.put(ResourceClaims, claim)
	return "made claim " + name
}

func claimOfDevice(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: resourcev1.ResourceClaimSpec{
		Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		}}},
	}}
}
