// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admissionplugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiserver "k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
	conversion "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/berth-k8s/berth/internal/admission"
)

// NodeName is the name of the plugin for nodes.
const NodeName = "BerthNode"

// ReplacedByNode returns the upstream plugins replaced by NodeName.
func ReplacedByNode() []string { return []string{"TaintNodesByCondition"} }

// nodes taints new nodes not-ready, like upstream's plugin, and records the time at which evicting
// taints were added. It needs nothing but the node, so it never delays a request.
type nodes struct{ *apiserver.Handler }

var _ apiserver.MutationInterface = &nodes{}

// NewNode returns the plugin for nodes.
func NewNode() apiserver.Interface {
	return &nodes{apiserver.NewHandler(apiserver.Create, apiserver.Update)}
}

// Admit implements apiserver.MutationInterface. Heartbeats are updates as well: without a new taint
// they only cost a comparison of the taints.
func (p *nodes) Admit(_ context.Context, a apiserver.Attributes, _ apiserver.ObjectInterfaces) error {
	if !isAbout(a, core.Resource("nodes")) {
		return nil
	}
	node, ok := a.GetObject().(*core.Node)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected *core.Node but got %T", a.GetObject()))
	}

	isNew := a.GetOperation() == apiserver.Create
	if !isNew && !slices.ContainsFunc(node.Spec.Taints, func(t core.Taint) bool { return t.TimeAdded == nil }) {
		return nil
	}

	changed, err := tainted(node)
	if err != nil {
		return err
	}

	// Compare with the stored node to find new taints.
	var old *v1.Node
	if isNew {
		admission.Node(changed)
	} else if stored, ok := a.GetOldObject().(*core.Node); ok {
		if old, err = tainted(stored); err != nil {
			return err
		}
	}

	admission.NoteTaintTimes(changed, old, time.Now())
	taints := make([]core.Taint, len(changed.Spec.Taints))
	for i := range taints {
		if err := conversion.Convert_v1_Taint_To_core_Taint(&changed.Spec.Taints[i], &taints[i], nil); err != nil {
			return apierrors.NewInternalError(err)
		}
	}

	// If there are no taints, keep the list as it was sent, nil or empty.
	if len(taints) > 0 {
		node.Spec.Taints = taints
	}
	return nil
}

// tainted returns a new node with only a copy of this node's taints.
func tainted(node *core.Node) (*v1.Node, error) {
	result := &v1.Node{}
	for i := range node.Spec.Taints {
		var taint v1.Taint
		if err := conversion.Convert_core_Taint_To_v1_Taint(&node.Spec.Taints[i], &taint, nil); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		result.Spec.Taints = append(result.Spec.Taints, taint)
	}
	return result, nil
}
