package plugins

import (
	"math"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Narrowings keep an event from being held against every class that waits. What they leave out, the
// hint beside them would decline: TestNarrowingsLeaveNobodyOut.

// byRoom finds the classes that may have room on the event's node: on all of it if it is the node
// that changed, and beside the pods that none of them can preempt if a pod left it.
func (in Setting) byRoom(ofNode bool) *queue.Narrowing {
	if _, whole := in.Filter.(*NodeResourcesFit); !whole {
		return nil
	}
	return &queue.Narrowing{
		Wanted: func(class *cluster.PodClass) queue.Amounts {
			return queue.Amounts{class.Requests.MilliCPU, class.Requests.Memory}
		},
		Offered: func(e *queue.Event) queue.Amounts {
			switch {
			case !others(e):
				return queue.Amounts{math.MaxInt64, math.MaxInt64}
			case e.Node == nil:
				return queue.Amounts{-1, -1}
			case ofNode || e.PodBefore == nil:
				return queue.Amounts{e.Node.Size.MilliCPU, e.Node.Size.Memory}
			}
			return roomWithoutLower(e.Node, e.PodBefore.Class.Priority)
		},
	}
}

// roomWithoutLower is what a node has left without the pods below a priority. Who asks for nothing
// has room on any node.
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

// byLabels finds the classes whose selectors may mean a pod of the event, and those that the terms
// of such a pod may mean.
func byLabels(selectors func(*cluster.PodClass) (list []labels.Selector, all bool)) *queue.Narrowing {
	return &queue.Narrowing{
		Topics: func(class *cluster.PodClass) (topics []queue.Topic, all bool) {
			list, all := selectors(class)
			if all {
				return nil, true
			}
			for _, selector := range list {
				required, everybody := cluster.RequiredLabels(selector)
				if everybody {
					return nil, true
				}
				for _, label := range required {
					topics = append(topics, queue.Topic{Kind: queue.Means, Key: label.Key, Value: label.Value})
				}
			}
			for key, value := range class.Labels {
				topics = append(topics, queue.Topic{Kind: queue.IsMeant, Key: key, Value: value})
			}
			return topics, false
		},
		EventTopics: func(e *queue.Event) (topics []queue.Topic, all bool) {
			if !others(e) {
				return nil, true
			}
			for _, p := range [2]*cluster.Pod{e.PodBefore, e.Pod} {
				if p == nil {
					continue
				}
				for key, value := range p.Class.Labels {
					topics = append(topics, queue.Topic{Kind: queue.Means, Key: key, Value: value})
				}
				for i := range p.Class.RequiredAntiAffinity {
					required, everybody := cluster.RequiredLabels(p.Class.RequiredAntiAffinity[i].Selector)
					if everybody {
						return nil, true
					}
					for _, label := range required {
						topics = append(topics, queue.Topic{Kind: queue.IsMeant, Key: label.Key, Value: label.Value})
					}
				}
			}
			return topics, false
		},
	}
}

// requiredSelectors are those of a class's required terms.
func requiredSelectors(class *cluster.PodClass) (list []labels.Selector, all bool) {
	for _, terms := range [2][]cluster.Term{class.RequiredAffinity, class.RequiredAntiAffinity} {
		for i := range terms {
			list = append(list, terms[i].Selector)
		}
	}
	return list, class.TermError != nil
}
