package cycle

import (
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
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

// newPlacement begins an attempt for a pod: its placement is registered nowhere yet, and can simply
// be dropped. The draw for Sampled is made in every attempt, so that random numbers are the same
// with and without metrics.
func (as *attempts) newPlacement(p *servedProfile, item *queue.Item) *placement {
	pod := item.Pod
	b := &placement{profile: p, item: item, began: as.now, watch: as.clock()}
	waiting := cluster.NewPod(item.Class, pod.Name, pod.UID) // the cluster keeps it while the pod lives
	waiting.Created = cluster.TimeOf(pod.CreationTimestamp.Time)
	if nominated := as.cluster.Nominated(pod.UID); nominated != nil {
		waiting.SetNominated(nominated.Nominated)
	} else {
		waiting.SetNominated(pod.Status.NominatedNodeName)
	}
	b.Attempt = Attempt{
		Pod: pod, Waiting: waiting, Profile: pod.Spec.SchedulerName, Cluster: as.cluster, Sampled: as.rng.IntN(100) < sampled,
	}
	return b
}

// requeueUnschedulable returns an unschedulable pod to the queue, where it waits for an event that
// may help it, and reports why. nominate is the nomination that the pod ends with; nil leaves it as
// it is.
func (as *attempts) requeueUnschedulable(b *placement, w *why, nominate *string) {
	as.observer().Attempted(b.Profile, Unschedulable, as.clock().Sub(b.watch))
	as.queue.Rejected(b.item, w.plugins, w.pending, as.now)
	as.preemptions.noteUnschedulable(b.item)
	as.decisions.rememberFailure(b, decision.Unschedulable, w)
	as.nominations.setNomination(&b.Attempt, b.item, nominate)
	as.report(b.item, v1.PodReasonUnschedulable, w.message, nominate)
}

// requeueFailed returns a pod to the queue whose attempt ended with an error, and reports the
// error. The pod backs off and then is tried again without an event, and loses its nomination, as
// upstream. Errors that are a plugin's verdict are reported as Unschedulable, but back off, too.
func (as *attempts) requeueFailed(b *placement, err error) {
	result, reason, told := Errored, v1.PodReasonSchedulerError, decision.Failed
	if refused := (unschedulable)(nil); errors.As(err, &refused) && refused.Unschedulable() {
		result, reason, told = Unschedulable, v1.PodReasonUnschedulable, decision.Unschedulable
	}
	as.observer().Attempted(b.Profile, result, as.clock().Sub(b.watch))
	as.queue.Failed(b.item, as.now)
	as.decisions.rememberFailure(b, told, &why{message: err.Error()})
	none := ""
	as.nominations.setNomination(&b.Attempt, b.item, &none)
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

// rememberFailure keeps a failure if it holds for every pod of the class. It does not hold where
// pods of a class differ in what the decision looked at: a nomination, out-of- tree plugins and
// extenders, which see the whole pod, claims of the pod's own, or a device claim that an earlier
// attempt has left.
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
// nothing has changed. With ten thousand replicas that fit nowhere, one of them is decided and the
// others cost a comparison.
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
