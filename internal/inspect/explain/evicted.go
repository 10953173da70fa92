// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// explainEviction determines when the pod must leave its node, if ever.
func (e *explainer) explainEviction() error {
	node := e.w.Node(e.object.Spec.NodeName)
	if node == nil {
		return nil
	}
	due, now := e.w.Due(e.object.UID), e.w.Now()
	// The pod is not affected by a taint, or tolerates it forever.
	if due.Stays() {
		return nil
	}
	out := &Eviction{Taint: due.Taint.ToString(), Due: metav1.NewTime(due.At.UTC()), In: simulate.Seconds(max(due.At.Sub(now), 0))}
	// Tolerations of device taints are in the claim, which is immutable, so no change can be
	// suggested.
	if due.OfDevice() {
		out.Since, out.Device = ptr.Deref(due.Taint.TimeAdded, metav1.NewTime(now.UTC())), due.Device.String()
		e.out.Eviction = out
		return nil
	}
	stay := time.Duration(0)
	if t := rules.TolerationOf(&due.Taint, e.object.Spec.Tolerations); t != nil && t.TolerationSeconds != nil {
		out.TolerationSeconds = t.TolerationSeconds
		stay = time.Duration(max(*t.TolerationSeconds, 0)) * time.Second
	}
	// The deadline minus the toleration time is the time of the taint.
	out.Since = metav1.NewTime(due.At.Add(-stay).UTC())
	out.Cancel = e.evictionFixes(node, &due.Taint)
	e.out.Eviction = out
	return nil
}

// evictionFixes returns changes that would let the pod stay: removing the taint, or tolerating it
// forever.
func (e *explainer) evictionFixes(node *v1.Node, t *v1.Taint) []Change {
	b := &bench{w: e.w, c: e.c, object: e.object, pod: e.pod}
	f := &fixer{bench: b}
	list := []Change{f.untaintEdit(verdict{node: e.c.Node(node.Name)}, []taint{{t}}).Change}
	first := func(p *v1.Pod) { // the first matching toleration applies
		p.Spec.Tolerations = append([]v1.Toleration{tolerationOf(t)}, p.Spec.Tolerations...)
	}
	tolerate := b.onPod("Tolerate", fmt.Sprintf("tolerate %s, without tolerationSeconds", t.ToString()), 0, first).Change
	// This pod must stay, so do not change its template, which would replace it.
	tolerate.Command = keeper{pod: e.object}.changeCommand([]string{"Tolerate"}, first)
	return append(list, tolerate)
}
