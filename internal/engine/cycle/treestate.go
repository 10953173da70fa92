// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// A group of a tree is tried in many placements before one is found that fits the whole tree. A
// groupState is one of these placements. It holds the nodes of the group's pods, so that the
// placement can be restored, and the form of each pod confined to the domains of that placement.
type groupState struct {
	target  *groupAttempt
	attempt *gang.Attempt
	places  []gang.Place
	asked   []askedState // states of the group's pods, in their order
}

// askedState is the request for a pod, and its result.
type askedState struct {
	pod       *v1.Pod
	asked     *cluster.Pod
	failure   *decide.Failure
	err       error
	rejectors []string
}

// rememberGroups returns the current state of the groups below a composite.
func (t *treeAttempt) rememberGroups(c *groups.Composite) (list []groupState) {
	for _, a := range t.below(c) {
		s := groupState{target: a, attempt: a.attempt, places: a.attempt.CurrentPlaces()}
		for _, m := range a.members {
			s.asked = append(s.asked, askedState{m.asked.Pod, m.asked.Asked, m.asked.Failure, m.asked.Err, m.asked.Rejectors})
		}
		list = append(list, s)
	}
	return list
}

// restoreGroups restores the given state of the groups. None of their pods may be placed.
func (t *treeAttempt) restoreGroups(list []groupState) (err error) {
	for _, s := range list {
		s.target.attempt = s.attempt
		for i, m := range s.target.members {
			was := &s.asked[i]
			m.asked.Pod, m.asked.Asked, m.asked.Failure, m.asked.Err, m.asked.Rejectors =
				was.pod, was.asked, was.failure, was.err, was.rejectors
		}
		if !s.attempt.PlaceAll(s.places) {
			err = fmt.Errorf("pods of group %q do not fit where they were found to", s.target.group.Name.Name)
		}
	}
	return err
}

// remember returns a function that restores the current state of the tree after its pods were taken
// off their nodes.
func (t *treeAttempt) remember() (restore func()) {
	was, failing := *t, maps.Clone(t.failing)
	list := t.rememberGroups(t.root)
	return func() {
		t.failing, t.shortened, t.placed, t.inDomain = failing, was.shortened, was.placed, was.inDomain
		_ = t.restoreGroups(list) // a pod that is now refused is omitted
	}
}
