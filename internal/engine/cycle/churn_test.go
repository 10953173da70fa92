// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var (
	churnEvents = flag.Int("churn", 4_000, "events of TestChurnLeavesNothingBehind; ten million are a long life")
	churnSeed   = flag.Uint64("churnseed", 1, "which life it is")
)

// churn is a cluster in virtual time with constant turnover: every name, label and size is new.
type churn struct {
	rng  *rand.Rand
	now  time.Time
	core *Core
	made int

	pods    map[types.UID]*v1.Pod
	uids    []types.UID // UIDs of pods
	objects map[Kind]map[cluster.Name]metav1.Object
}

var churnBegins = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	churnNodes, churnPods = 200, 2000
	churnNamespaces       = 20
)

// churnKinds lists the kinds of objects of a churn other than pods.
var churnKinds = []Kind{Nodes, Namespaces, Services, DisruptionBudgets, Volumes, Claims, VolumeAttachments, ResourceSlices, ResourceClaims, DeviceClasses}

func newChurn(seed uint64) *churn {
	c := &churn{rng: rand.New(rand.NewPCG(seed, 5)), now: churnBegins, pods: map[types.UID]*v1.Pod{}, objects: map[Kind]map[cluster.Name]metav1.Object{}}
	for _, kind := range churnKinds {
		c.objects[kind] = map[cluster.Name]metav1.Object{}
	}
	c.begin()
	return c
}

// twin returns the same cluster with a fresh core.
func (c *churn) twin() *churn {
	twin := *c
	twin.pods, twin.uids, twin.objects = maps.Clone(c.pods), slices.Clone(c.uids), map[Kind]map[cluster.Name]metav1.Object{}
	for kind, objects := range c.objects {
		twin.objects[kind] = maps.Clone(objects)
	}
	twin.rng = rand.New(rand.NewPCG(2, 5))
	twin.begin()
	return &twin
}

// begin starts a core on the current objects.
func (c *churn) begin() {
	waits := Disabled{PopFromBackoff: true} // otherwise, the idle core would keep retrying pods that fit nowhere
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Seed: 1, Disabled: waits})
	if err != nil {
		panic(err)
	}
	c.core = core
	c.tell(Follows{Kinds: append([]Kind{Pods}, churnKinds...)})
	c.tell(Led{})
	for _, kind := range churnKinds {
		c.tell(Listing{kind})
		for _, name := range slices.SortedFunc(maps.Keys(c.objects[kind]), compareNames) {
			c.see(kind, c.objects[kind][name])
		}
		c.tell(Listed{kind})
	}
	c.tell(Listing{Pods})
	for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
		c.see(Pods, c.pods[uid])
	}
	c.tell(Listed{Pods})
}

// see shows the core a private copy of an object, so that its memory is not shared.
func (c *churn) see(kind Kind, object metav1.Object) {
	c.tell(Seen{kind, object.(apiruntime.Object).DeepCopyObject().(metav1.Object)})
}

// put creates or changes an object other than a pod.
func (c *churn) put(kind Kind, object metav1.Object) {
	c.objects[kind][nameOf(object)] = object
	c.see(kind, object)
}

// take deletes an object other than a pod, and reports whether it existed.
func (c *churn) take(kind Kind, name cluster.Name) bool {
	old, known := c.objects[kind][name]
	if known {
		delete(c.objects[kind], name)
		c.tell(Gone{kind, old})
	}
	return known
}

// tell passes the core an event and immediately carries out the returned actions.
func (c *churn) tell(e Event) {
	for _, action := range slices.Clone(c.core.Step(c.now, e)) {
		switch a := action.(type) {
		case Bind:
			o := Outcome{}
			if p := c.pods[a.Attempt.Pod.UID]; p == nil {
				o.Fault = &Fault{Message: "gone"}
			} else {
				bound := p.DeepCopy()
				bound.Spec.NodeName = a.Attempt.Node
				c.pods[p.UID] = bound
				defer c.see(Pods, bound)
			}
			c.tell(Answered{a.Ticket, o})
		case Remove:
			c.tell(Answered{a.Ticket, Outcome{}})
			c.removePod(a.Victim.UID)
		case Preflight:
			c.tell(Answered{a.Ticket, Outcome{Work: make([]PreBindWork, len(a.By.PreBind))}})
		case PreBind:
			c.tell(Answered{a.Ticket, Outcome{}})
		case WriteVolumes:
			c.tell(Answered{a.Ticket, Outcome{Fault: &Fault{Message: "all volumes are bound"}}})
		case WriteClaims:
			o := Outcome{}
			for i := range a.Claims.Claims {
				claim := a.Claims.Claims[i].Claim
				if c.objects[ResourceClaims][nameOf(claim)] == nil {
					o.Fault = &Fault{Message: "gone"}
					continue
				}
				c.put(ResourceClaims, claim.DeepCopy())
			}
			c.tell(Answered{a.Ticket, o})
		case DeallocateClaim:
			claim := a.Claim.DeepCopy()
			c.tell(Answered{a.Ticket, Outcome{}})
			if c.objects[ResourceClaims][nameOf(claim)] != nil {
				c.put(ResourceClaims, claim)
			}
		case WriteStatus:
			if p := c.pods[a.Pod.UID]; p != nil && a.Nominate != nil {
				p = p.DeepCopy()
				p.Status.NominatedNodeName = *a.Nominate
				c.pods[p.UID] = p
				defer c.see(Pods, p)
			}
			if a.Ticket != 0 {
				c.tell(Answered{a.Ticket, Outcome{}})
			}
		}
	}
}

