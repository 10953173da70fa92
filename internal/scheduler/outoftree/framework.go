// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// framework holds the out-of-tree plugins of one profile, kube-scheduler's notion of a framework.
// It is created with the first plugin of the profile (frameworkOf), before the profile itself, and
// is complete once buildProfile has run. Only the fields guarded by mu and asking may be used by
// any goroutine; the rest belongs to the deciding goroutine, or does not change after the start.
type framework struct {
	set     *Set
	name    string                // of the scheduler
	handle  *handle               // shared by all plugins of the profile
	plugins map[string]fwk.Plugin // as created by their factories, by configured name
	profile *plugins.Profile      // with Berth's own plugins and the out-of-tree plugins

	// The out-of-tree plugins at points where they are called together, in the order of the
	// profile.
	preFilters []fwk.PreFilterPlugin
	preScores  []fwk.PreScorePlugin

	// current is the session of the pod being decided. It belongs to the deciding goroutine.
	current *session
	// group is the current attempt for a pod group, or nil. It belongs to the deciding goroutine.
	group *groupSession

	// asking is held while a plugin calls back (RunFilterPlugins), which temporarily changes the
	// cluster. Callbacks are allowed only while no other plugin runs concurrently; open is then the
	// current session, and otherwise nil.
	asking sync.Mutex
	mu     sync.Mutex
	open   *session
}

// pluginsAt lists the out-of-tree plugins at an extension point, in the order of the profile. It
// skips Berth's own plugins at the point.
func pluginsAt[T fwk.Plugin](f *framework, point plugins.Point) (list []T) {
	for _, name := range f.profile.At[point] {
		if plugin, ok := f.plugins[name].(T); ok {
			list = append(list, plugin)
		}
	}
	return list
}

// sessionOf returns the session of the pod, with its snapshot taken. It begins a new session if the
// current one belongs to another pod. Filters and scorers find their session this way, because
// package plugins passes them the pod rather than an attempt. New sessions also serve decisions
// outside of attempts, for explanations and comparisons.
func (f *framework) sessionOf(c *cluster.Cluster, waiting *cluster.Pod) *session {
	if y := f.memberSession(waiting); y != nil {
		f.current = y
	} else if f.current == nil || f.current.waiting != waiting {
		f.current = newSession(f, f.set.ctx, f.set.store.waitingInfo(waiting).pod, waiting)
	}
	f.current.takeSnapshot(c)
	return f.current
}

// memberSession returns the session of a member of the group being decided, restarted if another
// pod was decided meanwhile; nil for other pods.
func (f *framework) memberSession(waiting *cluster.Pod) *session {
	if f.group == nil {
		return nil
	}
	y := f.group.members[waiting.UID()]
	if y != nil && (f.current != y || y.waiting != waiting) {
		y.waiting = waiting
		f.group.restart(y)
	}
	return y
}

// whileOpen calls a plugin that may call back to run the profile's filters and scorers on
// hypothetical changes (RunFilterPlugins, RunScorePlugins). A callback temporarily moves pods in
// the live cluster, so it is possible only while the deciding goroutine is itself inside ask and
// reads nothing. When whileOpen returns, all callbacks have ended, and later ones fail (errClosed).
func (y *session) whileOpen(ask func()) {
	before := y.f.setOpen(y) // not nil if the call is made for a plugin at PodGroupPostFilter
	defer func() {
		y.f.asking.Lock() // waits for unfinished callbacks
		defer y.f.asking.Unlock()
		y.f.setOpen(before)
	}()
	ask()
}

// setOpen sets the session open to callbacks, or nil for none, and returns the previous one.
func (f *framework) setOpen(y *session) (before *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.open = f.open, y
	return before
}

// openSession returns the session currently open to callbacks, or nil.
func (f *framework) openSession() *session {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil || f.open.c == nil {
		return nil
	}
	return f.open
}

// movePod calls AddPod of the PreFilter plugins for a pod hypothetically added to the node, or
// RemovePod for a removed one, so that they adapt their state. It skips plugins without
// PreFilterExtensions, and plugins that returned Skip at PreFilter. It stops at the first failure,
// which makes the state unusable.
func (f *framework) movePod(ctx context.Context, state *State, pod *v1.Pod, moved fwk.PodInfo, node fwk.NodeInfo, added bool) *fwk.Status {
	for _, plugin := range f.preFilters {
		extensions := plugin.PreFilterExtensions()
		if extensions == nil || state.skipFilter.Has(plugin.Name()) {
			continue
		}
		call, how := extensions.RemovePod, "RemovePod"
		if added {
			call, how = extensions.AddPod, "AddPod"
		}
		if status := call(ctx, state, pod, moved, node); !status.IsSuccess() {
			return fwk.AsStatus(fmt.Errorf("running %s on PreFilter plugin %q: %w", how, plugin.Name(), statusError(status, how)))
		}
	}
	return nil
}

// preScore calls the plugins at PreScore; plugins that skip are not called at Score. The set of
// skipping plugins is created before the first call: it is part of the state they get.
func (f *framework) preScore(ctx context.Context, state *State, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	skip := sets.New[string]()
	state.skipScore = skip
	for _, plugin := range f.preScores {
		switch status := plugin.PreScore(ctx, state, pod, nodes); {
		case status.IsSkip():
			skip.Insert(plugin.Name())
		case !status.IsSuccess():
			return fwk.AsStatus(fmt.Errorf("running PreScore plugin %q: %w", plugin.Name(), statusError(status, "PreScore")))
		}
	}
	return nil
}

