// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"

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
	forms   []gang.Form // forms of the group's pods, in their order
}

// rememberGroups returns the current state of the groups below a composite.
func (t *treeAttempt) rememberGroups(c *groups.Composite) (list []groupState) {
	for _, a := range t.below(c) {
		s := groupState{target: a, attempt: a.attempt, places: a.attempt.CurrentPlaces()}
		for _, m := range a.members {
			s.forms = append(s.forms, m.asked.Form)
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
			m.asked.Form = s.forms[i]
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
