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
	postFilters      []postFilter
	groupPostFilters []groupPostFilter
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

// postFilter is a plugin at PostFilter, either Berth's own or out-of-tree, depending on the field
// that is set. The plugin is called by attempts, because profiles must not depend on attempts.
type postFilter struct {
	ownPostFilter
	plugin    string
	outOfTree PostFilterer
}

// groupPostFilter is a plugin at PodGroupPostFilter. PostFilter is not run for the pods of a group.
type groupPostFilter struct {
	ownPostFilter
	plugin    string
	outOfTree GroupPostFilterer
}

// ownPostFilter is the function of Berth's own plugin at PostFilter or PodGroupPostFilter, if any.
type ownPostFilter struct {
	releaser plugins.ClaimReleaser
	preempts bool
}

// ownPostFilterOf returns the function of Berth's own plugin at these points. It returns the zero
// value if the plugin has no such function, or if plugin is nil, as for an out-of-tree plugin.
func ownPostFilterOf(plugin any) (made ownPostFilter) {
	switch own := plugin.(type) {
	case plugins.ClaimReleaser:
		made.releaser = own
	case plugins.Preempter:
		made.preempts = true
	}
	return made
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

// addPostFilters adds the plugins at PostFilter.
func (p *servedProfile) addPostFilters(byName map[string]Extension) {
	for _, name := range p.At[plugins.PostFilter] {
		made := postFilter{plugin: name, ownPostFilter: ownPostFilterOf(p.Plugin(name))}
		made.outOfTree, _ = byName[name].(PostFilterer)
		if made.outOfTree != nil || made.releaser != nil || made.preempts {
			p.postFilters = append(p.postFilters, made)
		}
	}
}

// addGroupPostFilters adds the plugins at PodGroupPostFilter.
func (p *servedProfile) addGroupPostFilters(byName map[string]Extension) {
	for _, name := range p.At[plugins.PodGroupPostFilter] {
		made := groupPostFilter{plugin: name, ownPostFilter: ownPostFilterOf(p.Plugin(name))}
		made.outOfTree, _ = byName[name].(GroupPostFilterer)
		if made.outOfTree != nil || made.releaser != nil || made.preempts {
			p.groupPostFilters = append(p.groupPostFilters, made)
		}
	}
}

// looksAtPods reports whether the profile has plugins or extenders that read whole pods.
func (p *servedProfile) looksAtPods() bool {
	return len(p.Extensions)+len(p.Outside)+len(p.Extenders) > 0
}
