// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// PoolCost is the hourly cost of the nodes with a known price of a NodePool. Least is its share of
// a lower bound on the cost of nodes of the catalog for the pods on all such nodes.
type PoolCost struct {
	Hour  float64 `json:"costPerHour"`
	Least float64 `json:"leastPerHour"`
}

// poolCosts computes the costs by NodePool. It closes all nodes, and empties the nodes with a known
// price by force, so that their pods are pending. The world is unusable afterwards.
//
// The bound on the cost of nodes of the catalog also holds for the existing nodes if none of these
// costs less than in the catalog.
func (r *replacer) poolCosts(w *simulate.World) error {
	poolOf, departed, bounded := map[string]*PoolCost{}, len(w.Departures()), len(r.p.Nodes) == 0
	for _, n := range w.Nodes() {
		w.ChangeNode(n.Name, func(n *v1.Node) { n.Spec.Unschedulable = true })
		price, known := r.prices[n.Name]
		bounded = bounded && slices.ContainsFunc(r.p.catalog.Offers, func(o Offer) bool { return known && o.sells(n) && o.Price <= price+tiny })
		if !known {
			continue
		}
		name := n.Labels[nodePoolLabel]
		if r.out.Pools[name] == nil {
			r.out.Pools[name] = &PoolCost{}
		}
		r.out.Pools[name].Hour += price
		poolOf[n.Name] = r.out.Pools[name]
		if _, err := w.Do(&simulate.Operation{Drain: forced(n.Name)}); err != nil {
			return err
		}
	}
	w.AdvanceUntilQuiet(w.Elapsed() + drainTime)

	cameFrom := map[simulate.Name]*PoolCost{}
	for _, d := range w.Departures()[departed:] {
		if next, _, _, ok := d.Next(); ok && poolOf[d.Node] != nil {
			cameFrom[next] = poolOf[d.Node]
		}
	}
	of := func(p *cluster.Pod) *PoolCost { return cameFrom[simulate.Name{Namespace: p.Namespace(), Name: p.Name}] }
	m := newMaker(w, r.p.catalog, Options{})
	pods := slices.DeleteFunc(m.pending(), func(p *cluster.Pod) bool { return of(p) == nil })
	m.read(pods)
	problem, at := m.boundProblem(pods)
	shares := append([]float64{0}, packing.Shares(problem)...) // items count from 1
	for _, p := range pods {
		of(p).Least += shares[at[m.free[p.UID]]]
		if bounded {
			r.out.Least = min(r.out.Least+shares[at[m.free[p.UID]]], r.out.Before)
		}
	}
	return w.Err()
}
