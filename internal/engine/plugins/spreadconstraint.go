// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// SpreadConstraint is one parsed constraint of a pod on the spread of similar pods over the values
// of a node label: defaults are filled in and matchLabelKeys are merged into the selector. Its
// methods implement all of the arithmetic, so that code that counts pods in another way than
// [PodTopologySpread] produces the same verdicts and scores.
type SpreadConstraint struct {
	// MaxSkew is at least 1. The following fields have the same meaning as in the API.
	MaxSkew     int32
	TopologyKey string
	Selector    *rules.Selector
	MinDomains  int32 // 1 if unset
	// NodeAffinityPolicy and NodeTaintsPolicy determine whether the counts exclude nodes excluded
	// by the pod's node affinity, and nodes with an untolerated taint.
	NodeAffinityPolicy, NodeTaintsPolicy v1.NodeInclusionPolicy
	compare                              bool // whether tolerations with the operators Gt and Lt count
}

// readSpread reads the constraints of a list with the given action. selectors holds the selectors
// already parsed, by index in the list; it may be shorter than the list.
func readSpread(list []v1.TopologySpreadConstraint, selectors []*rules.Selector,
	action v1.UnsatisfiableConstraintAction, own *rules.Labels) ([]SpreadConstraint, error) {
	var read []SpreadConstraint
	for i := range list {
		// Hard and soft constraints are read for different steps.
		if list[i].WhenUnsatisfiable != action {
			continue
		}
		var selector *rules.Selector
		if i < len(selectors) {
			selector = selectors[i]
		}
		// The selector of a default constraint is not parsed yet. A selector that could not be
		// parsed for the class is parsed again, to report the error.
		if selector == nil {
			var err error
			if selector, err = rules.ReadSelector(list[i].LabelSelector); err != nil {
				return nil, err
			}
		}
		c := SpreadConstraint{
			MaxSkew: list[i].MaxSkew, TopologyKey: list[i].TopologyKey,
			Selector:           withLabelKeys(selector, list[i].MatchLabelKeys, own),
			MinDomains:         ptr.Deref(list[i].MinDomains, 1),
			NodeAffinityPolicy: ptr.Deref(list[i].NodeAffinityPolicy, v1.NodeInclusionPolicyHonor),
			NodeTaintsPolicy:   ptr.Deref(list[i].NodeTaintsPolicy, v1.NodeInclusionPolicyIgnore),
		}
		read = append(read, c)
	}

	return read, nil
}

// withLabelKeys narrows a selector to pods with the same values of the given label keys as the pod
// itself. It ignores keys missing on the pod.
func withLabelKeys(selector *rules.Selector, keys []string, own *rules.Labels) *rules.Selector {
	if len(keys) == 0 {
		return selector
	}
	same := labels.Set{}
	for _, key := range keys {
		if value, ok := own.Lookup(key); ok {
			same[key] = value
		}
	}
	if len(same) == 0 {
		return selector
	}
	return selector.With(rules.SelectorOf(same))
}

// Counts reports whether pods of the class count for a pending pod in the namespace. Terminating
// pods never count; the caller must check that. An empty selector counts all pods, as in Kubernetes
// v1.38 and later.
func (c *SpreadConstraint) Counts(class *cluster.PodClass, namespace string) bool {
	return class.Namespace == namespace && c.Selector.Matches(class.Labels)
}

// Self is the pending pod's own contribution to its domain: 1 if the constraint selects it, else 0.
func (c *SpreadConstraint) Self(own *cluster.PodClass) int64 {
	if c.Selector.Matches(own.Labels) {
		return 1
	}
	return 0
}

// Least returns the count with which the count of each domain is compared. lowest is the lowest
// count of all domains, and domains their number. With fewer domains than minDomains, Least returns
// 0, the count of a hypothetical empty domain: pods stay pending until an autoscaler adds a domain.
func (c *SpreadConstraint) Least(lowest int64, domains int) int64 {
	if int64(domains) < int64(c.MinDomains) {
		return 0
	}
	return lowest
}

// NoDomain is the lowest count if there is no domain. As in upstream it is above all counts.
const NoDomain int64 = math.MaxInt32

// Allows reports whether a domain with the given count can take another pod.
func (c *SpreadConstraint) Allows(count, self, least int64) bool {
	return count+self-least <= int64(c.MaxSkew)
}

