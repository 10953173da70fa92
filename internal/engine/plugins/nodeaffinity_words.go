package plugins

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// What is read of invalid terms, to say what is wrong: the library says it of every value, compares
// all that it has said, and sorts a term's requirements anew with each of them. Without the bounds
// one pod with a large invalid term could hold up the scheduler at every attempt.
const mostWorded, mostValuesWorded, mostRequirementsWorded = 16, 100, 500

// wordedPreferred returns the library's error for preferred terms of which one is invalid, and none
// before it.
func wordedPreferred(list []v1.PreferredSchedulingTerm, invalid int) error {
	long := func(r v1.NodeSelectorRequirement) bool { return len(r.Values) > mostValuesWorded }
	term := list[invalid].Preference
	if len(list) > mostWorded || len(term.MatchExpressions) > mostRequirementsWorded || slices.ContainsFunc(term.MatchExpressions, long) {
		list = slices.Clone(list[:invalid+1])
		short := slices.Clone(term.MatchExpressions[:min(len(term.MatchExpressions), mostRequirementsWorded)])
		for i := range short {
			short[i].Values = short[i].Values[:min(len(short[i].Values), mostValuesWorded)]
		}
		list[invalid].Preference.MatchExpressions = short
		for i := range invalid { // the library leaves them out, but counts them
			list[i].Weight = 0
		}
	}

	_, err := nodeaffinity.NewPreferredSchedulingTerms(list)
	if all, many := err.(utilerrors.Aggregate); many && len(all.Errors()) > mostWorded {
		err = utilerrors.NewAggregate(all.Errors()[:mostWorded])
	}
	if err == nil {
		err = fmt.Errorf("preferredDuringSchedulingIgnoredDuringExecution[%d]: a requirement after the first %d, "+
			"or one of %d values or more, is invalid", invalid, mostRequirementsWorded, mostValuesWorded)
	}
	return err
}

// Detail implements Detailer: the labels that the node lacks.
func (*NodeAffinity) Detail(_ *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	return func(n *cluster.Node) string {
		missing := MissingLabels(p, n)
		if len(missing) == 0 {
			return ""
		}
		return "lacks " + strings.Join(missing, ", ")
	}
}

// MissingLabels returns the labels of the pod's node selector that the node does not have, as
// key=value, sorted. Affinity terms are not among them.
func MissingLabels(p *cluster.Pod, n *cluster.Node) (list []string) {
	for key, value := range p.Spec().NodeSelector {
		if have, ok := n.Lookup(key); !ok || have != value {
			list = append(list, key+"="+value)
		}
	}
	slices.Sort(list)
	return list
}
