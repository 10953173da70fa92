package manifest

import (
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

func (e *expansion) daemonSets() {
	for i, set := range e.set.DaemonSets {
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

		wants := workload.NodesOf(set)
		for _, node := range e.set.Nodes {
			if !served[node.Name] && wants(node) {
				e.addNamed(workload.DaemonPod(set, node.Name), set.Name+"-", w.at)
			}
		}
	}
}
