// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Simulation of the DaemonSet controller: one pod on each eligible node. It runs whenever a node is
// added or changes. Its pods are pinned to their nodes, and the scheduler places them there.

// startDaemons creates DaemonSet pods on a new node. Here and below, a DaemonSet being deleted
// creates no pods.
func (c *controllers) startDaemons(m *machine) {
	for _, set := range c.workloads.daemonSets() {
		if set.DeletionTimestamp == nil && workload.RunsDaemon(set, m.object) {
			c.makeDaemon(set, m.object.Name)
		}
	}
}

// updateDaemons creates the pods of DaemonSets that a node change made eligible. Pods of DaemonSets
// that are no longer eligible stay: the controller's deletion of such pods is not simulated.
func (c *controllers) updateDaemons(m *machine, before *v1.Node) {
	// Only taints and labels matter; heartbeats and conditions change far more often.
	if !equality.Semantic.DeepEqual(before.Spec.Taints, m.object.Spec.Taints) || !maps.Equal(before.Labels, m.object.Labels) {
		for _, set := range c.workloads.daemonSets() {
			if set.DeletionTimestamp == nil && !workload.RunsDaemon(set, before) &&
				workload.RunsDaemon(set, m.object) && !c.hasDaemon(m, set) {
				c.makeDaemon(set, m.object.Name)
			}
		}
	}

	node := m.object.Name
	// gaps holds the pods lost by the node until a node change lets them return.
	gaps := c.gaps[node]
	delete(c.gaps, node)
	for _, p := range gaps {
		if c.runsDaemon(p, m.object) {
			c.makeAgain(p)
		} else {
			c.gaps[node] = append(c.gaps[node], p)
		}
	}
}

// hasDaemon reports whether the DaemonSet has a placed or pending pod for the node, or will
// recreate the pod lost there.
func (c *controllers) hasDaemon(m *machine, set *appsv1.DaemonSet) bool {
	owner := workload.Of(set).Owner()
	its := func(p *v1.Pod) bool { return rules.OwnerOf(p) == owner && workload.DaemonNode(p) == m.object.Name }
	if slices.ContainsFunc(c.gaps[m.object.Name], its) ||
		slices.ContainsFunc(c.pods.podsOn(m.object.Name), func(p *pod) bool { return its(p.object) }) {
		return true
	}
	for p := range c.scheduler.eachWaiting {
		if its(p.object) {
			return true
		}
	}
	return false
}

// makeDaemons creates a DaemonSet's pods for all eligible nodes, in order of node name, regardless
// of existing pods.
func (c *controllers) makeDaemons(d *appsv1.DaemonSet) {
	wants := workload.NodesOf(d)
	for _, name := range c.nodes.names() {
		if c.allowed.mustStop() {
			return
		}
		if wants(c.nodes.named[name].object) {
			c.makeDaemon(d, name)
		}
	}
}

// makeDaemon creates the DaemonSet's pod for one node.
func (c *controllers) makeDaemon(d *appsv1.DaemonSet, node string) {
	c.pods.createPod(c.daemonPod(d, node), false)
}

// daemonPod returns the DaemonSet's pod for one node, under an unused name.
func (c *controllers) daemonPod(d *appsv1.DaemonSet, node string) *v1.Pod {
	p := workload.DaemonPod(d, node)
	p.Name = c.pods.generateName(d.Namespace, d.Name+"-")
	return p
}

// runsDaemon reports whether the pod's DaemonSet wants a pod on the node. For an unknown DaemonSet,
// the pod's tolerations decide.
func (c *controllers) runsDaemon(p *v1.Pod, node *v1.Node) bool {
	if !c.workloads.isWanted(p) {
		return false
	}
	if l := c.workloads.table().ControllerOf(p); l != nil {
		if set, ok := l.Object.(*appsv1.DaemonSet); ok {
			return workload.RunsDaemon(set, node)
		}
	}
	return rules.Untolerated(node.Spec.Taints, p.Spec.Tolerations, rules.KeepsOff) == nil
}
