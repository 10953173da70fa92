// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Labels set by Karpenter on its nodes.
const (
	capacityTypeLabel = "karpenter.sh/capacity-type"
	nodePoolLabel     = disruption.NodePoolLabel
)

// instanceType is an entry of the list read by Karpenter's kwok provider. Other fields are errors,
// because a misspelt field would otherwise be ignored.
type instanceType struct {
	Name             string     `json:"name"`
	Offerings        []offering `json:"offerings"`
	Architecture     string     `json:"architecture"`
	OperatingSystems []string   `json:"operatingSystems"`
	// Resources is the capacity of such a node.
	Resources v1.ResourceList `json:"resources"`
	// Overhead is the part unavailable to pods. Like in the kwok provider, it defaults to 100m of
	// CPU and 10Mi of memory.
	Overhead v1.ResourceList `json:"overhead,omitempty"`
}

// offering is a zone and capacity type of an instance type. The provider's files spell the field
// names in upper case.
type offering struct {
	Price float64 `json:"Price"`
	// A nil Available means that the offering is available.
	Available           *bool `json:"Available,omitempty"`
	ReservationCapacity int   `json:"ReservationCapacity,omitempty"`
	// Requirements define the offering's zone and capacity type, as labels.
	Requirements []v1.NodeSelectorRequirement `json:"Requirements"`
	Offering     any                          `json:"Offering,omitempty"`
}

// check returns an error with the path of the first missing or invalid field.
func (t *instanceType) check() error {
	switch {
	case t.Name == "":
		return errors.New(".name: required")
	case len(t.Offerings) == 0:
		return fmt.Errorf(".offerings of %q: required: zones and prices", t.Name)
	case t.Resources.Cpu().IsZero() || t.Resources.Memory().IsZero():
		return fmt.Errorf(".resources of %q: cpu and memory are required", t.Name)
	}
	for i, o := range t.Offerings {
		if !isPrice(o.Price) {
			return fmt.Errorf(".offerings[%d].Price of %q: %v: must be a number, 0 or more", i, t.Name, o.Price)
		}
	}
	return nil
}

// nodePool is the part of Karpenter's NodePool that determines the possible nodes. The remaining
// fields exist only to be accepted.
type nodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              nodePoolSpec `json:"spec"`
	Status            any          `json:"status,omitempty"`
}

// nodePoolSpec holds the limits of a pool.
type nodePoolSpec struct {
	Template   nodeClaimTemplate        `json:"template"`
	Disruption disruption.Consolidation `json:"disruption,omitempty"`
	// Limits are by resource; the resource "nodes" limits the number of nodes. Karpenter applies
	// them to the sum of existing and new nodes.
	Limits v1.ResourceList `json:"limits,omitempty"`
	// A nil weight is 0. Pools with the greatest weight are used first.
	Weight *int32 `json:"weight,omitempty"`
	// Replicas is set for a pool of a fixed size.
	Replicas *int64 `json:"replicas,omitempty"`
}

// nodeClaimTemplate is the template for a NodePool's nodes, and for the plan's NodeClaims.
type nodeClaimTemplate struct {
	Metadata struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata,omitempty"`
	Spec nodeClaimSpec `json:"spec"`
}

// nodeClaim is a NodeClaim to be written.
type nodeClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		nodeClaimSpec
		Resources struct {
			Requests v1.ResourceList `json:"requests"`
		} `json:"resources"`
	} `json:"spec"`
}

// nodeClaimSpec holds the taints and requirements relevant to pods. The rest is copied to
// NodeClaims unchanged.
type nodeClaimSpec struct {
	Taints []v1.Taint `json:"taints,omitempty"`
	// StartupTaints are removed before pods arrive, so they repel no pods.
	StartupTaints          []v1.Taint    `json:"startupTaints,omitempty"`
	Requirements           []requirement `json:"requirements"`
	NodeClassRef           any           `json:"nodeClassRef"`
	TerminationGracePeriod any           `json:"terminationGracePeriod,omitempty"`
	ExpireAfter            any           `json:"expireAfter,omitempty"`
}

// requirement is a requirement of a NodePool or a NodeClaim: a node selector requirement with
// minValues, and with the operators Gte and Lte in addition to those of the core API.
type requirement struct {
	Key       string                  `json:"key"`
	Operator  v1.NodeSelectorOperator `json:"operator"`
	Values    []string                `json:"values,omitempty"`
	MinValues *int                    `json:"minValues,omitempty"`
}

// operators are the valid operators of a requirement.
var operators = []v1.NodeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"}

