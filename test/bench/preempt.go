// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/test/bench/driver"
)

// PreemptionGoal is the targeted ratio of the cost of kube-scheduler's preemption, which evaluates
// a tenth of the candidates, to the cost of Berth's.
const PreemptionGoal = 100

// full is the mode in which low-priority pods fill every node and high-priority pods arrive.
var full = Mode{Mode: driver.Mode{Name: "preemption"}}

const lowPerNode = 10

// lowPod returns the k-th pod on the i-th node. It requests a tenth of the node's CPU.
func lowPod(i, k int) *v1.Pod {
	pod := full.newPod(i*lowPerNode + k)
	driver.Request(&pod.Spec, 3200, 1000)
	pod.Spec.NodeName = driver.NodeName(i)
	started := metav1.NewTime(time.Unix(int64(1_600_000_000+i*lowPerNode+k), 0))
	pod.Status.StartTime = &started
	return pod
}

// highPod returns the i-th high-priority pod, which fits after one low pod has left.
func highPod(i int) *v1.Pod {
	pod := full.newPod(10_000_000 + i)
	driver.Request(&pod.Spec, 3000, 1000)
	pod.Spec.Priority = &high
	return pod
}

// preemptUpstream measures kube-scheduler's preemption: it finds that a pod fits nowhere, selects
// the victims, removes them and places the pod.
func preemptUpstream(ctx context.Context, nodes, most int, percentage int32, atMost time.Duration) (Cost, error) {
	u, err := newUpstream(ctx, full.newNodes(nodes), 0)
	if err != nil {
		return Cost{}, err
	}

	defer u.stop()
	placed := map[string]*v1.Pod{}
	for i := range nodes {
		for k := range lowPerNode {
			pod := lowPod(i, k)
			placed[pod.Name] = pod
			if err := u.scheduler.Cache.AddPod(u.logger, pod); err != nil {
				return Cost{}, err
			}
		}
	}

	args := &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: percentage, MinCandidateNodesAbsolute: 100}
	plugin, err := defaultpreemption.New(ctx, args, u.framework, feature.Features{})
	if err != nil {
		return Cost{}, err
	}
	return measureEach(1, most, atMost, highPod, func(pod *v1.Pod) error { return u.preemptFor(ctx, plugin, pod, placed) })
}

func (u *upstream) preemptFor(ctx context.Context, plugin *defaultpreemption.DefaultPreemption, pod *v1.Pod,
	placed map[string]*v1.Pod) error {
	if err := u.scheduler.Cache.UpdateSnapshot(u.logger, u.snapshot); err != nil {
		return err
	}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return err
	}

	state := framework.NewCycleState()
	_, err = u.scheduler.SchedulePod(ctx, u.framework, state, &framework.QueuedPodInfo{PodInfo: info})
	fit, ok := err.(*framework.FitError)
	if !ok {
		return fmt.Errorf("%s should fit nowhere: %w", pod.Name, err)
	}

	potential, err := fit.Diagnosis.NodeToStatus.NodesForStatusCode(u.snapshot.NodeInfos(), fwk.Unschedulable)
	if err != nil {
		return err
	}

	offset, enough := plugin.GetOffsetAndNumCandidates(int32(len(potential)))
	candidates, _, err := plugin.Evaluator.DryRunPreemption(ctx, state, pod, potential, nil, offset, enough)
	if err != nil {
		return err
	}

	best := plugin.Evaluator.SelectCandidate(ctx, candidates)
	if best == nil {
		return fmt.Errorf("no candidate for %s", pod.Name)
	}

	for _, victim := range best.Victims().Pods {
		if err := u.scheduler.Cache.RemovePod(u.logger, placed[victim.Name]); err != nil {
			return err
		}
	}

	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = best.Name()
	return u.scheduler.Cache.AssumePod(u.logger, assumed)
}

// preemptBerth measures the same steps with Berth.
func preemptBerth(nodes, most int, atMost time.Duration) (Cost, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	b := newBerth(&full, nodes)
	for i := range nodes {
		for k := range lowPerNode {
			b.cluster.SetPod(lowPod(i, k))
		}
	}
	return measureEach(1, most, atMost, highPod, func(pod *v1.Pod) error { return b.preemptFor(b.cluster.Pending(pod)) })
}

func (b *berth) preemptFor(p *cluster.Pod) error {
	if decision := b.decider.Decide(p); decision.Node != nil || decision.Err != nil {
		return fmt.Errorf("%s should fit nowhere: %w", p.Name(), decision.Err)
	}
	found := b.decider.Preempt(p)
	if found.Node == nil {
		return fmt.Errorf("no candidate for %s: %s", p.Name(), found.Message)
	}
	for _, victim := range found.Victims {
		b.cluster.RemovePod(victim.UID())
	}
	b.cluster.Place(p, found.Node)
	return nil
}