// settle advances the time until no pod can be decided.
func (c *churn) settle() {
	for range 50 {
		if wake := c.core.Wake(c.now); wake.After(c.now) {
			return
		}
		c.tell(Tick{})
	}
}

func (c *churn) fresh(what string) string {
	c.made++
	return fmt.Sprintf("%s-%d", what, c.made)
}

func (c *churn) something() {
	c.now = c.now.Add(time.Duration(c.rng.IntN(20)) * time.Millisecond)
	switch n := c.rng.IntN(100); {
	case n < 40 && len(c.uids) < churnPods, len(c.uids) < churnPods/2:
		c.addPod()
	case n < 77 && len(c.uids) > 0:
		c.removePod(c.uids[c.rng.IntN(len(c.uids))])
	case n < 80 && len(c.uids) > 0: // a pod gets other labels
		pod := c.pods[c.uids[c.rng.IntN(len(c.uids))]].DeepCopy()
		pod.Labels["app"] = c.fresh("app")
		c.pods[pod.UID] = pod
		c.see(Pods, pod)
	case n < 86:
		c.changeNode(c.rng.IntN(churnNodes))
	default:
		c.changeObject()
	}
	c.settle()
}

// changeNode gives a node a new label, replaces it with another machine under its name, or removes
// it for a while, with its devices and attachments.
func (c *churn) changeNode(i int) {
	node := churnNode(fmt.Sprintf("n%d", i), fmt.Sprint(8+c.rng.IntN(3)))
	if c.rng.IntN(4) == 0 {
		there := c.take(Nodes, nameOf(node))
		c.take(ResourceSlices, nameOf(node))
		c.take(VolumeAttachments, nameOf(node))
		if there && c.rng.IntN(2) == 0 {
			return
		}
	}
	node.Labels[v1.LabelTopologyZone] = fmt.Sprintf("z%d", c.rng.IntN(3))
	node.Labels[c.fresh("label")] = c.fresh("value")
	node.Labels["rack"] = c.fresh("rack")
	if c.rng.IntN(4) == 0 {
		node.Spec.Taints = []v1.Taint{{Key: c.fresh("key"), Effect: v1.TaintEffectPreferNoSchedule}}
	}
	node.Status.Images = []v1.ContainerImage{{Names: []string{c.fresh("image")}, SizeBytes: int64(c.made)}}
	node.Status.Allocatable[v1.ResourceMemory] = *resource.NewQuantity(64<<30+int64(c.made), resource.BinarySI)
	c.put(Nodes, node)
	if i < churnNodes/4 {
		c.put(ResourceSlices, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: types.UID(c.fresh("slice"))}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &node.Name, Pool: resourcev1.ResourcePool{Name: node.Name, Generation: int64(c.made), ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: c.fresh("gpu")}, {Name: c.fresh("gpu")}},
		}})
		c.put(VolumeAttachments, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: types.UID(c.fresh("attachment"))}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "csi.example.com", NodeName: node.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(c.fresh("volume"))},
		}})
	}
}

