// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"fmt"
	"math/rand/v2"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/admission"
)

// town is a random cluster of a few nearly full nodes, whose pod "waits" has unusual requirements.
type town struct {
	seed    uint64
	r       *rand.Rand
	objects []metav1.Object
	nodes   []*v1.Node
	pod     *v1.Pod
	// holder is the object with the pod's template, or the pod itself if it has no controller.
	// traits lists the features that were drawn.
	holder metav1.Object
	traits []string
}

var began = metav1.NewTime(time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC))

func draw(seed uint64) *town {
	c := &town{seed: seed, r: rand.New(rand.NewPCG(seed, 67))}
	c.drawNodes()
	c.drawRules()
	c.drawTenants()
	c.drawPod()
	return c
}

func (c *town) chance(percent int) bool { return c.r.IntN(100) < percent }

// trait draws with the given probability whether the town has a feature, and records the feature's
// name.
func (c *town) trait(percent int, name string) bool {
	if !c.chance(percent) {
		return false
	}
	c.traits = append(c.traits, name)
	return true
}

func pick[T any](c *town, from ...T) T { return from[c.r.IntN(len(from))] }

func (c *town) add(objects ...metav1.Object) {
	for _, o := range objects {
		o.SetResourceVersion("1")
		o.SetCreationTimestamp(began)
		if o.GetUID() == "" {
			o.SetUID(types.UID(fmt.Sprintf("%T-%s", o, o.GetName())))
		}
	}
	c.objects = append(c.objects, objects...)
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }

func (c *town) drawNodes() {
	for i := range 2 + c.r.IntN(4) {
		name := fmt.Sprintf("node-%d", i)
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			v1.LabelHostname: name, v1.LabelOSStable: "linux", v1.LabelTopologyZone: fmt.Sprintf("z%d", i%2), "disk": pick(c, "ssd", "hdd"),
		}}}
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
		n.Status.Allocatable = v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(pick(c, "2", "4", "6")), v1.ResourceMemory: resource.MustParse("8Gi"),
			v1.ResourcePods: resource.MustParse(pick(c, "3", "6", "20")),
		}
		n.Status.Capacity = n.Status.Allocatable
		if c.chance(30) {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "team", Value: pick(c, "a", "b"), Effect: pick(c, v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute)})
		}
		if c.chance(15) {
			n.Spec.Unschedulable = true
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
		}
		if c.chance(15) {
			n.Labels[v1.LabelOSStable] = "windows"
		}
		c.nodes = append(c.nodes, n)
		c.add(n)
		c.add(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// drawRules draws objects because of which admission refuses or changes pods.
func (c *town) drawRules() {
	space := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: map[string]string{}}}
	if c.trait(15, "allow-list") {
		space.Annotations["scheduler.alpha.kubernetes.io/tolerationsWhitelist"] = `[{"key":"team","operator":"Equal","value":"a"},` +
			`{"key":"node.kubernetes.io/not-ready","operator":"Exists"},{"key":"node.kubernetes.io/unreachable","operator":"Exists"}]`
	}
	c.add(space)
	c.add(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata",
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"disk": pick(c, "nvme", "ssd")}}})
	for name, value := range map[string]int32{"low": 1, "high": 1000} {
		c.add(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value})
	}
	if c.trait(25, "limit range") {
		item := v1.LimitRangeItem{Type: v1.LimitTypeContainer}
		switch c.r.IntN(3) {
		case 0:
			item.Min = v1.ResourceList{v1.ResourceCPU: resource.MustParse(pick(c, "500m", "2", "4"))}
		case 1:
			item.MaxLimitRequestRatio = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		case 2:
			item.Default = v1.ResourceList{v1.ResourceCPU: resource.MustParse("6")}
		}
		c.add(&v1.LimitRange{ObjectMeta: named("limits"), Spec: v1.LimitRangeSpec{Limits: []v1.LimitRangeItem{item}}})
	}
	if c.trait(20, "quota") {
		hard := v1.ResourceList{v1.ResourceRequestsCPU: resource.MustParse(fmt.Sprint(6 + c.r.IntN(20)))}
		spec := v1.ResourceQuotaSpec{Hard: hard}
		if c.chance(40) {
			spec.Hard = v1.ResourceList{v1.ResourcePods: resource.MustParse("0")}
			spec.ScopeSelector = &v1.ScopeSelector{MatchExpressions: []v1.ScopedResourceSelectorRequirement{{
				ScopeName: v1.ResourceQuotaScopePriorityClass, Operator: v1.ScopeSelectorOpIn, Values: []string{"high"}}}}
		}
		c.add(&v1.ResourceQuota{ObjectMeta: named("quota"), Spec: spec})
	}
}

