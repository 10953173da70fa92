// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

// policy is a file of kind Policy, which kube-scheduler read until v1.22. It lists the names of
// predicates, which filtered nodes, and of priorities, which scored nodes. Both have since become
// plugins (see predicatePlugins and priorityPlugins).
type policy struct {
	metav1.TypeMeta `json:",inline"`
	// Predicates and Priorities: an omitted list selects the defaults, and an empty list selects
	// none.
	Predicates []predicate       `json:"predicates"`
	Priorities []priority        `json:"priorities"`
	Extenders  []policyExtender  `json:"extenders"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
	// HardPodAffinitySymmetricWeight of 0 means the default.
	HardPodAffinitySymmetricWeight int32 `json:"hardPodAffinitySymmetricWeight"`
	// AlwaysCheckAllPredicates reported all reasons of a node instead of the first. It has no
	// equivalent.
	AlwaysCheckAllPredicates bool `json:"alwaysCheckAllPredicates"`
}

// predicate filters nodes. Without an argument its name determines its function. With an argument,
// the argument determines the function, and users choose the name freely.
type predicate struct {
	Name     string             `json:"name"`
	Argument *predicateArgument `json:"argument"`
}

// predicateArgument has exactly one of its fields.
type predicateArgument struct {
	// ServiceAffinity kept the pods of a Service on nodes with equal values of these labels.
	ServiceAffinity *struct {
		Labels []string `json:"labels"`
	} `json:"serviceAffinity"`
	// LabelsPresence kept all pods on nodes with all of these labels, regardless of their values,
	// or on nodes without any of them.
	LabelsPresence *struct {
		Labels   []string `json:"labels"`
		Presence bool     `json:"presence"`
	} `json:"labelsPresence"`
}

// priority scores nodes, with a weight. Its name and argument work like a predicate's.
type priority struct {
	Name     string            `json:"name"`
	Weight   int64             `json:"weight"`
	Argument *priorityArgument `json:"argument"`
}

// priorityArgument has exactly one of its fields.
type priorityArgument struct {
	// ServiceAntiAffinity spread the pods of a Service over the values of a label.
	ServiceAntiAffinity *struct {
		Label string `json:"label"`
	} `json:"serviceAntiAffinity"`
	// LabelPreference preferred nodes with a label, or nodes without it.
	LabelPreference *struct {
		Label    string `json:"label"`
		Presence bool   `json:"presence"`
	} `json:"labelPreference"`
	// RequestedToCapacityRatio is now a scoring strategy of NodeResourcesFit, with the same shape.
	RequestedToCapacityRatio *struct {
		Shape     []configv1.UtilizationShapePoint `json:"shape"`
		Resources []configv1.ResourceSpec          `json:"resources"`
	} `json:"requestedToCapacityRatioArguments"`
}

// policyExtender has a different spelling of some extender fields: enableHttps, and a timeout as a
// number of nanoseconds instead of "5s".
type policyExtender struct {
	configv1.Extender `json:",inline"`
	EnableHTTPS       bool          `json:"enableHttps"`
	HTTPTimeout       time.Duration `json:"httpTimeout"`
}

// maxPriorityWeight was the limit of kube-scheduler: the product with a score of 100 stayed below
// 2^63. addScore reduces weights above the current limit of a plugin.
const maxPriorityWeight = math.MaxInt64 / 100

// readPolicy reads a policy and checks it, with the original messages.
func readPolicy(data []byte, apiVersion string) (*policy, error) {
	// Policies were written with either version.
	if apiVersion != "v1" && apiVersion != configv1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("apiVersion: Invalid value: %q: a Policy has apiVersion v1", apiVersion)
	}
	p := &policy{}
	if err := unmarshalStrict(data, p); err != nil {
		return nil, err
	}
	return p, p.validatePolicy()
}

// validatePolicy checks everything that does not depend on names.
func (p *policy) validatePolicy() error {
	var list field.ErrorList
	for i, pr := range p.Predicates {
		path := field.NewPath("predicates").Index(i)
		// Refuse an argument with both fields or neither. If there is no argument,
		// translatePredicates checks that the name is the name of a predicate.
		if a := pr.Argument; a != nil && (a.ServiceAffinity == nil) == (a.LabelsPresence == nil) {
			list = append(list, field.Invalid(path.Child("argument"), pr.Name, "exactly 1 predicate argument is required"))
		}
	}

	for i, pr := range p.Priorities {
		path := field.NewPath("priorities").Index(i)
		if pr.Weight <= 0 || pr.Weight >= maxPriorityWeight {
			list = append(list, field.Invalid(path.Child("weight"), pr.Weight,
				"should have a positive weight applied to it or it has overflown"))
		}
		if a := pr.Argument; a != nil && countTrue(a.ServiceAntiAffinity != nil, a.LabelPreference != nil,
			a.RequestedToCapacityRatio != nil) != 1 {
			list = append(list, field.Invalid(path.Child("argument"), pr.Name, "exactly 1 priority argument is required"))
		}
	}

	if w := p.HardPodAffinitySymmetricWeight; w < 0 || w > 100 {
		list = append(list, field.Invalid(field.NewPath("hardPodAffinitySymmetricWeight"), w, "not in valid range [0-100]"))
	}
	return list.ToAggregate()
}

// countTrue counts the true arguments, for checks that exactly one of several is set.
func countTrue(facts ...bool) (n int) {
	for _, fact := range facts {
		if fact {
			n++
		}
	}
	return n
}

// listExtenders returns the extenders in their current form. Fields with unchanged names are
// decoded into the Extender itself.
func (p *policy) listExtenders() []configv1.Extender {
	var list []configv1.Extender
	for i := range p.Extenders {
		e := p.Extenders[i].Extender
		// The decoder is case-sensitive, so each of the two spellings has a field.
		e.EnableHTTPS = e.EnableHTTPS || p.Extenders[i].EnableHTTPS
		e.HTTPTimeout = metav1.Duration{Duration: p.Extenders[i].HTTPTimeout}
		list = append(list, e)
	}
	return list
}

// translatePolicy translates the policy into one current profile. As in kube-scheduler, unknown
// names are errors. Known names without an equivalent are omitted with a note.
func translatePolicy(data []byte, apiVersion string) (*translation, error) {
	p, err := readPolicy(data, apiVersion)
	if err != nil {
		return nil, err
	}

	t := newTranslator()
	t.translatePredicates(p.Predicates)
	t.translatePriorities(p.Priorities)
	// Only the priority InterPodAffinityPriority used the weight.
	if w := p.HardPodAffinitySymmetricWeight; w != 0 && !t.scoresWith("InterPodAffinity") {
		t.addNote(field.NewPath("hardPodAffinitySymmetricWeight"), "has no effect without InterPodAffinityPriority")
	} else if w != 0 {
		t.setArgs("InterPodAffinity", &configv1.InterPodAffinityArgs{HardPodAffinityWeight: ptr.To(w)})
	}

	if p.AlwaysCheckAllPredicates {
		t.addNote(field.NewPath("alwaysCheckAllPredicates"),
			"has no equivalent: a node is rejected with the reasons of the first plugin that rejects it")
	}

	if len(t.errs) > 0 {
		return nil, flattenErrors(t.errs)
	}
	// Build the profile last, because the order of the plugins does not depend on the order of the
	// file.
	profile, err := t.buildProfile()
	if err != nil {
		return nil, err
	}

	spec := configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{profile}, Extenders: p.listExtenders()}
	return &translation{spec: spec, notes: t.notes}, nil
}