// changeObject creates, changes or deletes an object other than a pod or node.
func (c *churn) changeObject() {
	named := func(namespace, what string, of int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s%d", what, c.rng.IntN(of)), UID: types.UID(c.fresh(what))}
	}
	goes := func(kind Kind, as metav1.ObjectMeta) bool {
		return c.rng.IntN(3) == 0 && c.take(kind, cluster.Name{Namespace: as.Namespace, Name: as.Name})
	}
	switch c.rng.IntN(6) {
	case 0:
		as := named("", "ns", churnNamespaces)
		as.Labels = map[string]string{"team": c.fresh("team")}
		if !goes(Namespaces, as) {
			c.put(Namespaces, &v1.Namespace{ObjectMeta: as})
		}
	case 1:
		if as := named(c.namespace(), "s", 5); !goes(Services, as) {
			c.put(Services, &v1.Service{ObjectMeta: as, Spec: v1.ServiceSpec{Selector: map[string]string{"app": c.fresh("app")}}})
		}
	case 2:
		if as := named(c.namespace(), "b", 5); !goes(DisruptionBudgets, as) {
			selector := map[string]string{"tier": fmt.Sprint(c.rng.IntN(3))}
			c.put(DisruptionBudgets, &policyv1.PodDisruptionBudget{ObjectMeta: as, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: selector}}})
		}
	case 3:
		as := named("ns1", "c", 50)
		if old, known := c.objects[Claims][cluster.Name{Namespace: "ns1", Name: as.Name}]; known {
			c.take(Claims, nameOf(old))
			c.take(Volumes, cluster.Name{Name: old.(*v1.PersistentVolumeClaim).Spec.VolumeName})
			break
		}
		volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: c.fresh("volume"), UID: types.UID(c.fresh("volume"))}, Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: c.fresh("handle")}},
			ClaimRef:               &v1.ObjectReference{Namespace: "ns1", Name: as.Name, UID: as.UID}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
		}}
		as.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		c.put(Volumes, volume)
		c.put(Claims, &v1.PersistentVolumeClaim{ObjectMeta: as, Spec: v1.PersistentVolumeClaimSpec{VolumeName: volume.Name, AccessModes: volume.Spec.AccessModes}})
	case 4:
		as := named("ns1", "d", 50)
		if c.take(ResourceClaims, cluster.Name{Namespace: "ns1", Name: as.Name}) {
			break
		}
		c.put(ResourceClaims, &resourcev1.ResourceClaim{ObjectMeta: as, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: fmt.Sprint("class", c.rng.IntN(3)), AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			}}},
		}}})
	default:
		if as := named("", "class", 3); !goes(DeviceClasses, as) {
			c.put(DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: as})
		}
	}
}

func (c *churn) namespace() string { return fmt.Sprintf("ns%d", c.rng.IntN(churnNamespaces)) }

// addPod creates a pod that differs from all other pods in its labels, the selectors of its terms,
// and its requests.
func (c *churn) addPod() {
	name := c.fresh("p")
	pod := churnPod(name, fmt.Sprintf("%dm", 100+c.made%997))
	pod.Namespace = c.namespace()
	pod.Labels = map[string]string{"app": c.fresh("app"), "pod": name, "tier": fmt.Sprint(c.rng.IntN(3))}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Labels["app"]}}
	term := v1.PodAffinityTerm{TopologyKey: []string{v1.LabelHostname, v1.LabelTopologyZone, "rack"}[c.rng.IntN(3)], LabelSelector: selector}
	switch c.rng.IntN(16) {
	case 0:
		pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
	case 1:
		if c.rng.IntN(2) == 0 {
			term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": c.fresh("team")}}
		}
		pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 1 + c.rng.Int32N(100), PodAffinityTerm: term}}}}
	case 2:
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{
			{MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selector},
			{MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: selector},
		}
	case 3:
		pod.Spec.Tolerations = []v1.Toleration{{Key: c.fresh("key"), Operator: v1.TolerationOpExists}}
	case 4:
		pod.Spec.NodeSelector = map[string]string{"nobody": c.fresh("value")} // the pod waits
	case 5:
		pod.Namespace = "ns1"
		pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("c", c.rng.IntN(50))}}}}
	case 6:
		pod.Namespace = "ns1"
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new(fmt.Sprint("d", c.rng.IntN(50)))}}
	case 7: // the pod preempts
		pod.Spec.Priority = new(1 + c.rng.Int32N(1000))
		pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: fmt.Sprint("n", c.rng.IntN(churnNodes))}
		pod.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("6")
	case 8:
		pod.Spec.SchedulerName = c.fresh("scheduler")
	case 9:
		pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: c.fresh("gate")}}
	case 10:
		pod.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 1 + c.rng.Int32N(60000), ContainerPort: 1}}
	case 11:
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
			Weight: 1 + c.rng.Int32N(100), Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{
				{Key: "rack", Operator: v1.NodeSelectorOpIn, Values: []string{fmt.Sprint("rack-", c.rng.IntN(c.made))}},
			}},
		}}}}
	}
	c.pods[pod.UID] = pod
	c.uids = append(c.uids, pod.UID)
	c.see(Pods, pod)
}

