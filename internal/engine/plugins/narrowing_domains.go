// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// byDomains selects the classes with required terms affected by adding, removing or relabelling a
// node: a new candidate (matched by the terms' keys), the loss of its pods (by their labels), or
// the move of its pods to another domain (by both).
func (h *affinityHints) byDomains() *queue.Narrowing {
	// Node events select the classes that byLabels selects for the node's pods, because pods
	// removed with their node count like departing pods.
	n := byLabels(requiredSelectors)
	ofPods := n.Topics
	n.Topics = func(item *queue.Item) (topics []queue.Topic, all bool) {
		topics, all = ofPods(item)
		for _, terms := range [2][]cluster.Term{item.Class.RequiredAffinity, item.Class.RequiredAntiAffinity} {
			for i := range terms {
				topics = append(topics, queue.Topic{Kind: queue.KeyChange, Key: terms[i].TopologyKey})
			}
		}
		return topics, all
	}
	n.EventTopics = func(e *queue.Event) (topics []queue.Topic, all bool) {
		switch {
		case e.NodeBefore == nil:
			return nil, true // a candidate for pods of any class
		case e.Node == nil:
			return ofPodsOn(e.NodeBefore.Pods)
		}
		changed := changedKeys(e)
		for _, key := range changed {
			topics = append(topics, queue.Topic{Kind: queue.KeyChange, Key: key})
		}
		// Repelling pods may be on other nodes, because the node leaves or enters the domain of
		// such pods.
		keptAway, everybody := h.keptAway(changed)
		return append(topics, keptAway...), everybody
	}
	return n
}

// ofPodsOn is ofPod for the pods of a node, each class once.
func ofPodsOn(pods []*cluster.Pod) (topics []queue.Topic, everybody bool) {
	known := map[*cluster.PodClass]bool{}
	for _, p := range pods {
		if known[p.Class] {
			continue
		}
		known[p.Class] = true
		of, everybody := ofPod(p.Class)
		if everybody {
			return nil, true
		}
		topics = append(topics, of...)
	}
	return topics, false
}

// keptAway selects the classes that some pod of the cluster may repel by one of the keys. It visits
// the pods of all nodes, because the event's node may have left the domain of a pod elsewhere.
func (h *affinityHints) keptAway(keys []string) (topics []queue.Topic, everybody bool) {
	// Most changes of a node do not affect its labels, and end here.
	if len(keys) == 0 {
		return nil, false
	}
	for class := range h.repellingClasses {
		of, everybody := keptAwayBy(class, func(key string) bool { return slices.Contains(keys, key) })
		if everybody {
			return nil, true
		}
		topics = append(topics, of...)
	}

	return topics, false
}