// PerNode reports whether every node is its own domain for scoring, which then counts the node's
// own pods and honours no policy.
func (c *SpreadConstraint) PerNode() bool { return c.TopologyKey == v1.LabelHostname }

// Weight compensates for differences in the number of domains, so that the counts of a few zones
// are not outweighed by the counts of many nodes. domains is the number of domains of the feasible
// nodes. For 3 zones the weight is log 5 = 1.6, for 1,000 nodes it is log 1,002 = 6.9.
func (c *SpreadConstraint) Weight(domains int) float64 { return math.Log(float64(domains + 2)) }

// Part is the constraint's contribution to the score of nodes in a domain with the given count.
// Lower values are better. The parts of a node must be added up in the order of the constraints,
// starting from zero, and rounded by [SpreadScore]: in another order the last digit of the sum
// could differ from upstream's.
func (c *SpreadConstraint) Part(count int64, weight float64) float64 {
	return float64(count)*weight + float64(c.MaxSkew-1)
}

// SpreadScore rounds the sum of a node's parts to its score.
func SpreadScore(sum float64) int64 { return int64(math.Round(sum)) }

// SpreadNormalized scales a score to 0..MaxScore, by the lowest and the highest score of the
// feasible nodes with all keys (without such nodes highest is 0 and lowest does not matter). Nodes
// that lack a key get 0 instead. The lowest score becomes MaxScore; the highest score becomes
// MaxScore*lowest/highest, not 0.
func SpreadNormalized(score, lowest, highest int64) int64 {
	if highest == 0 {
		return MaxScore
	}
	return MaxScore * (highest + lowest - score) / highest
}

// HasKeys reports whether a node has the topology keys of all constraints.
func HasKeys(n *cluster.Node, constraints []SpreadConstraint) bool {
	return !slices.ContainsFunc(constraints, func(c SpreadConstraint) bool { return !n.Has(c.TopologyKey) })
}

// SpreadInclusion selects the nodes included in one pod's counts by the policies of its
// constraints.
type SpreadInclusion struct {
	selector    labels.Selector // the pod's node selector
	required    bool            // whether the pod has required node affinity, which terms holds
	terms       *termIndex
	any         bool // the pod has neither a node selector nor required node affinity
	tolerations *rules.Tolerance
	compared    *rules.Tolerance // tolerations including numeric comparisons

	individual  bool       // whether selector or terms may distinguish nodes by name or host name
	last        individual // if individual: the most recent node, with its result in selectsLast
	selectsLast bool
	byLabels    map[int32]bool // by ID of the labels
	byTaints    map[int32]bool
}

// individual distinguishes a node from all others. Terms on labels and names match either all nodes
// with equal values or none, so a value can be a cache key.
type individual struct {
	name     string
	hostname cluster.Hostname
	labels   *cluster.LabelSet
}

// individualOf returns the key for a node.
func individualOf(n *cluster.Node) individual { return individual{n.Name, n.Hostname, n.Labels} }

// NewSpreadInclusion prepares the inclusion for a pod, and for constraints of one profile. It
// depends only on the nodes passed to its methods, so it never expires.
func NewSpreadInclusion(p *cluster.Pod) *SpreadInclusion {
	spec := p.Spec()
	i := &SpreadInclusion{
		selector:    labels.SelectorFromSet(spec.NodeSelector),
		tolerations: rules.NewTolerance(countedTolerations(spec.Tolerations, false)), compared: rules.NewTolerance(spec.Tolerations),
		byLabels: map[int32]bool{}, byTaints: map[int32]bool{},
	}
	i.any = len(spec.NodeSelector) == 0
	_, i.individual = spec.NodeSelector[v1.LabelHostname]
	if required, _ := podNodeAffinity(spec); required != nil {
		i.any = false
		i.required, i.terms = true, readRequired(required).termIndex
		i.individual = i.individual || i.terms.terms.identifiesNodes()
	}
	return i
}

// Includes reports whether the constraint counts the node's pods, and counts the node's domain
// among the domains.
func (i *SpreadInclusion) Includes(c *SpreadConstraint, n *cluster.Node) bool {
	if c.NodeAffinityPolicy == v1.NodeInclusionPolicyHonor && !i.selectsNode(n) {
		return false
	}
	return c.NodeTaintsPolicy != v1.NodeInclusionPolicyHonor || i.toleratesTaints(n, c.compare)
}

