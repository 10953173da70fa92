// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file evicts the victims of a preemption: it marks them as terminating, requests their
// removal, which deletes them without the Eviction API, and retries the preemptor after all
// outcomes have arrived.

// evictPods starts the removal of the victims of a preemptor, and returns the names of all victims.
func (pr *preemptions) evictPods(victims []*cluster.Pod, by preemptor) (names []decision.Name) {
	all := &round{began: pr.now, group: by.kind != "pod", nominating: by.nominating}
	message := fmt.Sprintf("Preempted by %s %v on node %s", by.kind, by.uid, by.node)
	for _, victim := range victims {
		names = append(names, decision.Name{Namespace: victim.Namespace(), Name: victim.Name()})
		if victim.Node == nil || victim.Terminating { // without a node: its placement was just released together with its group
			continue
		}
		if all.group {
			all.victims = append(all.victims, victim.UID())
		}
		pr.evictVictim(victim, &removal{
			victim: v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: victim.Namespace(),
				Name: victim.Name(), UID: victim.UID()},
			generation: victim.Generation,
			preemptor:  by.profile, pod: by.uid, message: message, round: all,
		})
	}
	return names
}

// evictVictim removes one victim: immediately, or after its binding if the binding has begun. If
// the victim's placement is still in preparation, only the preparation is stopped. The pod is not
// running, and need not be deleted.
func (pr *preemptions) evictVictim(victim *cluster.Pod, r *removal) {
	for _, first := range pr.binding {
		if first.victim.UID == victim.UID() {
			pr.expectAnswer(r)
			first.also = append(first.also, r)
			return
		}
	}

	switch v := pr.placements.byPod[victim.UID()]; {
	case v != nil && (v.stage == preparing || v.stage == binding):
		pr.placements.stopBinding(v, errPreempted)
		// Otherwise, the outcome of the binding or of its preparation is outstanding, and
		// bindAnswered continues with the victim.
		if v.stage == ended {
			pr.tellPreempted(r, " (in kube-scheduler memory).")
			return
		}
		pr.expectAnswer(r)
		pr.binding[v], v.victimIsOver = r, func() { pr.bindAnswered(v) }
	default:
		pr.expectAnswer(r)
		pr.markLeaving(victim)
		pr.removeVictim(r)
	}
}

// expectAnswer counts a removal that must complete before the preemptor is retried.
func (pr *preemptions) expectAnswer(r *removal) {
	r.left++
	pr.rounds[r.pod] = r.round
}

// tellPreempted records the event about the victim, with kube-scheduler's wording.
func (pr *preemptions) tellPreempted(r *removal, suffix string) {
	pr.addAction(RecordEvent{
		Profile: r.preemptor, Regarding: r.victim, Type: v1.EventTypeNormal, Reason: "Preempted", Message: r.message + suffix,
	})
}

// Remove writes the condition DisruptionTarget to a victim, and then deletes the victim. Its
// outcome arrives when the API has accepted the deletion, before the pod has terminated.
type Remove struct {
	Ticket    Ticket
	Victim    v1.ObjectReference
	Preemptor string    // scheduler name of the preemptor
	For       types.UID // UID of the preempting pod, PodGroup or CompositePodGroup
	// Generation is the victim's generation, for the observedGeneration of its condition.
	Generation int64
}

func (a Remove) String() string {
	return fmt.Sprintf("remove %s/%s (%s) for %s #%d", a.Victim.Namespace, a.Victim.Name, a.Victim.UID, a.For, a.Ticket)
}

// removeVictim requests the deletion of a victim, after the write of the preemptor's nomination.
func (pr *preemptions) removeVictim(r *removal) {
	if r.nominating {
		r.held = append(r.held, r)
		return
	}
	ticket := pr.issueHandled(nil, func(o Outcome) { pr.removeEnded(r, o) })
	pr.addAction(Remove{Ticket: ticket, Victim: r.victim, Preemptor: r.preemptor, For: r.pod, Generation: r.generation})
}

