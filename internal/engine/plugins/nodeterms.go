package plugins

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// nodeTerms are the terms of a node selector, one of which must match. They say the same as k8s.io/component-helpers'
// nodeaffinity, which wants to see a v1.Node with all its labels in one map, made anew for each question.
type nodeTerms []nodeTerm

// nodeTerm is one term: all its requirements must be met.
type nodeTerm struct {
	labels labels.Selector // nil: none
	fields []fieldRequirement
	// broken terms match nothing.
	broken bool
	// identity: a requirement is on what every node has of its own, its name or its host name.
	identity bool
}

type weightedNodeTerm struct {
	nodeTerm
	weight int64
}

// fieldRequirement compares a field of the node. The name is the only field; any other is empty.
type fieldRequirement struct {
	name  bool
	value string
	not   bool
}

var nodeOperators = map[v1.NodeSelectorOperator]selection.Operator{
	v1.NodeSelectorOpIn:           selection.In,
	v1.NodeSelectorOpNotIn:        selection.NotIn,
	v1.NodeSelectorOpExists:       selection.Exists,
	v1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	v1.NodeSelectorOpGt:           selection.GreaterThan,
	v1.NodeSelectorOpLt:           selection.LessThan,
}

func emptyNodeTerm(t *v1.NodeSelectorTerm) bool {
	return len(t.MatchExpressions)+len(t.MatchFields) == 0
}

func readNodeTerms(s *v1.NodeSelector) nodeTerms {
	terms := make(nodeTerms, 0, len(s.NodeSelectorTerms))
	for i := range s.NodeSelectorTerms {
		if t := &s.NodeSelectorTerms[i]; !emptyNodeTerm(t) {
			terms = append(terms, readNodeTerm(t))
		}
	}
	return terms
}

func readNodeTerm(t *v1.NodeSelectorTerm) nodeTerm {
	term := nodeTerm{identity: len(t.MatchFields) > 0}
	if len(t.MatchExpressions) > 0 {
		term.labels = labels.NewSelector()
	}
	for i := range t.MatchExpressions {
		e := &t.MatchExpressions[i]
		term.identity = term.identity || e.Key == v1.LabelHostname
		requirement, err := labels.NewRequirement(e.Key, nodeOperators[e.Operator], e.Values)
		if err != nil {
			term.broken = true
			continue
		}
		term.labels = term.labels.Add(*requirement)
	}
	for i := range t.MatchFields {
		f := &t.MatchFields[i]
		if (f.Operator != v1.NodeSelectorOpIn && f.Operator != v1.NodeSelectorOpNotIn) || len(f.Values) != 1 {
			term.broken = true
			continue
		}
		term.fields = append(term.fields, fieldRequirement{
			name: f.Key == metav1.ObjectNameField, value: f.Values[0], not: f.Operator == v1.NodeSelectorOpNotIn,
		})
	}
	return term
}

func (terms nodeTerms) match(n *cluster.Node) bool {
	for i := range terms {
		if terms[i].match(n) {
			return true
		}
	}
	return false
}

func (t *nodeTerm) match(n *cluster.Node) bool {
	if t.broken || t.labels != nil && !t.labels.Matches(n) {
		return false
	}
	for _, f := range t.fields {
		var value string
		if f.name {
			value = n.Name
		}
		if (value == f.value) == f.not {
			return false
		}
	}
	return true
}

// identify tells whether the terms tell nodes apart that share their labels.
func (terms nodeTerms) identify() bool {
	for i := range terms {
		if terms[i].identity {
			return true
		}
	}
	return false
}
