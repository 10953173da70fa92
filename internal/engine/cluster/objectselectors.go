package cluster

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// objectSelectors has the selectors of objects of one kind as they were last seen. One may list
// 150,000 values: it is read when it changes, which the cycle asks for when an object is seen, and
// not for every pod that it concerns. Selectors are compared, not versions: an object whose status
// changes has the same selector.
type objectSelectors struct {
	read map[Name]objectSelector
	kept int // how many were left when those of objects that are gone were last dropped
}

// objectSelector is the selector, or the error, that a spec was read as.
type objectSelector struct {
	spec     *metav1.LabelSelector
	selector *rules.Selector
	err      error
}

// selectorOf returns the selector of an object. there tells whether an object still exists. The
// same pointer is returned until the spec changes, so that callers may compare pointers. An error
// is remembered, too.
func (s *objectSelectors) selectorOf(name Name, spec *metav1.LabelSelector, there func(Name) bool) (*rules.Selector, error) {
	if before, known := s.read[name]; known && rules.SameSelector(before.spec, spec) {
		return before.selector, before.err
	}
	if len(s.read) >= worthDropping(s.kept) {
		s.dropGone(there)
	}
	if s.read == nil {
		s.read = map[Name]objectSelector{}
	}
	selector, err := rules.ReadSelector(spec)
	s.read[name] = objectSelector{spec, selector, err}
	return selector, err
}

// dropGone forgets the selectors of objects that do not exist any more.
func (s *objectSelectors) dropGone(there func(Name) bool) {
	maps.DeleteFunc(s.read, func(name Name, _ objectSelector) bool { return !there(name) })
	s.kept = len(s.read)
}

// VolumesFor returns the selector of the volumes that a claim may have. A claim without a selector
// may have any volume.
func (c *Cluster) VolumesFor(claim *v1.PersistentVolumeClaim) (*rules.Selector, error) {
	if claim.Spec.Selector == nil {
		return rules.Everything(), nil
	}
	return c.claimSelectors.selectorOf(Name{claim.Namespace, claim.Name}, claim.Spec.Selector, c.Claims.hasObject)
}
