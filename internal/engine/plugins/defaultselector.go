package plugins

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// defaultSelector selects the pods that belong to the same application as pods of the class: those
// of all Services that select it, and of its controller if that is a ReplicationController,
// ReplicaSet or StatefulSet. It is empty if there are none.
func defaultSelector(c *cluster.Cluster, class *cluster.PodClass) labels.Selector {
	var set labels.Set
	for _, service := range c.Services.In(class.Namespace) {
		// A Service without a selector selects nothing; one with an empty one selects all.
		if service.Spec.Selector != nil && labels.SelectorFromValidatedSet(service.Spec.Selector).Matches(class.Labels) {
			set = labels.Merge(set, service.Spec.Selector)
		}
	}
	owner := class.Controller
	if owner == nil {
		return set.AsSelector()
	}
	switch owner.APIVersion + "/" + owner.Kind {
	case "v1/ReplicationController":
		if rc, ok := c.ReplicationControllers.Get(class.Namespace, owner.Name); ok {
			return labels.Merge(set, rc.Spec.Selector).AsSelector()
		}
	case "apps/v1/ReplicaSet":
		if rs, ok := c.ReplicaSets.Get(class.Namespace, owner.Name); ok {
			return narrowed(set.AsSelector(), rs.Spec.Selector)
		}
	case "apps/v1/StatefulSet":
		if owner, ok := c.StatefulSets.Get(class.Namespace, owner.Name); ok {
			return narrowed(set.AsSelector(), owner.Spec.Selector)
		}
	}
	return set.AsSelector()
}

// narrowed adds the requirements of a controller's selector. One that cannot be parsed, or that is
// empty, adds none.
func narrowed(selector labels.Selector, by *metav1.LabelSelector) labels.Selector {
	other, err := metav1.LabelSelectorAsSelector(by)
	if err != nil {
		return selector
	}
	requirements, _ := other.Requirements()
	return selector.Add(requirements...)
}
