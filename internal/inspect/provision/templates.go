package provision

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// The annotations of a node that is a template. The last two are those that the cluster
// autoscaler's kwok provider reads.
const (
	// PriceAnnotation is what such a node costs an hour.
	PriceAnnotation = "berth.dev/price"
	// MostAnnotation is how many there can be.
	MostAnnotation  = "berth.dev/most"
	groupAnnotation = "cluster-autoscaler.kwok.nodegroup/name"
	sizeAnnotation  = "cluster-autoscaler.kwok.nodegroup/max-count"
)

// offerOf reads a template.
func offerOf(node *v1.Node) (*Offer, error) {
	price, ok := node.Annotations[PriceAnnotation]
	if !ok {
		return nil, fmt.Errorf("metadata.annotations[%s]: required: what such a node costs an hour", PriceAnnotation)
	}

	o := &Offer{
		Pool: node.Name, Type: node.Labels[v1.LabelInstanceTypeStable], Zone: node.Labels[v1.LabelTopologyZone],
		CapacityType: node.Labels[capacityTypeLabel], pool: -1,
	}

	var err error
	if o.Price, err = strconv.ParseFloat(price, 64); err != nil || o.Price < 0 || math.IsInf(o.Price, 0) || math.IsNaN(o.Price) {
		return nil, fmt.Errorf("metadata.annotations[%s]: %q: must be a number, 0 or more", PriceAnnotation, price)
	}

	for _, key := range []string{MostAnnotation, sizeAnnotation} {
		if text, ok := node.Annotations[key]; ok {
			if o.Most, err = strconv.Atoi(text); err != nil || o.Most < 1 {
				return nil, fmt.Errorf("metadata.annotations[%s]: %q: must be a whole number, 1 or more", key, text)
			}
		}
	}

	if group := node.Annotations[groupAnnotation]; group != "" {
		o.Pool = group
	}
	if len(node.Status.Allocatable) == 0 {
		node.Status.Allocatable = node.Status.Capacity
	}

	if len(node.Status.Allocatable) == 0 {
		return nil, errors.New("status.allocatable: required: what such a node has for pods")
	}
	o.Node = simulate.NodeLike(node, "")
	return o, nil
}
