package live

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/decide"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
)

// profile is a profile with its decider and its plugins from outside, each list in the order of the extension point.
type profile struct {
	Profile
	*decide.Decider

	begin     []Beginner
	end       []Ender
	gates     []func(*queue.Item) (plugin string)
	rescue    []rescuer
	reserve   []Reserver
	permit    []Permitter
	preBind   []PreBinder
	bind      []Binder
	postBind  []PostBinder
	sorter    Sorter
	volumes   *plugins.VolumeBinding    // nil if it is not at Reserve
	devices   *plugins.DynamicResources // the same
	hasBinder bool                      // DefaultBinder binds what those from outside pass on

	failed failure // the last attempt that failed for all pods of its class
}

// rescuer is what is asked when no node can take a pod.
type rescuer struct {
	plugin string
	ask    func(ctx context.Context, b *placement, failure *decide.Failure) Rescue
}

func (s *Scheduler) newProfile(p Profile) (*profile, error) {
	made := &profile{Profile: p, Decider: decide.New(s.cluster, p.Profile, rand.Uint64())}
	byName := map[string]Extension{}
	for _, e := range p.Extensions {
		if byName[e.Name()] != nil {
			return nil, fmt.Errorf("profile %q: plugin %s stands there twice", p.SchedulerName, e.Name())
		}
		byName[e.Name()] = e
		if b, ok := e.(Beginner); ok {
			made.begin = append(made.begin, b)
		}
		if n, ok := e.(Ender); ok {
			made.end = append(made.end, n)
		}
	}
	made.reserve, made.permit = at[Reserver](p, plugins.Reserve, byName), at[Permitter](p, plugins.Permit, byName)
	made.preBind, made.postBind = at[PreBinder](p, plugins.PreBind, byName), at[PostBinder](p, plugins.PostBind, byName)
	if sorters := at[Sorter](p, plugins.QueueSort, byName); len(sorters) > 0 {
		made.sorter = sorters[0]
	}
	for _, name := range p.At[plugins.Bind] {
		if made.hasBinder = name == "DefaultBinder"; made.hasBinder {
			break // it never passes
		}
		if binder, ok := byName[name].(Binder); ok {
			made.bind = append(made.bind, binder)
		}
	}
	for _, r := range p.Reservers {
		switch r := r.(type) {
		case *plugins.VolumeBinding:
			made.volumes = r
		case *plugins.DynamicResources:
			r.Now = time.Now
			made.devices = r
		}
	}
	s.addGates(made, byName)
	s.addRescuers(made, byName)
	return made, nil
}

// at returns the plugins from outside that extend a point, in its order.
func at[T Extension](p Profile, point plugins.Point, byName map[string]Extension) (list []T) {
	for _, name := range p.At[point] {
		if e, ok := byName[name].(T); ok {
			list = append(list, e)
		}
	}
	return list
}

func (s *Scheduler) addGates(p *profile, byName map[string]Extension) {
	own := map[string]plugins.Gate{}
	for _, gate := range p.Gates {
		own[gate.Name()] = gate
	}
	for _, name := range p.At[plugins.PreEnqueue] {
		var rejects func(item *queue.Item) bool
		switch gate, ok := byName[name].(Gate); {
		case ok:
			rejects = func(item *queue.Item) bool { return gate.Admit(item.Pod) != nil }
		case own[name] != nil:
			gate := own[name]
			rejects = func(item *queue.Item) bool {
				return gate.Admit(&cluster.Pod{Class: item.Class, Name: item.Pod.Name, UID: item.Pod.UID}) != ""
			}
		case name == "DefaultPreemption":
			rejects = func(item *queue.Item) bool { return s.preempting[item.Pod.UID] > 0 }
		case name == "DynamicResources" && p.devices != nil:
			rejects = func(item *queue.Item) bool {
				return p.devices.PreEnqueue(s.cluster, &cluster.Pod{Class: item.Class, Name: item.Pod.Name, UID: item.Pod.UID}) != ""
			}
		default:
			continue
		}
		p.gates = append(p.gates, func(item *queue.Item) string {
			began := time.Now()
			rejected := rejects(item)
			if rand.N(100) < sampled {
				s.observer.RanPlugin(name, plugins.PreEnqueue, !rejected, time.Since(began))
			}
			if rejected {
				return name
			}
			return ""
		})
	}
}

