// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// allKinds lists the kinds supported by a core.
var allKinds = []Kind{
	Nodes, Pods, Namespaces, Services, ReplicationControllers, ReplicaSets, StatefulSets, DisruptionBudgets, Volumes, Claims, StorageClasses,
	CSINodes, CSIDrivers, CSICapacities, VolumeAttachments, ResourceSlices, ResourceClaims, DeviceClasses, PodGroups,
	CompositePodGroups,
}

// witnessed shows a core the objects, runs it for a while, and then adds an ordinary pod. It
// returns the violations: a panic, or an ordinary pod that was not decided. Unless refused is set,
// the ordinary pod must also be bound.
func witnessed(odd []Seen, refused bool) (wrong []string) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Topology: true, Composite: true}})
	if err != nil {
		return []string{err.Error()}
	}
	now, bound, shown := begin, map[types.UID]string{}, map[types.UID]*v1.Pod{}
	var step func(e Event)
	step = func(e Event) {
		if seen, ok := e.(Seen); ok && seen.Kind == Pods {
			shown[seen.Object.GetUID()] = seen.Object.(*v1.Pod)
		}
		var answers []Event
		// The core reuses the slice.
		for _, action := range append([]Action{}, core.Step(now, e)...) {
			switch a := action.(type) {
			case Bind:
				p := a.Attempt.Pod.DeepCopy()
				p.Spec.NodeName = a.Attempt.Node
				bound[p.UID] = a.Attempt.Node
				answers = append(answers, Answered{Ticket: a.Ticket}, Seen{Pods, p})
			case Remove:
				answers = append(answers, Answered{Ticket: a.Ticket}, Gone{Pods, shown[a.Victim.UID]})
			case WriteStatus:
				if refused && a.Pod.Name == "witness" {
					bound[a.Pod.UID] = "nowhere"
				}
			case Panicked:
				wrong = append(wrong, fmt.Sprintf("panic: %s\n%s", a.Value, a.Stack))
			}
		}
		for _, answer := range answers {
			step(answer)
		}
	}
	// work runs the core for a number of turns, and advances time while it is idle.
	work := func(turns int, until func() bool) {
		for range turns {
			if until() {
				return
			}
			if wake := core.Wake(now); wake.After(now) {
				now = wake
			}
			step(Tick{})
		}
	}
	step(Follows{Kinds: allKinds})
	step(Led{})
	for _, kind := range allKinds {
		step(Listing{kind})
		step(Listed{kind})
	}
	for _, name := range []string{"good", "full"} {
		n := aNode(name, "64")
		n.Labels[v1.LabelTopologyZone] = "a"
		step(Seen{Nodes, n})
	}
	step(Seen{Namespaces, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}})
	for _, e := range odd {
		step(e)
	}
	work(500, func() bool { return false })
	for _, e := range odd { // shown again, as if the object had changed
		if e.Kind == Pods {
			again := shown[e.Object.GetUID()].DeepCopy()
			again.Annotations = map[string]string{"changed": "yes"}
			e.Object = again
		}
		step(e)
	}
	witness := aPod("witness", "1")
	witness.Namespace, witness.Labels = "others", map[string]string{"app": "witness"}
	step(Seen{Pods, witness})
	work(2000, func() bool { return bound[witness.UID] != "" })
	if bound[witness.UID] == "" {
		wrong = append(wrong, fmt.Sprintf("the witness is not bound: %+v", core.View().Queue.Get(witness.UID)))
	}
	if n := core.View().Cluster.Recount(); n != 0 {
		wrong = append(wrong, fmt.Sprintf("the sums of %d nodes are wrong", n))
	}
	return wrong
}

