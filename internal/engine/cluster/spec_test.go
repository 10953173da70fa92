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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// TestClassKeepsWhatDecisionsDependOn checks, field by field of a spec, that a class keeps exactly
// the fields relevant to decisions.
func TestClassKeepsWhatDecisionsDependOn(t *testing.T) {
	for name, change := range podSpecFields {
		pod := examplePod()
		if change == nil {
			fill(reflect.ValueOf(&pod.Spec).Elem().FieldByName(name))
		} else {
			change(pod)
		}
		class := New().Pending(pod).Class
		object := class.Spec.Object()
		kept := reflect.ValueOf(object).FieldByName(name)
		if change == nil && !kept.IsZero() || change != nil && kept.IsZero() {
			t.Errorf("of spec.%s, this is kept: %v", name, kept)
		}
		again := pod.DeepCopy()
		again.Spec = class.Spec.Object()
		if keyOf(again) != keyOf(pod) {
			t.Errorf("a pod with what is kept of spec.%s is of another class: %v", name, kept)
		}
	}
}

// fill sets a field to an arbitrary value.
func fill(field reflect.Value) {
	switch field.Kind() {
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
	case reflect.Slice:
		field.Set(reflect.MakeSlice(field.Type(), 1, 1))
	case reflect.String:
		field.SetString("x")
	case reflect.Bool:
		field.SetBool(true)
	default:
		panic("a kind that no spec has: " + field.Kind().String())
	}
}

// TestClassKeepsLittleOfContainers verifies that a class does not retain fields needed only by a
// kubelet.
func TestClassKeepsLittleOfContainers(t *testing.T) {
	pod := examplePod()
	requests := pod.Spec.Containers[0].Resources.Requests
	always := v1.ContainerRestartPolicyAlways
	pod.Spec.Containers[0] = v1.Container{
		Name: "c", Image: "app:v1", Resources: v1.ResourceRequirements{Requests: requests, Limits: requests}, RestartPolicy: &always,
		Env: []v1.EnvVar{{Name: "E"}}, VolumeMounts: []v1.VolumeMount{{Name: "m"}}, LivenessProbe: &v1.Probe{}, Command: []string{"run"},
		Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 80}, {ContainerPort: 81, HostPort: 81, Protocol: v1.ProtocolTCP}},
	}
	pod.Spec.Volumes = []v1.Volume{
		{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}},
		{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	}
	before := pod.DeepCopy()
	spec := New().Pending(pod).Class.Spec
	want := v1.Container{
		Name: "c", Image: "app:v1", Resources: v1.ResourceRequirements{Requests: requests}, RestartPolicy: &always,
		Ports: []v1.ContainerPort{{HostPort: 81, Protocol: v1.ProtocolTCP}},
	}
	if !reflect.DeepEqual(spec.Object().Containers, []v1.Container{want}) {
		t.Errorf("kept: %+v", spec.Containers)
	}
	if len(spec.Volumes) != 1 || spec.Volumes[0].Name != "data" {
		t.Errorf("kept: %+v", spec.Volumes)
	}
	if !reflect.DeepEqual(pod, before) {
		t.Errorf("the pod was changed: %v", pod)
	}
}

// TestClassesShareWhatIsEqual verifies that classes share equal parts of their specs, both for jobs
// that differ in their labels and for workloads that differ in their selectors.
func TestClassesShareWhatIsEqual(t *testing.T) {
	c := New()
	made := 0
	class := func(app string, change func(*v1.Pod)) *PodClass {
		pod := examplePod()
		made++
		pod.Name, pod.UID, pod.Labels = fmt.Sprint("p", made), types.UID(fmt.Sprint("u", made)), map[string]string{"app": app}
		if change(pod); pod.Spec.Containers[0].Resources.Requests == nil {
			t.Fatal("no requests")
		}
		return c.Pending(pod).Class
	}
	same := func(a, b any) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }

	nothing := func(*v1.Pod) {}
	if a, b := class("a", nothing), class("b", nothing); a == b || a.Spec != b.Spec {
		t.Error("two classes that differ in their labels have two specs")
	}

	of := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	spread := func(p *v1.Pod) {
		app := p.Labels["app"]
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{TopologyKey: "zone", LabelSelector: of(app)}, {TopologyKey: "host", LabelSelector: of(app)}}
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{TopologyKey: "zone", LabelSelector: of(app), NamespaceSelector: of("other")}},
		}}
		p.Spec.Tolerations = []v1.Toleration{{Key: "k", TolerationSeconds: new(int64(300))}}
	}
	a, b := class("a", spread), class("b", spread)
	if a.Spec == b.Spec || !same(a.Spec.Containers, b.Spec.Containers) || a.Spec.Shape != b.Spec.Shape || a.Demand != b.Demand ||
		!same(a.Spec.TopologySpreadConstraints, b.Spec.TopologySpreadConstraints) || !same(a.RequiredAntiAffinity[0].Namespaces, b.RequiredAntiAffinity[0].Namespaces) {
		t.Errorf("%v and %v", a.Spec, b.Spec)
	}
	for i, selector := range a.Spec.SpreadSelectors {
		if selector != a.RequiredAntiAffinity[0].Selector || !selector.Matches(a.Labels) || selector.Matches(b.Labels) {
			t.Errorf("constraint %d: %v", i, selector)
		}
	}
	term := &a.RequiredAntiAffinity[0]
	if !term.Selector.Matches(a.Labels) || term.Selector.Matches(b.Labels) || !term.NamespaceSelector.Matches(labels.Set{"app": "other"}) {
		t.Errorf("the term is %v", term)
	}

	// The spelling of an amount does not count. The exact amount counts, even if decisions round
	// it.
	fraction := func(amount string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse(amount)}
		}
	}
	half, one, kilo := class("half", fraction("500m")), class("one", fraction("1")), class("kilo", fraction("1000m"))
	if same(half.Spec.Containers, one.Spec.Containers) || !same(one.Spec.Containers, kilo.Spec.Containers) {
		t.Errorf("%v, %v, %v", half.Spec.Containers, one.Spec.Containers, kilo.Spec.Containers)
	}

	// Names of containers are kept, though they rarely distinguish classes.
	renamed := class("renamed", func(p *v1.Pod) { p.Spec.Containers[0].Name = "d" })
	if renamed.Spec.Containers[0].Name != "d" {
		t.Errorf("a container is kept as %s", renamed.Spec.Containers[0].Name)
	}
}
