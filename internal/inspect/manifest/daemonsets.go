// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// daemonSets creates the missing pods of all DaemonSets: one pod for each eligible node of the
// input that lacks one. A terminating pod still counts for its node, because the controller waits
// for its end.
func (e *expansion) daemonSets() {
	for i, set := range e.set.DaemonSets {
		// A DaemonSet being deleted creates no pods.
		if set.DeletionTimestamp != nil {
			continue
		}
		w := expanded{workload.Of(set), e.set.places["DaemonSet"][i]}
		served := map[string]bool{}
		for _, pod := range e.ownedPods(w) {
			if !rules.IsTerminal(pod) {
				served[workload.DaemonNode(pod)] = true
			}
		}

		// Parse the template once for all nodes.
		wants := workload.NodesOf(set)
		for _, node := range e.set.Nodes {
			if !served[node.Name] && wants(node) {
				e.addNamed(workload.DaemonPod(set, node.Name), set.Name+"-", w.at)
			}
		}
	}
}
