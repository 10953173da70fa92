package simulate

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// startDaemons makes the pods of the DaemonSets that want one on a new node.
func (c *controllers) startDaemons(m *machine) {
	for _, set := range c.workloads.set.DaemonSets {
		if set.DeletionTimestamp == nil && manifest.RunsDaemon(set, m.object) {
			c.makeDaemon(set, m.object.Name)
		}
	}
}

// updateDaemons makes the pods of the DaemonSets that want one on the node now, and did not before.
func (c *controllers) updateDaemons(m *machine, before *v1.Node) {
	if !equality.Semantic.DeepEqual(before.Spec.Taints, m.object.Spec.Taints) || !maps.Equal(before.Labels, m.object.Labels) {
		for _, set := range c.workloads.set.DaemonSets {
			if set.DeletionTimestamp == nil && !manifest.RunsDaemon(set, before) &&
				manifest.RunsDaemon(set, m.object) && !c.hasDaemon(m, set) {
				c.makeDaemon(set, m.object.Name)
			}
		}
	}

	node := m.object.Name
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

// hasDaemon reports whether the DaemonSet has a pod on the node or for it, or will make the one
// again that the node has lost.
func (c *controllers) hasDaemon(m *machine, set *appsv1.DaemonSet) bool {
	its := func(p *v1.Pod) bool {
		owner := metav1.GetControllerOfNoCopy(p)
		return owner != nil && owner.Kind == "DaemonSet" && owner.Name == set.Name && p.Namespace == set.Namespace &&
			manifest.DaemonNode(p) == m.object.Name
	}
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

// makeDaemons makes the pods of a DaemonSet for all nodes that it wants one on.
func (c *controllers) makeDaemons(d *appsv1.DaemonSet) {
	for _, name := range c.nodes.names() {
		if c.allowed.mustStop() {
			return
		}
		if manifest.RunsDaemon(d, c.nodes.named[name].object) {
			c.makeDaemon(d, name)
		}
	}
}

// makeDaemon makes the pod of a DaemonSet for one node.
func (c *controllers) makeDaemon(d *appsv1.DaemonSet, node string) {
	c.pods.createPod(c.daemonPod(d, node), false)
}

func (c *controllers) daemonPod(d *appsv1.DaemonSet, node string) *v1.Pod {
	p := manifest.DaemonPod(d, node)
	p.Name = c.pods.generateName(d.Namespace, d.Name+"-")
	return p
}

// pinTo restricts the pod to the node, as the DaemonSet controller does.
func pinTo(p *v1.Pod, node string) {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &v1.Affinity{}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		p.Spec.Affinity.NodeAffinity = &v1.NodeAffinity{}
	}
	p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{node},
		}}}},
	}
}

// runsDaemon reports whether the pod's DaemonSet wants a pod on the node. If the DaemonSet is not
// known, the taints that the pod tolerates decide.
func (c *controllers) runsDaemon(p *v1.Pod, node *v1.Node) bool {
	if !c.workloads.isWanted(p) {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(p)
	for _, set := range c.workloads.set.DaemonSets {
		if set.Namespace == p.Namespace && set.Name == owner.Name {
			return manifest.RunsDaemon(set, node)
		}
	}
	return rules.Untolerated(node.Spec.Taints, p.Spec.Tolerations, rules.KeepsOff) == nil
}