// assemblePlugins adds the out-of-tree plugins to the profile: it replaces the profile's lists of
// filters and scorers by lists that contain both Berth's own and out-of-tree plugins.
func (f *framework) assemblePlugins() {
	f.preFilters = pluginsAt[fwk.PreFilterPlugin](f, plugins.PreFilter)
	f.preScores = pluginsAt[fwk.PreScorePlugin](f, plugins.PreScore)
	f.profile.Filters = f.listFilters()
	f.profile.Scorers = f.listScorers()
}

// listFilters lists all filters of the profile in the order of their calls: first the plugins at
// Filter, then those only at PreFilter. The order is visible in messages: the first filter
// rejecting a node gives the reason.
//
// For example, with NodeResourcesFit and then Mine at Filter, and Quota at PreFilter only, it
// returns NodeResourcesFit, Mine, Quota.
func (f *framework) listFilters() (list []plugins.Filter) {
	own := map[string]plugins.Filter{}
	for _, filter := range f.profile.Filters {
		own[filter.Name()] = filter
	}

	names := append([]string(nil), f.profile.At[plugins.Filters]...)
	for _, name := range f.profile.At[plugins.PreFilter] {
		if !f.profile.Has(plugins.Filters, name) {
			names = append(names, name)
		}
	}

	for _, name := range names {
		if filter, ok := own[name]; ok {
			list = append(list, filter)
		}
		if plugin, ok := f.plugins[name]; ok {
			list = append(list, f.filterOf(name, plugin))
		}
	}

	return list
}

// filterOf returns the plugin as a filter, with the points enabled for it in the profile: a plugin
// may implement Filter and be disabled at this point.
func (f *framework) filterOf(name string, plugin fwk.Plugin) *filter {
	made := &filter{f: f, name: name}
	if f.profile.Has(plugins.PreFilter, name) {
		made.pre, _ = plugin.(fwk.PreFilterPlugin)
	}
	if f.profile.Has(plugins.Filters, name) {
		made.node, _ = plugin.(fwk.FilterPlugin)
	}
	return made
}

// listScorers lists all scorers of the profile in its order, after one scorer representing all
// plugins at PreScore. That scorer adds no scores, so its weight does not matter.
func (f *framework) listScorers() (list []plugins.Weighted) {
	own := map[string]plugins.Weighted{}
	for _, scorer := range f.profile.Scorers {
		own[scorer.Name()] = scorer
	}
	if len(f.preScores) > 0 {
		list = append(list, plugins.Weighted{Scorer: preScorer{f}, Weight: 1})
	}
	for _, name := range f.profile.At[plugins.Score] {
		if made, ok := own[name]; ok {
			list = append(list, made)
		}
		if plugin, ok := f.plugins[name].(fwk.ScorePlugin); ok {
			list = append(list, plugins.Weighted{Scorer: &scorer{f, plugin}, Weight: f.profile.Weights[name]})
		}
	}
	return list
}

// PointsOf returns a plugin's extension points, by its implemented interfaces. The configuration
// may enable fewer, but not more.
func PointsOf(plugin fwk.Plugin) (points plugins.Point) {
	for _, is := range []struct {
		point plugins.Point
		it    bool
	}{
		{plugins.PreEnqueue, implementsPoint[fwk.PreEnqueuePlugin](plugin)},
		{plugins.QueueSort, implementsPoint[fwk.QueueSortPlugin](plugin)},
		{plugins.PreFilter, implementsPoint[fwk.PreFilterPlugin](plugin)},
		{plugins.Filters, implementsPoint[fwk.FilterPlugin](plugin)},
		{plugins.PostFilter, implementsPoint[fwk.PostFilterPlugin](plugin)},
		{plugins.PodGroupPostFilter, implementsPoint[fwk.PodGroupPostFilterPlugin](plugin)},
		{plugins.PreScore, implementsPoint[fwk.PreScorePlugin](plugin)},
		{plugins.Score, implementsPoint[fwk.ScorePlugin](plugin)},
		{plugins.Reserve, implementsPoint[fwk.ReservePlugin](plugin)},
		{plugins.Permit, implementsPoint[fwk.PermitPlugin](plugin)},
		{plugins.PreBind, implementsPoint[fwk.PreBindPlugin](plugin)},
		{plugins.Bind, implementsPoint[fwk.BindPlugin](plugin)},
		{plugins.PostBind, implementsPoint[fwk.PostBindPlugin](plugin)},
		{plugins.PlacementGenerate, implementsPoint[fwk.PlacementGeneratePlugin](plugin)},
		{plugins.PlacementScore, implementsPoint[fwk.PlacementScorePlugin](plugin)},
	} {
		if is.it {
			points |= is.point
		}
	}

	return points
}

// implementsPoint reports whether the plugin implements the interface T.
func implementsPoint[T any](plugin fwk.Plugin) bool {
	_, ok := plugin.(T)
	return ok
}
