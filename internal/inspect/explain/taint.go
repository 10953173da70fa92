package explain

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// taint is a taint that keeps a pod off a node. The type says what can be done about
// it.
type taint struct{ *v1.Taint }

// ofState reports whether the taint comes and goes with the node's state.
func (t taint) ofState() bool { return simulate.OfState(t.Taint) }

// untoleratedBy returns the taints for which the plugin rejects the node; none if the
// plugin is not about taints.
func (f *fixer) untoleratedBy(plugin string, n *cluster.Node) (list []taint) {
	if p, ok := f.profile.Plugin(plugin).(plugins.TaintNamer); ok {
		for _, t := range p.Untolerated(f.pod, n) {
			list = append(list, taint{t})
		}
	}
	return list
}
