// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// crowd is a core with 5,000 nodes, each full of pods with a lower priority than arriving pods.
type crowd struct {
	*testing.T
	core *Core
	now  time.Time

	tenants int      // number of tenants so far; see crowd.tenant
	asked   []Ticket // tickets of outstanding actions
}

const (
	crowdNodes, crowdPods = 5000, 10 // number of nodes, and of pods on each node
	crowdDevices          = 16
)

func newCrowd(t *testing.T) *crowd {
	return newCrowdThatFollows(t, Options{}, Nodes, Pods, Namespaces, DisruptionBudgets, Claims, StorageClasses, ResourceSlices, ResourceClaims, DeviceClasses)
}

func newCrowdThatFollows(t *testing.T, options Options, all ...Kind) *crowd {
	options.Profiles, options.Seed = []Profile{{Profile: plugins.Default()}}, 1
	core, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{T: t, core: core, now: begin}
	c.tell(Follows{all})
	c.tell(Led{})
	for _, kind := range all {
		c.tell(Listing{kind})
	}
	low := int32(-10)
	for i := range crowdNodes {
		node := aNode(fmt.Sprint("node-", i), "64")
		node.Labels[v1.LabelTopologyZone] = fmt.Sprint("z", i%3)
		for k := range 20 {
			node.Labels[fmt.Sprint("k", k)] = fmt.Sprint(i % (k + 2))
		}
		node.Status.Allocatable[v1.ResourcePods] = *resource.NewQuantity(crowdPods, resource.DecimalSI)
		c.tell(Seen{Nodes, node})
		for k := range crowdPods {
			pod := aPod(fmt.Sprint("low-", i, "-", k), "100m")
			pod.Labels, pod.Spec.Priority, pod.Spec.NodeName = map[string]string{"app": fmt.Sprint("app-", k)}, &low, node.Name
			c.tell(Seen{Pods, pod})
		}
	}
	for _, kind := range all {
		c.tell(Listed{kind})
	}
	return c
}

func (c *crowd) tell(e Event) []Action {
	actions := c.core.Step(c.now, e)
	for _, a := range actions {
		if ticket := reflect.ValueOf(a).FieldByName("Ticket"); ticket.IsValid() {
			c.asked = append(c.asked, Ticket(ticket.Uint()))
		}
	}
	return actions
}

// attempt shows the core a pod and returns the longest time for which one of its first attempts
// occupies the loop, in processor time. At least one measurement must be within most.
func (c *crowd) attempt(name string, most time.Duration, change func(*v1.Pod)) (took time.Duration, text string) {
	c.Helper()
	for again := range measurings {
		if took, text = c.tryFor(fmt.Sprint(name, "-", again), change); took <= most {
			return took, text
		}
		awaitCalm(c.T)
	}
	c.Errorf("an attempt took %v of processor time, want no more than %v", took, most)
	return took, text
}

// measurings is the maximum number of repetitions of a measurement above its limit. Other load on
// the machine occurs in bursts, and takes caches and CPU time from the measurement.
const measurings = 10

// tryFor returns the longest of several attempts at a pod.
func (c *crowd) tryFor(name string, change func(*v1.Pod)) (longest time.Duration, text string) {
	pod := aPod(name, "100m")
	high := int32(1000)
	pod.Labels, pod.Spec.Priority = map[string]string{"app": "app-1"}, &high
	change(pod)
	c.tell(Seen{Pods, pod})
	var removals []Ticket
	for range 3 {
		var actions []Action
		longest = max(longest, timeOf(c.T, func() { actions = c.tell(Tick{}) }))
		for _, a := range actions {
			text += a.String() + "\n"
			if r, ok := a.(Remove); ok {
				removals = append(removals, r.Ticket)
			}
		}
		c.now = c.now.Add(20 * time.Second) // longer than any back-off
	}
	c.tell(Gone{Pods, pod})
	for _, ticket := range removals { // the removals are refused, so that the victims remain for the next attempt
		c.tell(Answered{ticket, Outcome{Fault: &Fault{Message: "refused"}}})
	}
	return longest, text
}

// timeOf returns the processor time of a function, excluding garbage collection: the duration of a
// collection depends on the memory retained by the test, not on the running code.
func timeOf(t *testing.T, something func()) time.Duration {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before := processorTime(t)
	something()
	return processorTime(t) - before
}

func processorTime(t *testing.T) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// holdsTheLoop is the maximum duration of an attempt in these tests. The goal on an idle machine is
// 100 ms. The limit is higher because filters run on all CPU cores, and the garbage collector and
// the race detector slow them down.
const holdsTheLoop = time.Second

