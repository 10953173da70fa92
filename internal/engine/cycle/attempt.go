package cycle

import (
	"errors"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// attempts decides pods. An attempt takes a pod from the queue and ends in a placement, or puts the
// pod back with the reason. One that asks a question aside is suspended until the answer arrives.
//
// A failed attempt leaves nothing behind but the nomination that it ends with: what it counted and
// reserved is given back in the same step, or with the last answer to the actions that it began.
type attempts struct {
	*common
	news        *happenings
	nominations *nominations
	rooms       *rooms
	decisions   *decisions
	placements  *placements
	podGroups   *podGroups
	reserved    *reservations
	preemptions *preemptions
	profiles    *profiles
	hindsight   *hindsight

	asking    int            // questions asked aside and not answered yet
	preparing map[string]int // pods for which something is prepared aside, by namespace
	limits    gang.Limits    // of attempts for groups; tests change them
}

// startAttempt starts an attempt for a pod that was popped from the queue.
func (as *attempts) startAttempt(item *queue.Item) {
	as.rooms.take(item)
	as.decidePod(item, nil, 0)
}

// decidePod decides one pod. When an attempt continues after questions were asked aside, answers
// holds what was answered so far and questions their number.
func (as *attempts) decidePod(item *queue.Item, answers any, questions int) {
	p := as.profiles.byName[item.Pod.Spec.SchedulerName]
	as.ungrouped(item)
	b := as.newPlacement(p, item)
	b.Aside, b.Answers, b.questions = true, answers, questions
	defer as.recoverAttempt(b)
	let := as.reserved.lets(item)
	if !let && as.knownToFail(b) {
		as.requeueUnschedulable(b, p.failed.why, nil)
		return
	}

	if as.startPreparing(b) {
		return
	}
	for _, e := range p.begin {
		e.Begin(&b.Attempt)
	}

	found := p.Decide(b.Waiting)
	if found.Node == nil && found.Err == nil && let {
		found = as.decideOntoHeld(b)
	}

	switch {
	case as.suspendAttempt(b, found.Err), as.goOnLater(b, found.Err):
	case found.Err != nil:
		if f := (*decide.FilterError)(nil); errors.As(found.Err, &f) && p.bindsVolumes(f.Plugin) {
			as.observer().VolumesFailed("predicate")
		}
		as.observer().Decided(as.clock().Sub(b.watch))
		b.endAttempt(false)
		as.requeueFailed(b, found.Err)
	case found.Node == nil:
		as.handleNoFit(b)
	default:
		as.observer().Decided(as.clock().Sub(b.watch))
		as.decisions.rememberPlaced(b, found.Node.Name, found.Total, found.Feasible)
		as.placements.assumePod(b, found.Node)
	}
}

// An attempt that has used up what it may cost goes on at once, behind others, if it has found out
// about that many nodes: a claim of which each node costs little is decided soon in a large
// cluster, too. One that is hard to satisfy backs off. Each node is found out about once, unless it
// changes meanwhile, so the second limit is for clusters that change all the time.
const (
	farEnough     = 200
	mostContinued = 100
)

// goOnLater puts back a pod whose attempt should go on after those of others have had their turn.
func (as *attempts) goOnLater(b *placement, err error) bool {
	var unfinished *plugins.Unfinished
	if !errors.As(err, &unfinished) || unfinished.Found < farEnough || b.item.Continued >= mostContinued {
		return false
	}

	b.endAttempt(false)
	as.queue.GoOn(b.item, as.now)
	as.nominations.setNomination(b, nil)
	return true
}

// decideOntoHeld decides a pod that may take room that is held for a pod group.
func (as *attempts) decideOntoHeld(b *placement) decide.Decision {
	nominees := as.reserved.lift()
	defer as.reserved.putBack(nominees)
	return b.profile.Decide(b.Waiting)
}

func (as *attempts) newPlacement(p *profile, item *queue.Item) *placement {
	pod := item.Pod
	b := &placement{profile: p, item: item, began: as.now, watch: as.clock()}
	waiting := &cluster.Pod{ // allocated on its own: the cluster keeps it while the pod lives, and must not retain the attempt
		Class: item.Class, Name: pod.Name, UID: pod.UID, Nominated: pod.Status.NominatedNodeName, Created: pod.CreationTimestamp.Time,
	}
	if nominated := as.cluster.Nominated(pod.UID); nominated != nil {
		waiting.Nominated = nominated.Nominated
	}
	b.Attempt = Attempt{
		Pod: pod, Waiting: waiting, Profile: pod.Spec.SchedulerName, Cluster: as.cluster, Sampled: as.rng.IntN(100) < sampled,
	}
	return b
}

// sampled is the percentage of attempts for which each plugin is timed, as in kube-scheduler.
const sampled = 10

// handleNoFit handles a pod that fits on no node: it runs PostFilter, then returns the pod to the
// queue.
func (as *attempts) handleNoFit(b *placement) {
	failure := b.profile.Diagnose(b.Waiting)
	var nominate *string
	var messages, more []string
	if failure.Nodes > 0 {
		as.news.rescuing = true // a victim that is not bound yet goes at once; its event must be noted before this pod waits
		nominate, messages, more, _ = as.runPostFilters(b, b.profile.rescue)
		as.news.rescuing = false
		if as.suspendAttempt(b, b.unasked) {
			return
		}
		if errors.Is(b.unasked, decide.ErrTooLong) {
			as.observer().Decided(as.clock().Sub(b.watch))
			b.endAttempt(false)
			as.requeueFailed(b, b.unasked)
			return
		}
	}
	switch none := ""; {
	case failure.Nodes == 0, len(b.profile.rescue) == 0:
		nominate = &none
	case b.profile.StopsBeforeDevices(failure.Rejector, failure.Rejection):
		nominate = nil
	}
	as.observer().Decided(as.clock().Sub(b.watch))
	b.endAttempt(false)
	rejectors := slices.Clone(failure.Plugins)
	if failure.Rejector != "" {
		rejectors = append(rejectors, failure.Rejector)
	}
	rejectors = gang.WithNames(rejectors, more)
	w := &why{failure.Message(strings.Join(messages, ", ")), rejectors, failure.Pending, failure.Reasons}
	as.rememberFailure(b, nominate, w)
	as.requeueUnschedulable(b, w, nominate)
}

// runPostFilters runs PostFilter plugins in order until one is final. When one fails, nothing that
// those before it have nominated counts: the pod keeps the nomination that it had.
func (as *attempts) runPostFilters(b *placement, by []rescuer) (nominate *string, messages, rejectors []string, final bool) {
	began := as.clock()
	helped := false
	for _, rescue := range by {
		done := as.startTiming(b, rescue.plugin, plugins.PostFilter)
		r := rescue.ask(as, b)
		done(r.Nominate != nil && *r.Nominate != "")
		if r.Nominate != nil {
			nominate = r.Nominate
		}
		rejectors = append(rejectors, r.Rejectors...)
		switch {
		case r.Err != nil:
			b.unasked = r.Err
			return nil, []string{r.Err.Error()}, rejectors, true
		case r.Final:
			helped = r.Nominate != nil && *r.Nominate != ""
			messages = nil
			if r.Message != "" {
				messages = []string{r.Message}
			}
		case r.Message != "":
			messages = append(messages, r.Message)
		}
		if final = r.Final; final {
			break
		}
	}

	if len(by) > 0 {
		as.observer().Ran(b.Profile, plugins.PostFilter, helped, as.clock().Sub(began))
	}
	return nominate, messages, rejectors, final
}

// requeueUnschedulable returns an unschedulable pod to the queue, where it waits for an event that
// may help it, and reports why.
func (as *attempts) requeueUnschedulable(b *placement, w *why, nominate *string) {
	as.observer().Attempted(b.Profile, Unschedulable, as.clock().Sub(b.watch))
	as.queue.Rejected(b.item, w.plugins, w.pending, as.now)
	as.preemptions.noteUnschedulable(b.item)
	as.decisions.rememberFailure(b, decision.Unschedulable, w)
	as.nominations.setNomination(b, nominate)
	as.report(b.item, v1.PodReasonUnschedulable, w.message, nominate)
}

// requeueFailed returns a pod to the queue whose attempt ended with an error, and reports the
// error.
func (as *attempts) requeueFailed(b *placement, err error) {
	result, reason, told := Errored, v1.PodReasonSchedulerError, decision.Failed
	if refused := (unschedulable)(nil); errors.As(err, &refused) && refused.Unschedulable() {
		result, reason, told = Unschedulable, v1.PodReasonUnschedulable, decision.Unschedulable
	}
	as.observer().Attempted(b.Profile, result, as.clock().Sub(b.watch))
	as.queue.Failed(b.item, as.now)
	as.decisions.rememberFailure(b, told, &why{message: err.Error()})
	none := ""
	as.nominations.setNomination(b, &none)
	as.report(b.item, reason, err.Error(), &none)
}

// requeuePlacement returns the pod of a placement to the queue.
func (as *attempts) requeuePlacement(b *placement, err error) {
	as.preemptions.forgetVictim(b.Pod.UID)
	if refused := (*rejection)(nil); errors.As(err, &refused) {
		none := ""
		w := &why{message: refused.Error(), plugins: []string{refused.plugin}}
		if refused.Pending {
			w.pending = w.plugins
		}
		as.requeueUnschedulable(b, w, &none)
	} else {
		as.requeueFailed(b, err)
	}
	as.podGroups.memberLost(b, err)
}

// noteBound notes that a pod is bound.
func (as *attempts) noteBound(b *placement) { as.podGroups.memberBound(b) }

// bindAnswered notes that a binding is over.
func (as *attempts) bindAnswered(b *placement) { as.preemptions.bindAnswered(b) }

// unschedulable is implemented by errors that are a plugin's verdict rather than a failure.
type unschedulable interface {
	error
	Unschedulable() bool
}

// failure is a failed attempt together with the state that it was decided on. As long as that state
// has not changed, every other pod of the class fails the same way and need not be decided.
type failure struct {
	class    *cluster.PodClass
	position int // in the cluster's log
	versions uint64
	why      *why
	delayed  bool // holds only for pods that may not preempt yet
}

// rememberFailure keeps a failure if it holds for every pod of the class.
func (as *attempts) rememberFailure(b *placement, nominate *string, w *why) {
	p, spec := b.profile, b.item.Class.Spec
	if nominate != nil && *nominate != "" || b.Waiting.Nominated != "" || len(p.Outside) > 0 ||
		len(p.Extenders) > 0 || len(spec.ResourceClaims) > 0 ||
		slices.ContainsFunc(spec.Volumes, func(v v1.Volume) bool { return v.Ephemeral != nil }) || as.leftClaim(b) {
		return
	}
	p.failed = failure{b.item.Class, as.cluster.Log.Len(), as.objectVersions(), w, as.preemptions.mustDelay(b.item)}
}

// knownToFail tells whether the pod must fail as the last failed pod of its class did, since
// nothing has changed.
func (as *attempts) knownToFail(b *placement) bool {
	f := &b.profile.failed
	return f.class == b.item.Class && b.Waiting.Nominated == "" && f.position == as.cluster.Log.Len() &&
		f.versions == as.objectVersions() &&
		(!f.delayed || as.preemptions.mustDelay(b.item)) && !as.leftClaim(b)
}

// leftClaim tells whether the pod has a device claim left by an earlier attempt, which it has to
// give up before it can be placed.
func (as *attempts) leftClaim(b *placement) bool {
	return slices.ContainsFunc(b.profile.Reservers, func(r plugins.Reserver) bool {
		of, ok := r.(plugins.ClaimReserver)
		return ok && of.LeftClaim(as.cluster, b.Waiting)
	})
}

// objectVersions changes whenever an object other than a node or pod changes in what decisions
// depend on.
func (as *attempts) objectVersions() uint64 {
	o := &as.cluster.Objects
	return o.Namespaces.Version + o.Services.Version + o.ReplicationControllers.Version + o.ReplicaSets.Version + o.StatefulSets.Version +
		o.Budgets.Version + o.Volumes.Version + o.Claims.Version + o.StorageClasses.Version + o.CSINodes.Version + o.CSIDrivers.Version +
		o.CSICapacities.Version + o.VolumeAttachments.Version + o.ResourceSlices.Version + o.ResourceClaims.Version +
		o.DeviceClasses.Version +
		o.PodGroups.Version
}

// giveBackErrand takes the answer to a GiveBackClaim.
type giveBackErrand struct {
	as    *attempts
	pod   types.UID
	group releaseErrand // if the claim was reserved for the pod's group
}

func (e giveBackErrand) handleOutcome(o Outcome) {
	if e.group.l != nil {
		e.group.handleOutcome(o)
	}
	if o.Fault != nil {
		e.as.queue.Activate(e.pod, e.as.now)
	}
}

// giveBackDevices runs a plugin's PostFilter: if a claim of the pod holds devices that the pod
// cannot use, it gives them up.
func (as *attempts) giveBackDevices(b *placement, plugin plugins.ClaimReleaser) Rescue {
	message, change, remove := plugin.PostFilter(as.cluster, b.Waiting, as.placements.isUnused(b))
	if change != nil {
		errand := giveBackErrand{as: as, pod: b.Pod.UID}
		if claim, ok := as.cluster.ResourceClaims.Get(change.Namespace, change.Name); ok && !remove {
			if group, ok := plugins.GroupOf(claim); ok {
				claims := as.placements.claims
				errand.group, claims.releasing[nameOf(claim)] = releaseErrand{claims, nameOf(claim)}, group.UID
			}
		}
		as.addAction(GiveBackClaim{as.issueErrand(errand), change, remove})
	}
	return Rescue{Message: message}
}
