// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file makes room for one pod: it finds victims, requests their removal, and retries the
// preemptor after all outcomes have arrived. Pending removals are kept in preemptions. Preemption
// for groups is in grouppostfilter.go, and the reduction of disruption budgets is in budgets.go.
// gentle.go decides whether a pod must wait instead.

// forgetVictim forgets a victim that was deleted, or that is not removed after all.
func (pr *preemptions) forgetVictim(victim types.UID) { delete(pr.leaving, victim) }

// preemptFor looks for victims to make room for a pod that fits on no node. As upstream, the
// preemptor is not placed now: it is nominated, and retried when the removals have completed or its
// victims have terminated. The victims count as terminating from this step on.
func (pr *preemptions) preemptFor(b *placement) PostFilterResult {
	if r, done := pr.reuseEvictions(b); done {
		return r
	}
	began := pr.clock()
	found := pr.victimsFor(b)
	// An extender must be called first; the metric is updated only after the result of the extender
	// arrives.
	if aside := (*plugins.PendingQuery)(nil); errors.As(found.Err, &aside) {
		return PostFilterResult{Err: aside}
	}
	took := pr.clock().Sub(began)
	if errors.Is(found.Err, decide.ErrTooLong) {
		pr.observer().Preempted(Preempted{Outcome: Broken, Searched: true, Took: took})
		return PostFilterResult{Err: found.Err}
	}

	// Preempting a member of a gang preempts its whole unit.
	if found.Node != nil {
		found.Victims = pr.podGroups.units.Complete(found.Victims)
	}
	pr.observer().Preempted(Preempted{
		Outcome: preemptionOutcome(found), Searched: true, Took: took, Victims: len(found.Victims), Violations: found.Violations,
	})
	if found.Node == nil {
		r := PostFilterResult{Message: found.Text(), Rejectors: found.Plugins}
		if !found.Ineligible {
			none := ""
			r.Nominate = &none
		}
		return r
	}

	pr.makeRoom(b, found)
	return PostFilterResult{Nominate: &found.Node.Name, Message: found.Text(), Final: true}
}

// preemptionOutcome names the outcome for the metric.
func preemptionOutcome(found decide.Preemption) PreemptionOutcome {
	switch {
	case found.Err != nil:
		return Broken
	case found.Node == nil:
		return NoHelp
	}
	return FoundVictims
}

// victimsFor looks for victims in two searches. The first search excludes groups that would violate
// a budget if removed as a whole; the second includes them. Like upstream's last resort, the second
// search may violate budgets. A profile that keeps budgets omits the second search, except for
// system-critical pods.
func (pr *preemptions) victimsFor(b *placement) decide.Preemption {
	pr.forgetCounted()
	priority := b.Waiting.Class.Priority
	preemptor := gang.Preemptor{Group: pr.groupOf(b.item), Lowest: priority, Highest: priority, Gentle: b.profile.GentlePreemption}
	stand := pr.podGroups.units.Protect(preemptor, true)
	shielded := stand.Len()
	found := preemptBehind(stand, b)
	if shielded == 0 || found.Node != nil || found.Err != nil || found.Ineligible || b.profile.KeepBudgets &&
		priority < rules.SystemCritical {
		return found
	}
	stand = pr.podGroups.units.Protect(preemptor, false)
	if stand.Len() == shielded { // no group was excluded because of a budget
		stand.Release()
		return found
	}
	return preemptBehind(stand, b)
}

// preemptBehind looks for victims while stand protects the excluded pods. It releases stand even if
// a plugin panics.
func preemptBehind(stand *gang.ProtectedPods, b *placement) decide.Preemption {
	defer stand.Release()
	return b.profile.Preempt(b.Waiting)
}

// makesRoomFor reports whether removals for a group, or for its tree, are outstanding. Until the
// removals complete, the pods of the group are gated.
func (pr *preemptions) makesRoomFor(g *groups.Group) bool {
	if root := g.Root(); root != nil && pr.rounds[root.UID()] != nil {
		return true
	}
	return g.Object != nil && pr.rounds[g.Object.UID] != nil
}

// groupFor returns the preempting group, or a group of the preempting tree. It returns nil if the
// preemptor is a pod.
func (pr *preemptions) groupFor(preemptor types.UID) *groups.Group {
	if g := pr.groups.ByUID(preemptor); g != nil {
		return g
	}
	return pr.groups.ByRootUID(preemptor)
}

// preemptor is a preempting group or tree.
type preemptor struct {
	kind    string
	uid     types.UID
	profile string
}