// PerNode reports whether nodes with the same labels and taints may have different results.
func (i *SpreadInclusion) PerNode() bool { return i.individual }

// selectsNode reports whether the pod's node selector and required node affinity select the node,
// from its caches if possible. It writes the caches, so it is not safe for concurrent use.
func (i *SpreadInclusion) selectsNode(n *cluster.Node) bool {
	if i.any {
		return true
	}
	if i.individual {
		if asked := (individualOf(n)); i.last != asked {
			i.last, i.selectsLast = asked, i.matchesNode(n)
		}
		return i.selectsLast
	}
	selected, known := i.byLabels[n.Labels.ID]
	if !known {
		selected = i.matchesNode(n)
		keepAnswer(i.byLabels, n.Labels.ID, selected)
	}
	return selected
}

// matchesNode is selectsNode without the caches.
func (i *SpreadInclusion) matchesNode(n *cluster.Node) bool {
	return i.selector.Matches(n) && (!i.required || i.terms.matchesAny(n))
}

// toleratesTaints reports whether the pod tolerates the node's taints. It ignores a cordon. The
// cache is keyed by taints without compare, which is the same for all constraints of one profile.
func (i *SpreadInclusion) toleratesTaints(n *cluster.Node, compare bool) bool {
	tolerated, known := i.byTaints[n.Taints.ID]
	if !known {
		tolerations := i.tolerations
		if compare {
			tolerations = i.compared
		}
		tolerated = tolerations.Untolerated(n.Taints.Taints, rules.KeepsOff) == nil
		keepAnswer(i.byTaints, n.Taints.ID, tolerated)
	}
	return tolerated
}

// keepAnswer caches a result. A large cache mostly holds sets no longer on any node, so all entries
// are dropped when there are 16,384.
func keepAnswer(answers map[int32]bool, id int32, answer bool) {
	const many = 1 << 14
	if len(answers) >= many {
		clear(answers)
	}
	answers[id] = answer
}

// defaultSelector selects the pods of the same application as the class, by all Services that
// select the class and by its controller if the controller is a ReplicationController, ReplicaSet
// or StatefulSet. It is empty if there are no such objects. The requirements of all these objects
// are merged as in upstream: two Services with app=web and tier=front give app=web,tier=front.
//
// The result changes with Services and controllers, so callers must not cache it.
func defaultSelector(c *cluster.Cluster, class *cluster.PodClass) *rules.Selector {
	var set labels.Set
	for _, service := range c.Services.InNamespace(class.Namespace) {
		// A Service without a selector selects nothing; an empty selector selects everything.
		if service.Spec.Selector != nil && includesAll(class.Labels, service.Spec.Selector) {
			set = labels.Merge(set, service.Spec.Selector)
		}
	}
	owner := class.Controller
	if owner == nil {
		return rules.SelectorOf(set)
	}
	switch owner.APIVersion + "/" + owner.Kind {
	case "v1/ReplicationController":
		if rc, ok := c.ReplicationControllers.Get(class.Namespace, owner.Name); ok {
			return rules.SelectorOf(labels.Merge(set, rc.Spec.Selector))
		}
	case "apps/v1/ReplicaSet":
		if rs, ok := c.ReplicaSets.Get(class.Namespace, owner.Name); ok {
			return narrowSelector(rules.SelectorOf(set), rs.Spec.Selector)
		}
	case "apps/v1/StatefulSet":
		if owner, ok := c.StatefulSets.Get(class.Namespace, owner.Name); ok {
			return narrowSelector(rules.SelectorOf(set), owner.Spec.Selector)
		}
	}
	return rules.SelectorOf(set)
}

// narrowSelector returns selector with the requirements of a controller's selector added, and
// leaves selector unchanged. An unparsable or empty selector adds no requirements.
func narrowSelector(selector *rules.Selector, by *metav1.LabelSelector) *rules.Selector {
	other, err := rules.ReadSelector(by)
	if err != nil || by == nil {
		return selector
	}
	return selector.With(other)
}

// includesAll reports whether the labels include all of a Service's selector, which may be far
// longer than the labels.
func includesAll(set *rules.Labels, selector map[string]string) bool {
	if len(selector) > set.Len() {
		return false
	}
	for key, value := range selector {
		if got, has := set.Lookup(key); !has || got != value {
			return false
		}
	}
	return true
}