func (s *Scheduler) addRescuers(p *profile, byName map[string]Extension) {
	for _, name := range p.At[plugins.PostFilter] {
		switch rescue, ok := byName[name].(Rescuer); {
		case ok:
			p.rescue = append(p.rescue, rescuer{name, func(ctx context.Context, b *placement, _ *decide.Failure) Rescue {
				return rescue.Rescue(ctx, &b.Attempt, func() *decide.Evaluation { return p.Evaluate(b.Waiting) })
			}})
		case name == "DynamicResources":
			p.rescue = append(p.rescue, rescuer{name, s.giveBackDevices})
		case name == "DefaultPreemption":
			p.rescue = append(p.rescue, rescuer{name, s.preempt})
		}
	}
}

// admit names the plugin that keeps a pod out of the queue.
func (s *Scheduler) admit(item *queue.Item) string {
	p := s.profiles[item.Pod.Spec.SchedulerName]
	if p == nil {
		return ""
	}
	for _, gate := range p.gates {
		if name := gate(item); name != "" {
			return name
		}
	}
	return ""
}

// SetProfiles takes other profiles instead of those that there are, between two pods. Nothing is lost: what is known of the cluster,
// nominations and bindings under way stay; pods that wait are tried again under the new word; those of names that are served no
// longer leave the queue, and those of names that are served now come into it. Safe for all goroutines.
func (s *Scheduler) SetProfiles(ctx context.Context, profiles []Profile) error {
	var failed error
	if err := s.ask(ctx, func() { failed = s.use(profiles) }); err != nil {
		return err
	}
	return failed
}

// use takes the profiles.
func (s *Scheduler) use(list []Profile) error {
	if len(list) == 0 {
		return errors.New("no profile")
	}
	profiles := map[string]*profile{}
	for _, p := range list {
		made, err := s.newProfile(p)
		if err != nil {
			return err
		}
		if profiles[p.SchedulerName] != nil {
			return fmt.Errorf("two profiles for scheduler name %q", p.SchedulerName)
		}
		profiles[p.SchedulerName] = made
	}
	interests, whole := map[string]queue.Interests{}, false
	for name, p := range profiles {
		whole = whole || p.looksAtPods()
		of, err := s.interests(p)
		if err != nil {
			return err
		}
		interests[name] = of
	}
	s.profiles = profiles
	s.keepWhole(whole)
	for name, of := range interests {
		s.events.open(name)
		s.queue.SetInterests(name, of)
	}
	if sorter := profiles[list[0].SchedulerName].sorter; sorter != nil {
		s.queue.OrderBy(sorter.Less)
	} else {
		s.queue.OrderBy(nil)
	}
	s.dismissUnserved()
	s.fetchServed()
	return nil
}

// interests are those of Berth's own plugins and of those from outside.
func (s *Scheduler) interests(p *profile) (queue.Interests, error) {
	all := p.Profile.Interests(s.cluster)
	for _, e := range p.Extensions {
		i, ok := e.(Interested)
		if !ok {
			continue
		}
		s.outside = true
		list, err := i.Interests()
		if err != nil {
			return nil, fmt.Errorf("profile %q: events of plugin %s: %w", p.SchedulerName, e.Name(), err)
		}
		all[e.Name()] = list
	}
	return all, nil
}

// dismissUnserved takes the pods out of the queue that nobody here schedules any more, and has the others tried again.
func (s *Scheduler) dismissUnserved() {
	now := time.Now()
	for item := range s.queue.Each {
		pod := item.Pod
		if s.profiles[pod.Spec.SchedulerName] != nil {
			s.queue.Wake(pod.UID, queue.ForceActivate, now)
			continue
		}
		s.unserved[pod.UID] = waitingName{nameOf(pod), pod.Spec.SchedulerName}
		s.dismiss(pod.UID)
	}
}

// fetchServed reads the pods again that came when nobody here scheduled them.
func (s *Scheduler) fetchServed() {
	for _, pod := range s.unserved {
		if s.profiles[pod.scheduler] == nil {
			continue
		}
		s.helpers.do(func(ctx context.Context) { s.fetch(ctx, pod) })
	}
}

// fetch tries until the API server answers.
func (s *Scheduler) fetch(ctx context.Context, pod waitingName) {
	s.insist(ctx, func(ctx context.Context) bool {
		found, err := s.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name.Name, metav1.GetOptions{})
		if err == nil {
			s.inbox.put(func() { s.fetched(found) })
		}
		return answered(err)
	})
}

// fetched takes in a pod that was read, if no watch has shown it, or its end, meanwhile.
func (s *Scheduler) fetched(pod *v1.Pod) {
	if _, waits := s.unserved[pod.UID]; waits && pod.Spec.NodeName == "" {
		s.watchedPod(pod)
	}
}
