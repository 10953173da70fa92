package cycle

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// profile is a profile with its decider and its out-of-tree plugins, each list in the order of the
// extension point.
type profile struct {
	Profile
	*decide.Decider

	begin   []Beginner
	assumed []Assumer
	end     []Ender
	gates   []func(*queue.Item) (plugin string)
	rescue  []rescuer
	reserve []Reserver
	permit  []Permitter
	sorter  Sorter
	Stages

	failed failure // the last attempt that failed for all pods of its class
}

// Stages are the out-of-tree plugins that take part in bindings, each list in the order of its
// extension point.
type Stages struct {
	PreBind  []PreBinder
	Bind     []Binder
	PostBind []PostBinder
	// Default: DefaultBinder binds what the Bind plugins pass on.
	Default bool
}

// rescuer is a PostFilter plugin, of Berth or out-of-tree.
type rescuer struct {
	plugin string
	ask    func(b *placement) Rescue
}

func (c *Core) newProfile(p Profile) (*profile, error) {
	made := &profile{Profile: p, Decider: decide.New(c.cluster, p.Profile, c.options.Seed)}
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
		if n, ok := e.(Ender); ok {
			made.end = append(made.end, n)
		}
	}
	made.reserve, made.permit = at[Reserver](p, plugins.Reserve, byName), at[Permitter](p, plugins.Permit, byName)
	made.PreBind, made.PostBind = at[PreBinder](p, plugins.PreBind, byName), at[PostBinder](p, plugins.PostBind, byName)
	if sorters := at[Sorter](p, plugins.QueueSort, byName); len(sorters) > 0 {
		made.sorter = sorters[0]
	}
	for _, name := range p.At[plugins.Bind] {
		if _, made.Default = p.Plugin(name).(plugins.OwnBinder); made.Default {
			break // it never passes
		}
		if binder, ok := byName[name].(Binder); ok {
			made.Bind = append(made.Bind, binder)
		}
	}
	for _, r := range p.Reservers {
		if r, ok := r.(plugins.ClaimReserver); ok {
			r.SetClock(c.wall)
		}
	}
	c.addGates(made, byName)
	c.addRescuers(made, byName)
	return made, nil
}

// at returns the out-of-tree plugins of an extension point, in its order.
func at[T Extension](p Profile, point plugins.Point, byName map[string]Extension) (list []T) {
	for _, name := range p.At[point] {
		if e, ok := byName[name].(T); ok {
			list = append(list, e)
		}
	}
	return list
}

func (c *Core) addGates(p *profile, byName map[string]Extension) {
	for _, name := range p.At[plugins.PreEnqueue] {
		rejects := c.gate(p, name, byName)
		if rejects == nil {
			continue
		}
		p.gates = append(p.gates, func(item *queue.Item) string {
			began := c.clock()
			rejected := rejects(item)
			if c.rng.IntN(100) < sampled {
				c.observer().RanPlugin(name, plugins.PreEnqueue, !rejected, c.clock().Sub(began))
			}
			if rejected {
				return name
			}
			return ""
		})
	}
}

// gate returns what keeps pods out for a plugin at PreEnqueue; nil if it keeps none out.
func (c *Core) gate(p *profile, name string, byName map[string]Extension) (rejects func(*queue.Item) bool) {
	if gate, ok := byName[name].(Gate); ok {
		return func(item *queue.Item) bool { return gate.Admit(item.Pod) != nil }
	}
	waiting := func(item *queue.Item) *cluster.Pod {
		return &cluster.Pod{Class: item.Class, Name: item.Pod.Name, UID: item.Pod.UID}
	}
	switch gate := p.Plugin(name).(type) {
	case plugins.Gate:
		return func(item *queue.Item) bool { return gate.Admit(waiting(item)) != "" }
	case plugins.Preempter:
		return func(item *queue.Item) bool { return c.preemptions.rounds[item.Pod.UID] != nil }
	case plugins.ObjectGate:
		var asked cluster.Pod // one for all: most pods need nothing of such a gate
		return func(item *queue.Item) bool {
			asked = cluster.Pod{Class: item.Class, Name: item.Pod.Name, UID: item.Pod.UID}
			return gate.PreEnqueue(c.cluster, &asked) != ""
		}
	}
	return nil
}

