// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// without marks fields that do not affect decisions.
var without func(*v1.Pod)

// podSpecFields describes, for every field of a pod's spec, how a change of it affects the class. A
// field added by a new version of the API is missing here, and must be considered.
var podSpecFields = map[string]func(*v1.Pod){
	"Volumes": func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	},
	"InitContainers":                func(p *v1.Pod) { p.Spec.InitContainers = []v1.Container{{Name: "i"}} },
	"Containers":                    func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "d"}) },
	"EphemeralContainers":           without, // they take no resources and are added after the pod is bound
	"RestartPolicy":                 without,
	"TerminationGracePeriodSeconds": without,
	"ActiveDeadlineSeconds":         without,
	"DNSPolicy":                     without,
	"NodeSelector":                  func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} },
	"ServiceAccountName":            without,
	"DeprecatedServiceAccount":      without,
	"AutomountServiceAccountToken":  without,
	"NodeName":                      without, // the pod's location, not a requirement
	"HostNetwork":                   func(p *v1.Pod) { p.Spec.HostNetwork = true },
	"HostPID":                       without,
	"HostIPC":                       without,
	"ShareProcessNamespace":         without,
	"SecurityContext":               without,
	"ImagePullSecrets":              without,
	"Hostname":                      without,
	"Subdomain":                     without,
	"Affinity":                      func(p *v1.Pod) { p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{}} },
	"SchedulerName":                 func(p *v1.Pod) { p.Spec.SchedulerName = "other" },
	"Tolerations":                   func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}} },
	"HostAliases":                   without,
	"PriorityClassName":             func(p *v1.Pod) { p.Spec.PriorityClassName = "batch" },
	"Priority":                      func(p *v1.Pod) { p.Spec.Priority = new(int32); *p.Spec.Priority = 7 },
	"DNSConfig":                     without,
	"ReadinessGates":                without,
	"RuntimeClassName":              func(p *v1.Pod) { p.Spec.RuntimeClassName = new(string) }, // read by plugins that distinguish nodes by their runtimes
	"EnableServiceLinks":            without,
	"PreemptionPolicy":              func(p *v1.Pod) { never := v1.PreemptNever; p.Spec.PreemptionPolicy = &never },
	"Overhead":                      func(p *v1.Pod) { p.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")} },
	"TopologySpreadConstraints":     func(p *v1.Pod) { p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1}} },
	"SetHostnameAsFQDN":             without,
	"OS":                            without, // checked by the kubelet
	"HostUsers":                     func(p *v1.Pod) { p.Spec.HostUsers = new(bool) },
	"SchedulingGates":               func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} },
	"ResourceClaims":                func(p *v1.Pod) { p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r"}} },
	"Resources":                     func(p *v1.Pod) { p.Spec.Resources = &v1.ResourceRequirements{} },
	"HostnameOverride":              without,
	"EvictionResponders":            without, // the components asked before an eviction
	"SchedulingGroup":               func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{} },
}

func examplePod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u", Labels: map[string]string{"app": "x"}},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "c", Image: "app:v1", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}},
		}}},
	}
}

func TestEveryPodFieldIsDecidedOn(t *testing.T) {
	spec := reflect.TypeFor[v1.PodSpec]()
	for i := range spec.NumField() {
		name := spec.Field(i).Name
		change, known := podSpecFields[name]
		switch {
		case !known:
			t.Errorf("spec.%s is not in the list: does any decision depend on it?", name)
		case change == nil:
		default:
			pod := examplePod()
			change(pod)
			if keyOf(pod) == keyOf(examplePod()) {
				t.Errorf("a pod with another spec.%s is of the same class", name)
			}
		}
	}
}

func TestWhatSetsClassesApart(t *testing.T) {
	for name, change := range map[string]func(*v1.Pod){
		"namespace":      func(p *v1.Pod) { p.Namespace = "other" },
		"label":          func(p *v1.Pod) { p.Labels = map[string]string{"app": "y"} },
		"one label more": func(p *v1.Pod) { p.Labels["tier"] = "x" },
		"controller": func(p *v1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "rs", Controller: new(true)}}
		},
		"request":            func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("2") },
		"request of nothing": func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse("0") },
		"fraction of a unit": func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("999900u")
		},
		"image":     func(p *v1.Pod) { p.Spec.Containers[0].Image = "app:v2" },
		"host port": func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80}} },
		"resized": func(p *v1.Pod) {
			p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", AllocatedResources: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3")}}}
		},
		"claim of its own": func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
		},
	} {
		pod := examplePod()
		change(pod)
		if keyOf(pod) == keyOf(examplePod()) {
			t.Errorf("%s: the class is the same", name)
		}
	}
}

