// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// byNodeSelection selects the classes with a node selector and required node affinity that may
// select the event's node. A new node is looked up by one label that it must have. A relabelled
// node is looked up by its changed labels, because an unchanged label cannot be the reason why the
// filter passes now.
func byNodeSelection() *queue.Narrowing {
	return &queue.Narrowing{
		Topics: func(item *queue.Item) (topics []queue.Topic, all bool) {
			spec := item.Class.Spec
			required, _ := podNodeAffinity(spec)
			names, narrow := namedNodes(required)
			topics, selects := wantedLabels(spec)
			// A pod with contradicting terms is retried, so that its reason is reported again.
			if !selects || narrow && len(names) == 0 {
				return nil, true
			}
			asked := map[string]bool{} // thousands of terms may use few keys
			for _, r := range nodeRequirements(spec) {
				// Such requirements have equal topics if they have the same key, so one topic per
				// key suffices.
				if r.byAnyChange() {
					if asked[r.key] {
						continue
					}
					asked[r.key] = true
				}
				topics = append(topics, r.changeTopics()...)
			}
			return topics, false
		},
		EventTopics: func(e *queue.Event) (topics []queue.Topic, all bool) {
			switch {
			case e.Node == nil:
				return nil, false
			case e.NodeBefore == nil:
				topics = append(topicsOfLabels(e.Node), queue.Topic{Kind: queue.NodeName, Value: e.Node.Name})
				return topics, false
			}
			for _, key := range changedKeys(e) {
				topics = append(topics, queue.Topic{Kind: queue.KeyChange, Key: key})
				if value, has := e.Node.Lookup(key); has {
					topics = append(topics, queue.Topic{Kind: queue.LabelChange, Key: key, Value: value})
				}
			}
			return topics, false
		},
	}
}

// topicsOfLabels returns the topics of a node's labels, and of their keys, for requirements that
// depend on more than values.
func topicsOfLabels(n *cluster.Node) (topics []queue.Topic) {
	for key, value := range n.AllLabels() {
		topics = append(topics, queue.Topic{Kind: queue.NodeLabel, Key: key, Value: value}, queue.Topic{Kind: queue.NodeKey, Key: key})
	}
	return topics
}

