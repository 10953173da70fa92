package cluster

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// readSelector is metav1.LabelSelectorAsSelector, which validates by regular expressions: that takes longer than all else of reading
// a pod. Labels that are plainly valid need none.
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

// plainlyValid tells that a text is valid as a value of a label, and as a key. Others may be so, too: keys with a prefix are.
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
