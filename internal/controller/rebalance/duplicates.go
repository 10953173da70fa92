// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// setupDuplicates sets up the goal of spreading duplicates. Its gauge counts, for each node, the
// pods of one owner with the same images beyond an even share.
//
//	6 pods of a kind, 4 nodes that suit them: an even share is 2
//	on the nodes 4, 1, 1, 0: surplus 2 + 0 + 0 + 0 = 2
//
// The share is rounded up. The suitable nodes are counted only once, for the first pod of the kind.
func (st *strategy) setupDuplicates() {
	g := &evenness{w: st.w, kinds: map[string]*kind{}, byPod: map[*pod]*kind{}, excluded: st.Duplicates.ExcludeOwners}
	st.gauge, st.reselects = g, true
	st.gain, st.among = g.surplusOf, g.podsInSurplus
	st.says = func(p *pod) string { return "its node has more than an even share of the replicas" }
}

// evenness is a gauge of duplicates. It sums up the surplus of all kinds, and recounts a kind only
// when its share changes.
type evenness struct {
	w        *world
	excluded []string
	kinds    map[string]*kind
	byPod    map[*pod]*kind // filled on first use
	sum      int64
}

// kind is a set of pods with the same owner and images.
type kind struct {
	members map[*pod]bool
	pods    map[int32]int64 // by node index
	all     int64
	nodes   int64 // number of suitable nodes
	surplus int64
}

func (e *evenness) gaugeName() string { return "duplicates" }

func (e *evenness) currentValue() int64 { return e.sum }

// surplusOf returns the excess of the pod's kind on its node over an even share.
func (e *evenness) surplusOf(p *pod) int64 {
	k := e.kindOf(p)
	if k == nil || k.surplus == 0 {
		return 0
	}
	return max(0, k.pods[p.Node.Index]-k.evenShare())
}

// podsInSurplus yields the pods of all kinds with a surplus on some node. Most kinds have no
// surplus, so the search need not examine every pod of the cluster.
func (e *evenness) podsInSurplus(yield func(*pod) bool) {
	for _, k := range e.kinds {
		if k.surplus == 0 {
			continue
		}
		for p := range k.members {
			if !yield(p) {
				return
			}
		}
	}
}

// kindOf returns the kind of a pod, or nil. A successor is of its victim's kind, since it has the
// same owner and images.
func (e *evenness) kindOf(p *pod) *kind {
	k, known := e.byPod[p]
	if known {
		return k
	}
	if name := e.nameKind(p); name != "" {
		if k = e.kinds[name]; k == nil {
			k = &kind{members: map[*pod]bool{}, pods: map[int32]int64{}, nodes: e.w.countSuitable(p)}
			e.kinds[name] = k
		}
	}
	e.byPod[p] = k
	return k
}

// nameKind identifies a pod's kind; "" means none. As in the descheduler, the owner is identified
// by name, which is available in manifests as well.
func (e *evenness) nameKind(p *pod) string {
	owner := p.Class.Controller
	if owner == nil || owner.Kind == "DaemonSet" || slices.Contains(e.excluded, owner.Kind) {
		return ""
	}
	key := p.Namespace() + "/" + owner.Kind + "/" + owner.Name
	for i := range p.Spec().Containers {
		key += " " + p.Spec().Containers[i].Image
	}
	return key
}

// evenShare is the number of pods of the kind per node in an even spread, rounded up. Without a
// suitable node, the share is the number of all pods of the kind.
func (k *kind) evenShare() int64 { return (k.all + max(k.nodes, 1) - 1) / max(k.nodes, 1) }

// countPod implements gauge. It costs a few additions, except when the share changes.
func (e *evenness) countPod(p *pod, n *cluster.Node, by int64) {
	k := e.kindOf(p)
	if k == nil {
		return
	}

	if by > 0 {
		k.members[p] = true
	} else {
		delete(k.members, p)
	}

	share, before := k.evenShare(), k.pods[n.Index]
	k.pods[n.Index] += by
	k.all += by
	e.sum -= k.surplus
	k.surplus += max(0, before+by-share) - max(0, before-share)
	if k.evenShare() != share { // a new share affects all of its nodes
		k.surplus = 0
		for _, count := range k.pods {
			k.surplus += max(0, count-k.evenShare())
		}
	}
	e.sum += k.surplus
}
