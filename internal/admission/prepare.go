package admission

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// preparePod does, in place, what else the API server does with a new pod: it
// names the service account, merges label keys into selectors, fills in pod-level
// resources and begins the status. It is not part of Pod: the
// API server does it there, and refuses selectors that were merged before.
func preparePod(pod *v1.Pod) {
	DefaultPodResources(pod)
	nameServiceAccount(&pod.Spec)
	mergeLabelKeys(pod)
	if pod.Status.Phase == "" {
		pod.Status.Phase = v1.PodPending
	}
	if pod.Status.QOSClass == "" {
		pod.Status.QOSClass = rules.ComputeQOS(pod)
	}
}

// nameServiceAccount names the account under both of its names, as the API
// shows them. The account itself and its token are no concern of scheduling.
func nameServiceAccount(spec *v1.PodSpec) {
	name := cmp.Or(spec.ServiceAccountName, spec.DeprecatedServiceAccount, "default")
	spec.ServiceAccountName, spec.DeprecatedServiceAccount = name, name
}

// mergeLabelKeys turns matchLabelKeys and mismatchLabelKeys into expressions of the selector beside
// them. In contrast to the API server it leaves alone what was merged already: a pod that was
// stored, read and given to Berth in a file must mean the same again.
//
// For example, a pod with the label pod-template-hash=abc and matchLabelKeys [pod-template-hash]
// gets the expression pod-template-hash In (abc).
func mergeLabelKeys(pod *v1.Pod) {
	var terms []*v1.PodAffinityTerm
	add := func(must []v1.PodAffinityTerm, should []v1.WeightedPodAffinityTerm) {
		for i := range must {
			terms = append(terms, &must[i])
		}
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

// mergeKeys adds an expression per key with the pod's own value of it. A key that the pod does not
// have is left out, as upstream.
func mergeKeys(selector *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator, labels map[string]string) {
	if selector == nil {
		return // matches nothing, and stays so
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