// TestOddInputsHoldNobodyUp verifies that no input accepted by an API server from a user with
// rights in one namespace, or from a compromised node, causes a crash or keeps another tenant's pod
// from being decided.
func TestOddInputsHoldNobodyUp(t *testing.T) {
	var all []Seen
	for name, make := range oddPods {
		odd := aPod("odd", "1")
		odd.Name, odd.UID = "odd-"+strings.ReplaceAll(name, " ", "-"), types.UID("odd "+name)
		objects := []Seen{{Pods, odd}}
		objects = append(objects, make(odd)...)
		// The same pod, created with a node, which only a quota can prevent. That node may be full.
		there := odd.DeepCopy()
		there.Name, there.UID, there.Spec.NodeName = there.Name+"-there", there.UID+" there", "full"
		tellOdd(t, name, append(objects, Seen{Pods, there}), &all)
	}
	for name, make := range oddNodes {
		odd := aNode("bad-"+strings.ReplaceAll(name, " ", "-"), "4")
		make(odd)
		tellOdd(t, name, []Seen{{Nodes, odd}}, &all)
	}
	for name, objects := range oddObjects() {
		tellOdd(t, name, objects, &all)
	}
	t.Run("all of them", func(t *testing.T) {
		for _, wrong := range witnessed(all, false) {
			t.Error(wrong)
		}
	})
}

func tellOdd(t *testing.T, name string, objects []Seen, all *[]Seen) {
	*all = append(*all, objects...)
	t.Run(name, func(t *testing.T) {
		for _, wrong := range witnessed(objects, false) {
			t.Error(wrong)
		}
	})
}

func requesting(p *v1.Pod, name v1.ResourceName, amount string) {
	p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(amount)
}

// many returns numbered names.
func many(n int, prefix string) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(prefix, i))
	}
	return all
}

func ofMany(n int, make func(i int) v1.PodAffinityTerm) (all []v1.PodAffinityTerm) {
	for i := range n {
		all = append(all, make(i))
	}
	return all
}

