// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"context"
	"io"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/controlplane"
)

func privilegedPodIsAccepted(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "privileged"}, Spec: corev1.PodSpec{Containers: containers()}}
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	c.createPod(t, ns, pod)
}

func comparisonInTolerationsIsAccepted(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	c.createPod(t, ns, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "compares"},
		Spec: corev1.PodSpec{
			Containers:  containers(),
			Tolerations: []corev1.Toleration{{Key: "berth.dev/level", Operator: "Gt", Value: "3", Effect: corev1.TaintEffectNoSchedule}},
		},
	})
}

func admissionFillsIn(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	if _, err := c.api.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "kata-fc"},
		Handler:    "kata-fc",
		Overhead:   &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: corev1.PodSpec{
		Containers: containers(), RuntimeClassName: ptr.To("kata-fc"), PriorityClassName: "system-node-critical",
	}}
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1"), "example.com/gpu": resource.MustParse("1")}
	pod.Spec.Containers[0].Resources.Limits = pod.Spec.Containers[0].Resources.Requests
	var created *corev1.Pod
	eventually(t, func(ctx context.Context) (err error) { // the plugin must first observe the runtime class
		created, err = c.api.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	if cpu := created.Spec.Overhead.Cpu(); cpu.String() != "250m" {
		t.Errorf("RuntimeClass: overhead %v", created.Spec.Overhead)
	}
	if created.Spec.Priority == nil || *created.Spec.Priority != 2000001000 {
		t.Errorf("Priority: %v", created.Spec.Priority)
	}
	for plugin, want := range map[string]corev1.Toleration{
		"DefaultTolerationSeconds":   {Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)},
		"ExtendedResourceToleration": {Key: "example.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		"PodTolerationRestriction":   {Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	} {
		if !slices.ContainsFunc(created.Spec.Tolerations, func(have corev1.Toleration) bool { return toJSON(have) == toJSON(want) }) {
			t.Errorf("%s: no %s among %s", plugin, toJSON(want), toJSON(created.Spec.Tolerations))
		}
	}
}

// evictionAndNodeHealthAreLeftToBerth checks the list of controllers, because a test cannot wait
// for the absence of evictions.
func evictionAndNodeHealthAreLeftToBerth(t *testing.T, c *cluster) {
	for _, name := range []string{"node-lifecycle-controller", "taint-eviction-controller", "device-taint-eviction-controller",
		"node-ipam-controller", "service-lb-controller", "node-route-controller", "persistentvolume-attach-detach-controller"} {
		if slices.Contains(controlplane.DefaultControllers(), name) {
			t.Errorf("%s is among the default controllers", name)
		}
	}
}

// stamp is an admission plugin that sets an annotation on pods.
type stamp struct{ *admission.Handler }

func (stamp) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if pod, ok := a.GetObject().(*core.Pod); ok {
		pod.Annotations = map[string]string{"stamped": "yes"}
	}
	return nil
}

func TestAdmissionPluginTakesThePlaceOfUpstreams(t *testing.T) {
	c := controlplane.Start(t, func(o *controlplane.Options) {
		o.UpstreamAdmission = true
		o.Admission = []controlplane.AdmissionPlugin{{
			Name: "Stamp",
			New: func(io.Reader) (admission.Interface, error) {
				return stamp{admission.NewHandler(admission.Create)}, nil
			},
			Replaces: []string{"DefaultTolerationSeconds", "PodTolerationRestriction"},
		}}
	})
	pod, err := clientFor(t, c.Config).CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: corev1.PodSpec{Containers: containers()},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Annotations["stamped"] != "yes" {
		t.Error("the plugin was not asked")
	}
	if len(pod.Spec.Tolerations) > 0 {
		t.Errorf("the plugins it replaces still wrote %s", toJSON(pod.Spec.Tolerations))
	}
}