// measuresTime skips a test of processor time with -short, which is also set for runs with the race
// detector, because they take several times as long.
func measuresTime(t *testing.T) {
	if testing.Short() {
		t.Skip("measures processor time: not with -short")
	}
}

// TestNoAttemptHoldsTheLoop verifies that no request of a pod occupies the goroutine that decides
// all pods for long.
func TestNoAttemptHoldsTheLoop(t *testing.T) {
	measuresTime(t)
	c := newCrowd(t)
	spread := func(pod *v1.Pod, constraints int) {
		for k := range constraints {
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, v1.TopologySpreadConstraint{
				MaxSkew: 1, TopologyKey: fmt.Sprint("k", k), WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "app-1"}},
			})
		}
	}
	// terms adds terms so that only the last term, or no term, matches. Therefore all terms are
	// evaluated on each node.
	terms := func(pod *v1.Pod, many int, term func(k int) []v1.NodeSelectorRequirement) {
		required, affinity := &v1.NodeSelector{}, &v1.NodeAffinity{}
		for k := range many {
			t := v1.NodeSelectorTerm{MatchExpressions: term(k)}
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, t)
			affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution, v1.PreferredSchedulingTerm{Weight: 1, Preference: t})
		}
		if many > 1000 {
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "k0", Operator: v1.NodeSelectorOpExists}}})
		}
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = required
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: affinity}
	}
	for _, odd := range []struct {
		name, says string
		change     func(*v1.Pod)
	}{
		{"nothing odd", "remove", func(*v1.Pod) {}},
		{"8 spread constraints", "remove", func(pod *v1.Pod) { spread(pod, 8) }},
		{"20 spread constraints", "remove", func(pod *v1.Pod) { spread(pod, 20) }},
		{"1000 terms about pods", "remove", func(pod *v1.Pod) {
			anti, pro := &v1.PodAntiAffinity{}, &v1.PodAffinity{}
			for k := range 1000 {
				term := v1.PodAffinityTerm{TopologyKey: fmt.Sprint("k", k%20), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("other-", k)}}}
				anti.RequiredDuringSchedulingIgnoredDuringExecution = append(anti.RequiredDuringSchedulingIgnoredDuringExecution, term)
				pro.PreferredDuringSchedulingIgnoredDuringExecution = append(pro.PreferredDuringSchedulingIgnoredDuringExecution, v1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: term})
			}
			pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: anti, PodAffinity: pro}
		}},
		{"2000 tolerations", "remove", func(pod *v1.Pod) {
			for k := range 2000 {
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: fmt.Sprint(k), Operator: v1.TolerationOpExists})
			}
		}},
		{"2000 host ports", "remove", func(pod *v1.Pod) {
			for k := range 2000 {
				pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, v1.ContainerPort{HostPort: int32(k + 1), ContainerPort: 1, Protocol: v1.ProtocolTCP})
			}
		}},
		{"2000 host ports beside others", "remove", func(pod *v1.Pod) {
			ports := func(pod *v1.Pod, from int) {
				for k := range 2000 {
					pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, v1.ContainerPort{HostPort: int32(from + k), ContainerPort: 1, Protocol: v1.ProtocolTCP})
				}
			}
			for i := range crowdNodes {
				other := aPod(fmt.Sprint("low-", i, "-1"), "100m")
				other.Spec.Priority, other.Spec.NodeName = new(int32(-10)), fmt.Sprint("node-", i)
				ports(other, 3000)
				c.tell(Seen{Pods, other})
			}
			ports(pod, 1)
		}},
		{"5000 node affinity terms", "remove", func(pod *v1.Pod) {
			terms(pod, 5000, func(k int) []v1.NodeSelectorRequirement {
				return []v1.NodeSelectorRequirement{{Key: fmt.Sprint("k", k%20), Operator: v1.NodeSelectorOpIn, Values: []string{fmt.Sprint("v", k)}}}
			})
		}},
		{"1000 node affinity terms of two parts", "FailedScheduling", func(pod *v1.Pod) {
			terms(pod, 1000, func(k int) []v1.NodeSelectorRequirement {
				return []v1.NodeSelectorRequirement{{Key: fmt.Sprint("k", k%20), Operator: v1.NodeSelectorOpNotIn, Values: []string{fmt.Sprint("v", k)}}, {Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{fmt.Sprint("none-", k)}}}
			})
		}},
		{"20000 node affinity terms of two parts", "FailedScheduling", func(pod *v1.Pod) {
			terms(pod, 20000, func(k int) []v1.NodeSelectorRequirement {
				return []v1.NodeSelectorRequirement{{Key: fmt.Sprint("k", k%20), Operator: v1.NodeSelectorOpNotIn, Values: []string{fmt.Sprint("v", k)}}, {Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{fmt.Sprint("none-", k)}}}
			})
		}},
		{"20000 node affinity terms with names", "FailedScheduling", func(pod *v1.Pod) {
			required := &v1.NodeSelector{}
			for k := range 20000 {
				required.NodeSelectorTerms = append(required.NodeSelectorTerms, v1.NodeSelectorTerm{
					MatchExpressions: []v1.NodeSelectorRequirement{{Key: "k0", Operator: v1.NodeSelectorOpNotIn, Values: []string{"0", fmt.Sprint("v", k), "1"}}},
					MatchFields:      []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{fmt.Sprint("node-", k%crowdNodes)}}},
				})
			}
			pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
		}},
		{"20000 node affinity terms with keys of their own", "remove", func(pod *v1.Pod) {
			terms(pod, 20000, func(k int) []v1.NodeSelectorRequirement {
				return []v1.NodeSelectorRequirement{{Key: "k0", Operator: v1.NodeSelectorOpExists}, {Key: fmt.Sprint("own-", k), Operator: v1.NodeSelectorOpIn, Values: []string{"x"}}}
			})
		}},
		{"20000 node affinity terms and a spread constraint", "remove", func(pod *v1.Pod) {
			spread(pod, 1)
			terms(pod, 20000, func(k int) []v1.NodeSelectorRequirement {
				return []v1.NodeSelectorRequirement{{Key: fmt.Sprint("k", k%20), Operator: v1.NodeSelectorOpNotIn, Values: []string{fmt.Sprint("v", k)}}, {Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{fmt.Sprint("none-", k)}}}
			})
		}},
		{"a node affinity term of 20000 parts", "remove", func(pod *v1.Pod) {
			term := v1.NodeSelectorTerm{}
			for k := range 20000 {
				term.MatchExpressions = append(term.MatchExpressions, v1.NodeSelectorRequirement{Key: fmt.Sprint("own-", k), Operator: v1.NodeSelectorOpNotIn, Values: []string{"x"}})
			}
			pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term}}}}
		}},
		{"300 budgets", "remove", func(*v1.Pod) {
			for i := range 300 {
				c.tell(Seen{DisruptionBudgets, &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("b-", i), UID: types.UID(fmt.Sprint("b-", i))},
					Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
						{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprint("a", i), "b", "c"}}}}},
				}})
			}
		}},
		{"100 volumes", "FailedScheduling", func(pod *v1.Pod) {
			later, class := storagev1.VolumeBindingWaitForFirstConsumer, "made"
			c.tell(Seen{StorageClasses, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "csi.example.com", VolumeBindingMode: &later}})
			for i := range 100 {
				name := fmt.Sprint("claim-", i)
				c.tell(Seen{Claims, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: v1.PersistentVolumeClaimSpec{
					AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class,
					Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}}}})
				pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
			}
		}},
		{"devices in all combinations, and victims", "FailedScheduling", func(pod *v1.Pod) {
			c.devices()
			pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new("hard")}}
		}},
		{"devices in all combinations", "timed out trying to allocate devices", func(pod *v1.Pod) {
			for i := range crowdNodes { // free room, so that all nodes are searched
				c.tell(Gone{Pods, aPod(fmt.Sprint("low-", i, "-0"), "100m")})
			}
			pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new("hard")}}
		}},
	} {
		t.Run(odd.name, func(t *testing.T) {
			took, text := c.attempt(strings.ReplaceAll(odd.name, " ", "-"), holdsTheLoop, odd.change)
			if !strings.Contains(text, odd.says) {
				t.Errorf("it says nothing of %q: %.2000s", odd.says, text)
			}
			t.Log("the longest attempt took", took)
		})
	}
}

// devices gives every node devices, half of one kind and half of another, and creates a claim for
// more than half of one kind. Only trying all combinations shows that the claim cannot be
// satisfied.
func (c *crowd) devices() {
	c.tell(Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}})
	for i := range crowdNodes {
		node := fmt.Sprint("node-", i)
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node)}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}}}
		for d := range crowdDevices {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", d), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"half": {IntValue: new(int64(d % 2))}, "of": {IntValue: new(int64(i))}, // so that all nodes differ
			}})
		}
		c.tell(Seen{ResourceSlices, slice})
	}
	c.tell(Seen{ResourceClaims, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hard", UID: "hard"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: crowdDevices/2 + 1}}},
		Constraints: []resourcev1.DeviceConstraint{{MatchAttribute: new(resourcev1.FullyQualifiedName("gpu.example.com/half"))}},
	}}}})
}