func (c *churn) removePod(uid types.UID) {
	pod := c.pods[uid]
	if pod == nil {
		return
	}
	delete(c.pods, uid)
	at := slices.Index(c.uids, uid)
	c.uids[at] = c.uids[len(c.uids)-1]
	c.uids = c.uids[:len(c.uids)-1]
	c.tell(Gone{Pods, pod})
}

// decide adds, decides and removes pods, and returns the average time per pod.
func (c *churn) decide(pods int) time.Duration {
	began := time.Now()
	for range pods {
		c.addPod()
		c.settle()
		c.removePod(c.uids[len(c.uids)-1])
	}
	return time.Since(began) / time.Duration(pods)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// size returns the memory used by the core: the heap freed by dropping it.
func (c *churn) size() int64 {
	with := heap()
	c.core = nil
	return with - heap()
}

// TestChurnLeavesNothingBehind verifies that after constant turnover, a core is as small and as
// fast as a core started on the remaining objects.
func TestChurnLeavesNothingBehind(t *testing.T) {
	c := newChurn(*churnSeed)
	said := time.Now()
	for i := range *churnEvents {
		c.something()
		if time.Since(said) > 5*time.Second {
			said = time.Now()
			t.Logf("%d events, %d pods, %d MiB of heap", i+1, len(c.uids), heap()>>20)
		}
	}
	twin := c.twin()
	c.rng = rand.New(rand.NewPCG(2, 5)) // so that both cores receive the same events from now on
	const pods, turns = 2000, 25
	old, young := time.Hour, time.Hour
	for range turns {
		twin.settle()
		c.settle()
		old, young = min(old, c.decide(pods/turns)), min(young, twin.decide(pods/turns))
	}
	oldSize, youngSize := c.size(), twin.size()
	t.Logf("life %d of %d events: %d pods left; the old core takes %d KiB and %v a pod, the new one %d KiB and %v: %.1f %% more memory",
		*churnSeed, *churnEvents, len(c.uids), oldSize>>10, old, youngSize>>10, young, 100*float64(oldSize-youngSize)/float64(youngSize))
	if oldSize > youngSize+youngSize/10 {
		t.Errorf("the old core takes %d bytes, a new one %d", oldSize, youngSize)
	}
	if *churnEvents > 1_000_000 && old > young*3/2 { // the time of a short run is not significant
		t.Errorf("the old core takes %v a pod, a new one %v", old, young)
	}
}

// TestABurstLeavesNothingBehind verifies that after a burst of unschedulable pods and many objects,
// all of which are deleted again, a core is as small as a new core.
func TestABurstLeavesNothingBehind(t *testing.T) {
	const many = 8_000
	c := newChurn(1)
	c.put(Nodes, churnNode("n", "8"))
	meta := func(namespace string, i int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("o", i), UID: types.UID(fmt.Sprint("uid-o", i))}
	}
	objects := map[Kind]func(i int) metav1.Object{
		Claims:   func(i int) metav1.Object { return &v1.PersistentVolumeClaim{ObjectMeta: meta("ns1", i)} },
		Services: func(i int) metav1.Object { return &v1.Service{ObjectMeta: meta("ns1", i)} },
	}
	for i := range many {
		for kind, object := range objects {
			c.see(kind, object(i))
		}
	}
	for i := range many {
		pod := churnPod(fmt.Sprint("p", i), "9")
		pod.Labels = map[string]string{"app": pod.Name}
		if i%4 == 0 {
			pod.Spec.SchedulerName = "another"
		}
		c.pods[pod.UID] = pod
		c.see(Pods, pod)
	}
	for range many {
		c.tell(Tick{})
	}
	if sizes := c.core.Sizes(); sizes.Unschedulable < many/2 {
		t.Errorf("%+v: want most pods rejected", sizes)
	}
	full := heap()
	for i := range many {
		c.tell(Gone{Pods, c.pods[types.UID(fmt.Sprint("uid-p", i))]})
		for kind, object := range objects {
			c.tell(Gone{kind, object(i)})
		}
	}
	c.now = c.now.Add(time.Minute)
	c.tell(Tick{})
	c.pods = nil
	full -= heap()
	left, fresh := c.size(), newChurn(1).size()
	t.Logf("%d KiB have gone, %d KiB are left, a new core takes %d KiB", full>>10, left>>10, fresh>>10)
	if left > fresh+2<<20 {
		t.Errorf("%d KiB are left, a new core takes %d KiB", left>>10, fresh>>10)
	}
}

func churnNode(name, cpu string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}},
	}
}

func churnPod(name, cpu string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Time{Time: churnBegins}},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName, Priority: new(int32),
			Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)},
			}}},
		},
	}
}
