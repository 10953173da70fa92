// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/util/feature"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	plfeature "k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// Upstream does not reevaluate a node when it simulates the arrival of nominated pods or the
// removal of victims: it adjusts the state stored at PreFilter (AddPod, RemovePod). Some plugins do
// not adjust it completely. A difference is on purpose if this is its only cause, that is, if a
// full evaluation of the simulated cluster by upstream itself agrees with Berth.

// judgeAnew returns upstream's verdict on one node by full evaluations. It first evaluates a world
// in which the pods nominated to the node are bound to it. If the pod is accepted there, it returns
// the verdict in a world without the nominated pods.
func judgeAnew(ctx context.Context, w *World, only []string, pod *v1.Pod, node string) (*Verdict, error) {
	guests := slices.DeleteFunc(w.listNominated(), func(g *v1.Pod) bool {
		return g.Status.NominatedNodeName != node || g.UID == pod.UID || corev1helpers.PodPriority(g) < corev1helpers.PodPriority(pod)
	})
	supposed := *w
	supposed.Nominated, supposed.Pending = nil, nil

	if len(guests) > 0 {
		arrived := supposed
		arrived.Placed = slices.Clone(w.Placed)
		for _, g := range guests {
			g = g.DeepCopy()
			g.Spec.NodeName = node
			arrived.Placed = append(arrived.Placed, g)
		}
		if v, err := judgeNode(ctx, &arrived, only, pod, node); v != nil || err != nil {
			return v, err
		}
	}

	return judgeNode(ctx, &supposed, only, pod, node)
}

func judgeNode(ctx context.Context, w *World, only []string, pod *v1.Pod, node string) (*Verdict, error) {
	u, err := newUpstream(ctx, w, only)
	if err != nil {
		return nil, err
	}
	defer u.stop()
	a := u.judgeNodes(ctx, pod, slices.DeleteFunc(slices.Clone(u.nodes), func(n fwk.NodeInfo) bool { return n.Node().Name != node }))
	if a.failed != nil {
		return nil, a.failed
	}
	if a.all != nil {
		return a.all, nil
	}
	return a.nodes[node], nil
}

// anew is a framework handle by which preemption evaluates nodes fully at every step.
type anew struct {
	fwk.Handle
	world *World
	only  []string
}

func (h anew) RunPreFilterExtensionAddPod(context.Context, fwk.CycleState, *v1.Pod, fwk.PodInfo, fwk.NodeInfo) *fwk.Status {
	return nil
}

func (h anew) RunPreFilterExtensionRemovePod(context.Context, fwk.CycleState, *v1.Pod, fwk.PodInfo, fwk.NodeInfo) *fwk.Status {
	return nil
}

func (h anew) RunFilterPluginsWithNominatedPods(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	name := node.Node().Name
	supposed := *h.world
	supposed.Placed = slices.DeleteFunc(slices.Clone(supposed.Placed), func(p *v1.Pod) bool { return p.Spec.NodeName == name })
	for _, p := range node.GetPods() {
		supposed.Placed = append(supposed.Placed, p.GetPod())
	}
	v, err := judgeAnew(ctx, &supposed, h.only, pod, name)
	switch {
	case err != nil:
		return fwk.AsStatus(err)
	case v == nil:
		return nil
	case v.Unresolvable:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, v.Reasons...)
	}
	return fwk.NewStatus(fwk.Unschedulable, v.Reasons...)
}

// preemptionAnew returns upstream's preemption plugin with a full evaluation at every step.
func (u *upstream) preemptionAnew(ctx context.Context, w *World, only []string) (*defaultpreemption.DefaultPreemption, error) {
	args := &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 100}
	return defaultpreemption.New(ctx, args, anew{u.framework, w, only}, plfeature.NewSchedulerFeaturesFromGates(feature.DefaultFeatureGate))
}

// preemptAnew lists the candidates for preemption like preemptFor, by full evaluations.
func (u *upstream) preemptAnew(ctx context.Context, w *World, only []string, a *attempt, pod *v1.Pod) ([]victims, error) {
	plugin, err := u.preemptionAnew(ctx, w, only)
	if err != nil {
		return nil, err
	}
	return u.listCandidates(ctx, w, plugin, a, pod)
}

// messageAnew returns upstream's message by full evaluations, for a pod without candidates for
// preemption.
func (u *upstream) messageAnew(ctx context.Context, w *World, only []string, a *attempt, pod *v1.Pod) string {
	plugin, err := u.preemptionAnew(ctx, w, only)
	if err != nil {
		return err.Error()
	}
	_, status := plugin.PostFilter(ctx, a.state, pod, a.fit.Diagnosis.NodeToStatus)
	before, _, _ := strings.Cut(a.fit.Diagnosis.PostFilterMsg, "preemption: ")
	a.fit.Diagnosis.PostFilterMsg = before + status.Message()
	return a.fit.Error()
}