// check returns the first fault, with the path of the field.
func (p *nodePool) check() error {
	if p.Name == "" {
		return errors.New("metadata.name: required")
	}
	for i, r := range p.Spec.Template.Spec.Requirements {
		at := fmt.Sprintf("spec.template.spec.requirements[%d]", i)
		switch {
		case r.Key == "":
			return fmt.Errorf("%s.key: required", at)
		case !slices.Contains(operators, r.Operator):
			return fmt.Errorf("%s.operator: %q: must be one of %v", at, r.Operator, operators)
		case (r.Operator == "In" || r.Operator == "NotIn") && len(r.Values) == 0:
			return fmt.Errorf("%s.values: required with operator %s", at, r.Operator)
		}
		if slices.Contains([]v1.NodeSelectorOperator{"Gt", "Lt", "Gte", "Lte"}, r.Operator) {
			if _, err := strconv.ParseInt(strings.Join(r.Values, ","), 10, 64); err != nil {
				return fmt.Errorf("%s.values: %q: must be one whole number with operator %s", at, r.Values, r.Operator)
			}
		}
	}

	return nil
}

// allows reports whether a label with this value meets the requirement. exists is false for a label
// missing on a node. Comparisons need an integer on both sides, as with node affinity.
func (r *requirement) allows(value string, exists bool) bool {
	// check has verified that the values of a comparison are one integer.
	number, err := strconv.ParseInt(value, 10, 64)
	bound, _ := strconv.ParseInt(strings.Join(r.Values, ","), 10, 64)
	whole := exists && err == nil

	switch r.Operator {
	case "In":
		return exists && slices.Contains(r.Values, value)
	case "NotIn":
		return !exists || !slices.Contains(r.Values, value)
	case "Exists":
		return exists
	case "DoesNotExist":
		return !exists
	case "Gt":
		return whole && number > bound
	case "Lt":
		return whole && number < bound
	case "Gte":
		return whole && number >= bound
	default:
		return whole && number <= bound
	}
}

// combine creates the offers: each offering of each instance type permitted by a NodePool's
// requirements.
//
// A NodePool without offers is not an error but a note, because another pool may have offers.
// Weights are not considered here; see heaviest.
func (c *Catalog) combine(pools []*nodePool, types []*instanceType) {
	c.addRules(pools)
	for _, p := range pools {
		pool := Pool{Name: p.Name, Limits: p.Spec.Limits, claim: p.Spec.Template}
		if p.Spec.Weight != nil {
			pool.Weight = *p.Spec.Weight
		}

		if p.Spec.Replicas != nil {
			c.Notes = append(c.Notes, fmt.Sprintf("NodePool %s has a fixed number of nodes (spec.replicas): none is bought for it", p.Name))
			continue
		}

		c.Pools = append(c.Pools, pool)
		before := len(c.Offers)
		for _, t := range types {
			for _, o := range t.Offerings {
				// An offering the cloud has run out of cannot be bought.
				if o.Available == nil || *o.Available {
					c.Offers = append(c.Offers, offersOf(p, len(c.Pools)-1, t, o)...)
				}
			}
		}

		// For a pool whose offers have too few values (minValues), Karpenter would launch nothing,
		// so drop these offers again.
		if short := shortOfValues(p, c.Offers[before:]); short != "" {
			c.Offers = c.Offers[:before]
			c.Notes = append(c.Notes, short)
		} else if len(c.Offers) == before {
			c.Notes = append(c.Notes, fmt.Sprintf("NodePool %s: no offering of any instance type meets its requirements", p.Name))
		}
	}
}

// addRules adds the rules for the removal of the pools' nodes. They also hold for nodes of pools
// without offers.
func (c *Catalog) addRules(pools []*nodePool) {
	for _, p := range pools {
		rules := &disruption.NodePool{ObjectMeta: p.ObjectMeta}
		rules.Spec.Disruption, rules.Spec.Replicas = p.Spec.Disruption, p.Spec.Replicas
		if c.rules == nil {
			c.rules = map[string]*disruption.NodePool{}
		}
		c.rules[p.Name] = rules
	}
}

// shortOfValues describes a requirement of a pool that demands more values (minValues) than its
// offers have, or returns "". In Karpenter, minValues demands variety, so that a cloud short of one
// instance type can use another.
func shortOfValues(p *nodePool, offers []Offer) string {
	for _, r := range p.Spec.Template.Spec.Requirements {
		if r.MinValues == nil || len(offers) == 0 {
			continue
		}
		values := map[string]bool{}
		for _, o := range offers {
			values[o.Node.Labels[r.Key]] = true
		}
		if len(values) < *r.MinValues {
			return fmt.Sprintf("NodePool %s requires at least %d values of %s (minValues), and its instance types have %d: it is not used",
				p.Name, *r.MinValues, r.Key, len(values))
		}
	}
	return ""
}

