// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/berth-k8s/berth/internal/engine/cluster"

// withholdNodes removes the nodes from the ranking that cannot take the pod in addition to the pods
// nominated to them, and returns these nodes. With all, it also rejudges infeasible nodes, since
// they may have further reasons then; the same applies if a question precedes the filter that
// rejects them, since it may fail with the nominated pods. If the buckets account for nominated
// pods, only the node that the pod itself is nominated to can change, since the pod is no guest to
// itself. failed reports that a plugin failed.
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
