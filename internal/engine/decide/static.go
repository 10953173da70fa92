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

type staticKey struct {
	early, late            int16
	taint, affinity, image int64
	scored, hostname       bool
}

// staticOf returns the index of the node's static.
func (r *ranking) staticOf(n *cluster.Node) int32 {
	s := r.judgeStatic(n)
	key := staticKey{early: -1, late: -1, taint: s.taint, affinity: s.affinity, image: s.image, scored: s.scored, hostname: s.hostname}
	if s.early != nil {
		key = staticKey{early: ^s.bucket, late: -1} // nothing else about the node matters
	} else if s.late != nil {
		key.late = s.lateIndex
	}
	if len(r.statics) > 0 && key == r.latest.key { // as with most nodes
		return r.latest.index
	}
	index, known := r.byStatic[key]
	if !known {
		kept := s // s itself is not to be allocated for every node
		index = int32(len(r.statics))
		r.statics = append(r.statics, &kept)
		r.byStatic[key] = index
	}
	r.latest.key, r.latest.index = key, index
	return index
}

func (r *ranking) judgeStatic(n *cluster.Node) static {
	pl := r.plan
	for _, f := range pl.early {
		if rejection := f.judge(n); rejection != nil {
			id := r.reasonOf(f.name, rejection)
			return static{early: &reason{f.name, rejection}, bucket: ^(id | settled)}
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
func (pl *plan) scoreStatic(n *cluster.Node) static {
	return static{
		taint: pl.taint.of(n), affinity: pl.affinity.of(n), image: pl.image.of(n), scored: !pl.everyKey ||
			hasKeys(n, pl.soft), hostname: n.HasHostname,
	}
}
