package plugins

import (
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// nodeTerms are the terms of a node selector, one of which must match. They match the same nodes as
// k8s.io/component-helpers' nodeaffinity, which needs a v1.Node with all its labels in one map,
// made anew for each call.
type nodeTerms []nodeTerm

// nodeTerm is one term: all its requirements must be met.
type nodeTerm struct {
	wanted []labelRequirement
	fields []fieldRequirement
	// broken terms match nothing.
	broken bool
	// identity: see identifies.
	identity bool
}

// labelRequirement is a [labels.Requirement] that looks up the node's label once.
type labelRequirement struct {
	key      string
	operator selection.Operator
	value    string          // of In and NotIn, if there is one
	values   map[string]bool // of In and NotIn, if there are several
	bound    int64           // of Gt and Lt
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

// readNodeTerms reads the terms of a selector. Those that only list values of the same label become
// one term (see oneOf): thousands of them then take one lookup.
func readNodeTerms(s *v1.NodeSelector) nodeTerms {
	terms := make(nodeTerms, 0, len(s.NodeSelectorTerms))
	byKey := map[string]int{} // where in terms the one for each label is
	for i := range s.NodeSelectorTerms {
		t := &s.NodeSelectorTerms[i]
		if emptyNodeTerm(t) {
			continue
		}
		term := readNodeTerm(t)
		if one, ok := term.oneOf(); ok {
			if at, known := byKey[one.key]; known {
				terms[at].wanted[0].add(one)
				continue
			}
			byKey[one.key] = len(terms)
		}
		terms = append(terms, term)
	}
	return terms
}

// oneOf returns the requirement of a term that only lists values of one label, any of which will
// do.
func (t *nodeTerm) oneOf() (*labelRequirement, bool) {
	if t.broken || len(t.fields) > 0 || len(t.wanted) != 1 || t.wanted[0].operator != selection.In {
		return nil, false
	}
	return &t.wanted[0], true
}

// each calls f with every value that is listed, once.
func (r *labelRequirement) each(f func(value string)) {
	if r.values == nil {
		f(r.value)
		return
	}
	for value := range r.values {
		f(value)
	}
}

// add adds the values of another requirement.
func (r *labelRequirement) add(other *labelRequirement) {
	if r.values == nil {
		r.values = map[string]bool{r.value: true}
	}
	other.each(func(value string) { r.values[value] = true })
}

func readNodeTerm(t *v1.NodeSelectorTerm) nodeTerm {
	term := nodeTerm{identity: identifies(t)}
	for i := range t.MatchExpressions {
		e := &t.MatchExpressions[i]
		operator := nodeOperators[e.Operator]
		if _, err := labels.NewRequirement(e.Key, operator, e.Values); err != nil {
			term.broken = true
			continue
		}
		term.wanted = append(term.wanted, newLabelRequirement(e.Key, operator, e.Values))
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
	if t.broken {
		return false
	}
	for i := range t.wanted {
		if !t.wanted[i].match(n) {
			return false
		}
	}
	return t.matchFields(n)
}

func (t *nodeTerm) matchFields(n *cluster.Node) bool {
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

// newLabelRequirement takes arguments that [labels.NewRequirement] has accepted.
func newLabelRequirement(key string, operator selection.Operator, values []string) labelRequirement {
	r := labelRequirement{key: key, operator: operator}
	switch {
	case operator == selection.GreaterThan || operator == selection.LessThan:
		r.bound, _ = strconv.ParseInt(values[0], 10, 64)
	case len(values) == 1:
		r.value = values[0]
	default:
		r.values = make(map[string]bool, len(values))
		for _, value := range values {
			r.values[value] = true
		}
	}
	return r
}

func (r *labelRequirement) match(n *cluster.Node) bool {
	value, has := n.Lookup(r.key)
	switch r.operator {
	case selection.In:
		return has && r.lists(value)
	case selection.NotIn:
		return !has || !r.lists(value)
	case selection.Exists:
		return has
	case selection.DoesNotExist:
		return !has
	}
	number, err := strconv.ParseInt(value, 10, 64)
	return has && err == nil && r.allows(number)
}

// allows is for Gt and Lt.
func (r *labelRequirement) allows(number int64) bool {
	return (number > r.bound) == (r.operator == selection.GreaterThan) && number != r.bound
}

func (r *labelRequirement) lists(value string) bool {
	if r.values == nil {
		return value == r.value
	}
	return r.values[value]
}

// preferences are weighted terms. Those that only list values of one label (see oneOf) together
// take one lookup per label.
type preferences struct {
	byValue map[string]map[string]int64 // the sum of the weights, by key and value
	others  *termIndex
	weights []int64 // of the others
}

func preferencesOf(terms []weightedNodeTerm) preferences {
	p := preferences{byValue: map[string]map[string]int64{}}
	var others nodeTerms
	for i := range terms {
		one, ok := terms[i].oneOf()
		if !ok {
			others, p.weights = append(others, terms[i].nodeTerm), append(p.weights, terms[i].weight)
			continue
		}
		sums := p.byValue[one.key]
		if sums == nil {
			sums = map[string]int64{}
			p.byValue[one.key] = sums
		}
		one.each(func(value string) { sums[value] += terms[i].weight })
	}
	p.others = indexTerms(others)
	return p
}

func (p *preferences) weigh(n *cluster.Node) (sum int64) {
	for key, sums := range p.byValue {
		if value, has := n.Lookup(key); has {
			sum += sums[value]
		}
	}
	p.others.each(n, func(i int) bool { sum += p.weights[i]; return true })
	return sum
}

// identify tells whether the terms tell nodes apart that share their labels.
func (terms nodeTerms) identify() bool {
	return slices.ContainsFunc(terms, func(t nodeTerm) bool { return t.identity })
}

// identifies tells that of one term: it has a requirement on what is different for every node, its
// name or its host name.
func identifies(t *v1.NodeSelectorTerm) bool {
	return len(t.MatchFields) > 0 || slices.ContainsFunc(t.MatchExpressions, func(r v1.NodeSelectorRequirement) bool { return r.Key == v1.LabelHostname })
}
