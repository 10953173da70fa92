// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Terms holds the terms of a class for pod affinity and anti-affinity. The embedded pointers are
// never nil, and their targets are immutable. The kinds of terms are separate because few workloads
// have terms of more than one kind.
type Terms struct {
	*RequiredTerms
	*PreferredTerms
	*unreadTerms

	// Affinities is a digest of the four lists and the namespace: classes with equal digests treat
	// other pods alike.
	Affinities [2]uint64

	// SelectsNamespaces reports that one of the terms selects namespaces by their labels.
	SelectsNamespaces bool
	// The fields report whether the pod has any affinity, a pod affinity, or a pod anti-affinity,
	// including empty ones.
	hasAny, hasPods, hasAnti bool
}

// RequiredTerms are the terms that filter nodes.
type RequiredTerms struct{ RequiredAffinity, RequiredAntiAffinity []Term }

// PreferredTerms are the terms that score nodes.
type PreferredTerms struct{ PreferredAffinity, PreferredAntiAffinity []WeightedTerm }

// unreadTerms holds the information missing from the lists.
type unreadTerms struct {
	// TermError is the error of parsing the terms. InterPodAffinity rejects such a pod.
	TermError error
	// written holds the terms in API form, if the lists cannot restore them.
	written *v1.Affinity
}

var (
	noRequiredTerms, noPreferredTerms, noUnreadTerms = &RequiredTerms{}, &PreferredTerms{}, &unreadTerms{}

	// noTerms are the terms of most pods, noPodTerms the terms of pods with only node affinity.
	noTerms, noPodTerms = newTerms(), newTerms()
)

func init() { noPodTerms.hasAny = true }

func newTerms() *Terms {
	return &Terms{RequiredTerms: noRequiredTerms, PreferredTerms: noPreferredTerms, unreadTerms: noUnreadTerms}
}

// TermsOf returns terms consisting of these lists.
func TermsOf(required RequiredTerms, preferred PreferredTerms) *Terms {
	t := newTerms()
	t.setLists(required, preferred)
	return t
}

func (t *Terms) setLists(required RequiredTerms, preferred PreferredTerms) {
	if len(required.RequiredAffinity)+len(required.RequiredAntiAffinity) > 0 {
		t.RequiredTerms = &required
	}
	if len(preferred.PreferredAffinity)+len(preferred.PreferredAntiAffinity) > 0 {
		t.PreferredTerms = &preferred
	}
}

// Term is one parsed term of pod affinity or anti-affinity.
type Term struct {
	*TermScope // not nil, and shared by terms of many workloads
	Selector   *rules.Selector
}

// TermScope is the set of namespaces and the topology key of a term.
type TermScope struct {
	Namespaces        []string // sorted
	NamespaceSelector *rules.Selector
	TopologyKey       string
}

// WeightedTerm is a preferred term.
type WeightedTerm struct {
	Term
	Weight int32
}

// Matches reports whether the term selects pods of the class, given the labels of its namespace.
func (t *Term) Matches(class *PodClass, namespace labels.Set) bool {
	if _, named := slices.BinarySearch(t.Namespaces, class.Namespace); !named && !t.NamespaceSelector.Matches(namespace) {
		return false
	}
	return t.Selector.Matches(class.Labels)
}

// HasAffinity reports whether the pods have pod affinity or anti-affinity of any kind, including
// empty affinity.
func (t *Terms) HasAffinity() bool { return t.hasPods || t.hasAnti }

// CountRequired counts the required terms, valid or not.
func (t *Terms) CountRequired() int {
	n := len(t.RequiredAffinity) + len(t.RequiredAntiAffinity)
	if t.TermError != nil {
		n = 0
		if p := t.written.PodAffinity; p != nil {
			n += len(p.RequiredDuringSchedulingIgnoredDuringExecution)
		}
		if p := t.written.PodAntiAffinity; p != nil {
			n += len(p.RequiredDuringSchedulingIgnoredDuringExecution)
		}
	}
	return n
}

// OfTerms returns a class with only the namespace, the terms and the Bulk of c.
func (c *PodClass) OfTerms() *PodClass {
	terms := *c.Terms
	terms.unreadTerms = &unreadTerms{TermError: c.TermError}
	return &PodClass{Namespace: c.Namespace, Bulk: c.Bulk, Terms: &terms}
}

