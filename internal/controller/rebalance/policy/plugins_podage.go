// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// readRestarts reads RemovePodsHavingTooManyRestarts. Pods with the most restarts are first.
func readRestarts(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct {
		scope
		PodRestartThreshold     int32    `json:"podRestartThreshold"`
		IncludingInitContainers bool     `json:"includingInitContainers"`
		States                  []string `json:"states"`
	}
	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	// With 0, every pod would be replaced.
	if args.PodRestartThreshold < 1 {
		r.setError(at, "%s: podRestartThreshold: must be 1 or more", goal.Name)
	}

	r.checkStates(at, goal.Name, args.States, restartStates)
	count := func(o *v1.Pod) int32 { return restartsOf(o, args.IncludingInitContainers) }
	goal.Renew = &rebalance.Renew{
		Wants: func(o *v1.Pod, _ time.Time) string {
			if n := count(o); n >= args.PodRestartThreshold && inState(o, args.States, args.IncludingInitContainers, false) {
				return fmt.Sprintf("total restartCount of its containers: %d", n)
			}
			return ""
		},
		Before: func(a, b *v1.Pod) int { return cmp.Compare(count(b), count(a)) },
	}
}

// readLifetime reads PodLifeTime. A pod must match all of its arguments. The oldest pods are first.
func readLifetime(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	var args struct {
		scope
		MaxPodLifeTimeSeconds *uint       `json:"maxPodLifeTimeSeconds"`
		States                []string    `json:"states"`
		Conditions            []condition `json:"conditions"`
		ExitCodes             []int32     `json:"exitCodes"`
		OwnerKinds            *struct {
			Include []string `json:"include"`
			Exclude []string `json:"exclude"`
		} `json:"ownerKinds"`
		IncludingInitContainers      bool `json:"includingInitContainers"`
		IncludingEphemeralContainers bool `json:"includingEphemeralContainers"`
	}

	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	// Without any of these arguments, every pod of the cluster would be replaced.
	if args.MaxPodLifeTimeSeconds == nil && len(args.States) == 0 && len(args.Conditions) == 0 && len(args.ExitCodes) == 0 {
		r.setError(at, "%s: must have maxPodLifeTimeSeconds, states, conditions or exitCodes", goal.Name)
	}

	r.checkStates(at, goal.Name, args.States, lifetimeStates)
	// An empty condition would match any condition of any pod.
	if slices.Contains(args.Conditions, condition{}) {
		r.setError(at, "%s: conditions: each must have a type, status, reason or minTimeSinceLastTransitionSeconds", goal.Name)
	}

	kinds := args.OwnerKinds
	if kinds != nil && len(kinds.Include) > 0 && len(kinds.Exclude) > 0 {
		r.setError(at, "%s: ownerKinds: must have include or exclude, not both", goal.Name)
	}

	goal.Renew = &rebalance.Renew{
		Wants: func(o *v1.Pod, now time.Time) string {
			// Age is from creation, as in the descheduler, not from the start of the containers.
			age := now.Sub(o.CreationTimestamp.Time)
			switch {
			case args.MaxPodLifeTimeSeconds != nil && !isOlder(age, *args.MaxPodLifeTimeSeconds),
				!inState(o, args.States, args.IncludingInitContainers, args.IncludingEphemeralContainers),
				!hasExited(o, args.ExitCodes, args.IncludingInitContainers),
				!hasCondition(o, args.Conditions, now),
				kinds != nil && !ofKind(o, kinds.Include, kinds.Exclude):
				return ""
			}
			if args.MaxPodLifeTimeSeconds == nil {
				return "its status is one that the policy names"
			}
			return fmt.Sprintf("it is %s old", age.Truncate(time.Second))
		},
		Before: func(a, b *v1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) },
	}
}

// readFailed reads RemoveFailedPods. The oldest pods are first.
func readFailed(r *reader, goal *rebalance.Goal, at *yaml.Node) {
	args := struct {
		scope
		MinPodLifetimeSeconds   *uint    `json:"minPodLifetimeSeconds"`
		Reasons                 []string `json:"reasons"`
		ExitCodes               []int32  `json:"exitCodes"`
		IncludingInitContainers bool     `json:"includingInitContainers"`
		ExcludeOwnerKinds       []string `json:"excludeOwnerKinds"`
	}{}

	r.decodeStrictly(at, goal.Name, &args)
	args.applyTo(r, goal, at)
	age := ptr.Deref(args.MinPodLifetimeSeconds, 3600) // the default is an hour
	goal.Renew = &rebalance.Renew{
		Title: "failed pods",
		Wants: func(o *v1.Pod, now time.Time) string {
			switch {
			case o.Status.Phase != v1.PodFailed, now.Sub(o.CreationTimestamp.Time).Seconds() < float64(age),
				!ofKind(o, nil, args.ExcludeOwnerKinds),
				len(args.Reasons) > 0 &&
					!slices.ContainsFunc(args.Reasons,
						func(reason string) bool { return hasReason(o, reason, args.IncludingInitContainers) }),
				!hasExited(o, args.ExitCodes, args.IncludingInitContainers):
				return ""
			}
			return "it has failed"
		},
		Before: func(a, b *v1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) },
	}
}
