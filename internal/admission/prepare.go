// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// preparePod performs, in place, the API server's remaining steps for a new pod: it names the
// service account, merges label keys into selectors, defaults pod-level resources and initializes
// the status. Pod does not call it, because an API server performs these steps itself, and refuses
// already merged selectors.
func preparePod(pod *v1.Pod) {
	DefaultPodResources(pod)
	// Both names of the account are set, like by the API. The account itself and its token are
	// irrelevant for scheduling.
	account := cmp.Or(pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount, "default")
	pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = account, account
	mergeLabelKeys(pod)
	pod.Status.Phase = cmp.Or(pod.Status.Phase, v1.PodPending)
	pod.Status.QOSClass = cmp.Or(pod.Status.QOSClass, rules.ComputeQOS(pod))
}

// mergeLabelKeys turns matchLabelKeys and mismatchLabelKeys into expressions of the adjacent
// selector. Unlike the API server it skips already merged keys: a stored pod, passed to Berth in a
// file, must keep its meaning.
//
// For example, a pod with the label pod-template-hash=abc and matchLabelKeys [pod-template-hash]
// gets the expression pod-template-hash In (abc).
func mergeLabelKeys(pod *v1.Pod) {
	var terms []*v1.PodAffinityTerm
	add := func(must []v1.PodAffinityTerm, should []v1.WeightedPodAffinityTerm) {
		terms = append(terms, rules.Pointers(must)...)
		for i := range should {
			terms = append(terms, &should[i].PodAffinityTerm)
		}
	}

	if affinity := pod.Spec.Affinity; affinity != nil {
		if a := affinity.PodAffinity; a != nil {
			add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a := affinity.PodAntiAffinity; a != nil {
			add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}

	for _, term := range terms {
		mergeKeys(term.LabelSelector, term.MatchLabelKeys, metav1.LabelSelectorOpIn, pod.Labels)
		mergeKeys(term.LabelSelector, term.MismatchLabelKeys, metav1.LabelSelectorOpNotIn, pod.Labels)
	}

	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		mergeKeys(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn, pod.Labels)
	}
}

// mergeKeys adds an expression per key with the pod's own value. It skips keys absent from the pod,
// like upstream.
func mergeKeys(selector *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator, labels map[string]string) {
	if selector == nil {
		return // matches nothing, and must not change
	}
	present := map[string]bool{}
	for i := range selector.MatchExpressions {
		if r := &selector.MatchExpressions[i]; r.Operator == op && len(r.Values) == 1 && r.Values[0] == labels[r.Key] {
			present[r.Key] = true
		}
	}

	for _, key := range keys {
		value, set := labels[key]
		if !set || present[key] {
			continue
		}
		present[key] = true
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: key, Operator: op, Values: []string{value},
		})
	}
}
