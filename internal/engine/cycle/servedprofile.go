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

// sampled is the percentage of attempts with timed plugins, as in kube-scheduler.
const sampled = 10

// bindsVolumes reports whether the plugin of this name binds volumes.
func (p *servedProfile) bindsVolumes(plugin string) bool {
	return slices.ContainsFunc(p.Reservers, func(r plugins.Reserver) bool {
		_, volumes := r.(plugins.VolumeReserver)
		return volumes && r.Name() == plugin
	})
}

// postFilter is a plugin at PostFilter or PodGroupPostFilter, either Berth's own or out-of-tree,
// depending on the field that is set. T is the interface of out-of-tree plugins. The plugin is
// called by attempts, because profiles must not depend on attempts.
type postFilter[T any] struct {
	plugin    string
	releaser  plugins.ClaimReleaser
	preempts  bool
	outOfTree T
	isOutside bool // outOfTree is set
}

// postFiltersAt returns the plugins at PostFilter or PodGroupPostFilter.
func postFiltersAt[T any](p Profile, point plugins.Point, byName map[string]Extension) (list []postFilter[T]) {
	for _, name := range p.At[point] {
		made := postFilter[T]{plugin: name}
		switch own := p.Plugin(name).(type) {
		case plugins.ClaimReleaser:
			made.releaser = own
		case plugins.Preempter:
			made.preempts = true
		}
		made.outOfTree, made.isOutside = byName[name].(T)
		if made.isOutside || made.releaser != nil || made.preempts {
			list = append(list, made)
		}
	}
	return list
}

// extensionsAt returns the out-of-tree plugins of an extension point, in configured order. It skips
// the names of Berth's own plugins at that point.
func extensionsAt[T Extension](p Profile, point plugins.Point, byName map[string]Extension) (list []T) {
	for _, name := range p.At[point] {
		if e, ok := byName[name].(T); ok {
			list = append(list, e)
		}
	}
	return list
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
