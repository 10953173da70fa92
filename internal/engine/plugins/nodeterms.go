// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// nodeTerms are the terms of a node selector. A node matches if one of the terms matches; an empty
// list matches nothing. nodeTerms matches the same nodes as package nodeaffinity of
// k8s.io/component-helpers. That package needs a v1.Node with all labels in one map, which would be
// rebuilt for each call.
type nodeTerms []nodeTerm

// nodeTerm is one term: a node must meet all its requirements.
type nodeTerm struct {
	// wanted has at most one requirement for each key and operator.
	wanted []rules.Requirement
	fields []fieldRequirement
	// broken terms match nothing.
	broken bool
	// identity holds the result of termIdentifies.
	identity bool
}

// weightedNodeTerm is a preferred term. The weight is above 0.
type weightedNodeTerm struct {
	nodeTerm
	weight int64
}

// fieldRequirement requires a field of the node to have one value, or not to have it (negated). The
// name is the only field; any other field is empty on every node.
type fieldRequirement struct {
	name    bool
	value   string
	negated bool
}

// nodeOperators maps the API's operators to the label library's. An unlisted operator maps to "",
// which is invalid for a requirement and so breaks its term.
var nodeOperators = map[v1.NodeSelectorOperator]selection.Operator{
	v1.NodeSelectorOpIn:           selection.In,
	v1.NodeSelectorOpNotIn:        selection.NotIn,
	v1.NodeSelectorOpExists:       selection.Exists,
	v1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	v1.NodeSelectorOpGt:           selection.GreaterThan,
	v1.NodeSelectorOpLt:           selection.LessThan,
}

// emptyNodeTerm reports whether a term has no requirements. By the API's documentation such a term
// matches no node.
func emptyNodeTerm(t *v1.NodeSelectorTerm) bool {
	return len(t.MatchExpressions)+len(t.MatchFields) == 0
}

// readNodeTerms reads the terms of a selector. It merges terms that only list values of the same
// label (see oneOf): thousands of such terms then take one lookup. It drops terms that can match
// nothing, so the result may be shorter than the selector.
func readNodeTerms(s *v1.NodeSelector) nodeTerms {
	terms := make(nodeTerms, 0, len(s.NodeSelectorTerms))
	byKey := map[string]int{}  // index in terms, by label
	more := map[int][]string{} // values of merged terms, by index in terms
	for i := range s.NodeSelectorTerms {
		t := &s.NodeSelectorTerms[i]
		if emptyNodeTerm(t) {
			continue
		}
		term := readNodeTerm(t)
		if term.broken { // a broken term matches nothing, and there may be tens of thousands of them
			continue
		}

		if one, ok := term.oneOf(); ok {
			if at, known := byKey[one.Key]; known {
				more[at] = append(more[at], one.Values...)
				continue
			}
			byKey[one.Key] = len(terms)
		}
		terms = append(terms, term)
	}
	for at, values := range more {
		one := &terms[at].wanted[0]
		*one = rules.NewRequirement(one.Key, one.Operator, append(values, one.Values...))
	}
	return terms
}

// oneOf returns the requirement of a term that only lists acceptable values of one label.
func (t *nodeTerm) oneOf() (*rules.Requirement, bool) {
	if t.broken || len(t.fields) > 0 || len(t.wanted) != 1 || t.wanted[0].Operator != selection.In {
		return nil, false
	}
	return &t.wanted[0], true
}