// changedKeys lists the labels gained, lost or changed by the event's node, unordered. The event
// must have both a node and its previous state.
func changedKeys(e *queue.Event) (keys []string) {
	if e.Node.Labels == e.NodeBefore.Labels && e.Node.Hostname == e.NodeBefore.Hostname {
		return nil
	}
	all := e.NodeBefore.AllLabels()
	maps.Copy(all, e.Node.AllLabels())
	for key := range all {
		if relabels(e, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// relabels reports whether the key is one of changedKeys.
func relabels(e *queue.Event, key string) bool {
	was, had := e.NodeBefore.Lookup(key)
	is, has := e.Node.Lookup(key)
	return was != is || had != has
}

// wanted is one requirement on a node's labels or name. A requirement without values depends on
// more than a list of values.
//
//	zone In a,b       ->  {key: zone, values: a b}
//	zone NotIn a      ->  {key: zone, absent: true}
//	cores Gt 8        ->  {key: cores}
//	metadata.name n1  ->  {name: true, values: n1}
type wanted struct {
	key    string
	name   bool
	values []string
	absent bool // a node without the label may meet it
}

// nodeRequirements lists the node requirements of all terms in the spec. It serves changes of
// nodes, after which a node may meet any of the requirements.
func nodeRequirements(spec *cluster.Spec) (list []wanted) {
	for key, value := range spec.NodeSelector {
		list = append(list, wanted{key: key, values: []string{value}})
	}
	if required, _ := podNodeAffinity(spec); required != nil {
		for i := range required.NodeSelectorTerms {
			list = append(list, wantedBy(&required.NodeSelectorTerms[i])...)
		}
	}
	return list
}

// wantedBy lists the requirements of one term. It omits requirements that exclude a name: names do
// not change, and no topic could represent them.
func wantedBy(term *v1.NodeSelectorTerm) (list []wanted) {
	for i := range term.MatchExpressions {
		r := wanted{key: term.MatchExpressions[i].Key}
		switch term.MatchExpressions[i].Operator {
		case v1.NodeSelectorOpIn:
			r.values = term.MatchExpressions[i].Values
		case v1.NodeSelectorOpNotIn, v1.NodeSelectorOpDoesNotExist:
			r.absent = true
		}
		list = append(list, r)
	}
	for i := range term.MatchFields {
		if f := &term.MatchFields[i]; f.Key == metav1.ObjectNameField && f.Operator == v1.NodeSelectorOpIn {
			list = append(list, wanted{name: true, values: f.Values})
		}
	}
	return list
}

// byAnyChange reports whether a node may meet the requirement after any change of the label,
// including its loss.
func (w *wanted) byAnyChange() bool { return !w.name && (len(w.values) == 0 || w.absent) }

// changeTopics lists the changes of a node after which it may meet the requirement. It is empty for
// a name.
func (w *wanted) changeTopics() []queue.Topic {
	if w.name {
		return nil
	}
	if w.byAnyChange() {
		return []queue.Topic{{Kind: queue.KeyChange, Key: w.key}}
	}
	return w.valueTopics(queue.LabelChange)
}

// hasTopics returns topics such that every node meeting the requirement has one of them; ok is
// false if there may be no such topics.
func (w *wanted) hasTopics() (topics []queue.Topic, ok bool) {
	switch {
	case w.absent:
		return nil, false
	case len(w.values) == 0:
		return []queue.Topic{{Kind: queue.NodeKey, Key: w.key}}, true
	}
	kind := queue.NodeLabel
	if w.name {
		kind = queue.NodeName
	}
	return w.valueTopics(kind), true
}

// valueTopics returns a topic of this kind for each value.
func (w *wanted) valueTopics(kind queue.TopicKind) []queue.Topic {
	return rules.Mapped(w.values, func(value string) queue.Topic { return queue.Topic{Kind: kind, Key: w.key, Value: value} })
}

// selectivity ranks requirements by the expected number of nodes meeting them, the lowest first:
// names, then labels defined by the operator of the cluster, then labels of Kubernetes, which many
// nodes share. A wrong estimate costs further calls of the hint, but no missed wake-up.
func (w *wanted) selectivity() int {
	const ofKubernetes = "kubernetes.io/"
	switch {
	case w.name || w.key == v1.LabelHostname:
		return 0
	case !strings.Contains(w.key, ofKubernetes):
		return 1
	case len(w.values) > 0:
		return 2
	}
	return 3
}

// wantedLabels returns topics such that every node selected by the spec has one of them, or false.
// Such topics are found in the node selector, which every node must meet, or in one requirement of
// each affinity term, because a node must meet all requirements of one term.
func wantedLabels(spec *cluster.Spec) (topics []queue.Topic, ok bool) {
	var own []wanted
	for key, value := range spec.NodeSelector {
		own = append(own, wanted{key: key, values: []string{value}})
	}

	// Every node must meet the node selector, so one of its labels finds all nodes.
	best, fewest := bestOf(own)
	required, _ := podNodeAffinity(spec)
	if required == nil {
		return best, best != nil
	}

	var all []queue.Topic
	most := 0
	for i := range required.NodeSelectorTerms {
		one, few := bestOf(wantedBy(&required.NodeSelectorTerms[i]))
		// A node may match only this term, and no topic finds such a node, so the affinity cannot
		// narrow the classes.
		if one == nil {
			return best, best != nil
		}
		all, most = append(all, one...), max(most, few)
	}

	// The least selective term counts: each event is looked up under the topics of all terms.
	if best == nil || most < fewest {
		return all, all != nil
	}
	return best, true
}

// bestOf returns the topics of the requirement met by the fewest nodes, by estimate, and its
// selectivity. It returns nil if no requirement has topics.
func bestOf(list []wanted) (best []queue.Topic, fewest int) {
	for i := range list {
		topics, ok := list[i].hasTopics()
		if few := list[i].selectivity(); ok && (best == nil || few < fewest || few == fewest && len(topics) < len(best)) {
			best, fewest = topics, few
		}
	}
	return best, fewest
}

// byTaints selects the classes that may tolerate a node's remaining taints after the loss of a
// relevant one. One taint represents all remaining taints, because a pod that tolerates all of them
// tolerates this taint.
func byTaints(taints func(n *cluster.Node) []v1.Taint) *queue.Narrowing {
	return &queue.Narrowing{
		Topics: func(item *queue.Item) (topics []queue.Topic, all bool) {
			for i := range item.Class.Spec.Tolerations {
				switch t := &item.Class.Spec.Tolerations[i]; {
				case t.Key == "":
					return nil, true
				case t.Operator == v1.TolerationOpEqual || t.Operator == "":
					topics = append(topics, queue.Topic{Kind: queue.Tolerates, Key: t.Key, Value: t.Value})
				default:
					topics = append(topics, queue.Topic{Kind: queue.ToleratesKey, Key: t.Key})
				}
			}
			return append(topics, queue.Topic{Kind: queue.AllPods}), false
		},
		EventTopics: func(e *queue.Event) (topics []queue.Topic, all bool) {
			if e.Node == nil {
				return nil, false
			}
			// The remaining taints determine the pods admitted now.
			left := taints(e.Node)
			if e.NodeBefore != nil && coversTaints(left, taints(e.NodeBefore)) {
				return nil, false // a pod that tolerates the remaining taints tolerated the earlier taints
			}
			if len(left) == 0 {
				return []queue.Topic{{Kind: queue.AllPods}}, false
			}
			rarest := &left[0]
			for i := range left {
				if t := &left[i]; !strings.HasPrefix(t.Key, "node.kubernetes.io/") { // many pods tolerate taints of Kubernetes
					rarest = t
				}
			}
			return []queue.Topic{
				{Kind: queue.Tolerates, Key: rarest.Key, Value: rarest.Value}, {Kind: queue.ToleratesKey, Key: rarest.Key},
			}, false
		},
	}
}

// coversTaints reports whether list contains each taint of subset, regardless of their order.
func coversTaints(list, subset []v1.Taint) bool {
	return !slices.ContainsFunc(subset, func(t v1.Taint) bool {
		return !slices.ContainsFunc(list, func(o v1.Taint) bool { return o.MatchTaint(&t) && o.Value == t.Value })
	})
}

// keepingOff returns the taints of a node that keep pods off.
func keepingOff(n *cluster.Node) []v1.Taint {
	return slices.DeleteFunc(slices.Clone(n.Taints.Taints), func(t v1.Taint) bool { return !rules.KeepsOff.Has(t.Effect) })
}

// cordonTaints returns the taint of a node's cordon, if it is cordoned.
func cordonTaints(n *cluster.Node) []v1.Taint {
	if n.Taints.Unschedulable {
		return []v1.Taint{cordon}
	}
	return nil
}
