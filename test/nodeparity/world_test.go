// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodeparity

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var worlds = flag.Int("worlds", 5_000, "random pods and nodes that each test compares")

const gpu, unknown = v1.ResourceName("example.com/gpu"), v1.ResourceName("example.com/elsewhere")

// dice draws random numbers that depend only on the seed.
type dice struct{ *rand.Rand }

// each calls compare with many seeds, and stops at the first difference.
func each(t *testing.T, compare func(d dice) (difference string)) {
	for seed := range uint64(*worlds) {
		if difference := compare(dice{rand.New(rand.NewPCG(seed, 40))}); difference != "" {
			t.Fatalf("seed %d: %s", seed, difference)
		}
	}
}

// oneIn returns true with a probability of 1/n.
func (d dice) oneIn(n int) bool { return d.IntN(n) == 0 }

func pick[T any](d dice, from ...T) T { return from[d.IntN(len(from))] }

func amount(n int, format resource.Format) resource.Quantity {
	return *resource.NewQuantity(int64(n), format)
}

// node returns a random node. It is small, so that pods often do not fit.
func (d dice) node() *v1.Node {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{"disk": pick(d, "ssd", "hdd"), v1.LabelOSStable: "linux"}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: *resource.NewMilliQuantity(int64(d.IntN(9)*500), resource.DecimalSI), v1.ResourceMemory: amount(d.IntN(9)*100, resource.BinarySI),
			v1.ResourceEphemeralStorage: amount(d.IntN(9)*100, resource.BinarySI), v1.ResourcePods: amount(2+d.IntN(6), resource.DecimalSI),
		}},
	}
	if d.oneIn(2) {
		node.Status.Allocatable[gpu] = amount(d.IntN(4), resource.DecimalSI)
	}
	for d.oneIn(3) {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: pick(d, "a", "b"), Value: pick(d, "", "x"),
			Effect: pick(d, v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule)})
	}
	return node
}

func (d dice) requests() v1.ResourceList {
	list := v1.ResourceList{}
	for name, quantity := range map[v1.ResourceName]resource.Quantity{
		v1.ResourceCPU: *resource.NewMilliQuantity(int64(d.IntN(4)*250), resource.DecimalSI), v1.ResourceMemory: amount(d.IntN(4)*50, resource.BinarySI),
		v1.ResourceEphemeralStorage: amount(d.IntN(4)*50, resource.BinarySI), gpu: amount(d.IntN(2), resource.DecimalSI), unknown: amount(1, resource.DecimalSI),
	} {
		if kept := d.oneIn(2); kept && (name != unknown && name != gpu || d.oneIn(4)) {
			list[name] = quantity
		}
	}
	return list
}

func (d dice) container(name string) v1.Container {
	c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: d.requests()}}
	if d.oneIn(5) {
		c.Ports = []v1.ContainerPort{{HostPort: int32(pick(d, 0, 80, 81)), HostIP: pick(d, "", "0.0.0.0", "10.0.0.1", "10.0.0.2"), Protocol: pick(d, "", v1.ProtocolTCP, v1.ProtocolUDP)}}
	}
	return c
}

// pod returns a random pod.
func (d dice) pod(name string) *v1.Pod {
	priority := int32(pick(d, 0, 0, 7, 1000, 2_000_000_000))
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec:       v1.PodSpec{NodeName: "here", Priority: &priority, Containers: []v1.Container{d.container("app")}},
	}
	if d.oneIn(3) {
		pod.Spec.Containers = append(pod.Spec.Containers, d.container("second"))
	}
	if d.oneIn(4) {
		first := d.container("init")
		if d.oneIn(2) {
			first.RestartPolicy = new(v1.ContainerRestartPolicy)
			*first.RestartPolicy = v1.ContainerRestartPolicyAlways
		}
		pod.Spec.InitContainers = []v1.Container{first}
	}
	if d.oneIn(3) {
		pod.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m"), v1.ResourceMemory: amount(d.IntN(3)*30, resource.BinarySI)}
	}
	if d.oneIn(8) {
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: amount(d.IntN(4)*60, resource.BinarySI)}}
	}
	d.demand(pod)
	return pod
}

// demand adds random constraints other than resources to the pod.
func (d dice) demand(pod *v1.Pod) {
	if d.oneIn(6) {
		pod.Spec.NodeSelector = map[string]string{"disk": pick(d, "ssd", "hdd")}
	}
	if d.oneIn(6) {
		term := v1.NodeSelectorRequirement{Key: "disk", Operator: pick(d, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn), Values: []string{pick(d, "ssd", "hdd")}}
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{term}}}}}}
	}
	for d.oneIn(2) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: pick(d, "a", "b"), Value: pick(d, "", "x"),
			Operator: pick(d, v1.TolerationOpEqual, v1.TolerationOpExists, ""), Effect: pick(d, "", v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule)})
	}
	if d.oneIn(30) {
		pod.Labels = map[string]string{v1.LabelOSStable: pick(d, "linux", "windows")}
	}
	if d.oneIn(30) {
		pod.Spec.OS = &v1.PodOS{Name: pick(d, v1.Linux, v1.Windows)}
	}
	if d.oneIn(30) {
		pod.Spec.NodeName = "there"
	}
}

func (d dice) pods(most int) (all []*v1.Pod) {
	for i := range d.IntN(most + 1) {
		all = append(all, d.pod(fmt.Sprint("pod-", i)))
	}
	return all
}