// offersOf creates the nodes of an offering. An offering or a NodePool can leave a label open among
// several values; each value is a separate node.
//
//	a pool for zones a and b, a type with an offering in zone a and one in b
//	-> one offer of each offering; if an offering does not name its zone, one for each zone of the pool
//
// The pool's requirements are checked for each choice of labels at the end, and choices that
// violate them are dropped.
func offersOf(p *nodePool, pool int, t *instanceType, o offering) (list []Offer) {
	labels := map[string]string{
		v1.LabelInstanceTypeStable: t.Name, v1.LabelArchStable: t.Architecture, nodePoolLabel: p.Name,
		"karpenter.kwok.sh/instance-family": familyOf(t.Name),
		"karpenter.kwok.sh/instance-size":   sizeOf(t.Name, t.Resources.Cpu().String()),
		"karpenter.kwok.sh/instance-cpu":    t.Resources.Cpu().String(), "karpenter.kwok.sh/instance-memory": t.Resources.Memory().String(),
	}

	// The pool's labels override those of the type.
	maps.Copy(labels, p.Spec.Template.Metadata.Labels)
	open := map[string][]string{v1.LabelOSStable: linuxFirst(t.OperatingSystems)}
	for _, r := range o.Requirements {
		if r.Operator == v1.NodeSelectorOpIn {
			open[r.Key] = r.Values
		}
	}

	for _, r := range p.Spec.Template.Spec.Requirements {
		// The offering's requirements override the pool's, because they are narrower.
		if _, fixed := labels[r.Key]; r.Operator == "In" && !fixed && open[r.Key] == nil {
			open[r.Key] = r.Values
		}
	}

	for _, choice := range choices(labels, open) {
		if slices.ContainsFunc(p.Spec.Template.Spec.Requirements, func(r requirement) bool {
			value, there := choice[r.Key]
			return !r.allows(value, there)
		}) {
			continue
		}
		offer := Offer{
			Pool: p.Name, Type: t.Name, Zone: choice[v1.LabelTopologyZone], CapacityType: choice[capacityTypeLabel],
			Price: o.Price, pool: pool, Node: nodeOf(p, t, choice), Most: o.ReservationCapacity,
		}
		list = append(list, offer)
	}

	return list
}

// linuxFirst returns the names with linux first: the operating system of a node if its pods do not
// specify one.
func linuxFirst(names []string) []string {
	names = slices.Clone(names)
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(map[bool]int{true: 0, false: 1}[a == "linux"], map[bool]int{true: 0, false: 1}[b == "linux"])
	})
	return names
}

// choices returns the labels with each combination of the open values, up to a small number: the
// combinations have the same cost. Without a limit, a pool with a few open labels would create
// thousands of offers of each type.
func choices(labels map[string]string, open map[string][]string) []map[string]string {
	const most = 24
	list := []map[string]string{labels}
	for _, key := range slices.Sorted(maps.Keys(open)) {
		var next []map[string]string
		for _, l := range list {
			for _, value := range open[key] {
				if len(next) < most {
					with := maps.Clone(l)
					with[key] = value
					next = append(next, with)
				}
			}
		}
		if len(next) > 0 {
			list = next
		}
	}

	return list
}

// nodeOf creates the node of a choice of labels. It is ready, and lacks a name and startup taints,
// which are removed before pods arrive. 110 pods is the kubelet's default.
func nodeOf(p *nodePool, t *instanceType, labels map[string]string) *v1.Node {
	capacity := t.Resources.DeepCopy()
	// Without a number of pods, none would fit.
	if _, ok := capacity[v1.ResourcePods]; !ok {
		capacity[v1.ResourcePods] = *resource.NewQuantity(110, resource.DecimalSI)
	}

	overhead := t.Overhead
	if overhead == nil {
		overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("10Mi")}
	}

	allocatable := capacity.DeepCopy()
	// Overhead of a resource missing in the type takes nothing.
	for name, q := range overhead {
		if left, ok := allocatable[name]; ok {
			left.Sub(q)
			allocatable[name] = left
		}
	}

	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: p.Spec.Template.Metadata.Annotations},
		Spec:       v1.NodeSpec{Taints: p.Spec.Template.Spec.Taints},
		Status: v1.NodeStatus{
			Capacity: capacity, Allocatable: allocatable,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}
}

// sizePattern finds the size in names such as m5.2xlarge.
var sizePattern = regexp.MustCompile(`^\w+\.(nano|micro|small|medium|large|\d*xlarge|metal)$`)

// sizeOf and familyOf derive the kwok provider's labels from a type's name.
func sizeOf(name, cpu string) string {
	if found := sizePattern.FindStringSubmatch(name); found != nil {
		return found[1]
	}
	return cpu
}

// familyOf returns the part of a name before its first dot or dash, such as m5 of m5.large; else
// its first letter.
func familyOf(name string) string {
	for i, r := range name {
		if r == '.' || r == '-' {
			return name[:i]
		}
	}
	return name[:min(1, len(name))]
}
