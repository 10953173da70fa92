// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Imperative is Berth's own responder, the last one of every pod.
const Imperative = lifecyclev1alpha1.EvictionResponderImperativeEviction

// imperativePriority is the API's priority for the responder of last resort.
const (
	imperativePriority = 100
	mostRequesters     = 100 // bound on entries of a status
	mostLabels         = 500 // of an Eviction, beyond which past requesters could make it too large to be written
)

// responders returns the responders of an Eviction in the order of their turns. They are taken from
// the pod at the beginning: later changes of the pod have no effect. Berth's own responder is the
// last one.
func (t *target) responders(status *lifecyclev1alpha1.EvictionStatus) []lifecyclev1alpha1.TargetResponder {
	list := slices.Clone(status.TargetResponders)
	if len(list) == 0 && t.pod != nil {
		for _, r := range t.pod.Responders {
			list = append(list, lifecyclev1alpha1.TargetResponder{Name: r.Name, Priority: r.Priority})
		}
		list = append(list, lifecyclev1alpha1.TargetResponder{Name: Imperative, Priority: ptr.To[int32](imperativePriority)})
		for i := range list {
			list[i].State = lifecyclev1alpha1.ResponderStateInactive
		}
	}
	slices.SortStableFunc(list, compareResponders)
	return list
}

// compareResponders puts the higher priority first. Equal priorities are ordered by domain, label
// by label from the end, with parent domains before subdomains, and then by key.
//
// For example, with equal priority: a.example.com/x before b.example.com/a, example.com/z before
// both of them, and acme.io/x after all three ("com" sorts before "io").
func compareResponders(a, b lifecyclev1alpha1.TargetResponder) int {
	if by := cmp.Compare(ptr.Deref(b.Priority, 0), ptr.Deref(a.Priority, 0)); by != 0 {
		return by
	}
	domainA, keyA, _ := strings.Cut(a.Name, "/")
	domainB, keyB, _ := strings.Cut(b.Name, "/")
	labelsA, labelsB := strings.Split(domainA, "."), strings.Split(domainB, ".")
	slices.Reverse(labelsA)
	slices.Reverse(labelsB)
	return cmp.Or(slices.Compare(labelsA, labelsB), cmp.Compare(keyA, keyB))
}

// requesters returns all past and present requesters of an Eviction with their current intent.
// Beyond the API's limit, withdrawn requesters are dropped first. Several requests of one requester
// count as one, with the intent Eviction if any of them has it.
func (t *target) requesters(status *lifecyclev1alpha1.EvictionStatus) []lifecyclev1alpha1.Requester {
	intents := map[string]lifecyclev1alpha1.RequesterIntent{}
	for _, r := range status.Requesters {
		intents[r.Name] = lifecyclev1alpha1.RequesterIntentWithdrawn
	}
	for _, r := range t.requests {
		if name := r.Spec.Requester; wants(r) {
			intents[name] = lifecyclev1alpha1.RequesterIntentEviction
		} else if intents[name] == "" {
			intents[name] = lifecyclev1alpha1.RequesterIntentWithdrawn
		}
	}

	var list []lifecyclev1alpha1.Requester
	for _, name := range slices.Sorted(maps.Keys(intents)) {
		list = append(list, lifecyclev1alpha1.Requester{Name: name, Intent: intents[name]})
	}
	// Requesters are dropped from the end of the sorted list, so that the result depends only on
	// names.
	for i := len(list) - 1; i >= 0 && len(list) > mostRequesters; i-- {
		if list[i].Intent == lifecyclev1alpha1.RequesterIntentWithdrawn {
			list = slices.Delete(list, i, i+1)
		}
	}
	return list[:min(len(list), mostRequesters)]
}

// activeOf returns the responder with the current turn, or nil. It points into the status.
func activeOf(status *lifecyclev1alpha1.EvictionStatus) *lifecyclev1alpha1.TargetResponder {
	return rules.Find(status.TargetResponders, func(r *lifecyclev1alpha1.TargetResponder) bool {
		return r.State == lifecyclev1alpha1.ResponderStateActive
	})
}

// statusOf returns the reported status of a responder, which the caller may read or modify in
// place. Without an entry it returns an empty status outside of the Eviction.
func statusOf(status *lifecyclev1alpha1.EvictionStatus, name string) *lifecyclev1alpha1.ResponderStatus {
	found := rules.Find(status.Responders, func(r *lifecyclev1alpha1.ResponderStatus) bool { return r.Name == name })
	return cmp.Or(found, &lifecyclev1alpha1.ResponderStatus{})
}