// TestNamesOfContainersCount verifies that the name of a container affects the class if the amounts
// of an in-place resize, or devices, are recorded under it.
func TestNamesOfContainersCount(t *testing.T) {
	for name, given := range map[string]func(*v1.Pod){
		"resized": func(p *v1.Pod) {
			p.Status.ContainerStatuses = []v1.ContainerStatus{{
				Name: "c", Resources: &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3")}},
			}}
		},
		"devices": func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1") },
	} {
		a, b := examplePod(), examplePod()
		given(a)
		given(b)
		b.Spec.Containers[0].Name = "d"
		if keyOf(a) == keyOf(b) {
			t.Errorf("%s: a pod whose container has another name is of the same class", name)
		}
	}
	a, b := examplePod(), examplePod()
	b.Spec.Containers[0].Name = "d"
	if keyOf(a) != keyOf(b) {
		t.Error("neither: a pod whose container has another name is of another class")
	}
	c := New()
	resized := func(uid, first, second string) *PodClass {
		p := examplePod()
		p.UID, p.Spec.Containers[0].Name = types.UID(uid), first
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: second, Image: "app:v1", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")},
		}})
		p.Status.ContainerStatuses = []v1.ContainerStatus{{
			Name: "c", Resources: &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3")}},
		}}
		return c.Pending(p).Class
	}
	if x, y := resized("u", "c", "d").Requests.MilliCPU, resized("v", "d", "c").Requests.MilliCPU; x != 5000 || y != 4000 {
		t.Errorf("they take %d and %d, want 5000 and 4000", x, y)
	}
}

func TestWhatClassesHaveInCommon(t *testing.T) {
	for name, change := range map[string]func(*v1.Pod){
		"name and UID":     func(p *v1.Pod) { p.Name, p.UID = "q", "v" },
		"place":            func(p *v1.Pod) { p.Spec.NodeName = "node-1" },
		"another spelling": func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("1000m") },
		"another spelling of a fraction": func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse("100m")
		},
		"a volume for all": func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "token-x7", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}}}
		},
		"phase and start":        func(p *v1.Pod) { p.Status.Phase = v1.PodRunning; p.Status.StartTime = &metav1.Time{} },
		"a container's port":     func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80}} },
		"seconds tolerated":      func(p *v1.Pod) { p.Spec.Tolerations[0].TolerationSeconds = new(int64(7)) },
		"a controller made anew": func(p *v1.Pod) { p.OwnerReferences[0].UID = "another" },
	} {
		example := func() *v1.Pod {
			pod := examplePod()
			pod.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse("0.1")
			pod.Spec.Tolerations = []v1.Toleration{{Key: "k", Effect: v1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))}}
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "u", Controller: new(true)}}
			return pod
		}
		pod := example()
		change(pod)
		if keyOf(pod) != keyOf(example()) {
			t.Errorf("%s: the classes differ", name)
		}
	}
}

// TestPodsOfAClassRequestTheSame verifies that pods of a class have equal requests even if the
// amounts of their containers are tiny, since amounts are rounded after adding them up.
func TestPodsOfAClassRequestTheSame(t *testing.T) {
	amounts := []string{"", "0", "1u", "100u", "0.1m", "999u", "1m", "1001u", "0.5", "1", "1500m", "2"}
	names := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "example.com/share"}
	rapid.Check(t, func(t *rapid.T) {
		c := New()
		for i := range 4 {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", UID: types.UID(fmt.Sprint(i))}}
			name, like := rapid.SampledFrom(names).Draw(t, "resource"), rapid.SampledFrom(amounts).Draw(t, "amount")
			for range rapid.SampledFrom([]int{1, 2, 10}).Draw(t, "containers") {
				container := v1.Container{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}}}
				if like != "" {
					container.Resources.Requests[name] = resource.MustParse(like)
				}
				pod.Spec.Containers = append(pod.Spec.Containers, container)
			}
			got, want := c.Pending(pod).Class.Requests, NewResources(rules.Requests(pod))
			if got.Amount(name) != want.Amount(name) {
				t.Fatalf("%d containers of %s %s: the class requests %d, the pod %d", len(pod.Spec.Containers), like, name, got.Amount(name), want.Amount(name))
			}
		}
	})
}

// FuzzClassDigest verifies that pods with different labels never have the same class, for example
// because the encodings of labels run together.
func FuzzClassDigest(f *testing.F) {
	f.Add("a", "bc", "ab", "c")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		a, b := examplePod(), examplePod()
		a.Labels, b.Labels = map[string]string{k1: v1}, map[string]string{k2: v2}
		if same := k1 == k2 && v1 == v2; same != (keyOf(a) == keyOf(b)) {
			t.Errorf("%q=%q and %q=%q: same %t", k1, v1, k2, v2, !same)
		}
	})
}

func keyOf(pod *v1.Pod) digest {
	key, _ := classDigest(pod)
	return key
}
