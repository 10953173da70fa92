// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

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
