package manifest

import (
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// daemonSets makes the pods of all DaemonSets, one for each node of the input that the set
// wants one on and that has none. A pod that is terminating still counts for its node: the
// controller waits for its end.
func (e *expansion) daemonSets() {
	for i, set := range e.set.DaemonSets {
		// It makes no pods any more; those that exist are in the input.
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

		// The template is read once for all nodes.
		wants := workload.NodesOf(set)
		for _, node := range e.set.Nodes {
			if !served[node.Name] && wants(node) {
				e.addNamed(workload.DaemonPod(set, node.Name), set.Name+"-", w.at)
			}
		}
	}
}
