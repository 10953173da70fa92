// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Narrowings select the classes that an event can help. The hint would return false for every class
// left out (TestNarrowingsLeaveNobodyOut).

// byRoom selects the classes that may have room on the event's node. If the node changed, the size
// of the whole node counts. If a pod left the node, only the pods that the class cannot preempt
// take room. It compares only CPU and memory, and leaves the rest to the hint. It returns nil if
// the filter is only part of NodeResourcesFit.
//
// A pod of priority 10 leaves a node of 4 CPU with pods of priority 5 (2 CPU) and 20 (1 CPU):
//
//	offered: 3 CPU, without the pods of priority below 10
//	priority 8 could preempt the pod of priority 5, for 3 CPU at most
//	priority 15 could have preempted the departed pod: only the free room counts, 1 CPU
func (setting Setting) byRoom(ofNode bool) *queue.Narrowing {
	if _, whole := setting.Filter.(*NodeResourcesFit); !whole {
		return nil
	}
	return &queue.Narrowing{
		Wanted: func(class *cluster.PodClass) queue.Amounts {
			if class.Resizes { // the pod itself takes up most of the room
				return queue.Amounts{}
			}
			return queue.Amounts{class.Requests.MilliCPU, class.Requests.Memory}
		},
		Offered: func(e *queue.Event) queue.Amounts {
			switch {
			case !isOthers(e):
				// For an event of the pending pod itself, select all classes and let the hint
				// decide.
				return queue.Amounts{math.MaxInt64, math.MaxInt64}
			case e.Node == nil:
				// These amounts are below every request, so they select no pods.
				return queue.Amounts{-1, -1}
			case ofNode && e.NodeBefore != nil && !nodeGrew(allResources(e), e):
				return queue.Amounts{-1, -1}
			case ofNode || e.PodBefore == nil || setting.Displaces != nil || setting.isKept(e.PodBefore):
				return queue.Amounts{e.Node.Size.MilliCPU, e.Node.Size.Memory}
			}

			return roomWithoutLower(e.Node, e.PodBefore.Class.Priority)
		},
	}
}

// allResources requests every resource that the event's node has or had, so that nodeGrew detects
// growth for any class.
func allResources(e *queue.Event) *cluster.Resources {
	all := &cluster.Resources{MilliCPU: 1, Memory: 1, EphemeralStorage: 1, Scalars: map[v1.ResourceName]int64{}}
	for _, size := range [2]*cluster.Size{e.NodeBefore.Size, e.Node.Size} {
		for name := range size.Scalars {
			all.Scalars[name] = 1
		}
	}
	return all
}

// roomWithoutLower is the free room of a node without the pods below a priority. It is at least 0,
// even on an overcommitted node: a pod without requests has room on any node.
func roomWithoutLower(n *cluster.Node, priority int32) queue.Amounts {
	left := n
	for _, p := range n.Pods {
		if p.Class.Priority < priority {
			if left == n {
				left = n.Copy(nil)
			}
			left.Take(p)
		}
	}
	return queue.Amounts{max(left.Size.MilliCPU-left.Requested.MilliCPU, 0), max(left.Size.Memory-left.Requested.Memory, 0)}
}

// byLabels selects the classes with selectors that may select a pod of the event, and the classes
// that may be selected by the terms of such a pod. A selector is indexed by a set of labels such
// that each selected pod has at least one of them; a selector without such labels (only NotIn, for
// example) may select any pod, and adds its class to every event.
func byLabels(selectors func(*cluster.PodClass) (list []*rules.Selector, all bool)) *queue.Narrowing {
	return &queue.Narrowing{
		Topics: func(item *queue.Item) (topics []queue.Topic, all bool) {
			list, all := selectors(item.Class)
			if all {
				return nil, true
			}
			// One required label of a selector suffices, because every selected pod has this label.
			topics, all = requiredBy(queue.Means, list)
			return append(topics, labelsOf(queue.IsMeant, item.Class)...), all
		},
		EventTopics: func(e *queue.Event) (topics []queue.Topic, all bool) {
			if !isOthers(e) {
				return nil, true
			}
			// The states before and after the event count, because losing a label can help as much
			// as gaining a label.
			for _, p := range [2]*cluster.Pod{e.PodBefore, e.Pod} {
				if p == nil {
					continue
				}
				of, everybody := ofPod(p.Class)
				if everybody {
					return nil, true
				}
				topics = append(topics, of...)
			}

			return topics, false
		},
	}
}

// labelsOf lists the labels of a class: as Means, for selectors that may select its pods; as
// IsMeant, for terms of other pods that may select them.
func labelsOf(kind queue.TopicKind, class *cluster.PodClass) (topics []queue.Topic) {
	for key, value := range class.Labels.All() {
		topics = append(topics, queue.Topic{Kind: kind, Key: key, Value: value})
	}
	return topics
}

// requiredBy lists the labels required by the selectors. everybody is set if a selector requires no
// particular label.
func requiredBy(kind queue.TopicKind, selectors []*rules.Selector) (topics []queue.Topic, everybody bool) {
	for _, selector := range selectors {
		required, everybody := cluster.RequiredLabels(selector)
		if everybody {
			return nil, true
		}
		for _, label := range required {
			topics = append(topics, queue.Topic{Kind: kind, Key: label.Key, Value: label.Value})
		}
	}
	return topics, false
}

// ofPod selects the classes with selectors that may select a pod of this class, and the classes
// that such a pod may repel. everybody is set if a term of the pod may select any pod.
func ofPod(class *cluster.PodClass) (topics []queue.Topic, everybody bool) {
	keptAway, everybody := keptAwayBy(class, func(string) bool { return true })
	return append(labelsOf(queue.Means, class), keptAway...), everybody
}

// keptAwayBy selects the classes that a pod of this class may repel by a topology key for which
// match returns true.
func keptAwayBy(class *cluster.PodClass, match func(key string) bool) (topics []queue.Topic, everybody bool) {
	var selectors []*rules.Selector
	for i := range class.RequiredAntiAffinity {
		if term := &class.RequiredAntiAffinity[i]; match(term.TopologyKey) {
			selectors = append(selectors, term.Selector)
		}
	}
	return requiredBy(queue.IsMeant, selectors)
}

// requiredSelectors returns the selectors of a class's required terms. all is set if the terms
// cannot be parsed: the pod is then retried after every event, so that the error stays current.
func requiredSelectors(class *cluster.PodClass) (list []*rules.Selector, all bool) {
	selectorOf := func(t cluster.Term) *rules.Selector { return t.Selector }
	list = append(rules.Mapped(class.RequiredAffinity, selectorOf), rules.Mapped(class.RequiredAntiAffinity, selectorOf)...)
	return list, class.TermError != nil
}

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
		topics = rules.Mapped(changed, func(key string) queue.Topic { return queue.Topic{Kind: queue.KeyChange, Key: key} })
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
