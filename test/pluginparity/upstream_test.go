// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pluginparity

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	upstreamplugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/berth-k8s/berth/test/conformance"
)

func init() { metrics.Register() }

// upstream is Kubernetes' scheduling framework with the plugins.
type upstream struct {
	framework.Framework
	nodes      []fwk.NodeInfo
	preemption *defaultpreemption.DefaultPreemption
	budgets    []*policyv1.PodDisruptionBudget
}

func newUpstream(ctx context.Context, w *conformance.World) (*upstream, error) {
	ctx = klog.NewContext(ctx, klog.Logger{})
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(file), nil, nil)
	if err != nil {
		return nil, err
	}
	profile := &object.(*schedulerconfig.KubeSchedulerConfiguration).Profiles[0]
	books := cache.New(ctx, nil, false, false)
	for _, n := range w.Nodes {
		books.AddNode(klog.FromContext(ctx), n)
	}
	for _, p := range w.Placed {
		if err := books.AddPod(klog.FromContext(ctx), p); err != nil {
			return nil, err
		}
	}
	snapshot := cache.NewEmptySnapshot()
	if err := books.UpdateSnapshot(klog.FromContext(ctx), snapshot); err != nil {
		return nil, err
	}
	registry := upstreamplugins.NewInTreeRegistry()
	for name, factory := range factories {
		registry[name] = factory
	}
	client := fake.NewClientset()
	made, err := frameworkruntime.NewFramework(ctx, registry, profile,
		frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(informers.NewSharedInformerFactory(client, 0)),
		frameworkruntime.WithSnapshotSharedLister(snapshot), frameworkruntime.WithMutableSnapshotLister(snapshot), frameworkruntime.WithParallelism(1),
		frameworkruntime.WithWaitingPods(frameworkruntime.NewWaitingPodsMap()), frameworkruntime.WithPodsInPreBind(frameworkruntime.NewPodsInPreBindMap()))
	if err != nil {
		return nil, err
	}
	nominations := nominator{}
	for _, p := range waiting(w) {
		info, err := framework.NewPodInfo(p)
		if err != nil {
			return nil, err
		}
		nominations[p.Status.NominatedNodeName] = append(nominations[p.Status.NominatedNodeName], info)
	}
	made.SetPodNominator(nominations)
	u := &upstream{Framework: made, budgets: budgetsOf(w)}
	if u.nodes, err = snapshot.NodeInfos().List(); err != nil {
		return nil, err
	}
	u.nodes = slices.SortedFunc(slices.Values(u.nodes), func(a, b fwk.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) })
	u.preemption, err = defaultpreemption.New(ctx, &schedulerconfig.DefaultPreemptionArgs{MinCandidateNodesPercentage: 100}, made, feature.Features{})
	return u, err
}

// nominator holds the pods nominated to each node.
type nominator map[string][]fwk.PodInfo

func (n nominator) NominatedPodsForNode(node string) []fwk.PodInfo              { return n[node] }
func (nominator) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (nominator) DeleteNominatedPodIfExists(*v1.Pod)                            {}
func (nominator) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo)          {}

// judge returns the verdicts and scores of all nodes for the pod.
func (u *upstream) judge(ctx context.Context, pod *v1.Pod) string {
	state, said, feasible, err := u.filter(ctx, pod)
	if err != "" {
		return err
	}
	if len(feasible) > 1 {
		if status := u.RunPreScorePlugins(ctx, state, pod, feasible); !status.IsSuccess() {
			return "error: " + status.Message()
		}
		scores, status := u.RunScorePlugins(ctx, state, pod, feasible)
		if !status.IsSuccess() {
			return "error: " + status.Message()
		}
		for _, s := range scores {
			for _, p := range s.Scores {
				said[s.Name] += fmt.Sprintf(" %s %d", p.Name, p.Score)
			}
			said[s.Name] += fmt.Sprintf(" total %d", s.TotalScore)
		}
	}
	return inOrder(said)
}

func (u *upstream) filter(ctx context.Context, pod *v1.Pod) (state fwk.CycleState, said map[string]string, feasible []fwk.NodeInfo, err string) {
	state, said = framework.NewCycleState(), map[string]string{}
	result, status, _ := u.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return nil, nil, nil, fmt.Sprintf("all: %s", status.Message())
	}
	for _, node := range u.nodes {
		name := node.Node().Name
		if !result.AllNodes() && !result.NodeNames.Has(name) {
			said[name] = "not looked at"
			continue
		}
		status := u.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
		switch {
		case status.IsSuccess():
			said[name] = "passes"
			feasible = append(feasible, node)
		case status.IsRejected():
			said[name] = rejects(status.Plugin(), status.Code() == fwk.UnschedulableAndUnresolvable, status.Reasons())
		default:
			return nil, nil, nil, "error: " + status.Message()
		}
	}
	return state, said, feasible, ""
}

// rejects formats a rejection with sorted reasons, because the reasons for extended resources have
// no order.
func rejects(plugin string, unresolvable bool, reasons []string) string {
	return fmt.Sprintf("%s rejects, %t: %s", plugin, unresolvable, strings.Join(slices.Sorted(slices.Values(reasons)), ", "))
}

func inOrder(said map[string]string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(said)) {
		words = append(words, name+" "+said[name])
	}
	return "\n\t" + strings.Join(words, "\n\t")
}

// budgetsOf returns the disruption budgets of a world.
func budgetsOf(w *conformance.World) (list []*policyv1.PodDisruptionBudget) {
	for _, o := range w.Others {
		if b, ok := o.(*policyv1.PodDisruptionBudget); ok {
			list = append(list, b)
		}
	}
	return list
}

// waiting returns the unbound pods of a world that are nominated to a node.
func waiting(w *conformance.World) (list []*v1.Pod) {
	for _, p := range slices.Concat(w.Nominated, w.Pending) {
		if p.Status.NominatedNodeName != "" && p.Spec.NodeName == "" && !slices.ContainsFunc(w.Placed, func(o *v1.Pod) bool { return o.UID == p.UID }) {
			list = append(list, p)
		}
	}
	return list
}

// victims returns the pods that upstream would remove from the node for the pod, and the number of
// violated budgets.
func (u *upstream) victims(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) ([]*v1.Pod, int, *fwk.Status) {
	possible, err := u.preemption.Evaluator.GetVictimsOnNode(ctx, node)
	if err != nil {
		return nil, 0, fwk.AsStatus(err)
	}
	return u.preemption.SelectVictimsOnNode(ctx, state, pod, node.Snapshot(), possible, u.budgets)
}
