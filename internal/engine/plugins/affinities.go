// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Affinities computes the attraction and repulsion between a pending pod and placed pods. Its
// methods take a class of placed pods, regardless of their nodes, and cover all rules of pod
// affinity; [InterPodAffinity] only counts the results by domain. A domain is a topology key with a
// value of that node label: a node without the key is in no domain.
//
//	the pending pod's   required affinity        Required, Attracts
//	                    required anti-affinity   RequiresAnti, Repels
//	                    preferences              Prefers, OwnVotes
//	the placed pods'    required anti-affinity   RepelledBy
//	                    the rest                 VotesOf, only for scores
//
// Results hold until the labels of namespaces change.
type Affinities struct {
	// c provides the labels of namespaces. own is the class of the pending pod.
	c         *cluster.Cluster
	own       *cluster.PodClass
	namespace labels.Set // labels of the pending pod's namespace
}

// NewAffinities prepares Affinities for pending pods of a class. It costs one lookup of the
// namespace; the class holds the parsed terms.
func NewAffinities(c *cluster.Cluster, own *cluster.PodClass) *Affinities {
	return &Affinities{c, own, c.NamespaceLabels(own.Namespace)}
}

// termSelects reports whether a term of the pending pod selects pods of the class.
//
// A namespace selector with requirements selects existing namespaces by their labels. An empty one
// selects pods of all namespaces, known or not.
//
// Selected namespaces are not cached: a pod may have thousands of terms, each selecting thousands
// of namespaces.
func (a *Affinities) termSelects(t *cluster.Term, class *cluster.PodClass) bool {
	if _, named := slices.BinarySearch(t.Namespaces, class.Namespace); !named && !t.NamespaceSelector.Empty() {
		namespace, exists := a.c.Namespaces.Get("", class.Namespace)
		if !exists || !t.NamespaceSelector.Matches(labels.Set(namespace.Labels)) {
			return false
		}
	}
	return t.Selector.Matches(class.Labels)
}

// Required returns the topology keys of the pending pod's required affinity, without duplicates;
// nodes must have them all. It returns nil for a pod without required affinity.
func (a *Affinities) Required() []string { return topologyKeys(a.own.RequiredAffinity) }

