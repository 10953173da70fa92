// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// servedProfile is a profile with its decider and its out-of-tree plugins, each list in the order
// of the extension point. It is created once per configuration, and constant except for failed.
type servedProfile struct {
	Profile
	*decide.Decider

	begin            []Beginner
	assumed          []Assumer
	end              []Ender
	gates            []func(*queue.Item) (plugin string)
	postFilters      []postFilter[PostFilterer]
	groupPostFilters []postFilter[GroupPostFilterer] // PostFilter is not run for the pods of a group
	reserve          []Reserver
	permit           []Permitter
	prepare          []plugins.Preparer
	learners         []plugins.Learner // the learners among the Reservers
	sorter           Sorter

	beginGroup      []GroupBeginner
	scorePlacements []PlacementScorer

	Stages

	failed failure // last failed attempt that is valid for all pods of its class
}

// failure is a failed attempt together with the state used for the decision. As long as that state
// has not changed, every other pod of the class fails the same way and need not be decided.
type failure struct {
	class    *cluster.PodClass
	position int // position in the cluster's log
	versions uint64
	why      *unschedulableReason
	delayed  bool // valid only for pods that may not preempt yet
}

// sampled is the percentage of attempts with timed plugins, as in kube-scheduler.
const sampled = 10

// bindsVolumes reports whether the plugin of this name binds volumes.
func (p *servedProfile) bindsVolumes(plugin string) bool {
	return slices.ContainsFunc(p.Reservers, func(r plugins.Reserver) bool {
		_, volumes := r.(plugins.VolumeReserver)
		return volumes && r.Name() == plugin
	})
}

// looksAtPods reports whether the profile has plugins or extenders that read whole pods.
func (p *servedProfile) looksAtPods() bool {
	return len(p.Extensions)+len(p.Outside)+len(p.Extenders) > 0
}
