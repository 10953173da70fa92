// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// NodeDeclaredFeatures rejects nodes that do not declare a kubelet feature required by the pod's
// spec. A newer control plane may accept pods that an older kubelet cannot run; such a kubelet does
// not declare the feature.
type NodeDeclaredFeatures struct{}

var missingFeature = &Rejection{Code: CodeMissingFeature,
	Reasons: []string{"node(s) didn't match Pod's required features"}, Unresolvable: true}

// followed is the Kubernetes version that determines the features a node may still lack: once all
// kubelets supported by this version have a feature, pods run on nodes that do not declare it.
var followed = version.MustParseSemantic(rules.Kubernetes)

// Name implements Filter.
func (NodeDeclaredFeatures) Name() string { return "NodeDeclaredFeatures" }

// Reads implements Filter.
func (NodeDeclaredFeatures) Reads() Part { return Features }

// Steady implements Steady.
func (NodeDeclaredFeatures) Steady() {}

// Filter implements Filter. Upstream's library determines the features required by the spec; its
// error fails the attempt.
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

// Interests implements Requeuer. Any update of the pod's spec may change its required features, so
// the hint compares the generation.
func (NodeDeclaredFeatures) Interests(setting Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeDeclaredFeature, Hint: setting.NodeNowPasses},
		{Resource: queue.Pod, Action: queue.Update, Hint: ownSpec},
	}
}

// Wakes implements Waker.
func (NodeDeclaredFeatures) Wakes() []string {
	return []string{"a node is added", "a node declares a feature"}
}
