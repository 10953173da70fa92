package evictionrequest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/utils/ptr"
)

// Imperative is the responder that Berth is, the last one of every pod.
const Imperative = lifecyclev1alpha1.EvictionResponderImperativeEviction

// imperativePriority is the priority that the API gives the responder of last resort.
const (
	imperativePriority = 100
	mostRequesters     = 100 // that a status may have
)

// responders returns those of an Eviction, in the order in which they act. They are those of the
// pod as it was at the beginning: once the status has them, a changed pod changes nothing. The last
// one is Berth's own.
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

// compareResponders has the higher priority first; of equal ones, that whose domain comes first
// label by label from its end, a domain before those below it; then by the key.
//
// For example, of equal priority: a.example.com/x before b.example.com/a, example.com/z before
// either of them, and acme.io/x after all three ("com" sorts before "io").
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

// requesters returns those of an Eviction: all that have ever asked for it, with what they want
// now. Of more than the API allows, those that have withdrawn are left out first. Several requests
// of one requester count as one, which wants the eviction if any of them does.
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
	// From the end, so that the result depends on the names alone.
	for i := len(list) - 1; i >= 0 && len(list) > mostRequesters; i-- {
		if list[i].Intent == lifecyclev1alpha1.RequesterIntentWithdrawn {
			list = slices.Delete(list, i, i+1)
		}
	}
	return list[:min(len(list), mostRequesters)]
}

// activeOf returns the responder whose turn it is, or nil. It points into the status.
func activeOf(status *lifecyclev1alpha1.EvictionStatus) *lifecyclev1alpha1.TargetResponder {
	for i := range status.TargetResponders {
		if r := &status.TargetResponders[i]; r.State == lifecyclev1alpha1.ResponderStateActive {
			return r
		}
	}
	return nil
}

// statusOf returns what a responder has said of itself, for the caller to read or change in place.
// For one that has no entry it is an empty one that is not part of the status.
func statusOf(status *lifecyclev1alpha1.EvictionStatus, name string) *lifecyclev1alpha1.ResponderStatus {
	for i := range status.Responders {
		if r := &status.Responders[i]; r.Name == name {
			return r
		}
	}
	return &lifecyclev1alpha1.ResponderStatus{}
}
