package plugins

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// nodeTerms are the terms of a node selector, one of which must match. The result is that of
// k8s.io/component-helpers' nodeaffinity, which needs a v1.Node with all its labels in one map,
// built for each call.
type nodeTerms []nodeTerm

// nodeTerm is one term, all of whose requirements must be met.
type nodeTerm struct {
	labels labels.Selector // nil: none
	among  []among         // requirements with many values, which labels would compare one by one
	fields []fieldRequirement
	// broken: the term is invalid, and matches nothing.
	broken bool
	// identity: a requirement is on the node's name or host name, which differ on every node.
	identity bool
}

// among requires the value of a label to be one of many, or none of them.
type among struct {
	key    string
	values map[string]bool
	not    bool
}

// manyValues is the number of values from which they are looked up in a map.
const manyValues = 8

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
			if term := readNodeTerm(t); !terms.absorb(&term) {
				terms = append(terms, term)
			}
		}
	}
	return terms
}

// absorb merges a term into one before it, if each has only a requirement that the same label has
// one of many values: hundreds of such terms become one lookup.
func (terms nodeTerms) absorb(term *nodeTerm) bool {
	for i := range terms {
		if t := &terms[i]; t.onlyAmong() && term.onlyAmong() && t.among[0].key == term.among[0].key {
			maps.Copy(t.among[0].values, term.among[0].values)
			return true
		}
	}
	return false
}

func (t *nodeTerm) onlyAmong() bool {
	return !t.broken && t.labels == nil && len(t.fields) == 0 && len(t.among) == 1 && !t.among[0].not
}

func readNodeTerm(t *v1.NodeSelectorTerm) nodeTerm {
	term := nodeTerm{identity: len(t.MatchFields) > 0}
	for i := range t.MatchExpressions {
		e := &t.MatchExpressions[i]
		term.identity = term.identity || e.Key == v1.LabelHostname
		requirement, err := labels.NewRequirement(e.Key, nodeOperators[e.Operator], e.Values)
		if err != nil {
			term.broken = true
			continue
		}
		if operator := requirement.Operator(); len(e.Values) >= manyValues && (operator == selection.In || operator == selection.NotIn) {
			term.among = append(term.among, newAmong(e.Key, e.Values, operator == selection.NotIn))
			continue
		}
		if term.labels == nil {
			term.labels = labels.NewSelector()
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
	for i := range t.among {
		if !t.among[i].match(n) {
			return false
		}
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

func newAmong(key string, values []string, not bool) among {
	a := among{key: key, values: make(map[string]bool, len(values)), not: not}
	for _, value := range values {
		a.values[value] = true
	}
	return a
}

func (a *among) match(n *cluster.Node) bool {
	value, has := n.Lookup(a.key)
	return has && a.values[value] != a.not || !has && a.not
}

// identify reports whether the terms can distinguish nodes that share their labels.
func (terms nodeTerms) identify() bool {
	for i := range terms {
		if terms[i].identity {
			return true
		}
	}
	return false
}
