// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// DedicatedNodesAnnotation on a namespace, with the value key=value, dedicates nodes to the
// namespace: the nodes that have key=value both as a taint and as a label. The namespace's pods get
// the toleration and the node affinity, so they run only on these nodes. On a pod, the annotation
// has the same effect for that pod; it must not name other nodes than the namespace's annotation.
const DedicatedNodesAnnotation = "berth.dev/dedicated-nodes"

// dedicatedNodes implements DedicatedNodesAnnotation of the pod or its namespace: it adds a
// toleration for each effect that keeps pods off, and the node affinity. Tolerations only permit
// the nodes, and affinity only requires them, so both are needed.
//
// For example, gpu=team-a on the namespace adds the tolerations gpu=team-a:NoSchedule and
// gpu=team-a:NoExecute, and gpu In (team-a) to each term of the required node affinity.
func dedicatedNodes(r *request) error {
	key, value, err := groupOf(r)
	if key == "" || err != nil {
		return err
	}
	spec := &r.pod.Spec
	// Add one toleration per effect, because PreferNoSchedule does not keep pods off.
	for _, effect := range rules.KeepsOff {
		taint := v1.Taint{Key: key, Value: value, Effect: effect}
		if rules.TolerationOf(&taint, spec.Tolerations) == nil {
			spec.Tolerations = append(spec.Tolerations, v1.Toleration{Key: key, Operator: v1.TolerationOpEqual,
				Value: value, Effect: effect})
		}
	}
	requireLabel(spec, key, value)
	return nil
}

// onlyDedicatedNodes refuses a pod that could run elsewhere because the affinity was removed again
// or admission was bypassed. It ignores missing tolerations: without them the pod would not run,
// which harms no other pod.
func onlyDedicatedNodes(r *request) error {
	key, value, err := groupOf(r)
	if key == "" || err != nil {
		return err
	}
	affinity := r.pod.Spec.Affinity
	if affinity != nil && affinity.NodeAffinity != nil && affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil &&
		!slices.ContainsFunc(affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms,
			func(term v1.NodeSelectorTerm) bool {
				return !matchesNothing(&term) && !requiresLabel(&term, key, value)
			}) {
		return nil
	}
	return newRefusal("spec.affinity", "annotation %s: the pod belongs on the nodes %s=%s, but the node affinity for it is missing: "+
		"another webhook may have removed it; create the pod again",
		DedicatedNodesAnnotation, key, value)
}

// groupOf returns the label and taint of the pod's dedicated nodes; the key is empty without
// dedicated nodes. It refuses the pod if the annotation is not of the form key=value: the pod would
// wait forever for nonexistent nodes.
func groupOf(r *request) (key, value string, err error) {
	group, field := r.pod.Annotations[DedicatedNodesAnnotation], "metadata.annotations["+DedicatedNodesAnnotation+"]"
	// The namespace takes precedence over the pod: users allowed to create pods are not necessarily
	// allowed to choose their nodes.
	if owned := r.namespace.Annotations[DedicatedNodesAnnotation]; owned != "" {
		if group != "" && group != owned {
			return "", "", newRefusal(field, "annotation %s: %q: pods of namespace %s must run on the nodes %q",
				DedicatedNodesAnnotation, group, r.namespace.Name, owned)
		}
		group, field = owned, "metadata.namespace"
	}

	if group == "" {
		return "", "", nil
	}
	key, value, found := strings.Cut(group, "=")
	faults := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
	if !found || len(faults) > 0 {
		return "", "", newRefusal(field, "annotation %s: %q: must be key=value, the taint and the label of the nodes",
			DedicatedNodesAnnotation, group)
	}
	return key, value, nil
}

// requireLabel narrows the pod's required node affinity to nodes with the label. Terms are
// alternatives, so each of them gets the condition. A term without conditions matches no node, and
// must continue to match none.
func requireLabel(spec *v1.PodSpec, key, value string) {
	label := v1.NodeSelectorRequirement{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}
	spec.Affinity = cmp.Or(spec.Affinity, &v1.Affinity{})
	spec.Affinity.NodeAffinity = cmp.Or(spec.Affinity.NodeAffinity, &v1.NodeAffinity{})
	affinity := spec.Affinity.NodeAffinity
	if affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{label}}},
		}
		return
	}

	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		if !matchesNothing(&terms[i]) && !requiresLabel(&terms[i], key, value) {
			terms[i].MatchExpressions = append(terms[i].MatchExpressions, label)
		}
	}
}

// matchesNothing reports whether the term lacks conditions. By the API's definition, such a term
// selects no node.
func matchesNothing(term *v1.NodeSelectorTerm) bool {
	return len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0
}

// requiresLabel reports whether the term already has the condition, in the form added by
// requireLabel.
func requiresLabel(term *v1.NodeSelectorTerm, key, value string) bool {
	return slices.ContainsFunc(term.MatchExpressions, func(r v1.NodeSelectorRequirement) bool {
		return r.Key == key && r.Operator == v1.NodeSelectorOpIn && len(r.Values) == 1 && r.Values[0] == value
	})
}
