// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package words

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// status sets a random status, such as a kubelet reports during a resize.
func (s source) status(pod *v1.Pod) {
	report := func(containers []v1.Container) []v1.ContainerStatus {
		var list []v1.ContainerStatus
		for _, c := range containers {
			if s.chance(70) {
				status := v1.ContainerStatus{Name: c.Name, AllocatedResources: s.amounts()}
				if s.chance(70) {
					status.Resources = &v1.ResourceRequirements{Requests: s.amounts(), Limits: s.amounts()}
				}
				list = append(list, status)
			}
		}
		return list
	}
	pod.Status.ContainerStatuses = report(pod.Spec.Containers)
	pod.Status.InitContainerStatuses = report(pod.Spec.InitContainers)
	if s.chance(40) {
		pod.Status.Resources = &v1.ResourceRequirements{Requests: s.amounts(), Limits: s.amounts()}
		pod.Status.AllocatedResources = s.amounts()
	}
	if s.chance(40) {
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Status: v1.ConditionTrue,
			Reason: pick(s, v1.PodReasonInfeasible, v1.PodReasonDeferred)}}
	}
}

func TestPlacedPodsCountAsInTheScheduler(t *testing.T) {
	for seed := range uint64(trials) {
		s := newSource(seed)
		pod := s.pod()
		if s.chance(60) {
			s.status(pod)
		}
		info, err := framework.NewPodInfo(pod)
		if err != nil && info == nil {
			t.Fatal(err)
		}
		theirs := info.CalculateResource()
		ours := framework.NewResource(rules.RequestsPlaced(pod))
		if got, want := fmt.Sprintf("%+v", ours), fmt.Sprintf("%+v", theirs.Resource); got != want {
			t.Fatalf("seed %d: Berth counts %s, kube-scheduler %s", seed, got, want)
		}
		score := rules.ScoreRequestsPlaced(pod)
		if cpu, memory := score.Cpu().MilliValue(), score.Memory().Value(); cpu != theirs.Non0CPU || memory != theirs.Non0Mem {
			t.Fatalf("seed %d: Berth scores %d and %d, kube-scheduler %d and %d", seed, cpu, memory, theirs.Non0CPU, theirs.Non0Mem)
		}
	}
}

func TestServiceClassAndPortsAreUpstreams(t *testing.T) {
	for seed := range uint64(trials) {
		pod := newSource(seed).pod()
		if got, want := rules.QOS(pod), qos.GetPodQOS(pod); got != want {
			t.Fatalf("seed %d: Berth says %s, upstream %s", seed, got, want)
		}
		if got, want := rules.HostPorts(pod), schedutil.GetHostPorts(pod); !slices.Equal(got, want) {
			t.Fatalf("seed %d: Berth says %v, upstream %v", seed, got, want)
		}
	}
}

// TestSoundTolerationsMeanTheSame verifies that every valid toleration tolerates the same taints in
// Berth and in upstream.
func TestSoundTolerationsMeanTheSame(t *testing.T) {
	compared := 0
	for seed := range uint64(trials) {
		s := newSource(seed)
		for range 10 {
			toleration, taint := s.toleration(), s.taint()
			if len(rules.ValidateTolerations([]v1.Toleration{toleration}, nil)) > 0 {
				continue
			}
			compared++
			if got, want := rules.Tolerates(&toleration, &taint), toleration.ToleratesTaint(klog.Background(), &taint, true); got != want {
				t.Fatalf("seed %d: %+v, %+v: Berth says %v, upstream %v", seed, toleration, taint, got, want)
			}
		}
	}
	t.Logf("%d pairs", compared)
}