// oddPods modify a tenant's pod, and return its additional objects.
var oddPods = map[string]func(p *v1.Pod) []Seen{
	"all of CPU that there is":  func(p *v1.Pod) []Seen { requesting(p, v1.ResourceCPU, "9223372036854775807"); return nil },
	"all thousandths of CPU":    func(p *v1.Pod) []Seen { requesting(p, v1.ResourceCPU, "9223372036854775807m"); return nil },
	"more memory than a number": func(p *v1.Pod) []Seen { requesting(p, v1.ResourceMemory, "1e30"); return nil },
	"nearly all bytes":          func(p *v1.Pod) []Seen { requesting(p, v1.ResourceMemory, "9223371865056083968"); return nil },
	"a billionth of a CPU":      func(p *v1.Pod) []Seen { requesting(p, v1.ResourceCPU, "1n"); return nil },
	"no CPU":                    func(p *v1.Pod) []Seen { requesting(p, v1.ResourceCPU, "0"); return nil },
	"a resource of nobody's":    func(p *v1.Pod) []Seen { requesting(p, "example.com/odd", "9223372036854775807"); return nil },
	"huge pages":                func(p *v1.Pod) []Seen { requesting(p, "hugepages-2Mi", "9223372036854775807"); return nil },
	"a thousand resources": func(p *v1.Pod) []Seen {
		for _, name := range many(1000, "example.com/r") {
			requesting(p, v1.ResourceName(name), "1")
		}
		return nil
	},
	"overhead": func(p *v1.Pod) []Seen {
		p.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("9223372036854775807"), v1.ResourceMemory: resource.MustParse("1e30")}
		return nil
	},
	"requests of the pod": func(p *v1.Pod) []Seen {
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("9223372036854775807"), v1.ResourceMemory: resource.MustParse("1e30")}}
		return nil
	},
	"sidecars": func(p *v1.Pod) []Seen {
		always := v1.ContainerRestartPolicyAlways
		for range 100 {
			c := *p.Spec.Containers[0].DeepCopy()
			c.RestartPolicy = &always
			c.Resources.Requests[v1.ResourceMemory] = resource.MustParse("9223372036854775807")
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		}
		return nil
	},
	"no containers":       func(p *v1.Pod) []Seen { p.Spec.Containers = nil; return nil },
	"no priority":         func(p *v1.Pod) []Seen { p.Spec.Priority = nil; return nil },
	"the lowest priority": func(p *v1.Pod) []Seen { *p.Spec.Priority = math.MinInt32; return nil },
	"the highest priority": func(p *v1.Pod) []Seen {
		*p.Spec.Priority = math.MaxInt32
		requesting(p, v1.ResourceCPU, "1e6")
		return nil
	},
	"never preempts":        func(p *v1.Pod) []Seen { never := v1.PreemptNever; p.Spec.PreemptionPolicy = &never; return nil },
	"an odd policy":         func(p *v1.Pod) []Seen { odd := v1.PreemptionPolicy("Odd"); p.Spec.PreemptionPolicy = &odd; return nil },
	"gates":                 func(p *v1.Pod) []Seen { p.Spec.SchedulingGates = make([]v1.PodSchedulingGate, 100); return nil },
	"a node that is none":   func(p *v1.Pod) []Seen { p.Spec.NodeName = "none"; return nil },
	"nominated to nowhere":  func(p *v1.Pod) []Seen { p.Status.NominatedNodeName = "none"; return nil },
	"an odd phase":          func(p *v1.Pod) []Seen { p.Status.Phase = "Odd"; return nil },
	"already ended":         func(p *v1.Pod) []Seen { p.Status.Phase = v1.PodSucceeded; return nil },
	"from the future":       func(p *v1.Pod) []Seen { p.CreationTimestamp = metav1.Time{Time: begin.AddDate(5000, 0, 0)}; return nil },
	"from before all times": func(p *v1.Pod) []Seen { p.CreationTimestamp = metav1.Time{}; return nil },
	"leaving in the future": func(p *v1.Pod) []Seen {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: begin.AddDate(5000, 0, 0)}, new(int64(math.MaxInt64))
		return nil
	},
	"ten thousand labels": func(p *v1.Pod) []Seen {
		p.Labels = map[string]string{}
		for _, key := range many(10_000, "l") {
			p.Labels[key] = strings.Repeat("x", 63)
		}
		return nil
	},
	"large annotations": func(p *v1.Pod) []Seen {
		p.Annotations = map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "x", "scheduler.alpha.kubernetes.io/critical-pod": "", "large": strings.Repeat("x", 256<<10)}
		return nil
	},
	"tolerations": func(p *v1.Pod) []Seen {
		for i, seconds := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
			for _, operator := range []v1.TolerationOperator{"", "Exists", "Equal", "Gt", "Lt", "Odd"} {
				p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: fmt.Sprint(i), Operator: operator, Value: "9223372036854775808", Effect: "Odd", TolerationSeconds: &seconds})
			}
		}
		return nil
	},
	"a thousand tolerations": func(p *v1.Pod) []Seen {
		for _, key := range many(1000, "k") {
			p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: key, Operator: v1.TolerationOpExists})
		}
		return nil
	},
	"a thousand selected labels": func(p *v1.Pod) []Seen {
		p.Spec.NodeSelector = map[string]string{}
		for _, key := range many(1000, "k") {
			p.Spec.NodeSelector[key] = ""
		}
		return nil
	},
	"node affinity": func(p *v1.Pod) []Seen {
		var terms []v1.NodeSelectorTerm
		for _, operator := range []v1.NodeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"} {
			for _, value := range []string{"", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "x"} {
				r := v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: operator, Values: []string{value}}
				terms = append(terms, v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{r}},
					v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: operator, Values: []string{value}}}})
			}
		}
		terms = append(terms, v1.NodeSelectorTerm{})
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: terms}}}
		for _, term := range terms {
			p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
				p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution, v1.PreferredSchedulingTerm{Weight: 100, Preference: term})
		}
		return nil
	},
	"ten thousand values": func(p *v1.Pod) []Seen {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpNotIn, Values: many(10_000, "v")}}}}}}}
		return nil
	},
	"no terms at all": func(p *v1.Pod) []Seen {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{}}, PodAffinity: &v1.PodAffinity{}, PodAntiAffinity: &v1.PodAntiAffinity{}}
		return nil
	},
	"thousands of terms": func(p *v1.Pod) []Seen {
		var weighted []v1.WeightedPodAffinityTerm
		for _, term := range ofMany(2000, func(i int) v1.PodAffinityTerm {
			return v1.PodAffinityTerm{TopologyKey: fmt.Sprint("k", i%7), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i)}}, NamespaceSelector: &metav1.LabelSelector{}}
		}) {
			weighted = append(weighted, v1.WeightedPodAffinityTerm{Weight: 100, PodAffinityTerm: term})
		}
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted},
			PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted}}
		return nil
	},
	"odd selectors": func(p *v1.Pod) []Seen {
		odd := &metav1.LabelSelector{MatchLabels: map[string]string{"app": strings.Repeat("x", 1000)}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "///", Operator: "Odd"}}}
		terms := []v1.PodAffinityTerm{{TopologyKey: v1.LabelHostname, LabelSelector: odd, MatchLabelKeys: []string{"none"}, MismatchLabelKeys: []string{"app"}}, {TopologyKey: "", LabelSelector: nil}}
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}, PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: "Odd", LabelSelector: odd}}
		return nil
	},
	"spread": func(p *v1.Pod) []Seen {
		odd := v1.NodeInclusionPolicy("Odd")
		for _, skew := range []int32{math.MinInt32, 0, 1, math.MaxInt32} {
			for _, domains := range []int32{math.MinInt32, 0, math.MaxInt32} {
				for _, when := range []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway} {
					p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, v1.TopologySpreadConstraint{
						MaxSkew: skew, MinDomains: &domains, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: when, LabelSelector: &metav1.LabelSelector{},
						MatchLabelKeys: []string{"none", "app"}, NodeAffinityPolicy: &odd, NodeTaintsPolicy: &odd,
					})
				}
			}
		}
		return nil
	},
	"ports": func(p *v1.Pod) []Seen {
		for _, ip := range []string{"", "0.0.0.0", "::", "127.0.0.1", "not an address"} {
			for _, port := range []int32{math.MinInt32, -1, 0, 1, 65535, math.MaxInt32} {
				p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, v1.ContainerPort{HostIP: ip, HostPort: port, Protocol: "ODD"}, v1.ContainerPort{HostIP: ip, HostPort: port})
			}
		}
		return nil
	},
	"a thousand volumes": func(p *v1.Pod) []Seen {
		for _, name := range many(1000, "v") {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}},
				v1.Volume{Name: name + "e", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}, v1.Volume{Name: name + "n"})
		}
		return nil
	},
	"a disk with a policy": func(p *v1.Pod) []Seen {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[a] b", StoragePolicyName: "c"}}}}
		return []Seen{{CSINodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "good", UID: "csi good"}}}, {CSINodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "full", UID: "csi full"}}}}
	},
	"a claim of its own": func(p *v1.Pod) []Seen {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "c", UID: "c", Annotations: map[string]string{
			"volume.kubernetes.io/selected-node": "none", "pv.kubernetes.io/bind-completed": "odd", "volume.beta.kubernetes.io/storage-class": ""}}}
		claim.Spec.VolumeName, claim.Spec.StorageClassName = "none", new("none")
		claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1e30")}
		return []Seen{{Claims, claim}}
	},
	"claims of devices": func(p *v1.Pod) []Seen {
		for _, name := range many(300, "c") {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: name, ResourceClaimName: new("c")}, v1.PodResourceClaim{Name: name + "t", ResourceClaimTemplateName: new("none")}, v1.PodResourceClaim{Name: name + "n"})
		}
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "c0t", ResourceClaimName: new("none")}, {Name: "none"}}
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "c", UID: "c"}}
		for _, mode := range []resourcev1.DeviceAllocationMode{"", "All", "ExactCount", "Odd"} {
			for _, count := range []int64{math.MinInt64, 0, 1, math.MaxInt64} {
				claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourcev1.DeviceRequest{Name: fmt.Sprint("r", mode, count), Exactly: &resourcev1.ExactDeviceRequest{
					DeviceClassName: "none", AllocationMode: mode, Count: count, Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "((("}}, {}}}})
			}
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourcev1.DeviceRequest{Name: "neither"}, resourcev1.DeviceRequest{Name: "first", FirstAvailable: []resourcev1.DeviceSubRequest{{}, {}}})
		claim.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{}, {Requests: []string{"none"}, MatchAttribute: new(resourcev1.FullyQualifiedName("///"))}}
		return []Seen{{ResourceClaims, claim}}
	},
	"a group that is none": func(p *v1.Pod) []Seen {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("none")}
		return nil
	},
	"a group without end": func(p *v1.Pod) []Seen {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		return []Seen{{PodGroups, gangOf("g", math.MaxInt32)}}
	},
	"a group of fewer than none": func(p *v1.Pod) []Seen {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("h")}
		return []Seen{{PodGroups, gangOf("h", math.MinInt32)}}
	},
	"a group of groups without end": func(p *v1.Pod) []Seen {
		g, c := gangOf("j", 1), compositeOf("huge", math.MaxInt32)
		g.Spec.ParentCompositePodGroupName, p.Spec.SchedulingGroup = &c.Name, &v1.PodSchedulingGroup{PodGroupName: &g.Name}
		return []Seen{{CompositePodGroups, c}, {PodGroups, g}}
	},
	"a group in a circle": func(p *v1.Pod) []Seen {
		g, one, other, self := gangOf("k", 1), compositeOf("one", 1), compositeOf("other", 1), compositeOf("self", 1)
		g.Spec.ParentCompositePodGroupName, p.Spec.SchedulingGroup = &one.Name, &v1.PodSchedulingGroup{PodGroupName: &g.Name}
		one.Spec.ParentCompositePodGroupName, other.Spec.ParentCompositePodGroupName = &other.Name, &one.Name
		self.Spec.ParentCompositePodGroupName = &self.Name
		return []Seen{{PodGroups, g}, {CompositePodGroups, one}, {CompositePodGroups, other}, {CompositePodGroups, self}}
	},
	"a group without a policy": func(p *v1.Pod) []Seen {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("i")}
		return []Seen{{PodGroups, &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "i", UID: "i"}}}}
	},
	"resized": func(p *v1.Pod) []Seen {
		huge := v1.ResourceList{v1.ResourceCPU: resource.MustParse("9223372036854775807"), v1.ResourceMemory: resource.MustParse("1e30")}
		p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", AllocatedResources: huge, Resources: &v1.ResourceRequirements{Requests: huge}}, {Name: "none", AllocatedResources: huge}}
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Status: "Odd", Reason: "Infeasible"}, {Type: v1.PodScheduled, Status: v1.ConditionTrue}, {}}
		return nil
	},
}

