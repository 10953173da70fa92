// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// defaultSelector selects the pods of the same application as the class, by all Services that
// select the class and by its controller if the controller is a ReplicationController, ReplicaSet
// or StatefulSet. It is empty if there are no such objects. The requirements of all these objects
// are merged as in upstream: two Services with app=web and tier=front give app=web,tier=front.
//
// The result changes with Services and controllers, so callers must not cache it.
func defaultSelector(c *cluster.Cluster, class *cluster.PodClass) *rules.Selector {
	var set labels.Set
	for _, service := range c.Services.InNamespace(class.Namespace) {
		// A Service without a selector selects nothing; an empty selector selects everything.
		if service.Spec.Selector != nil && includesAll(class.Labels, service.Spec.Selector) {
			set = labels.Merge(set, service.Spec.Selector)
		}
	}
	owner := class.Controller
	if owner == nil {
		return rules.SelectorOf(set)
	}
	switch owner.APIVersion + "/" + owner.Kind {
	case "v1/ReplicationController":
		if rc, ok := c.ReplicationControllers.Get(class.Namespace, owner.Name); ok {
			return rules.SelectorOf(labels.Merge(set, rc.Spec.Selector))
		}
	case "apps/v1/ReplicaSet":
		if rs, ok := c.ReplicaSets.Get(class.Namespace, owner.Name); ok {
			return narrowSelector(rules.SelectorOf(set), rs.Spec.Selector)
		}
	case "apps/v1/StatefulSet":
		if owner, ok := c.StatefulSets.Get(class.Namespace, owner.Name); ok {
			return narrowSelector(rules.SelectorOf(set), owner.Spec.Selector)
		}
	}
	return rules.SelectorOf(set)
}

// narrowSelector returns selector with the requirements of a controller's selector added, and
// leaves selector unchanged. An unparsable or empty selector adds no requirements.
func narrowSelector(selector *rules.Selector, by *metav1.LabelSelector) *rules.Selector {
	other, err := rules.ReadSelector(by)
	if err != nil || by == nil {
		return selector
	}
	return selector.With(other)
}

// includesAll reports whether the labels include all of a Service's selector, which may be far
// longer than the labels.
func includesAll(set *rules.Labels, selector map[string]string) bool {
	if len(selector) > set.Len() {
		return false
	}
	for key, value := range selector {
		if got, has := set.Lookup(key); !has || got != value {
			return false
		}
	}
	return true
}