// termsOf parses the terms of an affinity.
func (s *shares) termsOf(a *v1.Affinity, namespace string, read *selectorReader) *Terms {
	switch {
	case a == nil:
		return noTerms
	case a.PodAffinity == nil && a.PodAntiAffinity == nil:
		return noPodTerms
	}
	r := termReader{shares: s, selectors: read, namespace: namespace, said: true}
	required, preferred := RequiredTerms{}, PreferredTerms{}
	if p := a.PodAffinity; p != nil {
		required.RequiredAffinity = r.readList(p.RequiredDuringSchedulingIgnoredDuringExecution)
		preferred.PreferredAffinity = r.readWeighted(p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		required.RequiredAntiAffinity = r.readList(p.RequiredDuringSchedulingIgnoredDuringExecution)
		preferred.PreferredAntiAffinity = r.readWeighted(p.PreferredDuringSchedulingIgnoredDuringExecution)
	}

	t := TermsOf(required, preferred)
	t.hasAny, t.hasPods, t.hasAnti, t.SelectsNamespaces = true, a.PodAffinity != nil, a.PodAntiAffinity != nil, r.selectsNamespaces
	pods := &v1.Affinity{PodAffinity: a.PodAffinity, PodAntiAffinity: a.PodAntiAffinity}
	if !r.said {
		t.unreadTerms = &unreadTerms{TermError: r.err, written: pods}
	}
	h := hasher{}
	h.addString(namespace) // terms without namespaces select pods in this namespace
	h.addAffinity(pods)
	t.Affinities = h.sum()
	return t
}

// termReader parses the terms of one class.
type termReader struct {
	*shares
	selectors *selectorReader
	namespace string
	err       error // reason the terms cannot be parsed

	said              bool // the parsed terms represent the affinity completely
	selectsNamespaces bool
}

// readList parses a list of terms. Like upstream, it returns no terms if one of them is invalid.
func (r *termReader) readList(list []v1.PodAffinityTerm) []Term {
	if len(list) == 0 {
		return nil
	}
	terms := make([]Term, 0, len(list))
	for i := range list {
		t, err := r.readTerm(&list[i])
		if err != nil {
			r.err, r.said = err, false
			return nil
		}
		terms = append(terms, t)
	}
	return terms
}

func (r *termReader) readWeighted(list []v1.WeightedPodAffinityTerm) []WeightedTerm {
	if len(list) == 0 {
		return nil
	}
	terms := make([]WeightedTerm, 0, len(list))
	for i := range list {
		t, err := r.readTerm(&list[i].PodAffinityTerm)
		if err != nil {
			r.err, r.said = err, false
			return nil
		}
		terms = append(terms, WeightedTerm{t, list[i].Weight})
	}
	return terms
}

func (r *termReader) readTerm(t *v1.PodAffinityTerm) (Term, error) {
	selector, err := r.selectors.readOne(t.LabelSelector)
	if err != nil {
		return Term{}, err
	}
	namespaceSelector, err := r.selectors.readOne(t.NamespaceSelector)
	if err != nil {
		return Term{}, err
	}
	if by, _ := namespaceSelector.Requirements(); len(by) > 0 {
		r.selectsNamespaces = true
	}

	for _, selector := range [2]*metav1.LabelSelector{t.LabelSelector, t.NamespaceSelector} {
		r.said = r.said && (selector == nil || selectsByLabels(selector))
	}
	r.said = r.said && len(t.Namespaces)+len(t.MatchLabelKeys)+len(t.MismatchLabelKeys) == 0
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		return Term{r.scopeOf(r.namespace, t.TopologyKey), selector}, nil
	}
	namespaces := slices.Compact(slices.Sorted(slices.Values(t.Namespaces)))
	return Term{&TermScope{namespaces, namespaceSelector, r.shareText(t.TopologyKey)}, selector}, nil
}

// scopeOf returns the scope of terms that select pods in one namespace.
func (s *shares) scopeOf(namespace, topologyKey string) *TermScope {
	var h hasher
	h.addString(namespace)
	h.addString(topologyKey)
	key := h.sum()
	if known := s.scopes.at(key); known != nil {
		return known
	}
	scope := &TermScope{[]string{s.shareText(namespace)}, rules.Nothing(), s.shareText(topologyKey)}
	return s.scopes.get(key, scope, sayAll[*TermScope])
}

// affinity returns the affinity in API form, including the node affinity.
func (t *Terms) affinity(nodes *v1.NodeAffinity) *v1.Affinity {
	if !t.hasAny {
		return nil
	}
	a := &v1.Affinity{NodeAffinity: nodes}
	if t.written != nil {
		a.PodAffinity, a.PodAntiAffinity = t.written.PodAffinity, t.written.PodAntiAffinity
		return a
	}

	if t.hasPods {
		a.PodAffinity = &v1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  writtenTerms(t.RequiredAffinity),
			PreferredDuringSchedulingIgnoredDuringExecution: writtenWeighted(t.PreferredAffinity),
		}
	}
	if t.hasAnti {
		a.PodAntiAffinity = &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  writtenTerms(t.RequiredAntiAffinity),
			PreferredDuringSchedulingIgnoredDuringExecution: writtenWeighted(t.PreferredAntiAffinity),
		}
	}
	return a
}

func writtenTerms(terms []Term) []v1.PodAffinityTerm {
	return rules.Mapped(terms, func(t Term) v1.PodAffinityTerm { return t.written() })
}

func writtenWeighted(terms []WeightedTerm) []v1.WeightedPodAffinityTerm {
	return rules.Mapped(terms, func(t WeightedTerm) v1.WeightedPodAffinityTerm {
		return v1.WeightedPodAffinityTerm{Weight: t.Weight, PodAffinityTerm: t.written()}
	})
}

// written returns the API form of a term that is completely represented by its parsed form.
func (t *Term) written() v1.PodAffinityTerm {
	return v1.PodAffinityTerm{
		LabelSelector: t.Selector.OfLabels(), NamespaceSelector: t.NamespaceSelector.OfLabels(), TopologyKey: t.TopologyKey,
	}
}
