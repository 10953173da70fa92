// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
)

// manyLabels is the minimum number of labels that a pod must have for the cost of matching other
// pods' terms to be estimated in advance.
const manyLabels = 1000

// selectsTooMuch reports whether it would cost more than half of an attempt's effort to match the
// pod's terms against the looks that they may select, or to match the pod's labels against the
// terms of other pods. An object may hold tens of thousands of terms or labels.
func (ix *index) selectsTooMuch(p *cluster.Pod) bool {
	class := p.Class
	if class.Labels.Len() >= manyLabels && ix.looksAtLabels(class) > ix.limits.Effort/2 {
		return true
	}
	if len(class.RequiredAffinity)+len(class.RequiredAntiAffinity)+len(class.PreferredAffinity)+
		len(class.PreferredAntiAffinity) < ix.limits.ManyTerms {
		return false
	}

	terms, _ := sizeOf(class)
	selectors := termSelectors(class)
	ix.nameKeys(selectors...)
	most, found := ix.limits.Effort/2/max(1, int(terms)), &ix.placed
	if found.looks.Len() <= most {
		return false
	}

	found.beginSearch()
	for _, selector := range selectors {
		labels, everybody := cluster.RequiredLabels(selector)
		if everybody {
			return true
		}
		for _, at := range labels {
			if found.findLooks(&found.byLabel, shortHashOf(at.Key, at.Value)); len(found.found) > most {
				return true
			}
		}
	}

	return false
}

// looksAtLabels estimates the number of labels to compare when matching other pods' terms against
// the class.
func (ix *index) looksAtLabels(class *cluster.PodClass) (looks int) {
	for _, users := range ix.terms.usersFor(class.Labels) {
		for term := range users.countTerms() {
			looks += users.selectorOf(term).Looks(class.Labels)
		}
	}
	return looks
}

// ErrTooLong is the error of a preemption that exhausts its effort before finding a node. Computed
// results are kept if possible, and the next attempt continues from them.
var ErrTooLong error = &effort.TooLongError{What: "finding pods to preempt"}

var errTermsTooLong error = &effort.TooLongError{What: "counting the pods that so many terms may select"}

var errGuestsTooLong error = &effort.TooLongError{What: "judging nodes that other pods are nominated to"}
