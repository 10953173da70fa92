// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	config "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// berth is Berth's side of a world.
type berth struct {
	cluster *cluster.Cluster
	profile *plugins.Profile
	decider *decide.Decider
}

func newBerth(w *World, only []string) (*berth, error) {
	b := &berth{cluster: cluster.New()}
	for _, o := range w.Others {
		if !b.cluster.Put(o) {
			return nil, fmt.Errorf("objects of type %T have no place in a cluster", o)
		}
	}

	for _, n := range w.Nodes {
		b.cluster.SetNode(n)
	}
	for _, p := range w.Placed {
		b.cluster.SetPod(p)
	}

	for _, p := range w.listNominated() {
		b.cluster.Nominate(b.cluster.Pending(p), p.Status.NominatedNodeName)
	}
	profile, err := berthProfile(w, only)
	if err != nil {
		return nil, err
	}

	b.profile, b.decider = profile, decide.New(b.cluster, profile, w.Seed)
	return b, nil
}

// berthProfile returns the default profile with the world's configuration, limited to the named
// plugins.
func berthProfile(w *World, only []string) (*plugins.Profile, error) {
	defaults := plugins.Default()
	at := map[plugins.Point][]string{}
	for point, names := range defaults.At {
		at[point] = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return len(only) > 0 && !slices.Contains(only, name) })
	}

	disable := func(point plugins.Point, gone []string) {
		at[point] = slices.DeleteFunc(at[point], func(name string) bool { return slices.Contains(gone, name) })
	}
	if len(w.FilterOrder) > 0 {
		at[plugins.Filters] = slices.DeleteFunc(slices.Clone(w.FilterOrder),
			func(name string) bool { return !slices.Contains(at[plugins.Filters], name) })
	}

	disable(plugins.Score, w.Unscored)
	disable(plugins.Filters, w.Unfiltered)
	weights := maps.Clone(defaults.Weights)
	maps.Copy(weights, w.Weights)
	args := map[string]any{}
	for name, a := range w.Args {
		args[name] = a
	}

	if utilfeature.DefaultFeatureGate.Enabled(features.TaintTolerationComparisonOperators) {
		spread, _ := w.Args["PodTopologySpread"].(*config.PodTopologySpreadArgs)
		args["PodTopologySpread"] = &plugins.Gated[config.PodTopologySpreadArgs]{Args: spread, On: true}
		args["TaintToleration"] = &plugins.TaintTolerationArgs{Compare: true}
	}
	return plugins.NewProfile(defaults.SchedulerName, at, weights, args)
}

// Plugins returns the names of the plugins that can be compared individually: the filters and
// scorers of the default profile.
func Plugins() (names []string) {
	profile := plugins.Default()
	for _, f := range profile.Filters {
		names = append(names, f.Name())
	}
	for _, s := range profile.Scorers {
		if !slices.Contains(names, s.Name()) {
			names = append(names, s.Name())
		}
	}
	return names
}

// presentPlugins returns the names of the plugins that Berth has or implements outside a plugin. If
// Berth is complete, these are all plugins.
func presentPlugins() (names []string) {
	compared := Plugins()
	for _, entry := range plugins.Catalog() {
		if entry.Points&(plugins.Filters|plugins.Score) == 0 || slices.Contains(compared, entry.Name) {
			names = append(names, entry.Name)
		}
	}
	return names
}

// reserveFor makes all plugins reserve volumes and devices for the pod on its node.
func (b *berth) reserveFor(placed *v1.Pod) (undo func(), err error) {
	var taken []func()
	undo = func() {
		for _, giveBack := range slices.Backward(taken) {
			giveBack()
		}
	}

	waiting := placed.DeepCopy()
	waiting.Spec.NodeName = ""
	for _, r := range b.profile.Reservers {
		giveBack, err := r.Reserve(b.cluster, b.cluster.Pending(waiting), b.cluster.Node(placed.Spec.NodeName))
		if err != nil {
			return undo, err
		}
		if giveBack != nil {
			taken = append(taken, giveBack)
		}
	}

	return undo, nil
}

