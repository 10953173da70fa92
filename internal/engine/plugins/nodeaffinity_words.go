// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// mostWorded, mostValuesWorded and mostRequirementsWorded bound the terms, the values and the
// requirements read for an error message about invalid terms. The library reports every value,
// compares all reports with each other, and sorts a term's requirements again for each report.
// Without the bounds one pod with a large invalid term could delay the scheduler at every attempt.
const mostWorded, mostValuesWorded, mostRequirementsWorded = 16, 100, 500

// wordedPreferred returns the library's error for preferred terms; invalid is the index of the
// first invalid term.
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
		for i := range invalid { // the library skips terms of weight 0 but counts them
			list[i].Weight = 0
		}
	}

	_, err := nodeaffinity.NewPreferredSchedulingTerms(list)
	if err == nil {
		err = fmt.Errorf("preferredDuringSchedulingIgnoredDuringExecution[%d]: a requirement after the first %d, "+
			"or one of %d values or more, is invalid", invalid, mostRequirementsWorded, mostValuesWorded)
	}
	return rules.Brief(err)
}

// Detail implements Detailer. It lists the labels missing on the node.
func (*NodeAffinity) Detail(_ *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	return func(n *cluster.Node) string {
		missing := MissingLabels(p, n)
		if len(missing) == 0 {
			return ""
		}
		return "lacks " + strings.Join(missing, ", ")
	}
}

// MissingLabels returns the labels of the pod's node selector missing on the node, as key=value,
// sorted. It excludes affinity terms.
func MissingLabels(p *cluster.Pod, n *cluster.Node) (list []string) {
	for key, value := range p.Spec().NodeSelector {
		if have, ok := n.Lookup(key); !ok || have != value {
			list = append(list, key+"="+value)
		}
	}
	slices.Sort(list)
	return list
}