func (c *Core) addRescuers(p *profile, byName map[string]Extension) {
	for _, name := range p.At[plugins.PostFilter] {
		if rescue, ok := byName[name].(Rescuer); ok {
			p.rescue = append(p.rescue, rescuer{name, func(b *placement) Rescue {
				return rescue.Rescue(&b.Attempt, func() *decide.Evaluation { return p.Evaluate(b.Waiting) })
			}})
			continue
		}
		switch rescue := p.Plugin(name).(type) {
		case plugins.ClaimReleaser:
			p.rescue = append(p.rescue, rescuer{name, func(b *placement) Rescue { return c.giveBackDevices(b, rescue) }})
		case plugins.Preempter:
			p.rescue = append(p.rescue, rescuer{name, c.preempt})
		}
	}
}

// admit returns the plugin that keeps a pod out of the active queue, or "".
func (c *Core) admit(item *queue.Item) string {
	p := c.profiles[item.Pod.Spec.SchedulerName]
	if p == nil {
		return ""
	}
	for _, gate := range p.gates {
		if name := gate(item); name != "" {
			return name
		}
	}
	return c.groupGate(item)
}

// Check tells whether the profiles are valid. Configured ignores profiles that are not.
func (c *Core) Check(profiles []Profile) error {
	_, _, err := c.compile(profiles)
	return err
}

// reconfigure replaces the profiles between two attempts. What is known of the cluster, nominations
// and bindings under way stay. Pending pods are retried with the new configuration; pods of
// scheduler names that are no longer served leave the queue, and pods of names that are now served
// enter it.
func (c *Core) reconfigure(list []Profile) { _ = c.configure(list) }

// compile prepares the profiles, and the events that may help the pods that they reject.
func (c *Core) compile(list []Profile) (map[string]*profile, map[string]queue.Interests, error) {
	if len(list) == 0 {
		return nil, nil, errors.New("no profile")
	}
	profiles, interests := map[string]*profile{}, map[string]queue.Interests{}
	for _, p := range list {
		made, err := c.newProfile(p)
		if err != nil {
			return nil, nil, err
		}
		if profiles[p.SchedulerName] != nil {
			return nil, nil, fmt.Errorf("two profiles for scheduler name %q", p.SchedulerName)
		}
		profiles[p.SchedulerName] = made
		if interests[p.SchedulerName], err = c.interests(made); err != nil {
			return nil, nil, err
		}
	}
	return profiles, interests, nil
}

// configure replaces the profiles.
func (c *Core) configure(list []Profile) error {
	profiles, interests, err := c.compile(list)
	if err != nil {
		return err
	}
	whole := false
	c.keepsBudgets = slices.ContainsFunc(list, func(p Profile) bool { return p.KeepBudgets })
	for _, p := range list {
		made := profiles[p.SchedulerName]
		whole = whole || made.looksAtPods()
		c.outside = c.outside || slices.ContainsFunc(p.Extensions, func(e Extension) bool { _, ok := e.(Interested); return ok })
	}
	c.profiles = profiles
	c.keepWhole(whole)
	for _, p := range list {
		c.queue.SetInterests(p.SchedulerName, interests[p.SchedulerName])
	}
	if sorter := profiles[list[0].SchedulerName].sorter; sorter != nil {
		c.queue.OrderBy(sorter.Less)
	} else {
		c.queue.OrderBy(nil)
	}
	c.dismissUnserved()
	c.fetchServed()
	return nil
}

// interests are the events that the profile's plugins are interested in.
func (c *Core) interests(p *profile) (queue.Interests, error) {
	all := p.Profile.Interests(c.cluster)
	if c.groups != nil {
		all[groups.GangScheduling] = nil // woken by name; see Core.wakeGroup
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

// dismissUnserved removes pods from the queue whose scheduler name is no longer served, and retries
// the others.
func (c *Core) dismissUnserved() {
	for _, item := range c.queue.Sorted() {
		pod := item.Pod
		if c.profiles[pod.Spec.SchedulerName] != nil {
			c.queue.Wake(pod.UID, queue.ForceActivate, c.now)
			continue
		}
		name := unservedPod{nameOf(pod), pod.Spec.SchedulerName}
		c.dismiss(pod.UID)
		c.unserved[pod.UID] = name
	}
}

// fetchServed asks for the pods that were not served until now.
func (c *Core) fetchServed() {
	for _, uid := range slices.Sorted(maps.Keys(c.unserved)) {
		if pod := c.unserved[uid]; c.profiles[pod.scheduler] != nil {
			c.do(ReadPod{pod.Name})
		}
	}
}
