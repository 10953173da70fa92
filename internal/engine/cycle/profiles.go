// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// profiles holds the active profiles by scheduler name.
type profiles struct {
	*common
	events      *clusterEvents
	podGroups   *podGroups
	preemptions *preemptions

	byName map[string]*servedProfile
}

// servesName reports whether pods of a scheduler name are scheduled.
func (fs *profiles) servesName(schedulerName string) bool { return fs.byName[schedulerName] != nil }

// configuration is a validated list of profiles.
type configuration struct {
	list      []Profile
	byName    map[string]*servedProfile
	interests map[string]queue.Interests // events that may help rejected pods, by scheduler name
	whole     bool                       // a profile has plugins that may read any field of a pod
}

// compileProfiles prepares profiles. It does not change the active profiles, so an invalid list has
// no effect.
func (fs *profiles) compileProfiles(list []Profile) (*configuration, error) {
	if len(list) == 0 {
		return nil, errors.New("no profile")
	}
	f := &configuration{list: list, byName: map[string]*servedProfile{}, interests: map[string]queue.Interests{}}
	for _, p := range list {
		made, err := fs.newProfile(p)
		if err != nil {
			return nil, err
		}
		if f.byName[p.SchedulerName] != nil {
			return nil, fmt.Errorf("two profiles for scheduler name %q", p.SchedulerName)
		}
		f.byName[p.SchedulerName] = made
		f.whole = f.whole || len(made.Extensions)+len(made.Outside)+len(made.Extenders) > 0
		if f.interests[p.SchedulerName], err = fs.interestsOf(made); err != nil {
			return nil, err
		}
	}

	return f, nil
}

// newProfile prepares a profile: it assigns the out-of-tree plugins to the extension points that
// they implement and at which the configuration lists them.
func (fs *profiles) newProfile(p Profile) (*servedProfile, error) {
	made := &servedProfile{Profile: p, Decider: fs.newDecider(p.Profile, fs.options.Seed)}
	byName := map[string]Extension{}
	for _, e := range p.Extensions {
		if byName[e.Name()] != nil {
			return nil, fmt.Errorf("profile %q: plugin %s is listed twice", p.SchedulerName, e.Name())
		}
		byName[e.Name()] = e
		if b, ok := e.(Beginner); ok {
			made.begin = append(made.begin, b)
		}
		if a, ok := e.(Assumer); ok {
			made.assumed = append(made.assumed, a)
		}
		if g, ok := e.(GroupBeginner); ok {
			made.beginGroup = append(made.beginGroup, g)
		}
		if n, ok := e.(Ender); ok {
			made.end = append(made.end, n)
		}
	}
	made.reserve, made.permit = extensionsAt[Reserver](p, plugins.Reserve, byName), extensionsAt[Permitter](p, plugins.Permit, byName)
	made.scorePlacements = extensionsAt[PlacementScorer](p, plugins.PlacementScore, byName)
	made.PreBind, made.PostBind = extensionsAt[PreBinder](p, plugins.PreBind, byName), extensionsAt[PostBinder](p, plugins.PostBind, byName)
	if sorters := extensionsAt[Sorter](p, plugins.QueueSort, byName); len(sorters) > 0 {
		made.sorter = sorters[0]
	}

	for _, name := range p.At[plugins.Bind] {
		if _, made.Default = p.Plugin(name).(plugins.OwnBinder); made.Default {
			break // later binders are never called, since DefaultBinder handles every pod
		}
		if binder, ok := byName[name].(Binder); ok {
			made.Bind = append(made.Bind, binder)
		}
	}
	for _, r := range p.Reservers {
		if r, ok := r.(plugins.ClaimReserver); ok {
			r.SetClock(fs.wallTime)
		}
		if r, ok := r.(plugins.Learner); ok {
			made.learners = append(made.learners, r)
		}
		if r, ok := r.(plugins.Preparer); ok && fs.options.PrepareAside {
			r.Forget()
			made.prepare = append(made.prepare, r)
		}
	}
	fs.addGates(made, byName)
	made.postFilters = postFiltersAt[PostFilterer](p, plugins.PostFilter, byName)
	made.groupPostFilters = postFiltersAt[GroupPostFilterer](p, plugins.PodGroupPostFilter, byName)
	return made, nil
}

// newDecider creates the decider of a profile. The seed breaks ties between nodes with equal
// scores.
func (fs *profiles) newDecider(p *plugins.Profile, seed uint64) *decide.Decider {
	d := decide.New(fs.cluster, p, seed)
	d.Prefer = fs.options.Prefer
	return d
}

