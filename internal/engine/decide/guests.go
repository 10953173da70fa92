package decide

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// guestsInRoom tells whether the buckets take account of the pods nominated to nodes: so they can
// where nothing but the pods on a node counts. Elsewhere see holdBack.
func (pl *plan) guestsInRoom() bool { return len(pl.tallies)+len(pl.asked) == 0 }

// crowded judges the pods on a node, those nominated to it among them but for one: ^reason, or 0 if
// all have room.
func (r *ranking) crowded(n *cluster.Node, but types.UID) int16 {
	d, guests := r.d, false
	for _, g := range n.Nominated {
		if g.Class.Priority < r.plan.example.Class.Priority || g.UID == but {
			continue
		}
		if !guests {
			d.copy, guests = n.Copy(d.copy), true
		}
		d.copy.Add(g)
	}
	if !guests {
		return 0
	}
	for _, f := range r.plan.contents {
		if rejection := f.judge(d.copy); rejection != nil {
			return ^r.reasonOf(f.name, rejection)
		}
	}
	return 0
}

// holdBack takes the nodes out of the ranking that cannot take the pod beside the pods nominated to
// them, and returns these. With all, so it does with nodes that cannot take the pod anyway, which
// may have more reasons then. Where the buckets know of nominated pods, only the node changes that
// the pod itself is nominated to, since to itself it is no guest there. It tells whether a plugin
// failed at that.
func (r *ranking) holdBack(p *cluster.Pod, q questions, all bool) (held []int32, failed bool) {
	c := r.d.c
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
				r.move(n.Index, now)
				held = append(held, n.Index)
			}
		}
		return held, false
	}
	t := &trial{r: r, p: p, questions: q}
	for _, n := range c.NominatedNodes() {
		if b := r.bucket[n.Index]; b < 0 && !all || b <= ^settled || len(nominatedBefore(n, p)) == 0 {
			continue
		}
		t.begin(n)
		if plugin, rejection := t.rejection(); rejection != nil {
			r.move(n.Index, ^r.reasonOf(plugin, rejection))
			held = append(held, n.Index)
			failed = failed || rejection.Err != nil
		}
	}
	return held, failed
}