// nominationTicket returns the ticket for the write of a pod's nomination whose outcome starts the
// held removals, or 0.
func (pr *preemptions) nominationTicket(pod types.UID) Ticket {
	all := pr.rounds[pod]
	if all == nil || !all.nominating {
		return 0
	}
	return pr.issueHandled(nil, func(Outcome) {
		held := all.held
		all.nominating, all.held = false, nil
		for _, r := range held {
			if pr.stillAwaits(r) {
				pr.removeVictim(r)
			} else {
				pr.unmarkLeaving(r.victim.UID, r.pod)
				pr.settleRemoval(r, nil)
			}
		}
	})
}

// removeEnded handles the outcome of a Remove: it records the event for a deleted victim. A victim
// that was not deleted counts as running again.
func (pr *preemptions) removeEnded(r *removal, o Outcome) {
	if o.Fault == nil {
		pr.tellPreempted(r, "")
	} else {
		pr.unmarkLeaving(r.victim.UID, r.pod)
	}
	pr.settleRemoval(r, o.Fault)
}

// bindAnswered continues with a victim chosen during its binding. The binding was withdrawn, has
// failed, or has succeeded. The pod is removed only if the binding has succeeded and its room is
// still needed.
func (pr *preemptions) bindAnswered(victim *placement) {
	r := pr.binding[victim]
	if r == nil {
		return
	}
	delete(pr.binding, victim)
	p := pr.cluster.Pod(r.victim.UID)
	gone := p == nil || p.Node == nil
	if gone {
		pr.tellPreempted(r, " (in kube-scheduler memory).")
	}

	all := append([]*removal{r}, r.also...)
	last := len(all) - 1
	for last >= 0 && !pr.stillAwaits(all[last]) {
		last--
	}
	if gone || last < 0 {
		pr.countVictims(r.victim.UID)
		pr.settleRemoval(r, nil)
		return
	}
	r.also, r = nil, all[last] // a later preemptor may have taken the room of earlier preemptors
	r.also = slices.Delete(all, last, last+1)
	pr.markLeaving(p)
	pr.removeVictim(r)
}

// stillAwaits reports whether the pod or group that chose a victim still waits for its room.
func (pr *preemptions) stillAwaits(r *removal) bool {
	if g := pr.groups.ByUnitUID(r.pod); g != nil {
		for _, g := range g.Tree() {
			if rules.Any(g.Members, func(uid types.UID) bool { return pr.pendingItem(uid) != nil }) {
				return true
			}
		}
	}
	return pr.queue.Get(r.pod) != nil
}

// settleRemoval counts a finished removal for all preemptors waiting for it.
func (pr *preemptions) settleRemoval(r *removal, fault *Fault) {
	for _, one := range append(r.also, r) {
		pr.countRemoval(one, fault)
	}
}

// countRemoval counts a finished removal. The last removal releases the preemptor for its retry.
// pr.rounds may already hold a later round of the same preemptor, so only the removal's own round
// is deleted.
func (pr *preemptions) countRemoval(r *removal, fault *Fault) {
	r.failed = r.failed || fault != nil
	if r.left--; r.left > 0 {
		return
	}
	pr.observer().RemovedVictims(r.group, !r.failed, pr.now.Sub(r.began))
	if r.group {
		pr.settleRound(r)
		return
	}

	if pr.rounds[r.pod] == r.round {
		delete(pr.rounds, r.pod)
	}
	switch item := pr.queue.Get(r.pod); {
	case item == nil:
	case r.failed: // the preemptor backs off, so that a failing removal is not repeated without a pause
		pr.queue.Retry(r.pod, queue.ForceActivate, pr.now)
	case item.Place() == queue.Gated:
		pr.queue.Wake(r.pod, queue.ForceActivate, pr.now)
	}
}

// settleWithin is the maximum time for which a group or tree stays gated after all its removals
// have completed, while some of its victims still exist. Pods without a grace period are deleted
// immediately, and only their watch events are delayed. An attempt before the last watch event
// would cost as much as the successful attempt. Victims that take longer wake the group by their
// deletion events, as any other pod does.
const settleWithin = 250 * time.Millisecond

