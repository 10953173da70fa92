// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Goals are the names of Berth's own goals.
var Goals = []string{"heal", "spread", "return", "consolidate", "defragment"}

// settledFor is the minimum time a node must be ready before pods return to it: spot nodes are
// short-lived, and a pod is disturbed twice if it returns to a node that is lost minutes later.
const settledFor = 5 * time.Minute

// OwnGoal returns one of Berth's own goals by its name, or nil. number is the number of nodes for
// consolidate to empty; the other goals ignore it. The evictor has the descheduler's default
// protections; since Own is set, it also respects the annotations of Karpenter and of the cluster
// autoscaler. Each call makes a new goal, which the caller may change.
func OwnGoal(name string, number int) *Goal {
	evictor := NewEvictor()
	evictor.Own = true
	goal := &Goal{Name: name, Evictor: evictor}
	switch name {
	case "heal":
		goal.Heal = &Heal{}
	case "spread":
		goal.Heal = &Heal{Soft: true}
	case "return":
		goal.Return = &Return{Weights: true, Taints: true, Settled: settledFor}
	case "consolidate":
		goal.Consolidate = &Consolidate{Nodes: number}
	case "defragment":
		goal.Defragment = &Defragment{}
	default:
		return nil
	}

	return goal
}

// ReadGoals parses goals in the notation of the command line, the most important first; an empty
// list means heal. Pods without a namespace are in the given one.
//
//	heal                        violated hard constraints
//	consolidate=2               two nodes must be empty
//	defragment=trainer-0        room for one pending pod
//	defragment=ml/trainer-0     room for a pod of another namespace
//
// An error names the goal and its required form.
func ReadGoals(list []string, namespace string) (*Policy, error) {
	if len(list) == 0 {
		list = []string{"heal"}
	}
	policy := &Policy{}
	for _, text := range list {
		name, value, has := strings.Cut(text, "=")
		// The error only matters to consolidate: the other goals take no number.
		number, err := strconv.Atoi(value)
		switch {
		case !slices.Contains(Goals, name):
			return nil, fmt.Errorf("goal %q: must be one of %s", name, strings.Join(Goals, ", "))
		case name == "consolidate" && (err != nil || number < 1):
			return nil, fmt.Errorf("goal %q: must be consolidate=N, with how many nodes are to be empty", text)
		case name == "defragment" && has && value == "":
			return nil, fmt.Errorf("goal %q: must be defragment, or defragment=POD[,POD] with the pending pods to make room for", text)
		case name != "consolidate" && name != "defragment" && has:
			return nil, fmt.Errorf("goal %q: %s takes no value", text, name)
		}
		goal := OwnGoal(name, number)
		if goal.Defragment != nil && has {
			for _, pod := range strings.Split(value, ",") {
				in, name, qualified := strings.Cut(strings.TrimPrefix(pod, "pod/"), "/")
				if !qualified {
					in, name = namespace, in
				}
				if name == "" || qualified && in == "" || strings.Contains(name, "/") {
					return nil, fmt.Errorf("goal %q: pod %q: must be NAME, pod/NAME or NAMESPACE/NAME", text, pod)
				}
				goal.Defragment.Pods = append(goal.Defragment.Pods, types.NamespacedName{Namespace: in, Name: name})
			}
		}
		policy.Goals = append(policy.Goals, *goal)
	}

	return policy, nil
}