func sized(n *v1.Node, name v1.ResourceName, amount string) {
	n.Status.Allocatable[name] = resource.MustParse(amount)
}

// oddNodes modify a node within the permissions of its own credential.
var oddNodes = map[string]func(n *v1.Node){
	"more than there is": func(n *v1.Node) {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, v1.ResourcePods, "example.com/odd"} {
			sized(n, name, "9223372036854775807")
		}
	},
	"far more than there is": func(n *v1.Node) { sized(n, v1.ResourceCPU, "1e30"); sized(n, v1.ResourceMemory, "1e30") },
	"less than nothing": func(n *v1.Node) {
		sized(n, v1.ResourceCPU, "-9223372036854775807")
		sized(n, v1.ResourceMemory, "-1e30")
		sized(n, v1.ResourcePods, "-1")
	},
	"nothing":                func(n *v1.Node) { n.Status.Allocatable = nil },
	"no CPU and much memory": func(n *v1.Node) { sized(n, v1.ResourceCPU, "0"); sized(n, v1.ResourceMemory, "9223372036854775807") },
	"a thousand resources": func(n *v1.Node) {
		for _, name := range many(1000, "example.com/r") {
			sized(n, v1.ResourceName(name), "1")
		}
	},
	"labels": func(n *v1.Node) {
		n.Labels = map[string]string{v1.LabelHostname: "good", v1.LabelTopologyZone: "", v1.LabelTopologyRegion: strings.Repeat("x", 10_000)}
		for _, key := range many(5000, "l") {
			n.Labels[key] = key
		}
	},
	"no labels": func(n *v1.Node) { n.Labels = nil },
	"taints": func(n *v1.Node) {
		for _, effect := range []v1.TaintEffect{"", "Odd", v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute, v1.TaintEffectPreferNoSchedule} {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Effect: effect}, v1.Taint{Key: "k", Value: strings.Repeat("x", 10_000), Effect: effect, TimeAdded: &metav1.Time{Time: begin.AddDate(5000, 0, 0)}})
		}
		for _, key := range many(2000, "t") {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffectPreferNoSchedule})
		}
	},
	"ten thousand images": func(n *v1.Node) {
		for i, name := range many(10_000, "i:") {
			n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{name, "i", "", "i"}, SizeBytes: []int64{math.MinInt64, -1, 0, math.MaxInt64}[i%4]})
		}
		n.Status.Images = append(n.Status.Images, v1.ContainerImage{})
	},
	"conditions": func(n *v1.Node) {
		future := metav1.Time{Time: begin.AddDate(5000, 0, 0)}
		for _, status := range []v1.ConditionStatus{"", "Odd", v1.ConditionTrue, v1.ConditionFalse} {
			n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: v1.NodeReady, Status: status, LastHeartbeatTime: future, LastTransitionTime: future}, v1.NodeCondition{Type: "Odd", Status: status})
		}
	},
	"volumes": func(n *v1.Node) {
		for _, name := range many(10_000, "kubernetes.io/csi/d^") {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, v1.UniqueVolumeName(name))
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, v1.AttachedVolume{Name: v1.UniqueVolumeName(name), DevicePath: "///"})
		}
	},
	"features": func(n *v1.Node) { n.Status.DeclaredFeatures = append(many(2000, "F"), "", "Odd/1") },
	"leaving":  func(n *v1.Node) { n.DeletionTimestamp = &metav1.Time{Time: begin.AddDate(-5000, 0, 0)} },
	"closed":   func(n *v1.Node) { n.Spec.Unschedulable = true },
}

