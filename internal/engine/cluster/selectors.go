// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// selectorReader parses the selectors of one class, and parses equal selectors only once.
type selectorReader struct {
	own    *rules.Labels
	shared *shares
	seen   []readSelector
}

type readSelector struct {
	from *metav1.LabelSelector
	*rules.Selector
}

// fewSelectors is the maximum number of selectors of a class that are compared with each other.
const fewSelectors = 8

// readOne parses a selector. Selectors without expressions share their texts with the labels of the
// class, which usually contain them.
func (r *selectorReader) readOne(from *metav1.LabelSelector) (*rules.Selector, error) {
	plain := selectsByLabels(from)
	for _, known := range r.seen {
		if known.from == from || plain && selectsByLabels(known.from) && maps.Equal(known.from.MatchLabels, from.MatchLabels) {
			return known.Selector, nil
		}
	}
	selector, err := rules.ReadSelector(from)
	if err != nil || from == nil {
		return selector, err
	}
	if plain {
		selector.ShareTexts(r.own, r.shared.shareText)
	}
	if len(r.seen) < fewSelectors {
		r.seen = append(r.seen, readSelector{from, selector})
	}
	return selector, nil
}

// selectsByLabels reports whether a selector has only labels, so that its parsed form is complete.
func selectsByLabels(s *metav1.LabelSelector) bool { return s != nil && len(s.MatchExpressions) == 0 }

// Label is a label of a pod.
type Label = rules.Label

// mostRequired bounds the number of labels listed by [RequiredLabels]: indexing thousands of them
// takes longer, and far more memory, than matching the selector.
const mostRequired = 1 << 10

// RequiredLabels lists labels such that every pod matched by the selector has at least one of them.
// everybody is true if there is no such list or all such lists are too long: the selector may then
// match any pod. For example, "app in (a, b), tier=web" gives [tier=web], and "app, tier!=db" gives
// everybody.
func RequiredLabels(selector *rules.Selector) (labels []Label, everybody bool) {
	requirements, selects := selector.Requirements()
	if !selects {
		return nil, false // the selector matches no pod
	}
	var shortest *rules.Requirement
	for i := range requirements {
		r := &requirements[i]
		if r.Operator == selection.In && len(r.Values) <= mostRequired && (shortest == nil || len(r.Values) < len(shortest.Values)) {
			shortest = r
		}
	}
	if shortest == nil {
		return nil, true
	}
	for _, value := range shortest.Values {
		labels = append(labels, Label{Key: shortest.Key, Value: value})
	}
	return labels, false
}

// objectSelectors caches the parsed selectors of objects of one kind. A selector may list 150,000
// values, so it is parsed once per change, when the cycle receives the object, and not for every
// affected pod. Selectors are compared, not versions: a status update leaves the selector
// unchanged.
type objectSelectors struct {
	read map[Name]objectSelector
	kept int // number of selectors after the last cleanup of deleted objects
}

// objectSelector is the result of parsing a spec: a selector or an error.
type objectSelector struct {
	spec     *metav1.LabelSelector
	selector *rules.Selector
	err      error
}

// selectorOf returns the selector of an object. exists reports whether an object still exists.
// selectorOf returns the same pointer until the spec changes, so callers may compare pointers.
// Errors are cached as well.
func (s *objectSelectors) selectorOf(name Name, spec *metav1.LabelSelector, exists func(Name) bool) (*rules.Selector, error) {
	if before, known := s.read[name]; known && rules.SameSelector(before.spec, spec) {
		return before.selector, before.err
	}
	if len(s.read) >= worthDropping(s.kept) {
		s.dropGone(exists)
	}
	if s.read == nil {
		s.read = map[Name]objectSelector{}
	}
	selector, err := rules.ReadSelector(spec)
	s.read[name] = objectSelector{spec, selector, err}
	return selector, err
}

// dropGone drops the selectors of deleted objects.
func (s *objectSelectors) dropGone(exists func(Name) bool) {
	maps.DeleteFunc(s.read, func(name Name, _ objectSelector) bool { return !exists(name) })
	s.kept = len(s.read)
}

// VolumesFor returns the selector of the volumes that a claim may bind to. A claim without a
// selector may bind to any volume.
func (c *Cluster) VolumesFor(claim *v1.PersistentVolumeClaim) (*rules.Selector, error) {
	if claim.Spec.Selector == nil {
		return rules.Everything(), nil
	}
	return c.claimSelectors.selectorOf(Name{claim.Namespace, claim.Name}, claim.Spec.Selector, c.Claims.hasObject)
}
