// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package powerbudget is a scheduler plugin as one would write it for kube-scheduler: it imports
// nothing of Berth.
//
// Nodes are in racks (label example.com/rack), a rack supplies a limited number of watts (the
// plugin's arguments), and pods declare the watts they draw (annotation example.com/watts). The
// plugin rejects nodes of racks without enough power left for the pod, and prefers the rack with
// the most power left. A pod of higher priority may preempt other pods for their power: AddPod and
// RemovePod account for the pods that preemption adds and removes hypothetically.
package powerbudget

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plugin's name in configuration files.
const Name = "PowerBudget"

const (
	rackLabel       = "example.com/rack"
	wattsAnnotation = "example.com/watts"
)

// Args are the plugin's arguments.
type Args struct {
	// Racks holds the watts available in each rack. Racks that are not listed can draw any amount.
	Racks map[string]int64 `json:"racks"`
}

// PowerBudget is the plugin. It holds no state: the state is in the snapshot, and in the pod's
// CycleState.
type PowerBudget struct{ budgets map[string]int64 }

var (
	_ fwk.PreEnqueuePlugin  = &PowerBudget{}
	_ fwk.PreFilterPlugin   = &PowerBudget{}
	_ fwk.FilterPlugin      = &PowerBudget{}
	_ fwk.ScorePlugin       = &PowerBudget{}
	_ fwk.EnqueueExtensions = &PowerBudget{}
	_ fwk.SignPlugin        = &PowerBudget{}
)

// New creates the plugin. It is a factory for kube-scheduler's plugin registry.
func New(_ context.Context, args runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
	var parsed Args
	if unknown, ok := args.(*runtime.Unknown); ok {
		if err := json.Unmarshal(unknown.Raw, &parsed); err != nil {
			return nil, fmt.Errorf("read the arguments of %s: %w", Name, err)
		}
	}
	return &PowerBudget{parsed.Racks}, nil
}

// Name implements fwk.Plugin.
func (*PowerBudget) Name() string { return Name }

// watts returns the watts declared by a pod.
func watts(pod *v1.Pod) (int64, error) {
	text, ok := pod.Annotations[wattsAnnotation]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("annotation %s is %q: want a whole number of watts", wattsAnnotation, text)
	}
	return n, nil
}

// PreEnqueue rejects pods that do not declare their watts as a number.
func (*PowerBudget) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if _, err := watts(pod); err != nil {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	return nil
}

const stateKey fwk.StateKey = Name

// state holds the watts of the pod, and the watts drawn by every rack without it.
type state struct {
	wants int64
	drawn map[string]int64
}

// Clone implements fwk.StateData.
func (s *state) Clone() fwk.StateData { return &state{s.wants, maps.Clone(s.drawn)} }

func stateOf(cycle fwk.CycleState) (*state, error) {
	data, err := cycle.Read(stateKey)
	if err != nil {
		return nil, fmt.Errorf("read %q from the cycle state: %w", stateKey, err)
	}
	return data.(*state), nil
}

// PreFilter adds up the watts drawn by every rack. The plugin ignores pods that draw no power.
func (p *PowerBudget) PreFilter(_ context.Context, cycle fwk.CycleState, pod *v1.Pod,
	nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	wants, err := watts(pod)
	switch {
	case err != nil:
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	case wants == 0:
		return nil, fwk.NewStatus(fwk.Skip)
	}
	s := &state{wants: wants, drawn: map[string]int64{}}
	for _, node := range nodes {
		for _, there := range node.GetPods() {
			s.count(node, there, 1)
		}
	}
	cycle.Write(stateKey, s)
	return nil, nil
}

func (s *state) count(node fwk.NodeInfo, pod fwk.PodInfo, sign int64) {
	n, _ := watts(pod.GetPod()) // a malformed value draws nothing
	s.drawn[node.Node().Labels[rackLabel]] += sign * n
}

// PreFilterExtensions declares that the plugin accounts for pods added and removed hypothetically.
func (p *PowerBudget) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod implements fwk.PreFilterExtensions.
func (*PowerBudget) AddPod(_ context.Context, cycle fwk.CycleState, _ *v1.Pod, added fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return supposed(cycle, added, node, 1)
}

// RemovePod implements fwk.PreFilterExtensions.
func (*PowerBudget) RemovePod(_ context.Context, cycle fwk.CycleState, _ *v1.Pod, removed fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return supposed(cycle, removed, node, -1)
}

func supposed(cycle fwk.CycleState, pod fwk.PodInfo, node fwk.NodeInfo, sign int64) *fwk.Status {
	s, err := stateOf(cycle)
	if err != nil {
		return fwk.AsStatus(err)
	}
	s.count(node, pod, sign)
	return nil
}

// Filter rejects nodes whose rack has not enough power left.
func (p *PowerBudget) Filter(_ context.Context, cycle fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	s, err := stateOf(cycle)
	if err != nil {
		return fwk.AsStatus(err)
	}
	rack := node.Node().Labels[rackLabel]
	budget, limited := p.budgets[rack]
	switch {
	case !limited || s.drawn[rack]+s.wants <= budget:
		return nil
	case s.wants > budget:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "rack(s) can never draw what the pod needs")
	}
	return fwk.NewStatus(fwk.Unschedulable, "rack(s) had not enough power left")
}

// Score is the share of the rack's remaining power, in percent.
func (p *PowerBudget) Score(_ context.Context, cycle fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	s, err := stateOf(cycle)
	if err != nil {
		return 0, nil // the pod draws nothing
	}
	rack := node.Node().Labels[rackLabel]
	budget, limited := p.budgets[rack]
	if !limited || budget == 0 {
		return fwk.MaxScore, nil
	}
	return max(0, (budget-s.drawn[rack])*fwk.MaxScore/budget), nil
}

// ScoreExtensions is nil: scores are within 0 to 100 already.
func (*PowerBudget) ScoreExtensions() fwk.ScoreExtensions { return nil }

// SignPod groups pods that draw the same number of watts.
func (*PowerBudget) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	n, err := watts(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	return []fwk.SignFragment{{Key: Name + ".watts", Value: n}}, nil
}

// EventsToRegister lists the events that can help a rejected pod: a pod that drew power was
// deleted, a node was added or moved to another rack, or the pod itself now draws less.
func (p *PowerBudget) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}, QueueingHintFn: afterDeletion},
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
	}, nil
}

func afterDeletion(_ klog.Logger, _ *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
	gone, ok := old.(*v1.Pod)
	if !ok {
		return fwk.Queue, fmt.Errorf("deleted object is a %T, not a pod", old)
	}
	if n, _ := watts(gone); n > 0 {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}
