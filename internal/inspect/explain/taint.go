// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// taint is a taint that keeps a pod off a node. Its methods help to find a remedy.
type taint struct{ *v1.Taint }

// ofState reports whether the taint follows the node's state.
func (t taint) ofState() bool { return simulate.OfState(t.Taint) }

// untoleratedBy returns the taints causing the plugin's rejection of the node; nil if the plugin
// does not concern taints.
func (f *fixer) untoleratedBy(plugin string, n *cluster.Node) (list []taint) {
	if p, ok := f.profile.Plugin(plugin).(plugins.TaintNamer); ok {
		for _, t := range p.Untolerated(f.pod, n) {
			list = append(list, taint{t})
		}
	}
	return list
}