// oddObjects returns other objects writable by a tenant or a node.
func oddObjects() map[string][]Seen {
	budget := func(name string, least, most *intstr.IntOrString, selector *metav1.LabelSelector) Seen {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
		b.Spec.MinAvailable, b.Spec.MaxUnavailable, b.Spec.Selector = least, most, selector
		b.Status.DisruptionsAllowed, b.Status.ExpectedPods, b.Status.ObservedGeneration = math.MinInt32, math.MaxInt32, math.MaxInt64
		b.Status.DisruptedPods = map[string]metav1.Time{"odd": {Time: begin.AddDate(5000, 0, 0)}, "": {}}
		return Seen{DisruptionBudgets, b}
	}
	number, share, word := intstr.FromInt32(math.MinInt32), intstr.FromString("9223372036854775807%"), intstr.FromString("odd")
	everything, odd := &metav1.LabelSelector{}, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "///", Operator: "Odd", Values: []string{"x"}}}}
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s"}}
	slice.Spec = resourcev1.ResourceSliceSpec{Driver: "d", NodeName: new("none"), Pool: resourcev1.ResourcePool{Name: "p", Generation: math.MaxInt64, ResourceSliceCount: math.MinInt64}}
	for _, name := range many(2000, "d") {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name: name, Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"m": {Value: resource.MustParse("-1e30")}},
			Attributes:       map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"a": {}, "v": {VersionValue: new("odd")}},
			ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: "none", Counters: map[string]resourcev1.Counter{"c": {Value: resource.MustParse("9223372036854775807")}}}},
			Taints:           []resourcev1.DeviceTaint{{Effect: "Odd"}},
		}, resourcev1.Device{Name: "same"})
	}
	slice.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "s"}, {Name: "s"}}
	csi := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "good", UID: "csi"}}
	for i, count := range []int32{math.MinInt32, -1, 0, math.MaxInt32} {
		csi.Spec.Drivers = append(csi.Spec.Drivers, storagev1.CSINodeDriver{Name: fmt.Sprint("d", i), NodeID: "n", TopologyKeys: []string{"", "none"}, Allocatable: &storagev1.VolumeNodeResources{Count: &count}}, storagev1.CSINodeDriver{Name: "d0"})
	}
	capacity := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "cc"}, NodeTopology: odd, Capacity: new(resource.MustParse("-1e30")), MaximumVolumeSize: new(resource.MustParse("1e30"))}
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "others", Name: "s", UID: "svc"}, Spec: v1.ServiceSpec{Selector: map[string]string{"app": "witness", "///": strings.Repeat("x", 10_000)}}}
	return map[string][]Seen{
		"budgets":           {budget("a", &number, nil, everything), budget("b", &share, &word, everything), budget("c", nil, nil, nil), budget("d", nil, &share, odd)},
		"devices":           {{ResourceSlices, slice}, {DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "none", UID: "none"}}}},
		"limits of volumes": {{CSINodes, csi}, {CSICapacities, capacity}},
		"services":          {{Services, service}},
		"an attachment":     {{VolumeAttachments, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "va"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "good"}}}},
	}
}

