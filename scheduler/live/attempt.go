package live

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/decide"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
	"github.com/berth-k8s/berth/scheduler/decision"
)

// schedule decides one pod.
func (s *Scheduler) schedule(ctx context.Context, item *queue.Item) {
	p := s.profiles[item.Pod.Spec.SchedulerName]
	b := s.newPlacement(p, item)
	if s.knownToFail(b) {
		s.reject(b, p.failed.why, nil, false)
		return
	}
	for _, e := range p.begin {
		e.Begin(&b.Attempt)
	}
	found := p.Decide(b.Waiting)
	switch {
	case found.Err != nil:
		s.observer.Decided(time.Since(b.began))
		s.end(b, false)
		s.fail(b, found.Err)
	case found.Node == nil:
		s.unplaced(ctx, b)
	default:
		s.observer.Decided(time.Since(b.began))
		s.decidedPlace(b, found.Node.Name, found.Total, found.Feasible)
		s.assume(b, found.Node)
	}
}

func (s *Scheduler) newPlacement(p *profile, item *queue.Item) *placement {
	pod := item.Pod
	b := &placement{profile: p, item: item, began: time.Now(), sampled: rand.N(100) < sampled}
	b.waiting = cluster.Pod{
		Class: item.Class, Name: pod.Name, UID: pod.UID, Nominated: pod.Status.NominatedNodeName, Created: pod.CreationTimestamp.Time,
	}
	if nominated := s.cluster.Nominated(pod.UID); nominated != nil {
		b.waiting.Nominated = nominated.Nominated
	}
	b.Attempt = Attempt{Pod: pod, Waiting: &b.waiting, Profile: pod.Spec.SchedulerName, Cluster: s.cluster}
	return b
}

// sampled is for how many attempts in a hundred the time of each plugin is taken; upstream's.
const sampled = 10

// timing returns what is to be called when the plugin has been asked.
func (s *Scheduler) timing(b *placement, plugin string, point plugins.Point) func(ok bool) {
	if !b.sampled {
		return func(bool) {}
	}
	began := time.Now()
	return func(ok bool) { s.observer.RanPlugin(plugin, point, ok, time.Since(began)) }
}

// unplaced asks who can help a pod that fits nowhere, and puts it where it waits.
func (s *Scheduler) unplaced(ctx context.Context, b *placement) {
	failure := b.profile.Diagnose(b.Waiting)
	var nominate *string
	var messages, more []string
	var failed error
	if failure.Nodes > 0 {
		s.rescuing = true // a victim that was not bound yet goes at once, before this pod waits for it
		nominate, messages, more, failed = s.rescue(ctx, b, failure)
		s.rescuing = false
	}
	if failure.Nodes == 0 || len(b.profile.rescue) == 0 {
		none := ""
		nominate = &none
	}
	s.observer.Decided(time.Since(b.began))
	s.end(b, false)
	if failed != nil {
		klog.FromContext(ctx).Error(failed, "Pod could not be helped", "pod", klog.KObj(b.Pod))
	}
	rejectors := slices.Clone(failure.Plugins)
	if failure.Rejector != "" {
		rejectors = append(rejectors, failure.Rejector)
	}
	for _, name := range more {
		if !slices.Contains(rejectors, name) {
			rejectors = append(rejectors, name)
		}
	}
	w := &why{failure.Message(strings.Join(messages, ", ")), rejectors, failure.Reasons}
	s.remember(b, nominate, w)
	s.reject(b, w, nominate, failure.Rejection != nil && failure.Rejection.Pending)
}

// rescue asks one after the other until one has the last word.
func (s *Scheduler) rescue(ctx context.Context, b *placement, failure *decide.Failure) (nominate *string, messages, rejectors []string, err error) {
	began := time.Now()
	helped := false
	for _, rescue := range b.profile.rescue {
		done := s.timing(b, rescue.plugin, plugins.PostFilter)
		r := rescue.ask(ctx, b, failure)
		done(r.Nominate != nil && *r.Nominate != "")
		if r.Nominate != nil {
			nominate = r.Nominate
		}
		rejectors = append(rejectors, r.Rejectors...)
		switch {
		case r.Err != nil:
			return nominate, []string{r.Err.Error()}, rejectors, r.Err
		case r.Final:
			helped = r.Nominate != nil && *r.Nominate != ""
			messages = nil
			if r.Message != "" {
				messages = []string{r.Message}
			}
		case r.Message != "":
			messages = append(messages, r.Message)
		}
		if r.Final {
			break
		}
	}
	if len(b.profile.rescue) > 0 {
		s.observer.Ran(b.Profile, plugins.PostFilter, helped, time.Since(began))
	}
	return nominate, messages, rejectors, nil
}

