// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// podsOfClass is the number of pods per class in the memory measurements.
const podsOfClass = 6

// memoryOf returns the memory of the given numbers of pods and workloads in the cluster and the
// decider.
func memoryOf(t testing.TB, nodes, apps, pods int, mode string) int {
	c := benchCluster(nodes, false)
	d := New(c, plugins.Default(), 1)
	place := func(i, app int) {
		p := c.Pending(memoryPod(t, i, app, mode))
		decision := d.Decide(p)
		if decision.Node == nil {
			t.Fatalf("pod %d: no node", i)
		}
		c.Place(p, decision.Node)
	}
	place(pods, apps) // data shared by all pods
	before := heap()
	for i := range pods {
		place(i, i%apps)
	}
	took := heap() - before
	runtime.KeepAlive(c)
	runtime.KeepAlive(d)
	return took
}

// memoryPod returns a pod as decoded from a response of the API server. Its workload has a
// selector, an image and a controller not shared with any other workload.
func memoryPod(t testing.TB, i, app int, mode string) *v1.Pod {
	of := benchPod(app, "1000 apps, "+mode)
	of.Name, of.UID = fmt.Sprintf("app-%d-7f9c8d6b5-%05d", app, i), types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))
	of.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: fmt.Sprintf("app-%d-7f9c8d6b5", app), UID: types.UID(fmt.Sprintf("10000000-0000-0000-0000-%012d", app)), Controller: new(true),
	}}
	policy := v1.PreemptLowerPriority
	of.Spec.PreemptionPolicy, of.Spec.ServiceAccountName, of.Spec.RestartPolicy, of.Spec.DNSPolicy = &policy, "default", v1.RestartPolicyAlways, v1.DNSClusterFirst
	of.Spec.Volumes = []v1.Volume{{Name: "kube-api-access", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}}}
	for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		of.Spec.Tolerations = append(of.Spec.Tolerations, v1.Toleration{
			Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: new(int64(300)),
		})
	}
	main := &of.Spec.Containers[0]
	main.Image = fmt.Sprintf("example.com/team/app-%d:v1.2.3", app)
	main.Env = []v1.EnvVar{{Name: "MODE", Value: "production"}, {Name: "APP", Value: of.Labels["app"]}}
	main.VolumeMounts = []v1.VolumeMount{{Name: "kube-api-access", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}}
	main.Ports = []v1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: v1.ProtocolTCP}}
	main.LivenessProbe = &v1.Probe{PeriodSeconds: 10}
	main.Resources.Limits = main.Resources.Requests
	data, err := of.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return pod
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// mostBytesOfClass is a twentieth more than the measured memory of a class of six pods, including
// the pods.
const mostBytesOfClass = 2000

// TestMemoryOfClass verifies that the memory of a workload with unique selectors depends on its
// pods, not on the number of nodes, and excludes pod fields needed only by the kubelet.
func TestMemoryOfClass(t *testing.T) {
	for _, of := range []struct {
		mode  string
		nodes int
	}{{"spread", 300}, {"spread", 2000}, {"anti", 300}} {
		const few, more = 2400, 4800 // classes; plans are kept for some
		took := (memoryOf(t, of.nodes, more, podsOfClass*more, of.mode) - memoryOf(t, of.nodes, few, podsOfClass*few, of.mode)) / (more - few)
		t.Logf("%s, %d nodes: %d bytes for a class of %d pods", of.mode, of.nodes, took, podsOfClass)
		if took > mostBytesOfClass {
			t.Errorf("%s, %d nodes: a class of %d pods takes %d bytes, more than %d", of.mode, of.nodes, podsOfClass, took, mostBytesOfClass)
		}
	}
}

// BenchmarkMemoryOfClass measures the memory per class for 10,000 classes of six pods, and the
// pods' share of this memory. Run it with -benchtime 1x.
func BenchmarkMemoryOfClass(b *testing.B) {
	const nodes, classes, pods = 5000, 10_000, podsOfClass * 10_000
	pod := float64(memoryOf(b, nodes, 10, pods, "plain")) / pods
	for _, mode := range []string{"spread", "affinity", "anti"} {
		b.Run(mode, func(b *testing.B) {
			for b.Loop() {
				class := float64(memoryOf(b, nodes, classes, pods, mode)) / classes
				b.ReportMetric(class, "B/class")
				b.ReportMetric(class-podsOfClass*pod, "B/class-but-for-pods")
			}
		})
	}
}
