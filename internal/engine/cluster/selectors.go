package cluster

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// readSelectors has the selectors of a class that were read, each once.
type readSelectors map[*metav1.LabelSelector]labels.Selector

func (r readSelectors) one(s *metav1.LabelSelector) (labels.Selector, error) {
	if selector, known := r[s]; known {
		return selector, nil
	}
	selector, err := readSelector(s)
	if err == nil && s != nil {
		r[s] = selector
	}
	return selector, err
}

// readSelector is metav1.LabelSelectorAsSelector without its validation where a selector is plainly
// valid. That validation uses regular expressions, and takes longer than everything else in reading
// a pod.
func readSelector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil || len(s.MatchLabels) == 0 || len(s.MatchExpressions) > 0 {
		return metav1.LabelSelectorAsSelector(s)
	}
	for key, value := range s.MatchLabels {
		if !plainlyValid(key) || value != "" && !plainlyValid(value) {
			return metav1.LabelSelectorAsSelector(s)
		}
	}
	return labels.SelectorFromValidatedSet(s.MatchLabels), nil
}

// plainlyValid reports whether a text is certainly valid as the key and as the value of a label. It
// may be false for valid ones: keys with a prefix, for instance.
func plainlyValid(text string) bool {
	const longest = 63
	if len(text) == 0 || len(text) > longest {
		return false
	}
	for i := range len(text) {
		switch b := text[i]; {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9':
		case (b == '-' || b == '_' || b == '.') && i > 0 && i < len(text)-1:
		default:
			return false
		}
	}
	return true
}

// Label is a label of a pod.
type Label struct{ Key, Value string }

// RequiredLabels lists labels such that every pod that the selector matches has at least one of
// them. everybody is true if there is no such list: the selector may match any pod.
func RequiredLabels(selector labels.Selector) (of []Label, everybody bool) {
	requirements, selects := selector.Requirements()
	if !selects {
		return nil, false // it matches no pod
	}
	for i := range requirements {
		switch r := &requirements[i]; r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			for _, value := range r.ValuesUnsorted() {
				of = append(of, Label{r.Key(), value})
			}
			return of, false
		}
	}
	return nil, true
}