// settleRound ends the round of a group: immediately if a removal has failed or all victims are
// deleted, otherwise after the deletion of the victims or after settleWithin.
func (pr *preemptions) settleRound(r *removal) {
	s := settling{r.round, r.pod, pr.now.Add(settleWithin)}
	if r.failed || !pr.hasVictims(s.round) {
		pr.endGroupRound(s)
		return
	}
	pr.settling = append(pr.settling, s) // sorted, since later rounds have later deadlines
}

// hasVictims reports whether a victim of a round is still on its node.
func (pr *preemptions) hasVictims(r *round) bool {
	for len(r.victims) > 0 {
		last := len(r.victims) - 1
		if p := pr.cluster.Pod(r.victims[last]); p != nil && p.Node != nil {
			return true
		}
		r.victims = r.victims[:last]
	}
	return false
}

// settle ends the settled rounds.
func (pr *preemptions) settle() {
	pr.settling = slices.DeleteFunc(pr.settling, func(s settling) bool {
		over := !pr.now.Before(s.until) || !pr.hasVictims(s.round)
		if over {
			pr.endGroupRound(s)
		}
		return over
	})
}

// endGroupRound retries a group or a tree.
func (pr *preemptions) endGroupRound(s settling) {
	if pr.rounds[s.preemptor] == s.round {
		delete(pr.rounds, s.preemptor)
	}
	pr.podGroups.wakeMembers(pr.groups.ByUnitUID(s.preemptor), queue.ForceActivate, queue.Gated)
}

// markLeaving marks a victim as terminating before a watch shows it. Without the mark, another
// preemption could choose the same victim.
func (pr *preemptions) markLeaving(victim *cluster.Pod) {
	pr.leaving[victim.UID()] = true
	was, n := *victim, victim.Node
	pr.events.changedPlaced(&was, n, pr.replaceAs(victim, true), nil, nil, 0)
}

// unmarkLeaving undoes markLeaving for a victim that could not be removed. Other pods may be
// nominated to its node because they expect its room. They are retried after their back-off.
func (pr *preemptions) unmarkLeaving(victim, preemptor types.UID) {
	if !pr.leaving[victim] { // a watch has already shown it terminating
		return
	}
	delete(pr.leaving, victim)
	if p := pr.cluster.Pod(victim); p != nil {
		p = pr.replaceAs(p, false)
		if p.Node != nil {
			for _, waiting := range slices.Clone(p.Node.Nominated) {
				if waiting.UID() != preemptor {
					pr.queue.Wake(waiting.UID(), queue.ForceActivate, pr.now)
				}
			}
		}
	}
	pr.countVictims(victim)
}

// setPod puts a pod into the cluster model. A victim counts as terminating even before a watch
// shows it terminating.
func (pr *preemptions) setPod(pod *v1.Pod) *cluster.Pod {
	p := pr.cluster.SetPod(pod)
	pr.noteLeaver(pod.UID, p)
	if !pr.leaving[pod.UID] {
		return p
	}
	if p == nil || pod.DeletionTimestamp != nil {
		pr.forgetVictim(pod.UID)
		return p
	}
	return pr.replaceAs(p, true)
}

// noteLeaver records whether a pod is a terminating victim. p is its current state in the cluster
// model, or nil if the pod is not placed.
func (pr *preemptions) noteLeaver(uid types.UID, p *cluster.Pod) {
	if p != nil && p.Preempted {
		pr.leavers[uid] = true
	} else {
		delete(pr.leavers, uid)
	}
}

// forgetVictim forgets a victim that was deleted, or that is not removed after all.
func (pr *preemptions) forgetVictim(victim types.UID) { delete(pr.leaving, victim) }

// replaceAs replaces a pod in the cluster model with a copy marked as terminating, or not
// terminating. The pod is removed and placed again, so that readers of the log see the change.
func (pr *preemptions) replaceAs(p *cluster.Pod, leaving bool) *cluster.Pod {
	if p.Node == nil { // its node was deleted, and may be recreated under the same name
		p.Terminating, p.Preempted = leaving, leaving
		pr.noteLeaver(p.UID(), p)
		return p
	}
	n, other := p.Node, *p
	pr.cluster.RemovePod(p.UID())
	other.Terminating, other.Preempted = leaving, leaving
	pr.cluster.Place(&other, n)
	pr.noteLeaver(p.UID(), &other)
	return &other
}
