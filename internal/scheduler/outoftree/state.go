// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// State is the data kept by plugins about one pod from PreFilter to PostBind (upstream:
// CycleState). As upstream, many goroutines may read and write the data concurrently. The other
// fields belong to the deciding goroutine until PreBind, and do not change from then on.
type State struct {
	data                               sync.Map // fwk.StateKey to fwk.StateData
	skipFilter, skipScore, skipPreBind sets.Set[string]
	parallelPreBind                    sets.Set[string]

	// moves holds the pods hypothetically added or removed by a plugin (RunPreFilterExtensionAddPod
	// and RemovePod): Berth's own filters take them into account.
	moves []move

	// group and placement are set while the pod is decided with its pod group.
	group, placement *groupState
}

// move is a pod hypothetically added to a node, or removed from it. Later moves of a list supersede
// earlier ones about the same pod and node.
type move struct {
	pod   *v1.Pod
	node  string
	there bool // added; else removed
}

var _ fwk.CycleState = &State{}

// NewState returns an empty state, for tests of plugins.
func NewState() *State { return &State{} }

// Read implements fwk.CycleState.
func (s *State) Read(key fwk.StateKey) (fwk.StateData, error) {
	if value, ok := s.data.Load(key); ok {
		return value.(fwk.StateData), nil
	}
	return nil, fwk.ErrNotFound
}

// Write and Delete implement fwk.CycleState.
func (s *State) Write(key fwk.StateKey, value fwk.StateData) { s.data.Store(key, value) }
func (s *State) Delete(key fwk.StateKey)                     { s.data.Delete(key) }

// Clone returns a copy for hypothetical changes. Data is cloned by the plugins' own Clone; like
// upstream, the sets of plugins to skip are shared. A nil State clones to nil.
func (s *State) Clone() fwk.CycleState {
	if s == nil {
		return nil
	}
	return s.clone()
}

// clone is Clone with the concrete type.
func (s *State) clone() *State {
	c := &State{
		skipFilter: s.skipFilter, skipScore: s.skipScore, skipPreBind: s.skipPreBind, parallelPreBind: s.parallelPreBind,
		moves: s.moves[:len(s.moves):len(s.moves)], group: s.group, placement: s.placement,
	}
	s.data.Range(func(key, value any) bool {
		c.data.Store(key, value.(fwk.StateData).Clone())
		return true
	})
	return c
}

// ShouldRecordPluginMetrics is false: the plugins' time is measured by extension point.
func (s *State) ShouldRecordPluginMetrics() bool { return false }

// GetSkipFilterPlugins and its siblings implement fwk.CycleState.
func (s *State) GetSkipFilterPlugins() sets.Set[string]           { return s.skipFilter }
func (s *State) SetSkipFilterPlugins(plugins sets.Set[string])    { s.skipFilter = plugins }
func (s *State) GetSkipScorePlugins() sets.Set[string]            { return s.skipScore }
func (s *State) SetSkipScorePlugins(plugins sets.Set[string])     { s.skipScore = plugins }
func (s *State) GetSkipPreBindPlugins() sets.Set[string]          { return s.skipPreBind }
func (s *State) SetSkipPreBindPlugins(plugins sets.Set[string])   { s.skipPreBind = plugins }
func (s *State) GetParallelPreBindPlugins() sets.Set[string]      { return s.parallelPreBind }
func (s *State) SetParallelPreBindPlugins(names sets.Set[string]) { s.parallelPreBind = names }
func (s *State) ShouldSkipAllPostFilterPlugins() bool             { return false }

// IsPodGroupSchedulingCycle and its siblings implement fwk.CycleState. They return a nil interface,
// and not an interface with a nil pointer.
func (s *State) IsPodGroupSchedulingCycle() bool { return s.group != nil }
func (s *State) GetPodGroupSchedulingCycle() fwk.PodGroupCycleState {
	if s.group == nil {
		return nil
	}
	return s.group
}

// GetPlacementCycleState is nil unless the pod is decided with its group.
func (s *State) GetPlacementCycleState() fwk.PlacementCycleState {
	if s.placement == nil {
		return nil
	}
	return s.placement
}