// readNodeTerm reads one term. The term is broken if a requirement is invalid. As in upstream's
// library, it is also broken if a field has an operator other than In and NotIn, or more than one
// value.
func readNodeTerm(t *v1.NodeSelectorTerm) nodeTerm {
	term := nodeTerm{identity: termIdentifies(t), wanted: make([]rules.Requirement, 0, len(t.MatchExpressions))}
	for i := range t.MatchExpressions {
		e := &t.MatchExpressions[i]
		operator := nodeOperators[e.Operator]
		if !rules.ValidRequirement(e.Key, operator, e.Values) {
			term.broken = true
			continue
		}
		term.wanted = append(term.wanted, rules.NewRequirement(e.Key, operator, e.Values))
	}

	term.wanted = rules.MergeRequirements(term.wanted)
	for i := range t.MatchFields {
		f := &t.MatchFields[i]
		if (f.Operator != v1.NodeSelectorOpIn && f.Operator != v1.NodeSelectorOpNotIn) || len(f.Values) != 1 {
			term.broken = true
			continue
		}
		term.fields = append(term.fields, fieldRequirement{
			name: f.Key == metav1.ObjectNameField, value: f.Values[0], negated: f.Operator == v1.NodeSelectorOpNotIn,
		})
	}
	return term
}

// match reports whether one of the terms matches the node.
func (terms nodeTerms) match(n *cluster.Node) bool {
	for i := range terms {
		if terms[i].match(n) {
			return true
		}
	}
	return false
}

// match reports whether the node meets all requirements of the term.
func (t *nodeTerm) match(n *cluster.Node) bool {
	if t.broken {
		return false
	}
	for i := range t.wanted {
		if !t.wanted[i].MeetsValue(n.Lookup(t.wanted[i].Key)) {
			return false
		}
	}
	return t.matchFields(n)
}

// matchFields reports whether the node meets the requirements on its fields.
func (t *nodeTerm) matchFields(n *cluster.Node) bool {
	for _, f := range t.fields {
		var value string
		if f.name {
			value = n.Name
		}
		if !f.match(value) {
			return false
		}
	}
	return true
}

// match reports whether the field's value meets the requirement.
func (f fieldRequirement) match(value string) bool { return (value == f.value) != f.negated }

// namesWanted returns the requirements of the fields on the node's name, one per operator. Two
// different required names result in an In without values, which no node meets.
func namesWanted(fields []fieldRequirement) (list []rules.Requirement) {
	for _, f := range fields {
		operator := selection.In
		if f.negated {
			operator = selection.NotIn
		}
		if f.name {
			list = append(list, rules.NewRequirement("", operator, []string{f.value}))
		}
	}
	return rules.MergeRequirements(list)
}

// preferences are weighted terms. All terms that only list values of one label (see oneOf) take a
// single lookup; others holds all other terms.
type preferences struct {
	byValue map[string]map[string]int64 // the sum of the weights, by key and value
	others  *termIndex
}

// preferencesOf sorts terms into the two kinds. A value listed by several terms gets the sum of
// their weights, which equals the sum over separate matches.
func preferencesOf(terms []weightedNodeTerm) preferences {
	p := preferences{byValue: map[string]map[string]int64{}}
	var others nodeTerms
	var weights []int64
	for i := range terms {
		one, ok := terms[i].oneOf()
		if !ok {
			others, weights = append(others, terms[i].nodeTerm), append(weights, terms[i].weight)
			continue
		}
		sums := p.byValue[one.Key]
		if sums == nil {
			sums = map[string]int64{}
			p.byValue[one.Key] = sums
		}
		for value := range one.DistinctValues() {
			sums[value] += terms[i].weight
		}
	}

	p.others = indexTerms(others, weights)
	return p
}

// sumWeights is the raw score of a node: the sum of the weights of all matching terms.
func (p *preferences) sumWeights(n *cluster.Node) (sum int64) {
	for key, sums := range p.byValue {
		if value, has := n.Lookup(key); has {
			sum += sums[value]
		}
	}
	return sum + p.others.sumWeights(n)
}

// identifiesNodes reports whether the terms distinguish nodes with equal labels.
func (terms nodeTerms) identifiesNodes() bool {
	return slices.ContainsFunc(terms, func(t nodeTerm) bool { return t.identity })
}

// termIdentifies is identifiesNodes for one term: the term has a requirement on the name or the
// host name, which are unique to each node.
func termIdentifies(t *v1.NodeSelectorTerm) bool {
	return len(t.MatchFields) > 0 || slices.ContainsFunc(t.MatchExpressions,
		func(r v1.NodeSelectorRequirement) bool { return r.Key == v1.LabelHostname })
}