// drawTenants fills the nodes with bare pods.
func (c *town) drawTenants() {
	for i := range c.r.IntN(4 * len(c.nodes)) {
		p := &v1.Pod{ObjectMeta: named(fmt.Sprintf("there-%d", i))}
		p.Labels = map[string]string{"app": pick(c, "web", "db")}
		p.Spec = v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}, NodeName: pick(c, c.nodes...).Name, Priority: new(int32(0))}
		p.Spec.Containers[0].Resources.Requests = amounts(pick(c, "500m", "1", "1500m"), "1Gi")
		if c.chance(20) {
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
		}
		if c.chance(10) {
			p.Spec.Affinity = anti("web", v1.LabelHostname)
		}
		p.Status.Phase = v1.PodRunning
		c.add(p)
	}
	if c.chance(25) {
		c.add(&policyv1.PodDisruptionBudget{ObjectMeta: named("budget"), Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromString("100%")), Selector: selects("db")}})
	}
}

func amounts(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

func selects(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func anti(app, key string) *v1.Affinity {
	return &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{LabelSelector: selects(app), TopologyKey: key},
	}}}
}

// drawPod draws the template of the pending pod, and its workload.
func (c *town) drawPod() {
	template := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	s := &template.Spec
	s.Containers = []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
		Requests: amounts(pick(c, "1", "2", "3", "5"), pick(c, "1Gi", "4Gi", "9Gi"))}}}
	main := &s.Containers[0]
	if c.chance(30) {
		main.Resources.Limits = v1.ResourceList{v1.ResourceCPU: main.Resources.Requests[v1.ResourceCPU]}
	}
	if c.chance(30) {
		s.Tolerations = []v1.Toleration{{Key: "team", Operator: v1.TolerationOpEqual, Value: "a"}}
	}
	if c.trait(25, "selector") {
		s.NodeSelector = map[string]string{"disk": pick(c, "ssd", "nvme")}
	}
	if c.trait(10, "runtime class") {
		s.RuntimeClassName = new("kata")
	}
	if c.trait(15, "gate") {
		s.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/gate"}}
	}
	if c.trait(7, "windows") {
		s.OS, s.NodeSelector = &v1.PodOS{Name: v1.Windows}, map[string]string{v1.LabelOSStable: "windows"}
	}
	if c.trait(20, "init container") {
		s.InitContainers = []v1.Container{{Name: "init", Image: "i", Resources: v1.ResourceRequirements{Requests: amounts("4", "1Gi")}}}
		if c.chance(30) {
			s.InitContainers[0].RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		}
	}
	if c.trait(20, "host port") {
		main.Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
	}
	if c.trait(20, "spread") {
		s.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selects("web"),
		}}
	}
	switch c.r.IntN(8) {
	case 0:
		s.Affinity = anti("db", v1.LabelHostname)
	case 1:
		s.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
			{LabelSelector: selects("cache"), TopologyKey: v1.LabelTopologyZone},
		}}}
	case 2:
		s.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
				{Key: "disk", Operator: v1.NodeSelectorOpIn, Values: []string{"tape"}}, {Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpExists},
			}}},
		}}}
	}
	c.drawVolume(s)
	c.drawDevices(s)
	c.own(template)
}

func (c *town) drawVolume(s *v1.PodSpec) {
	if !c.trait(15, "volume") {
		return
	}
	s.Volumes = append(s.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}})
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	c.add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "dead"}, Provisioner: "csi.example.com", VolumeBindingMode: &wait})
	claim := &v1.PersistentVolumeClaim{ObjectMeta: named("data"), Spec: v1.PersistentVolumeClaimSpec{
		StorageClassName: new("dead"), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}}}
	claim.Status.Phase = v1.ClaimPending
	switch c.r.IntN(4) {
	case 0: // missing
		return
	case 1:
		claim.DeletionTimestamp, claim.Finalizers = &began, []string{"kubernetes.io/pvc-protection"}
	case 2:
		claim.Spec.VolumeName, claim.Status.Phase = "disk", v1.ClaimBound
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		claim.UID = "claim"
		c.add(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
			Spec: v1.PersistentVolumeSpec{
				Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, StorageClassName: "dead",
				PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/disk"}},
				ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data", UID: "claim"},
				NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{pick(c, c.nodes...).Name}}},
				}}}},
			}})
	}
	c.add(claim)
}

// drawDevices draws devices, at most one per node and some allocated to other pods, and the pod's
// claim.
func (c *town) drawDevices(s *v1.PodSpec) {
	if !c.trait(15, "devices") {
		return
	}
	c.add(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	request := func(count int64) resourcev1.ResourceClaimSpec {
		return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}}}}}
	}
	for i, n := range c.nodes {
		if !c.chance(60) {
			continue
		}
		c.add(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + n.Name}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: new(n.Name), Pool: resourcev1.ResourcePool{Name: n.Name, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "gpu-0"}}}})
		if !c.chance(70) {
			continue
		}
		name := fmt.Sprintf("user-%d", i)
		user := &v1.Pod{ObjectMeta: named(name), Status: v1.PodStatus{Phase: v1.PodRunning}, Spec: v1.PodSpec{NodeName: n.Name, Priority: new(int32(0)),
			Containers:     []v1.Container{{Name: "c", Image: "i"}},
			ResourceClaims: []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}}}
		user.UID = types.UID(name)
		c.add(user, &resourcev1.ResourceClaim{ObjectMeta: named(name), Spec: request(1), Status: resourcev1.ResourceClaimStatus{
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: user.UID}},
			Allocation: &resourcev1.AllocationResult{
				Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
					Request: "r", Driver: "gpu.example.com", Pool: n.Name, Device: "gpu-0"}}},
				NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{n.Name}}}}}},
			}}})
	}
	s.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("mine")}}
	if c.chance(80) {
		c.add(&resourcev1.ResourceClaim{ObjectMeta: named("mine"), Spec: request(pick(c, int64(1), 1, 1, 2))})
	}
}