// askRepeatedly repeats an attempt until the search for devices is complete. Each attempt has a
// limit, and continues from the results of the earlier attempts.
func (b *berth) askRepeatedly(ask func() (searched bool)) {
	for range b.cluster.Len() + 1 {
		if ask() {
			return
		}
		for _, f := range b.profile.Filters {
			if f, is := f.(plugins.Attempted); is {
				f.BeginAttempt()
			}
		}
	}
}

// searchedNotAll reports whether an error means that the search for devices reached its limit, and
// is continued in the next attempt.
func searchedNotAll(err string) bool {
	return strings.Contains(err, "timed out trying to allocate devices")
}

// evaluatePod evaluates a pod on all nodes, in as many attempts as needed.
func (b *berth) evaluatePod(pod *cluster.Pod) (e *decide.Evaluation) {
	b.askRepeatedly(func() bool {
		e = decide.NewPlain(b.cluster, b.profile).Evaluate(pod)
		return e.Err == nil || !searchedNotAll(e.Err.Error())
	})
	return e
}

// filterNodes runs one filter on all nodes, in as many attempts as needed.
func (b *berth) filterNodes(name string, pod *cluster.Pod) (f Filtering) {
	b.askRepeatedly(func() bool {
		f = b.filterOnce(name, pod)
		for _, v := range f.Nodes {
			if v != nil && v.Failed && searchedNotAll(v.Err) {
				return false
			}
		}
		return true
	})
	return f
}

func (b *berth) filterOnce(name string, pod *cluster.Pod) Filtering {
	f := Filtering{Nodes: map[string]*Verdict{}}
	i := slices.IndexFunc(b.profile.Filters, func(f plugins.Filter) bool { return f.Name() == name })
	if i < 0 {
		return f
	}

	judge := b.profile.Filters[i].Filter(b.cluster, pod)
	if judge.Err != nil {
		f.All = &Verdict{Plugin: name, Failed: true, Err: judge.Err.Error()}
		return f
	}
	if judge.All != nil {
		f.All = rejectedVerdict(name, judge.All)
		return f
	}

	if judge.Only != nil {
		f.Only = sets.KeySet(judge.Only)
	}
	if judge.Node == nil {
		return f
	}

	for _, node := range b.cluster.Nodes {
		if node != nil && (f.Only == nil || f.Only.Has(node.Name)) {
			f.Nodes[node.Name] = rejectedVerdict(name, judge.Node(node))
		}
	}
	return f
}

func rejectedVerdict(plugin string, r *plugins.Rejection) *Verdict {
	if r == nil {
		return nil
	}
	v := &Verdict{Plugin: plugin, Reasons: r.Reasons, Unresolvable: r.Unresolvable}
	if r.Err != nil {
		v.Failed, v.Err = true, r.Err.Error()
	}
	return v
}

func (b *berth) scoreNodes(name string, pod *cluster.Pod, nodes []*cluster.Node) Scoring {
	i := slices.IndexFunc(b.profile.Scorers, func(s plugins.Weighted) bool { return s.Name() == name })
	if i < 0 {
		return Scoring{Skipped: true}
	}

	scoring := b.profile.Scorers[i].Score(b.cluster, pod, nodes)
	if scoring.Err != nil {
		return Scoring{Failed: true, Err: scoring.Err.Error()}
	}
	if scoring.Node == nil {
		return Scoring{Skipped: true}
	}

	s := Scoring{}
	for _, node := range nodes {
		score, err := scoring.Node(node)
		if err != nil {
			return Scoring{Failed: true, Err: err.Error()}
		}
		s.Scores = append(s.Scores, score)
	}

	if scoring.Normalize != nil {
		scoring.Normalize(nodes, s.Scores)
	}
	return s
}
