// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/berth-k8s/berth/internal/engine/cluster"

// withholdNodes removes from the ranking the nodes that cannot take the pod in addition to the pods
// nominated to them, and returns these nodes. It rejudges infeasible nodes only if all is set,
// since nominated pods may add reasons, or if a question precedes the filter that rejects such
// nodes, since the question may fail with the nominated pods. If the buckets account for nominated
// pods, only the pod's own nominated node can change, since the pod does not compete with itself.
// failed is set if a plugin failed.
func (r *ranking) withholdNodes(p *cluster.Pod, q questions, all bool) (held []int32, failed bool) {
	c := r.ix.c
	if c.Nominations() == 0 {
		return nil, false
	}
	if r.plan.guestsInRoom() {
		own := c.Nominated(p.UID)
		if own == nil {
			return nil, false
		}
		n := c.Node(own.Nominated)
		if n == nil {
			return nil, false
		}
		if before := r.bucket[n.Index]; before > ^settled {
			if now := r.roomBut(n.Index, p.UID); now != before {
				r.moveNode(n.Index, now)
				held = append(held, n.Index)
			}
		}
		return held, false
	}

	t := &hypothesis{r: r, p: p, questions: q}
	for _, n := range c.NominatedNodes() {
		if b := r.bucket[n.Index]; b < 0 && !all && !r.plan.asksEarly || b <= ^settled || len(nominatedBefore(n, p)) == 0 {
			continue
		}
		t.beginNode(n)
		if plugin, rejection := t.findRejection(); rejection != nil {
			r.moveNode(n.Index, ^r.reasonOf(plugin, rejection))
			held = append(held, n.Index)
			failed = failed || rejection.Err != nil
		}
	}

	return held, failed
}
