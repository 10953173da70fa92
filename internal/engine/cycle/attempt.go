package cycle

import (
	"errors"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// schedule starts an attempt for a pod that was popped from the queue.
func (c *Core) schedule(item *queue.Item) { c.decide(item, nil, 0) }

// decide decides one pod. When an attempt continues after questions were asked aside, answers holds
// what was answered so far and questions their number.
func (c *Core) decide(item *queue.Item, answers any, questions int) {
	p := c.profiles[item.Pod.Spec.SchedulerName]
	c.ungrouped(item)
	b := c.newPlacement(p, item)
	b.Aside, b.Answers, b.questions = true, answers, questions
	defer c.recovered(b)
	if c.knownToFail(b) {
		c.reject(b, p.failed.why, nil)
		return
	}
	for _, e := range p.begin {
		e.Begin(&b.Attempt)
	}
	found := p.Decide(b.Waiting)
	switch {
	case c.aside(b, found.Err):
	case found.Err != nil:
		c.observer().Decided(c.clock().Sub(b.watch))
		c.end(b, false)
		c.fail(b, found.Err)
	case found.Node == nil:
		c.unplaced(b)
	default:
		c.observer().Decided(c.clock().Sub(b.watch))
		c.decidedPlace(b, found.Node.Name, found.Total, found.Feasible)
		c.assume(b, found.Node)
	}
}

func (c *Core) newPlacement(p *profile, item *queue.Item) *placement {
	pod := item.Pod
	b := &placement{profile: p, item: item, began: c.now, watch: c.clock()}
	waiting := &cluster.Pod{ // allocated on its own: the cluster keeps it while the pod lives, and must not retain the attempt
		Class: item.Class, Name: pod.Name, UID: pod.UID, Nominated: pod.Status.NominatedNodeName, Created: pod.CreationTimestamp.Time,
	}
	if nominated := c.cluster.Nominated(pod.UID); nominated != nil {
		waiting.Nominated = nominated.Nominated
	}
	b.Attempt = Attempt{
		Pod: pod, Waiting: waiting, Profile: pod.Spec.SchedulerName, Cluster: c.cluster, Sampled: c.rng.IntN(100) < sampled,
	}
	return b
}

// sampled is the percentage of attempts for which each plugin is timed, as in kube-scheduler.
const sampled = 10

// timing returns a function to be called when the plugin has answered.
func (c *Core) timing(b *placement, plugin string, point plugins.Point) func(ok bool) {
	if !b.Sampled {
		return func(bool) {}
	}
	began := c.clock()
	return func(ok bool) { c.observer().RanPlugin(plugin, point, ok, c.clock().Sub(began)) }
}

// unplaced handles a pod that fits on no node: it runs PostFilter, then puts the pod where it
// waits.
func (c *Core) unplaced(b *placement) {
	failure := b.profile.Diagnose(b.Waiting)
	var nominate *string
	var messages, more []string
	if failure.Nodes > 0 {
		c.preemptions.rescuing = true // a victim that is not bound yet goes at once; its event must be noted before this pod waits
		nominate, messages, more = c.rescue(b)
		c.preemptions.rescuing = false
		if c.aside(b, b.unasked) {
			return
		}
		if errors.Is(b.unasked, decide.ErrTooLong) {
			c.observer().Decided(c.clock().Sub(b.watch))
			c.end(b, false)
			c.fail(b, b.unasked)
			return
		}
	}
	switch none := ""; {
	case failure.Nodes == 0, len(b.profile.rescue) == 0:
		nominate = &none
	case b.profile.StopsBeforeDevices(failure.Rejector, failure.Rejection):
		nominate = nil
	}
	c.observer().Decided(c.clock().Sub(b.watch))
	c.end(b, false)
	rejectors := slices.Clone(failure.Plugins)
	if failure.Rejector != "" {
		rejectors = append(rejectors, failure.Rejector)
	}
	for _, name := range more {
		if !slices.Contains(rejectors, name) {
			rejectors = append(rejectors, name)
		}
	}
	w := &why{failure.Message(strings.Join(messages, ", ")), rejectors, failure.Pending, failure.Reasons}
	c.remember(b, nominate, w)
	c.reject(b, w, nominate)
}

// rescue runs the PostFilter plugins in order until one is final.
func (c *Core) rescue(b *placement) (nominate *string, messages, rejectors []string) {
	began := c.clock()
	helped := false
	for _, rescue := range b.profile.rescue {
		done := c.timing(b, rescue.plugin, plugins.PostFilter)
		r := rescue.ask(b)
		done(r.Nominate != nil && *r.Nominate != "")
		if r.Nominate != nil {
			nominate = r.Nominate
		}
		rejectors = append(rejectors, r.Rejectors...)
		switch {
		case r.Err != nil:
			b.unasked = r.Err
			return nominate, []string{r.Err.Error()}, rejectors
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
		c.observer().Ran(b.Profile, plugins.PostFilter, helped, c.clock().Sub(began))
	}
	return nominate, messages, rejectors
}

// reject puts an unschedulable pod where it waits, and reports why.
func (c *Core) reject(b *placement, w *why, nominate *string) {
	c.observer().Attempted(b.Profile, Unschedulable, c.clock().Sub(b.watch))
	c.queue.Rejected(b.item, w.plugins, w.pending, c.now)
	c.decidedNot(b, decision.Unschedulable, w)
	c.nominate(b, nominate)
	c.report(b.item, v1.PodReasonUnschedulable, w.message, nominate)
}

// fail returns a pod to the queue whose attempt ended with an error, and reports the error.
func (c *Core) fail(b *placement, err error) {
	result, reason, told := Errored, v1.PodReasonSchedulerError, decision.Failed
	if refused := (unschedulable)(nil); errors.As(err, &refused) && refused.Unschedulable() {
		result, reason, told = Unschedulable, v1.PodReasonUnschedulable, decision.Unschedulable
	}
	c.observer().Attempted(b.Profile, result, c.clock().Sub(b.watch))
	c.queue.Failed(b.item, c.now)
	c.decidedNot(b, told, &why{message: err.Error()})
	none := ""
	c.nominate(b, &none)
	c.report(b.item, reason, err.Error(), &none)
}

// unschedulable is implemented by errors that are a plugin's verdict rather than a failure.
type unschedulable interface {
	error
	Unschedulable() bool
}

// nominate records the pod's nominated node; an empty name clears it, nil leaves it as it is.
func (c *Core) nominate(b *placement, node *string) {
	if node == nil || c.queue.Get(b.Pod.UID) != b.item {
		return
	}
	current := c.cluster.Nominated(b.Pod.UID)
	switch {
	case *node == "":
		c.unnominate(b.Pod.UID)
	case current == nil || current.Nominated != *node:
		c.unnominate(b.Pod.UID)
		p := *c.contender(b.Waiting, b.Pod)
		c.cluster.Nominate(&p, *node)
	}
}

// end tells out-of-tree plugins that an attempt is over.
func (c *Core) end(b *placement, bound bool) {
	for _, e := range b.profile.end {
		e.End(&b.Attempt, bound)
	}
}

// failure is a failed attempt together with the state that it was decided on. As long as that state
// has not changed, every other pod of the class fails the same way and need not be decided.
type failure struct {
	class    *cluster.PodClass
	position int // in the cluster's log
	versions uint64
	why      *why
}

// remember keeps a failure if it holds for every pod of the class.
func (c *Core) remember(b *placement, nominate *string, w *why) {
	p, spec := b.profile, b.item.Class.Spec
	if nominate != nil && *nominate != "" || b.Waiting.Nominated != "" || len(p.Outside) > 0 || len(p.Extenders) > 0 || len(spec.ResourceClaims) > 0 ||
		slices.ContainsFunc(spec.Volumes, func(v v1.Volume) bool { return v.Ephemeral != nil }) {
		return
	}
	p.failed = failure{b.item.Class, c.cluster.Log.Len(), c.versions(), w}
}

func (c *Core) knownToFail(b *placement) bool {
	f := &b.profile.failed
	return f.class == b.item.Class && b.Waiting.Nominated == "" && f.position == c.cluster.Log.Len() && f.versions == c.versions()
}

// versions changes whenever an object other than a node or pod changes.
func (c *Core) versions() uint64 {
	o := &c.cluster.Objects
	return o.Namespaces.Version + o.Services.Version + o.ReplicationControllers.Version + o.ReplicaSets.Version + o.StatefulSets.Version +
		o.Budgets.Version + o.Volumes.Version + o.Claims.Version + o.StorageClasses.Version + o.CSINodes.Version + o.CSIDrivers.Version +
		o.CSICapacities.Version + o.VolumeAttachments.Version + o.ResourceSlices.Version + o.ResourceClaims.Version + o.DeviceClasses.Version
}
