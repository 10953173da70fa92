// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/groups"
)

// This file carries out the decision about a tree.

// treePart is a group of a tree after the placement of its members.
type treePart struct {
	*groupAttempt
	placed, left []*member
	through      map[*member]permitWaits
	err          error
}

// startPlacements starts the placements of all members with a node, and requeues the remaining
// members to be decided again. If the tree lacks its quorum because out-of-tree plugins refuse
// members, all members are given up. If no pod is started, all pods back off before they are
// decided again, because the refused pods are among them.
func (t *treeAttempt) startPlacements() {
	t.root.Shortened = 0
	var parts []*treePart
	for _, a := range t.leaves {
		if len(a.attempt.Placed()) > 0 {
			parts = append(parts, &treePart{groupAttempt: a, placed: a.enterPlacements(), left: a.listLeft()})
		} else {
			a.endGroup()
			parts = append(parts, &treePart{groupAttempt: a, left: a.members})
		}
	}

	refused, first := map[*groups.Group]error{}, error(nil)
	for _, p := range parts {
		p.through, p.err = p.askOutside(p.placed)
		if len(p.placed) > 0 && len(p.through) < p.attempt.Need && p.err != nil {
			refused[p.group] = p.err
			first = cmp.Or(first, p.err)
		}
	}
	if len(refused) > 0 {
		t.giveUpRefused(groups.Child{Composite: t.root}, parts, refused)
	}
	goesOn := slices.ContainsFunc(parts, func(p *treePart) bool { return refused[p.group] == nil && len(p.through) > 0 })
	for _, p := range parts {
		if !goesOn && refused[p.group] == nil {
			refused[p.group] = first
		}
	}

	for _, p := range parts {
		if why := refused[p.group]; why != nil {
			p.giveUp(p.placed, p.left, p.through, why)
		} else {
			p.proceed(p.placed, p.left, p.through)
		}
	}
}

// giveUpRefused adds the groups below composites with too few remaining groups to the refused
// groups. It reports whether the child is still settled.
func (t *treeAttempt) giveUpRefused(of groups.Child, parts []*treePart, refused map[*groups.Group]error) (settled bool) {
	if g := of.Group; g != nil {
		return refused[g] == nil && t.podGroups.progress.isSettled(of)
	}

	count := 0
	for _, child := range of.Composite.Children() {
		if t.giveUpRefused(child, parts, refused) {
			count++
		}
	}
	if count >= t.podGroups.progress.leastGroups(of.Composite) {
		return true
	}

	// Groups placed below a given-up composite are refused as well, with the reason of one refused
	// group.
	why := errors.New("too few groups of the composite pod group are left")
	for _, g := range of.Composite.Leaves() {
		if err := refused[g]; err != nil {
			why = err
		}
	}
	for _, p := range parts {
		if refused[p.group] == nil && len(p.placed) > 0 && slices.Contains(of.Composite.Leaves(), p.group) {
			refused[p.group] = why
		}
	}
	return false
}

// rejectAll requeues all members. An event that can help any member wakes the tree. With retry, the
// tree is retried after its back-off, even without an event.
func (t *treeAttempt) rejectAll(retry bool) {
	if t.shortened {
		t.root.Shortened++
	}
	t.shareRejectors()
	for _, a := range t.leaves {
		message := t.reasonOf(a)
		for _, m := range a.members {
			m.endAttempt(false)
			w := a.why(m)
			if retry {
				a.preemptions.noteUnschedulable(m.item)
				a.requeueFailed(m.placement, &Fault{Message: w.message, Verdict: true})
				continue
			}
			a.requeueUnschedulable(m.placement, w, new(string))
		}
		a.writeUnscheduled(v1.PodReasonUnschedulable, message)
	}
}

// reasonOf returns the reason why a group of the tree is not placed.
func (t *treeAttempt) reasonOf(a *groupAttempt) string {
	if a.lacksOwn() {
		return a.attempt.Verdict().Reason()
	}
	failing := t.failingAbove(a.group)
	message := t.wordsOf(failing)
	if other := t.firstFailing(failing); other != nil {
		return fmt.Sprintf("%s; pod group %q: %s", message, other.group.Name.Name, other.attempt.Verdict().Reason())
	}
	return message + "."
}

// failAll requeues all members after an error, even if the error concerns only one member.
func (t *treeAttempt) failAll(err error) {
	t.rewind(t.root)
	whole := err
	if slices.ContainsFunc(t.leaves, func(a *groupAttempt) bool {
		return slices.ContainsFunc(a.members, func(m *member) bool { return m.asked.Err != nil })
	}) {
		whole = fmt.Errorf("failed to schedule other pod from a pod group: %w", err)
	}
	for _, a := range t.leaves {
		for _, m := range a.members {
			own := whole
			if m.asked.Err != nil {
				own = m.asked.Err
			}
			m.endAttempt(false)
			a.requeueFailed(m.placement, own)
		}
		a.writeUnscheduled(v1.PodReasonSchedulerError, whole.Error())
	}
}