// reject puts a pod that cannot be placed where it waits, and says why. One that is pending need not back off when it is woken.
func (s *Scheduler) reject(b *placement, w *why, nominate *string, pending bool) {
	s.observer.Attempted(b.Profile, Unschedulable, time.Since(b.began))
	s.queue.Rejected(b.item, w.plugins, pending, time.Now())
	s.decidedNot(b, decision.Unschedulable, w)
	s.nominate(b, nominate)
	s.report(b.item, v1.PodReasonUnschedulable, w.message, nominate)
}

// fail puts a pod back whose attempt went wrong, and says so.
func (s *Scheduler) fail(b *placement, err error) {
	result, reason, told := Errored, v1.PodReasonSchedulerError, decision.Failed
	if refused := (unschedulable)(nil); errors.As(err, &refused) && refused.Unschedulable() {
		result, reason, told = Unschedulable, v1.PodReasonUnschedulable, decision.Unschedulable
	}
	s.observer.Attempted(b.Profile, result, time.Since(b.began))
	klog.Background().V(2).Info("Attempt failed", "pod", klog.KObj(b.Pod), "err", err)
	s.queue.Failed(b.item, time.Now())
	s.decidedNot(b, told, &why{message: err.Error()})
	none := ""
	s.nominate(b, &none)
	s.report(b.item, reason, err.Error(), &none)
}

// unschedulable is implemented by errors that are a plugin's word on the pod, and no failure.
type unschedulable interface {
	error
	Unschedulable() bool
}

// nominate notes for which node the pod waits; nil leaves that as it is.
func (s *Scheduler) nominate(b *placement, node *string) {
	if node == nil || s.queue.Get(b.Pod.UID) != b.item {
		return
	}
	current := s.cluster.Nominated(b.Pod.UID)
	switch {
	case *node == "":
		s.unnominate(b.Pod.UID)
	case current == nil || current.Nominated != *node:
		s.unnominate(b.Pod.UID)
		p := b.waiting
		s.cluster.Nominate(&p, *node)
	}
}

// end tells plugins from outside that an attempt is over.
func (s *Scheduler) end(b *placement, bound bool) {
	for _, e := range b.profile.end {
		e.End(&b.Attempt, bound)
	}
}

// failure is an attempt that came to nothing, and what it looked at: the next pod of the class need not be decided while that is
// the same.
type failure struct {
	class    *cluster.PodClass
	position int // of the cluster's log
	versions uint64
	why      *why
}

// remember keeps a failure that holds for every pod of the class.
func (s *Scheduler) remember(b *placement, nominate *string, w *why) {
	p, spec := b.profile, b.item.Class.Spec
	if nominate != nil && *nominate != "" || b.Waiting.Nominated != "" || len(p.Outside) > 0 || len(p.Extenders) > 0 || len(spec.ResourceClaims) > 0 ||
		slices.ContainsFunc(spec.Volumes, func(v v1.Volume) bool { return v.Ephemeral != nil }) {
		return
	}
	p.failed = failure{b.item.Class, s.cluster.Log.Len(), s.versions(), w}
}

func (s *Scheduler) knownToFail(b *placement) bool {
	f := &b.profile.failed
	return f.class == b.item.Class && b.Waiting.Nominated == "" && f.position == s.cluster.Log.Len() && f.versions == s.versions()
}

// versions grows with every change of an object beside nodes and pods.
func (s *Scheduler) versions() uint64 {
	o := &s.cluster.Objects
	return o.Namespaces.Version + o.Services.Version + o.ReplicationControllers.Version + o.ReplicaSets.Version + o.StatefulSets.Version +
		o.Budgets.Version + o.Volumes.Version + o.Claims.Version + o.StorageClasses.Version + o.CSINodes.Version + o.CSIDrivers.Version +
		o.CSICapacities.Version + o.VolumeAttachments.Version + o.ResourceSlices.Version + o.ResourceClaims.Version + o.DeviceClasses.Version
}