// FuzzOddObjects shows a core objects with arbitrary content, including content that an API server
// rejects.
func FuzzOddObjects(f *testing.F) {
	for seed := range int64(8) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		words := []string{"", "a", "b", "zone", "d", "app", v1.LabelHostname, v1.LabelTopologyZone, "example.com/r", "odd-node", "none", "///", "9223372036854775807", "Exists", "In", "NotIn", "Gt", "NoSchedule", "NoExecute"}
		numbers := []int64{math.MinInt64, math.MinInt32, -1, 0, 1, 2, 100, math.MaxInt32, math.MaxInt64}
		amounts := []string{"0", "1", "1n", "100m", "-1", "1e30", "9223372036854775807", "9223371865056083968"}
		filler := randfill.NewWithSeed(seed).NilChance(0.5).NumElements(0, 3).MaxDepth(14).Funcs(
			func(s *string, c randfill.Continue) { *s = words[c.Intn(len(words))] },
			func(n *int64, c randfill.Continue) { *n = numbers[c.Intn(len(numbers))] },
			func(n *int32, c randfill.Continue) { *n = int32(numbers[c.Intn(len(numbers))]) },
			func(q *resource.Quantity, c randfill.Continue) {
				*q = resource.MustParse(amounts[c.Intn(len(amounts))])
			},
			func(at *metav1.Time, c randfill.Continue) {
				*at = metav1.Time{Time: begin.AddDate(c.Intn(8000)-1900, 0, 0)}
			},
			func(raw *runtime.RawExtension, c randfill.Continue) { raw.Raw = []byte(`{"a":[1,"b",null]}`) },
			func(fields *metav1.FieldsV1, c randfill.Continue) { fields.SetRawBytes([]byte("{}")) },
		)
		var odd []Seen
		add := func(kind Kind, n int, make func() metav1.Object) {
			for i := range n {
				object := make()
				filler.Fill(object)
				object.SetName(fmt.Sprintf("odd-%s-%d", kind, i))
				object.SetUID(types.UID(fmt.Sprintf("%s %d", kind, i)))
				object.SetNamespace("default")
				odd = append(odd, Seen{kind, object})
			}
		}
		add(Nodes, 3, func() metav1.Object { return &v1.Node{} })
		for i := range odd {
			odd[i].Object.SetNamespace("")
		}
		add(PodGroups, 2, func() metav1.Object { return &groups.PodGroup{} })
		add(CompositePodGroups, 2, func() metav1.Object { return &groups.CompositePodGroup{} })
		add(DisruptionBudgets, 2, func() metav1.Object { return &policyv1.PodDisruptionBudget{} })
		add(Claims, 3, func() metav1.Object { return &v1.PersistentVolumeClaim{} })
		add(Volumes, 2, func() metav1.Object { return &v1.PersistentVolume{} })
		add(StorageClasses, 2, func() metav1.Object { return &storagev1.StorageClass{} })
		add(CSINodes, 2, func() metav1.Object { return &storagev1.CSINode{} })
		add(CSICapacities, 2, func() metav1.Object { return &storagev1.CSIStorageCapacity{} })
		add(ResourceSlices, 2, func() metav1.Object { return &resourcev1.ResourceSlice{} })
		add(ResourceClaims, 3, func() metav1.Object { return &resourcev1.ResourceClaim{} })
		add(DeviceClasses, 2, func() metav1.Object { return &resourcev1.DeviceClass{} })
		add(Services, 2, func() metav1.Object { return &v1.Service{} })
		first := len(odd)
		add(Pods, 6, func() metav1.Object { return &v1.Pod{} })
		for i, e := range odd[first:] {
			pod := e.Object.(*v1.Pod)
			pod.Spec.SchedulerName = v1.DefaultSchedulerName
			if i%3 != 0 {
				pod.Spec.NodeName, pod.DeletionTimestamp, pod.Spec.SchedulingGates = "", nil, nil
			}
		}
		for _, wrong := range witnessed(odd, true) {
			t.Error(wrong)
		}
	})
}
