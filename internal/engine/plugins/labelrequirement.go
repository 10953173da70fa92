package plugins

import (
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// labelRequirement is a [labels.Requirement] that looks up the node's label once. Several of them
// with the same key and operator are merged into one, see narrowBy and addValues.
type labelRequirement struct {
	key      string
	operator selection.Operator
	list     []string        // of In and NotIn: the values, some perhaps twice
	values   map[string]bool // instead of list, if there are many
	bound    int64           // of Gt and Lt
}

// eachValue calls f with every value that is listed, once.
func (r *labelRequirement) eachValue(f func(value string)) {
	for i, value := range r.list {
		if !slices.Contains(r.list[:i], value) {
			f(value)
		}
	}
	for value := range r.values {
		f(value)
	}
}

// addValues adds the values of another requirement. For In that makes it weaker (either will do),
// for NotIn stronger.
func (r *labelRequirement) addValues(other *labelRequirement) {
	r.makeSet()
	other.eachValue(func(value string) { r.values[value] = true })
}

// makeSet puts the values into a map, which is the requirement's own. list is the spec's until
// then, and must not be changed.
func (r *labelRequirement) makeSet() {
	if r.values != nil {
		return
	}
	r.values = make(map[string]bool, len(r.list))
	for _, value := range r.list {
		r.values[value] = true
	}
	r.list = nil
}

// narrowBy makes the requirement one that is met where both are. Both have the same key and
// operator.
//
//	In a,b      and  In b,c      ->  In b
//	NotIn a     and  NotIn b     ->  NotIn a,b
//	Gt 3        and  Gt 5        ->  Gt 5
func (r *labelRequirement) narrowBy(other *labelRequirement) {
	switch r.operator {
	case selection.In:
		both := map[string]bool{}
		other.eachValue(func(value string) {
			if r.listsValue(value) {
				both[value] = true
			}
		})
		r.list, r.values = nil, both
	case selection.NotIn:
		r.addValues(other)
	case selection.GreaterThan:
		r.bound = max(r.bound, other.bound)
	case selection.LessThan:
		r.bound = min(r.bound, other.bound)
	}
}

// newLabelRequirement takes arguments that [labels.NewRequirement] has accepted, so that a bound is
// a number. values is not copied.
func newLabelRequirement(key string, operator selection.Operator, values []string) labelRequirement {
	// Up to here comparing one by one is cheaper than a map.
	const few = 4
	r := labelRequirement{key: key, operator: operator}
	switch {
	case operator == selection.GreaterThan || operator == selection.LessThan:
		r.bound, _ = strconv.ParseInt(values[0], 10, 64)
	default:
		if r.list = values; len(values) > few {
			r.makeSet()
		}
	}
	return r
}

// match reports whether the node meets the requirement. The host name counts as a label.
func (r *labelRequirement) match(n *cluster.Node) bool {
	return r.meetsValue(n.Lookup(r.key))
}

// meetsValue reports whether a label with this value, if a node has it, meets the requirement.
func (r *labelRequirement) meetsValue(value string, has bool) bool {
	switch r.operator {
	case selection.In:
		return has && r.listsValue(value)
	case selection.NotIn:
		return !has || !r.listsValue(value)
	case selection.Exists:
		return has
	case selection.DoesNotExist:
		return !has
	}
	number, err := strconv.ParseInt(value, 10, 64)
	return has && err == nil && r.allowsNumber(number)
}

// allowsNumber is for Gt and Lt, both of which exclude the bound itself.
func (r *labelRequirement) allowsNumber(number int64) bool {
	return (number > r.bound) == (r.operator == selection.GreaterThan) && number != r.bound
}

// listsValue reports whether In or NotIn lists the value, in whichever form the values are.
func (r *labelRequirement) listsValue(value string) bool {
	return r.values[value] || slices.Contains(r.list, value)
}