// own draws the controller of the pod "waits".
func (c *town) own(template v1.PodTemplateSpec) {
	p := &v1.Pod{ObjectMeta: named("waits"), Spec: *template.Spec.DeepCopy()}
	p.Labels = map[string]string{"app": "web"}
	p.UID = "waits"
	owned := func(kind schema.GroupVersionKind, by metav1.Object, object metav1.Object) {
		object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(by, kind)})
	}
	one := new(int32(1))
	apps, batch := appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion
	switch c.r.IntN(8) {
	default:
		c.holder = p
	case 0, 1: // Deployment
		d := &appsv1.Deployment{ObjectMeta: named("waits"), Spec: appsv1.DeploymentSpec{Replicas: one, Selector: selects("web"), Template: template,
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: new(intstr.FromString("25%")), MaxUnavailable: new(intstr.FromString("25%"))}}}}
		d.UID, d.Generation, d.Status.ObservedGeneration = "deployment", 1, 1
		d.Spec.Paused = c.trait(30, "paused")
		rs := &appsv1.ReplicaSet{ObjectMeta: named("waits-1"), Spec: appsv1.ReplicaSetSpec{Replicas: one, Selector: selects("web"), Template: *template.DeepCopy()}}
		rs.UID, rs.Annotations = "replicaset", map[string]string{"deployment.kubernetes.io/revision": "1"}
		for _, labels := range []map[string]string{rs.Spec.Template.Labels, p.Labels} {
			labels[appsv1.DefaultDeploymentUniqueLabelKey] = "1"
		}
		rs.Labels = p.Labels
		rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: p.Labels}
		c.add(d, rs)
		owned(apps.WithKind("Deployment"), d, rs)
		owned(apps.WithKind("ReplicaSet"), rs, p)
		c.holder = d
	case 2, 3: // StatefulSet
		set := &appsv1.StatefulSet{ObjectMeta: named("waits"), Spec: appsv1.StatefulSetSpec{Replicas: one, Selector: selects("web"), Template: template,
			PodManagementPolicy: appsv1.OrderedReadyPodManagement, UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(0))}}}}
		set.UID, set.Status.CurrentRevision, set.Status.UpdateRevision = "statefulset", "waits-1", "waits-1"
		switch c.r.IntN(3) {
		case 0:
			c.traits = append(c.traits, "OnDelete")
			set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
		case 1:
			c.traits = append(c.traits, "partition")
			set.Spec.UpdateStrategy.RollingUpdate.Partition = one
		}
		p.Name, p.UID = "waits-0", "waits-0"
		p.Labels["controller-revision-hash"], p.Labels["statefulset.kubernetes.io/pod-name"], p.Labels["apps.kubernetes.io/pod-index"] = "waits-1", "waits-0", "0"
		c.add(set)
		owned(apps.WithKind("StatefulSet"), set, p)
		c.holder = set
	case 4: // Job
		job := &batchv1.Job{ObjectMeta: named("waits"), Spec: batchv1.JobSpec{
			Parallelism: one, Completions: one, BackoffLimit: new(int32(6)), CompletionMode: new(batchv1.NonIndexedCompletion),
			Suspend: new(false), PodReplacementPolicy: new(batchv1.TerminatingOrFailed), Template: template}}
		job.UID = "job"
		uid := map[string]string{"batch.kubernetes.io/controller-uid": "job"}
		job.Spec.Selector = &metav1.LabelSelector{MatchLabels: uid}
		for _, labels := range []map[string]string{job.Spec.Template.Labels, p.Labels} {
			labels["batch.kubernetes.io/controller-uid"], labels["controller-uid"] = "job", "job"
			labels["batch.kubernetes.io/job-name"], labels["job-name"] = "waits", "waits"
		}
		job.Spec.Template.Spec.RestartPolicy, p.Spec.RestartPolicy = v1.RestartPolicyNever, v1.RestartPolicyNever
		job.Status.Active, job.Status.StartTime = 1, &began
		c.add(job)
		owned(batch.WithKind("Job"), job, p)
		c.holder = job
	}
	// The API server has admitted the pod, perhaps before the rules of its namespace were created.
	if p.Spec.RuntimeClassName != nil {
		for _, o := range c.objects {
			if class, ok := o.(*nodev1.RuntimeClass); ok {
				p.Spec.NodeSelector = map[string]string{"disk": class.Scheduling.NodeSelector["disk"]}
			}
		}
	}
	p.Spec.Priority, p.Spec.PreemptionPolicy = new(int32(0)), new(v1.PreemptLowerPriority)
	for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{
			Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))})
	}
	admission.Default(p)
	p.Status.Phase = v1.PodPending
	c.add(p)
	c.pod = p
}
