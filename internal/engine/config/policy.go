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

// policy is a file of kind Policy, which kube-scheduler read until v1.22.
type policy struct {
	metav1.TypeMeta `json:",inline"`
	// Predicates and Priorities: a list that is left out stands for the defaults, an empty one for
	// none.
	Predicates []predicate       `json:"predicates"`
	Priorities []priority        `json:"priorities"`
	Extenders  []policyExtender  `json:"extenders"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
	// HardPodAffinitySymmetricWeight of 0 stands for the default.
	HardPodAffinitySymmetricWeight int32 `json:"hardPodAffinitySymmetricWeight"`
	AlwaysCheckAllPredicates       bool  `json:"alwaysCheckAllPredicates"`
}

type predicate struct {
	Name     string             `json:"name"`
	Argument *predicateArgument `json:"argument"`
}

type predicateArgument struct {
	ServiceAffinity *struct {
		Labels []string `json:"labels"`
	} `json:"serviceAffinity"`
	LabelsPresence *struct {
		Labels   []string `json:"labels"`
		Presence bool     `json:"presence"`
	} `json:"labelsPresence"`
}

type priority struct {
	Name     string            `json:"name"`
	Weight   int64             `json:"weight"`
	Argument *priorityArgument `json:"argument"`
}

type priorityArgument struct {
	ServiceAntiAffinity *struct {
		Label string `json:"label"`
	} `json:"serviceAntiAffinity"`
	LabelPreference *struct {
		Label    string `json:"label"`
		Presence bool   `json:"presence"`
	} `json:"labelPreference"`
	RequestedToCapacityRatio *struct {
		Shape     []configv1.UtilizationShapePoint `json:"shape"`
		Resources []configv1.ResourceSpec          `json:"resources"`
	} `json:"requestedToCapacityRatioArguments"`
}

// policyExtender spells some fields of an extender otherwise than today's files: enableHttps, and a
// time-out in nanoseconds.
type policyExtender struct {
	configv1.Extender `json:",inline"`
	EnableHTTPS       bool          `json:"enableHttps"`
	HTTPTimeout       time.Duration `json:"httpTimeout"`
}

// maxPriorityWeight is the limit of the times: with a score of 100 each, the sum had to stay below
// 2^63.
const maxPriorityWeight = math.MaxInt64 / 100

func readPolicy(data []byte, apiVersion string) (*policy, error) {
	if apiVersion != "v1" && apiVersion != configv1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("apiVersion: Invalid value: %q: a Policy has apiVersion v1", apiVersion)
	}
	p := &policy{}
	if err := unmarshalStrict(data, p); err != nil {
		return nil, err
	}
	return p, p.validatePolicy()
}

func (p *policy) validatePolicy() error {
	var list field.ErrorList
	for i, pr := range p.Predicates {
		path := field.NewPath("predicates").Index(i)
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

func countTrue(facts ...bool) (n int) {
	for _, fact := range facts {
		if fact {
			n++
		}
	}
	return n
}

func (p *policy) listExtenders() []configv1.Extender {
	var list []configv1.Extender
	for i := range p.Extenders {
		e := p.Extenders[i].Extender
		e.EnableHTTPS = e.EnableHTTPS || p.Extenders[i].EnableHTTPS
		e.HTTPTimeout = metav1.Duration{Duration: p.Extenders[i].HTTPTimeout}
		list = append(list, e)
	}
	return list
}

// translatePolicy says in one profile of today what the policy says.
func translatePolicy(data []byte, apiVersion string) (*translation, error) {
	p, err := readPolicy(data, apiVersion)
	if err != nil {
		return nil, err
	}

	t := newTranslator()
	t.translatePredicates(p.Predicates)
	t.translatePriorities(p.Priorities)
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
	profile, err := t.buildProfile()
	if err != nil {
		return nil, err
	}

	spec := configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{profile}, Extenders: p.listExtenders()}
	return &translation{spec: spec, notes: t.notes}, nil
}