// addGates adds the gates of the profile's PreEnqueue plugins, in their order.
func (fs *profiles) addGates(p *servedProfile, byName map[string]Extension) {
	for _, name := range p.At[plugins.PreEnqueue] {
		rejects := fs.gateOf(p, name, byName)
		if rejects == nil {
			continue
		}

		p.gates = append(p.gates, func(item *queue.Item) string {
			began := fs.clock()
			rejected := rejects(item)
			if fs.rng.IntN(100) < sampled {
				fs.observer().RanPlugin(name, plugins.PreEnqueue, !rejected, fs.clock().Sub(began))
			}
			if rejected {
				return name
			}
			return ""
		})
	}
}

// gateOf returns the rejection function of a PreEnqueue plugin, or nil if the plugin never rejects
// pods.
func (fs *profiles) gateOf(p *servedProfile, name string, byName map[string]Extension) (rejects func(*queue.Item) bool) {
	if gate, ok := byName[name].(Gate); ok {
		return func(item *queue.Item) bool { return gate.Admit(item.Pod) != nil }
	}
	waiting := func(item *queue.Item) *cluster.Pod {
		return cluster.NewPod(item.Class, item.Pod.Name, item.Pod.UID)
	}

	switch gate := p.Plugin(name).(type) {
	case plugins.Gate:
		return func(item *queue.Item) bool { return gate.Admit(waiting(item)) != "" }
	case plugins.Preempter:
		return func(item *queue.Item) bool { return fs.preemptions.rounds[item.Pod.UID] != nil }
	case plugins.ObjectGate:
		var asked cluster.Pod // reused to save allocations
		return func(item *queue.Item) bool {
			asked = *cluster.NewPod(item.Class, item.Pod.Name, item.Pod.UID)
			return gate.PreEnqueue(fs.cluster, &asked) != ""
		}
	}
	return nil
}

// interestsOf returns the events registered by the profile's plugins.
func (fs *profiles) interestsOf(p *servedProfile) (queue.Interests, error) {
	var displaces plugins.Displaces
	if fs.podGroups.gates.Generic {
		displaces = func(item *queue.Item, victim *cluster.Pod) bool {
			return fs.podGroups.couldPreempt(item, victim, p.GentlePreemption)
		}
	}
	all := p.Profile.Interests(fs.cluster, displaces)
	if fs.podGroups.gates.Generic {
		all[groups.GangScheduling] = nil // woken by name; see podGroups.wakeMembers
	}
	if fs.options.ResizePreemption {
		all[plugins.DeferredResizes] = p.Profile.ResizeInterests(fs.cluster)
	}

	for _, e := range p.Extensions {
		i, ok := e.(Interested)
		if !ok {
			continue
		}
		list, err := i.Interests()
		if err != nil {
			return nil, fmt.Errorf("profile %q: events of plugin %s: %w", p.SchedulerName, e.Name(), err)
		}
		all[e.Name()] = list
	}
	return all, nil
}

// couldPreempt reports whether a waiting pod could preempt another pod, with group priorities
// enabled. It considers only the two pods and their groups. gentle is set if the profile spares the
// pods of more important groups.
func (gs *podGroups) couldPreempt(item *queue.Item, victim *cluster.Pod, gentle bool) bool {
	priority, own := item.Class.Priority, gs.groupOf(item)
	if own != nil && own.Object != nil {
		priority = own.Priority()
	}
	lower := victim.Class.Priority < priority
	if victim.Class.Spec.SchedulingGroup == nil {
		return lower
	}

	switch g := gs.groups.GroupOf(victim.UID()); {
	case g == nil: // the group was deleted, so its effect is unknown
		return false
	case g.Object == nil:
		return lower
	case g.Whole():
		return g.Priority() < priority && (lower || own != nil)
	case gentle:
		return lower && g.Priority() < priority
	}
	return lower
}

// useConfiguration replaces the profiles. It cannot fail. As upstream, all profiles share the queue
// order of the first.
func (fs *profiles) useConfiguration(f *configuration) {
	fs.byName = f.byName
	fs.preemptions.keepsBudgets = slices.ContainsFunc(f.list, func(p Profile) bool { return p.KeepBudgets })
	fs.preemptions.delays = map[string]time.Duration{}
	fs.events.outOfTree = false
	for _, p := range f.list {
		if p.Preemption && p.GentlePreemption {
			fs.preemptions.delays[p.SchedulerName] = p.PreemptionDelay
		}
		fs.events.outOfTree = fs.events.outOfTree ||
			slices.ContainsFunc(p.Extensions, func(e Extension) bool { _, ok := e.(Interested); return ok })
		fs.queue.SetInterests(p.SchedulerName, f.interests[p.SchedulerName])
	}

	if sorter := f.byName[f.list[0].SchedulerName].sorter; sorter != nil {
		fs.queue.OrderBy(sorter.Less)
	} else {
		fs.queue.OrderBy(nil)
	}
	fs.preemptions.setAlarms()
}
