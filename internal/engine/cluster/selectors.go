package cluster

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// readSelectors has the selectors of a class that were read, each once. It is used while one class
// is made.
type readSelectors map[*metav1.LabelSelector]*rules.Selector

// readOne reads a selector once for each object, by its address: the specs of a class share equal
// selectors. A nil selector matches nothing, and is not remembered: that costs nothing.
func (r readSelectors) readOne(s *metav1.LabelSelector) (*rules.Selector, error) {
	if selector, known := r[s]; known {
		return selector, nil
	}
	selector, err := rules.ReadSelector(s)
	if err == nil && s != nil {
		r[s] = selector
	}
	return selector, err
}

// Label is a label of a pod.
type Label struct{ Key, Value string }

// mostRequired bounds how many labels [RequiredLabels] lists: to index thousands of them takes
// longer, and far more memory, than to match the selector.
const mostRequired = 1 << 10

// RequiredLabels lists labels such that every pod that the selector matches has at least one of
// them. everybody is true if there is no such list, or only long ones: the selector may match any
// pod. For example, "app in (a, b), tier=web" gives [tier=web], and "app, tier!=db" gives
// everybody.
func RequiredLabels(selector *rules.Selector) (of []Label, everybody bool) {
	requirements, selects := selector.Requirements()
	if !selects {
		return nil, false // it matches no pod
	}
	var shortest *rules.Requirement
	for i := range requirements {
		r := &requirements[i]
		if r.Operator == selection.In && len(r.Values) <= mostRequired && (shortest == nil || len(r.Values) < len(shortest.Values)) {
			shortest = r
		}
	}
	if shortest == nil {
		return nil, true
	}
	for _, value := range shortest.Values {
		of = append(of, Label{shortest.Key, value})
	}
	return of, false
}
