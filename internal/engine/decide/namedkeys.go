// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"iter"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// namedKeys holds the pod label keys used by selectors so far. Before searching for looks, callers
// must name the keys of the selectors. From the class of a look, callers must read only the labels
// with named keys.
//
// A new key splits looks and requires a recount of all pods. The recount is necessary even if no
// current pod has a label with the key, because the class of a look may have such a label although
// its pods were removed. To bound the number of recounts, all keys count as named once there are
// more than mostNamed.
type namedKeys struct {
	keys []string // sorted
	all  bool
}

// mostNamed bounds the number of individually named keys. Each key costs a scan of all pods.
const mostNamed = 64

// lookOf returns the look of a class, shared by all classes with the same labels for named keys.
func (n *namedKeys) lookOf(class *cluster.PodClass) [2]uint64 {
	if n.all {
		return class.Look
	}
	return class.LookBy(n.keys)
}

// labelsOf yields those labels of a class that have named keys.
func (n *namedKeys) labelsOf(class *cluster.PodClass) iter.Seq2[string, string] {
	if n.all {
		return class.Labels.All()
	}
	return class.LabelsWith(n.keys)
}

// add names the keys of a selector, and reports whether any key is new.
func (n *namedKeys) add(selector *rules.Selector) (news bool) {
	if n.all {
		return false
	}
	requirements, _ := selector.Requirements()
	for i := range requirements {
		at, known := slices.BinarySearch(n.keys, requirements[i].Key)
		if known {
			continue
		}
		news = true
		if len(n.keys) == mostNamed {
			n.keys, n.all = nil, true
			break
		}
		n.keys = slices.Insert(n.keys, at, requirements[i].Key)
	}
	return news
}

// nameKeys names the keys of selectors. Call it before searching for looks that match the
// selectors.
func (ix *index) nameKeys(selectors ...*rules.Selector) {
	news := false
	for _, selector := range selectors {
		if ix.placed.named.add(selector) {
			news = true
		}
	}
	if news {
		ix.countPlaced()
	}
}

// countPlaced recounts all placed pods.
func (ix *index) countPlaced() {
	ix.placed = placed{named: ix.placed.named, round: ix.placed.round}
	for _, n := range ix.c.Nodes {
		if n == nil {
			continue
		}
		ix.meter.Looked += len(n.Pods)
		for _, p := range n.Pods {
			ix.placed.countPod(p.Class, n.Index, p.Terminating, 1)
		}
	}
}
