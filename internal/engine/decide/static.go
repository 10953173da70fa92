package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// static is the part of a verdict and score that placements do not change. For one class, nodes
// with the same static differ only in their domains and in the pods on them.
type static struct {
	early     *reason // why it is rejected before the pods on it are looked at; nil: it is not
	bucket    int16   // of the nodes, where early is set
	late      *reason // why it is rejected if nothing else rejects it; nil: it is not
	lateIndex int16   // of late in the reasons of the ranking

	taint, affinity int64 // raw scores, to be normalised
	image           int64 // needs no normalising
	scored          bool  // the node is scored by the soft spread constraints: it has their labels
	hostname        bool
}

// parts are the IDs of a node's interned parts.
type parts struct {
	labels, taints, images, features int32
	hostname                         bool
}

type staticKey struct {
	early, late            int16
	taint, affinity, image int64
	scored, hostname       bool
}

// staticOf returns the index of the node's static.
func (r *ranking) staticOf(n *cluster.Node) int32 {
	if r.plan.perNode {
		return r.internStatic(n)
	}
	key := parts{n.Labels.ID, n.Taints.ID, n.Images.ID, n.Features.ID, n.HasHostname}
	if index, known := r.byParts[key]; known {
		return index
	}
	index := r.internStatic(n)
	if len(r.byParts) > 2*len(r.d.c.Nodes)+1024 { // most are of parts that no node has now
		clear(r.byParts)
	}
	r.byParts[key] = index
	return index
}

func (r *ranking) internStatic(n *cluster.Node) int32 {
	s := r.judgeStatic(n)
	key := staticKey{early: -1, late: -1, taint: s.taint, affinity: s.affinity, image: s.image, scored: s.scored, hostname: s.hostname}
	if s.early != nil {
		key = staticKey{early: ^s.bucket, late: -1} // nothing else about the node matters
	} else if s.late != nil {
		key.late = s.lateIndex
	}
	index, known := r.byStatic[key]
	if !known {
		index = int32(len(r.statics))
		r.statics = append(r.statics, s)
		r.byStatic[key] = index
	}
	return index
}

func (r *ranking) judgeStatic(n *cluster.Node) *static {
	pl := r.plan
	for _, f := range pl.early {
		if rejection := f.judge(n); rejection != nil {
			id := r.reasonOf(f.name, rejection)
			return &static{early: &reason{f.name, rejection}, bucket: ^(id | settled)}
		}
	}
	s := pl.scoreStatic(n)
	for _, f := range pl.late {
		if rejection := f.judge(n); rejection != nil {
			s.lateIndex = r.reasonOf(f.name, rejection)
			s.late = &reason{f.name, rejection}
			break
		}
	}
	return s
}

// scoreStatic scores a node that no static filter rejects.
func (pl *plan) scoreStatic(n *cluster.Node) *static {
	return &static{
		taint: pl.taint.of(n), affinity: pl.affinity.of(n), image: pl.image.of(n), scored: !pl.everyKey || hasKeys(n, pl.soft), hostname: n.HasHostname,
	}
}