// evictUnits starts the removal of the victims of a group or a tree, and returns the names of all
// victims.
func (pr *preemptions) evictUnits(units [][]*cluster.Pod, by preemptor) (names []decision.Name) {
	all := &round{began: pr.now, group: true}
	for _, victim := range slices.Concat(units...) {
		names = append(names, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})
		if victim.Node == nil || victim.Terminating {
			continue
		}
		all.victims = append(all.victims, victim.UID)
		pr.evictVictim(victim, &removal{
			victim: v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: victim.Namespace(),
				Name: victim.Name, UID: victim.UID},
			generation: victim.Generation,
			preemptor:  by.profile, pod: by.uid,
			message: fmt.Sprintf("Preempted by %s %v on node cluster", by.kind, by.uid), round: all,
		})
	}
	return names
}

// makeRoom starts the removal of the victims. It clears the nominations of lower-priority pods to
// the node, because the preemptor takes their room. Each of these pods is retried and may find
// another node.
func (pr *preemptions) makeRoom(b *placement, found decide.Preemption) {
	n := found.Node
	// Iterate over a copy, since moveOn changes the list.
	for _, waiting := range append([]*cluster.Pod(nil), n.Nominated...) {
		if waiting.Class.Priority < b.Waiting.Class.Priority {
			pr.nominations.moveOn(waiting)
		}
	}
	all := &round{began: pr.now}
	for _, victim := range found.Victims {
		b.victims = append(b.victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})
		if victim.Terminating || victim.Node == nil { // without a node: its placement was just released together with its group
			continue
		}
		r := &removal{
			victim: v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: victim.Namespace(),
				Name: victim.Name, UID: victim.UID},
			generation: victim.Generation,
			preemptor:  b.Profile, pod: b.Pod.UID, message: fmt.Sprintf("Preempted by pod %v on node %v", b.Pod.UID, n.Name), round: all,
		}
		pr.evictVictim(victim, r)
	}
	pr.countVictims("")
}

// evictVictim removes one victim: immediately, or after its binding if the binding has begun. If
// the victim's placement is still in preparation, only the preparation is stopped. The pod is not
// running, and need not be deleted.
func (pr *preemptions) evictVictim(victim *cluster.Pod, r *removal) {
	for _, first := range pr.binding {
		if first.victim.UID == victim.UID {
			pr.expectAnswer(r)
			first.also = append(first.also, r)
			return
		}
	}

	switch v := pr.placements.byPod[victim.UID]; {
	case v != nil && v.stage == preparing:
		pr.placements.stopBinding(v, errPreempted)
		pr.tellPreempted(r, " (in kube-scheduler memory).")
	// The result of the binding is still unknown; bindAnswered continues with the victim.
	case v != nil && v.stage == binding:
		pr.expectAnswer(r)
		pr.binding[v] = r
		pr.placements.stopBinding(v, errPreempted)
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
	pr.addAction(RecordEvent{Profile: r.preemptor, Regarding: r.victim, Type: v1.EventTypeNormal, Reason: "Preempted", Message: r.message + suffix})
}

// removeVictim requests the deletion of a victim.
func (pr *preemptions) removeVictim(r *removal) {
	pr.addAction(Remove{Ticket: pr.issueHandled(removeHandler{pr, r}), Victim: r.victim, Preemptor: r.preemptor, For: r.pod, Generation: r.generation})
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
	return pr.queue.Get(r.pod) != nil || pr.groupFor(r.pod) != nil
}

// removeHandler handles the outcome of a Remove.
type removeHandler struct {
	pr *preemptions
	*removal
}

// handleOutcome records the event for a deleted victim. A victim that was not deleted counts as
// running again.
func (e removeHandler) handleOutcome(o Outcome) {
	if o.Fault == nil {
		e.pr.tellPreempted(e.removal, "")
	} else {
		e.pr.unmarkLeaving(e.victim.UID, e.pod)
	}
	e.pr.settleRemoval(e.removal, o.Fault)
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

// markLeaving marks a victim as terminating before a watch shows it. Without the mark, another
// preemption could choose the same victim.
func (pr *preemptions) markLeaving(victim *cluster.Pod) {
	pr.leaving[victim.UID] = true
	was, n := *victim, victim.Node
	pr.events.changedPlaced(&was, n, pr.replaceAs(victim, true), nil, nil)
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
				if waiting.UID != preemptor {
					pr.queue.Wake(waiting.UID, queue.ForceActivate, pr.now)
				}
			}
		}
	}
	pr.countVictims(victim)
}

// replaceAs replaces a pod in the cluster model with a copy marked as terminating, or not
// terminating. The pod is removed and placed again, so that readers of the log see the change.
func (pr *preemptions) replaceAs(p *cluster.Pod, leaving bool) *cluster.Pod {
	if p.Node == nil { // its node was deleted, and may be recreated under the same name
		p.Terminating, p.Preempted = leaving, leaving
		pr.noteLeaver(p.UID, p)
		return p
	}
	n, other := p.Node, *p
	pr.cluster.RemovePod(p.UID)
	other.Terminating, other.Preempted = leaving, leaving
	pr.cluster.Place(&other, n)
	pr.noteLeaver(p.UID, &other)
	return &other
}