// topologyKeys lists the keys of terms, without duplicates, in the order of the terms.
func topologyKeys(terms []cluster.Term) (keys []string) {
	seen := map[string]bool{}
	for i := range terms {
		if key := terms[i].TopologyKey; !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// Attracts reports whether pods of the class satisfy the pending pod's required affinity. All terms
// must select the same pod, which then attracts the pending pod to its domain of every key. Two
// pods that match only one term each do not attract it.
func (a *Affinities) Attracts(class *cluster.PodClass) bool {
	for i := range a.own.RequiredAffinity {
		if !a.termSelects(&a.own.RequiredAffinity[i], class) {
			return false
		}
	}
	return len(a.own.RequiredAffinity) > 0
}

// AttractsItself reports whether the pending pod satisfies its own required affinity. If it does,
// and no pod in the cluster attracts it, it is the first of its group and may run on any node with
// the keys.
func (a *Affinities) AttractsItself() bool { return a.Attracts(a.own) }

// RequiresAnti reports whether the pending pod has required anti-affinity.
func (a *Affinities) RequiresAnti() bool { return len(a.own.RequiredAntiAffinity) > 0 }

// Repels returns the topology keys of the domains closed to the pending pod by its own
// anti-affinity to pods of the class.
func (a *Affinities) Repels(class *cluster.PodClass) (keys []string) {
	for i := range a.own.RequiredAntiAffinity {
		if a.termSelects(&a.own.RequiredAntiAffinity[i], class) {
			keys = append(keys, a.own.RequiredAntiAffinity[i].TopologyKey)
		}
	}
	return keys
}

// RepelledBy returns the topology keys of the domains closed to the pending pod by the
// anti-affinity of pods of the class.
func (a *Affinities) RepelledBy(class *cluster.PodClass) (keys []string) {
	for i := range class.RequiredAntiAffinity {
		if class.RequiredAntiAffinity[i].Matches(a.own, a.namespace) {
			keys = append(keys, class.RequiredAntiAffinity[i].TopologyKey)
		}
	}
	return keys
}

// Prefers reports whether the pending pod has preferences. If it has no preferences, only pods with
// affinity vote.
func (a *Affinities) Prefers() bool {
	return len(a.own.PreferredAffinity)+len(a.own.PreferredAntiAffinity) > 0
}

// Vote is the contribution of one placed pod to the score of all nodes in its domain of the key.
// Anti-affinity votes with a negative weight.
type Vote struct {
	Key    string
	Weight int64
}

// Votes returns the votes of pods of a class, for the preferences of both sides. hardWeight is the
// weight of each required affinity term of the class; 0 ignores these terms. A key may occur more
// than once.
func (a *Affinities) Votes(class *cluster.PodClass, hardWeight int32) (votes []Vote) {
	return append(a.OwnVotes(class), a.VotesOf(class, hardWeight)...)
}

// OwnVotes returns the votes for the preferences of the pending pod.
func (a *Affinities) OwnVotes(class *cluster.PodClass) (votes []Vote) {
	for i := range a.own.PreferredAffinity {
		if t := &a.own.PreferredAffinity[i]; a.termSelects(&t.Term, class) {
			votes = append(votes, Vote{t.TopologyKey, int64(t.Weight)})
		}
	}
	for i := range a.own.PreferredAntiAffinity {
		if t := &a.own.PreferredAntiAffinity[i]; a.termSelects(&t.Term, class) {
			votes = append(votes, Vote{t.TopologyKey, -int64(t.Weight)})
		}
	}
	return votes
}

// VotesOf returns the votes for the preferences of the class. If hardWeight is above 0, the
// required affinity of the class votes as well: a placed pod that requires such pods nearby prefers
// more of them.
func (a *Affinities) VotesOf(class *cluster.PodClass, hardWeight int32) (votes []Vote) {
	if hardWeight > 0 {
		for i := range class.RequiredAffinity {
			if t := &class.RequiredAffinity[i]; t.Matches(a.own, a.namespace) {
				votes = append(votes, Vote{t.TopologyKey, int64(hardWeight)})
			}
		}
	}

	for i := range class.PreferredAffinity {
		if t := &class.PreferredAffinity[i]; t.Matches(a.own, a.namespace) {
			votes = append(votes, Vote{t.TopologyKey, int64(t.Weight)})
		}
	}

	for i := range class.PreferredAntiAffinity {
		if t := &class.PreferredAntiAffinity[i]; t.Matches(a.own, a.namespace) {
			votes = append(votes, Vote{t.TopologyKey, -int64(t.Weight)})
		}
	}
	return votes
}

// AffinityNormalized scales a score to 0..MaxScore, by the lowest and the highest score of all
// feasible nodes. If all scores are equal, they become 0. Like upstream it computes in floating
// point and truncates: integers would differ by one.
func AffinityNormalized(score, lowest, highest int64) int64 {
	if highest <= lowest {
		return 0
	}
	return int64(float64(MaxScore) * (float64(score-lowest) / float64(highest-lowest)))
}

// termsError returns upstream's error for a pod's unparsable affinity terms: the first error of
// each of the four lists. Callers build the error on demand, because classes record only its
// existence.
func termsError(a *v1.Affinity) error {
	var required, requiredAnti []v1.PodAffinityTerm
	var preferred, preferredAnti []v1.WeightedPodAffinityTerm
	if a.PodAffinity != nil {
		required, preferred = a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}

	if a.PodAntiAffinity != nil {
		requiredAnti, preferredAnti = a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}

	var errs []error
	add := func(list string, terms []v1.PodAffinityTerm) {
		for i := range terms {
			// Report one error per list: upstream stops at the first error.
			for _, selector := range []*metav1.LabelSelector{terms[i].LabelSelector, terms[i].NamespaceSelector} {
				if _, err := rules.ReadSelector(selector); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", list, err))
					return
				}
			}
		}
	}

	add("requiredAffinityTerms", required)
	add("requiredAntiAffinityTerms", requiredAnti)
	add("preferredAffinityTerms", podTerms(preferred))
	add("preferredAntiAffinityTerms", podTerms(preferredAnti))
	return utilerrors.NewAggregate(errs)
}

// podTerms drops the weights, so that the same code checks both kinds of terms.
func podTerms(terms []v1.WeightedPodAffinityTerm) []v1.PodAffinityTerm {
	return rules.Mapped(terms, func(t v1.WeightedPodAffinityTerm) v1.PodAffinityTerm { return t.PodAffinityTerm })
}
