// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// attempts decides pods. An attempt takes a pod from the queue and ends in a placement, or requeues
// the pod with the reason. An attempt with an asynchronous question is suspended until the answer
// arrives.
//
// The only lasting effect of a failed attempt is its final nomination. All its counts and
// reservations are released in the same step, or with the last outcome of its actions.
type attempts struct {
	*common
	events           *clusterEvents
	nominations      *nominations
	moveReservations *moveReservations
	decisions        *decisions
	placements       *placements
	podGroups        *podGroups
	reserved         *reservations
	preemptions      *preemptions
	profiles         *profiles
	reconstruction   *reconstruction

	asking    int            // number of unanswered asynchronous questions
	preparing map[string]int // number of pods being prepared asynchronously, by namespace
	limits    gang.Limits    // limits of attempts for groups; changed by tests
}

// newPlacement begins an attempt for a pod. The returned placement is not registered anywhere, and
// can simply be dropped. Every attempt draws a random number for Sampled, so that the sequence of
// random numbers is the same with and without metrics.
func (s *attempts) newPlacement(p *servedProfile, item *queue.Item) *placement {
	pod := item.Pod
	b := &placement{profile: p, item: item, began: s.now, watch: s.clock()}
	waiting := cluster.NewPod(item.Class, pod.Name, pod.UID) // the cluster keeps it while the pod exists
	waiting.Created = cluster.TimeOf(pod.CreationTimestamp.Time)
	if nominated := s.cluster.Nominated(pod.UID); nominated != nil {
		waiting.SetNominated(nominated.Nominated)
	} else {
		waiting.SetNominated(pod.Status.NominatedNodeName)
	}
	b.Attempt = Attempt{
		Pod: pod, Waiting: waiting, Profile: pod.Spec.SchedulerName, Cluster: s.cluster, Sampled: s.rng.IntN(100) < sampled,
	}
	return b
}

// requeueUnschedulable requeues an unschedulable pod to wait for a helpful event, and reports why.
// nominate is the pod's new nomination; nil leaves it unchanged.
func (s *attempts) requeueUnschedulable(b *placement, w *unschedulableReason, nominate *string) {
	s.observer().Attempted(b.Profile, Unschedulable, s.clock().Sub(b.watch))
	s.queue.Rejected(b.item, w.plugins, w.pending, s.now)
	s.preemptions.noteUnschedulable(b.item)
	s.decisions.rememberFailure(b, decision.Unschedulable, w)
	s.nominations.setNomination(&b.Attempt, b.item, nominate)
	s.report(b.item, v1.PodReasonUnschedulable, w.message, nominate)
}

// requeueFailed requeues a pod after an attempt that ended with an error, and reports the error. As
// upstream, the pod is retried after its back-off without an event, and loses its nomination. An
// error representing a plugin's verdict is reported as Unschedulable, but the pod also backs off.
func (s *attempts) requeueFailed(b *placement, err error) {
	result, reason, told := Errored, v1.PodReasonSchedulerError, decision.Failed
	if refused := (unschedulable)(nil); errors.As(err, &refused) && refused.Unschedulable() {
		result, reason, told = Unschedulable, v1.PodReasonUnschedulable, decision.Unschedulable
	}
	s.observer().Attempted(b.Profile, result, s.clock().Sub(b.watch))
	s.queue.Failed(b.item, s.now)
	s.decisions.rememberFailure(b, told, &unschedulableReason{message: err.Error()})
	none := ""
	s.nominations.setNomination(&b.Attempt, b.item, &none)
	s.report(b.item, reason, err.Error(), &none)
}

// requeuePlacement requeues the pod of a placement.
func (s *attempts) requeuePlacement(b *placement, err error) {
	s.preemptions.forgetVictim(b.Pod.UID)
	if refused := (*rejection)(nil); errors.As(err, &refused) {
		none := ""
		w := &unschedulableReason{message: refused.Error(), plugins: []string{refused.plugin}}
		if refused.Pending {
			w.pending = w.plugins
		}
		s.requeueUnschedulable(b, w, &none)
	} else {
		s.requeueFailed(b, err)
	}
	s.podGroups.memberLost(b, err)
}

// noteBound reports a bound pod to podGroups.
func (s *attempts) noteBound(b *placement) { s.podGroups.memberBound(b) }

// bindAnswered reports a finished binding to preemptions.
func (s *attempts) bindAnswered(b *placement) { s.preemptions.bindAnswered(b) }

// unschedulable is implemented by errors that represent a plugin's verdict rather than a failure.
type unschedulable interface {
	error
	Unschedulable() bool
}

// rememberFailure records a failure if it holds for every pod of the class. It does not hold if
// pods of a class may differ in an input of the decision. Such inputs are a nomination, ephemeral
// or resource claims per pod, a device claim left by an earlier attempt, and out-of-tree plugins
// and extenders, which read the whole pod.
func (s *attempts) rememberFailure(b *placement, nominate *string, w *unschedulableReason) {
	p, spec := b.profile, b.item.Class.Spec
	if nominate != nil && *nominate != "" || b.Waiting.Nominated != "" || len(p.Outside) > 0 ||
		len(p.Extenders) > 0 || len(spec.ResourceClaims) > 0 ||
		slices.ContainsFunc(spec.Volumes, func(v v1.Volume) bool { return v.Ephemeral != nil }) || s.leftClaim(b) {
		return
	}
	p.failed = failure{b.item.Class, s.cluster.Log.Len(), s.objectVersions(), w, s.preemptions.mustDelay(b.item)}
}

// knownToFail reports whether the pod must fail like the last failed pod of its class, because
// nothing has changed since. Of ten thousand replicas that fit nowhere, only the first is decided;
// each further replica costs a comparison.
func (s *attempts) knownToFail(b *placement) bool {
	f := &b.profile.failed
	return f.class == b.item.Class && b.Waiting.Nominated == "" && f.position == s.cluster.Log.Len() &&
		f.versions == s.objectVersions() &&
		(!f.delayed || s.preemptions.mustDelay(b.item)) && !s.leftClaim(b)
}

// leftClaim reports whether the pod must first give up a device claim left by an earlier attempt.
func (s *attempts) leftClaim(b *placement) bool {
	return slices.ContainsFunc(b.profile.Reservers, func(r plugins.Reserver) bool {
		of, ok := r.(plugins.ClaimReserver)
		return ok && of.LeftClaim(s.cluster, b.Waiting)
	})
}

// objectVersions returns a number that changes with every decision-relevant change of an object
// other than a node or pod.
func (s *attempts) objectVersions() uint64 {
	o := &s.cluster.Objects
	return o.Namespaces.Version + o.Services.Version + o.ReplicationControllers.Version + o.ReplicaSets.Version + o.StatefulSets.Version +
		o.Budgets.Version + o.Volumes.Version + o.Claims.Version + o.StorageClasses.Version + o.CSINodes.Version + o.CSIDrivers.Version +
		o.CSICapacities.Version + o.VolumeAttachments.Version + o.ResourceSlices.Version + o.ResourceClaims.Version +
		o.DeviceClasses.Version +
		o.PodGroups.Version
}
