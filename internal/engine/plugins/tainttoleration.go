// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// CodeUntoleratedTaint is the code of TaintToleration.
const CodeUntoleratedTaint = "UntoleratedTaint"

// TaintToleration keeps pods off nodes with an untolerated NoSchedule or NoExecute taint, and gives
// nodes with more untolerated PreferNoSchedule taints lower scores. It does not evict: the effect
// of a NoExecute taint on running pods is up to taint-based eviction.
type TaintToleration struct {
	// Compare makes tolerations with the operators Gt and Lt count (upstream: gate
	// TaintTolerationComparisonOperators, off by default).
	Compare bool
}

// TaintTolerationArgs are the arguments of TaintToleration. They represent a feature gate and never
// occur in a configuration file.
type TaintTolerationArgs struct{ Compare bool }

// NewTaintToleration returns the plugin; nil args select the defaults.
func NewTaintToleration(args *TaintTolerationArgs) (*TaintToleration, error) {
	return &TaintToleration{Compare: args != nil && args.Compare}, nil
}

// tainted is unresolvable: departing pods do not remove taints. The reason does not name the taint,
// so that nodes with different taints are counted together; Detail names it.
var tainted = &Rejection{Code: CodeUntoleratedTaint, Reasons: []string{"node(s) had untolerated taint(s)"}, Unresolvable: true}

// Name implements Filter and Scorer.
func (*TaintToleration) Name() string { return "TaintToleration" }

// Reads implements Filter.
func (*TaintToleration) Reads() Part { return Taints }

// Steady implements Steady.
func (*TaintToleration) Steady() {}

// Filter implements Filter. All effects except PreferNoSchedule keep a pod off a node.
func (t *TaintToleration) Filter(_ *cluster.Cluster, p *cluster.Pod) Judge {
	tolerance := rules.NewTolerance(countedTolerations(p.Spec().Tolerations, t.Compare))
	return Judge{Node: func(n *cluster.Node) *Rejection {
		if tolerance.Untolerated(n.Taints.Taints, rules.KeepsOff) != nil {
			return tainted
		}
		return nil
	}}
}

// Scale implements [FixedScorer].
func (*TaintToleration) Scale() Scale { return FewestBest }

// Score implements Scorer. The raw score counts untolerated PreferNoSchedule taints; fewer such
// taints are better, so the normalised score is reversed.
func (t *TaintToleration) Score(_ *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	tolerance := rules.NewTolerance(countedTolerations(p.Spec().Tolerations, t.Compare))
	return Scoring{
		Node: func(n *cluster.Node) (int64, error) {
			return int64(tolerance.CountUntolerated(n.Taints.Taints, rules.Discourages)), nil
		},
		Normalize: func(_ []*cluster.Node, scores []int64) { normalizeScores(scores, true) },
	}
}

// countedTolerations drops tolerations with a disabled operator: such tolerations would otherwise
// match every taint with the key. It does not modify the list passed.
func countedTolerations(tolerations []v1.Toleration, compare bool) []v1.Toleration {
	if compare || !slices.ContainsFunc(tolerations, isComparing) {
		return tolerations
	}
	return slices.DeleteFunc(slices.Clone(tolerations), isComparing)
}

// isComparing reports whether a toleration compares the taint's value as a number.
func isComparing(t v1.Toleration) bool {
	return t.Operator == v1.TolerationOpGt || t.Operator == v1.TolerationOpLt
}

// Interests implements Requeuer. A new node, the removal of a taint, or a toleration added to the
// pending pod can help.
func (*TaintToleration) Interests(setting Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeTaint, Hint: setting.NodeNowPasses, Narrowing: byTaints(keepingOff)},
		{Resource: queue.Pod, Action: queue.UpdatePodToleration, Hint: Own},
	}
}

// Wakes implements Waker.
func (*TaintToleration) Wakes() []string {
	return []string{"a node is added", "a node loses a taint", "the pod gets a toleration"}
}

// Fixes implements Fixer.
func (*TaintToleration) Fixes() []Fix { return []Fix{Tolerate} }

// Shares implements Sharer: a cordon is also a taint, and counts once.
func (t *TaintToleration) Shares(p *cluster.Pod, n *cluster.Node) (plugin string, own bool) {
	if n.Taints.Unschedulable && len(t.Untolerated(p, n)) == 1 {
		return NodeUnschedulable{}.Name(), false
	}
	return t.Name(), true
}

// Detail implements Detailer. It lists the untolerated taints.
func (t *TaintToleration) Detail(_ *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	return func(n *cluster.Node) string {
		return strings.Join(rules.Mapped(t.Untolerated(p, n), (*v1.Taint).ToString), ", ")
	}
}

// Untolerated implements TaintNamer.
func (t *TaintToleration) Untolerated(p *cluster.Pod, n *cluster.Node) []*v1.Taint {
	return untoleratedTaints(n, countedTolerations(p.Spec().Tolerations, t.Compare))
}

// Untolerated returns the taints that keep the pod off the node if the operators Gt and Lt are
// enabled. It serves callers without a profile.
func Untolerated(p *cluster.Pod, n *cluster.Node) []*v1.Taint {
	return untoleratedTaints(n, p.Spec().Tolerations)
}

// untoleratedTaints lists the NoSchedule and NoExecute taints matched by none of the tolerations,
// in the node's order. The pointers are into the node's taints.
func untoleratedTaints(n *cluster.Node, tolerations []v1.Toleration) (list []*v1.Taint) {
	for i := range n.Taints.Taints {
		t := &n.Taints.Taints[i]
		if rules.KeepsOff.Has(t.Effect) && rules.TolerationOf(t, tolerations) == nil {
			list = append(list, t)
		}
	}
	return list
}
