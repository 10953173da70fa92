package outside

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

// framework is the out-of-tree plugins of one profile: what kube-scheduler calls a framework. It is
// made when the first plugin of the profile is (frameworkOf), before there is a profile, and is
// complete once buildProfile has run. Only what mu and asking guard may be used by any goroutine;
// the rest belongs to the goroutine that decides, or does not change after the start.
type framework struct {
	set     *Set
	name    string                // of the scheduler
	handle  *handle               // the same one for all plugins of the profile
	plugins map[string]fwk.Plugin // as their factories made them, by their configured name
	profile *plugins.Profile      // with all plugins in it, Berth's own and these

	// The out-of-tree plugins at the points where they are called together, in the order of the
	// profile.
	preFilters []fwk.PreFilterPlugin
	preScores  []fwk.PreScorePlugin

	// current is the cycle of the pod that is being decided. It belongs to the goroutine that
	// decides.
	current *session
	// group is the attempt for a pod group that is under way, or nil. So does it.
	group *groupSession

	// asking is held by a plugin that calls back (RunFilterPlugins), which changes the cluster for
	// a moment. It may only do so where no other plugin runs beside it: open is then the current
	// cycle, else nil.
	asking sync.Mutex
	mu     sync.Mutex
	open   *session
}

// pluginsAt lists the out-of-tree plugins at an extension point, in the order of the profile.
// Berth's own plugins at the point are left out.
func pluginsAt[T fwk.Plugin](f *framework, point plugins.Point) (list []T) {
	for _, name := range f.profile.At[point] {
		if plugin, ok := f.plugins[name].(T); ok {
			list = append(list, plugin)
		}
	}
	return list
}

// sessionOf returns the cycle of the pod, a new one if the current one is another pod's, with its
// snapshot taken. Filters and scorers find their cycle with it: package plugins hands them the pod,
// and no attempt. A new one is made where no attempt has begun: to explain, or to compare two
// decisions.
func (f *framework) sessionOf(c *cluster.Cluster, waiting *cluster.Pod) *session {
	if y := f.memberSession(waiting); y != nil {
		f.current = y
	} else if f.current == nil || f.current.waiting != waiting {
		f.current = newSession(f, f.set.ctx, f.set.store.waitingInfo(waiting).pod, waiting)
	}
	f.current.takeSnapshot(c)
	return f.current
}

// memberSession returns the session of a member of the group that is being decided, begun anew if
// another pod was decided meanwhile; nil for other pods.
func (f *framework) memberSession(waiting *cluster.Pod) *session {
	if f.group == nil {
		return nil
	}
	y := f.group.members[waiting.UID]
	if y != nil && (f.current != y || y.waiting != waiting) {
		y.waiting = waiting
		f.group.restart(y)
	}
	return y
}

// whileOpen calls a plugin that may call back: ask the profile's filters and scorers about
// hypothetical changes (RunFilterPlugins, RunScorePlugins). Answering moves pods in the live
// cluster for a moment, so this is possible only where the goroutine that decides is itself inside
// ask and reads nothing meanwhile. When whileOpen returns, no call back is under way, and later
// ones fail (errClosed).
func (y *session) whileOpen(ask func()) {
	before := y.f.setOpen(y) // another one, if a plugin has a group decided
	defer func() {
		y.f.asking.Lock() // waits for calls back that it left running
		defer y.f.asking.Unlock()
		y.f.setOpen(before)
	}()
	ask()
}

// setOpen sets the cycle in which plugins may call back, nil for none, and returns the one before.
func (f *framework) setOpen(y *session) (before *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.open = f.open, y
	return before
}

// openSession returns the cycle in which plugins may call back now, or nil.
func (f *framework) openSession() *session {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil || f.open.c == nil {
		return nil
	}
	return f.open
}

// addPod tells the PreFilter plugins that a pod is hypothetically added to the node (AddPod), for
// them to adapt their state. Plugins without PreFilterExtensions, and those that skipped, are not
// told. The first failure ends it, and the state is then good for nothing.
func (f *framework) addPod(ctx context.Context, state *State, pod *v1.Pod, come fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	for _, plugin := range f.preFilters {
		if extensions := plugin.PreFilterExtensions(); extensions != nil && !state.skipFilter.Has(plugin.Name()) {
			if status := extensions.AddPod(ctx, state, pod, come, node); !status.IsSuccess() {
				return fwk.AsStatus(fmt.Errorf("running AddPod on PreFilter plugin %q: %w", plugin.Name(), statusError(status, "AddPod")))
			}
		}
	}
	return nil
}

// removePod is addPod for a pod that is hypothetically removed.
func (f *framework) removePod(ctx context.Context, state *State, pod *v1.Pod, gone fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	for _, plugin := range f.preFilters {
		if extensions := plugin.PreFilterExtensions(); extensions != nil && !state.skipFilter.Has(plugin.Name()) {
			if status := extensions.RemovePod(ctx, state, pod, gone, node); !status.IsSuccess() {
				return fwk.AsStatus(fmt.Errorf("running RemovePod on PreFilter plugin %q: %w", plugin.Name(),
					statusError(status, "RemovePod")))
			}
		}
	}
	return nil
}

// preScore calls the plugins at PreScore; those that skip are not called at Score. Which ones skip
// is noted before the first is called: the set is in the state that they are handed.
func (f *framework) preScore(ctx context.Context, state *State, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	skip := sets.New[string]()
	state.skipScore = skip
	for _, plugin := range f.preScores {
		status := plugin.PreScore(ctx, state, pod, nodes)
		switch {
		case status.IsSkip():
			skip.Insert(plugin.Name())
		case !status.IsSuccess():
			return fwk.AsStatus(fmt.Errorf("running PreScore plugin %q: %w", plugin.Name(), statusError(status, "PreScore")))
		}
	}
	return nil
}

// assemblePlugins puts the plugins into the profile at their places. The lists of Berth's own
// filters and scorers are replaced by merged ones.
func (f *framework) assemblePlugins() {
	f.preFilters = pluginsAt[fwk.PreFilterPlugin](f, plugins.PreFilter)
	f.preScores = pluginsAt[fwk.PreScorePlugin](f, plugins.PreScore)
	f.profile.Filters = f.listFilters()
	f.profile.Scorers = f.listScorers()
}

// listFilters lists all filters of the profile in the order in which they are asked: those at
// Filter, then those at PreFilter alone. The order shows in messages: a node is rejected by the
// first filter that does not let it pass.
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

// filterOf returns the plugin as a filter, at those of its points that the profile enables: a
// plugin may implement Filter and be disabled there.
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

// listScorers lists all scorers of the profile in its order. Before the first comes the one that
// stands for all plugins at PreScore, with a weight that does not matter, since it has no scores.
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
