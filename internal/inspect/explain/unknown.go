// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// unknownResources returns the requested resources missing from every node, because of an absent
// device plugin or a misspelt name. No change of a single node helps.
func (e *explainer) unknownResources() (list []string) {
	for name, wanted := range e.pod.Class.Requests.Scalars {
		// CPU, memory and ephemeral storage are not scalars here: every node has them.
		if wanted > 0 && !slices.ContainsFunc(e.c.Nodes, func(n *cluster.Node) bool { return n != nil && n.Size.Scalars[name] > 0 }) {
			list = append(list, string(name))
		}
	}
	slices.Sort(list)
	return list
}

// gateText returns the reason why the pod may not be scheduled yet, and its cause if that is a
// missing ResourceClaimTemplate.
func (e *explainer) gateText(gate string) string {
	if template := e.w.MissingTemplate(e.object); template != "" {
		return gate + ", because the ResourceClaimTemplate " + template + " does not exist"
	}
	return gate
}
