package plugins

import (
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// CodeMissingFeature is the code of NodeDeclaredFeatures.
const CodeMissingFeature = "NodeFeatureMissing"

// NodeDeclaredFeatures rejects nodes that do not declare a kubelet feature that the pod's spec
// needs. A newer control plane may accept pods that an older kubelet cannot run; such nodes do not
// declare the feature.
type NodeDeclaredFeatures struct{}

var missingFeature = &Rejection{Code: CodeMissingFeature,
	Reasons: []string{"node(s) didn't match Pod's required features"}, Unresolvable: true}

// followed is the Kubernetes version that decides which features a node may still lack: once a
// feature is in all kubelets that this version supports, no pod needs it declared.
var followed = version.MustParseSemantic(rules.Kubernetes)

// Name implements Filter.
func (NodeDeclaredFeatures) Name() string { return "NodeDeclaredFeatures" }

// Reads implements Filter.
func (NodeDeclaredFeatures) Reads() Part { return Features }

// Steady implements Steady.
func (NodeDeclaredFeatures) Steady() {}

// Filter implements Filter. Which features the spec needs is for upstream's library to tell; an
// error of it fails the attempt.
func (NodeDeclaredFeatures) Filter(_ *cluster.Cluster, p *cluster.Pod) Judge {
	spec := p.Spec().Object()
	needed, err := features.DefaultFramework.InferForPodScheduling(&features.PodInfo{Spec: &spec}, followed)
	if err != nil {
		return Judge{Err: err}
	}
	if needed.IsEmpty() {
		return Judge{}
	}

	return Judge{Node: func(n *cluster.Node) *Rejection {
		declared := features.DefaultFramework.TryMap(n.Features.Names)
		switch has, err := needed.IsSubset(declared); {
		case err != nil:
			return &Rejection{Err: err}
		case !has:
			return missingFeature
		}
		return nil
	}}
}

// Interests implements Requeuer. What the pod's spec needs may change with any update of it, so the
// hint looks at the generation.
func (NodeDeclaredFeatures) Interests(in Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeDeclaredFeature, Hint: in.NodeNowPasses},
		{Resource: queue.Pod, Action: queue.Update, Hint: ownSpec},
	}
}

// Wakes implements Waker.
func (NodeDeclaredFeatures) Wakes() []string {
	return []string{"a node is added", "a node declares a feature"}
}
