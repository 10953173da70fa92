package decide

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// nodeChanges are what a kubelet or an operator changes of a node all the time, in no topology.
var nodeChanges = map[string]func(n *v1.Node, i int){
	"none": nil,
	"image": func(n *v1.Node, i int) {
		n.Status.Images = []v1.ContainerImage{{Names: []string{fmt.Sprint("example.com/app:", i)}, SizeBytes: 1 << 30}}
	},
	"label": func(n *v1.Node, i int) { n.Labels["last-seen"] = fmt.Sprint(i) },
	"taint": func(n *v1.Node, i int) {
		n.Spec.Taints = []v1.Taint{{Key: fmt.Sprint("at-", i), Effect: v1.TaintEffectPreferNoSchedule}}
	},
	"room": func(n *v1.Node, i int) {
		n.Status.Allocatable[v1.ResourcePods] = *resource.NewQuantity(int64(100+i%10), resource.DecimalSI)
	},
}

// decideWithChange decides and places the i-th pod of a mode after a change of the i-th node.
func decideWithChange(c *cluster.Cluster, d *Decider, i int, mode string, change func(*v1.Node, int)) (*cluster.Pod, Decision) {
	if change != nil {
		node := c.Node(fmt.Sprint("node-", i%c.Len())).Object().DeepCopy()
		change(node, i)
		c.SetNode(node)
	}
	pod := benchPod(i, mode)
	pod.UID = types.UID(fmt.Sprint("pod-", i))
	p := c.Pending(pod)
	return p, d.Decide(p)
}

// TestANodeThatChangesIsLookedAtAlone: a ranking follows a node that stays in its domains.
func TestANodeThatChangesIsLookedAtAlone(t *testing.T) {
	const nodes = 300
	for name, change := range nodeChanges {
		for _, mode := range []string{"plain", "spread", "affinity", "anti"} {
			c := benchCluster(nodes, false)
			d := New(c, plugins.Default(), 1)
			const warm, more = 40, 100
			for i := range warm + more {
				if i == warm {
					d.looked = 0
				}
				p, decision := decideWithChange(c, d, i, mode, change)
				if i%20 == 0 {
					holds(t, c, d, p, decision)
				}
				c.Place(p, decision.Node)
			}
			if each := d.looked / more; each > nodes/2 {
				t.Errorf("%s, %s: %d looks for each decision", name, mode, each)
			}
		}
	}
}

// BenchmarkNodeChanges measures a decision with one changed node of 5,000 before it, the change
// included.
func BenchmarkNodeChanges(b *testing.B) {
	for name, change := range nodeChanges {
		for _, mode := range []string{"plain", "spread", "affinity", "anti", "1000 apps, spread"} {
			b.Run(name+"/"+mode, func(b *testing.B) {
				c := benchCluster(5000, false)
				d := New(c, plugins.Default(), 1)
				for i := 0; b.Loop(); i++ {
					p, decision := decideWithChange(c, d, i, mode, change)
					c.Place(p, decision.Node)
					const kept = 1000
					c.RemovePod(types.UID(fmt.Sprint("pod-", i-kept)))
				}
			})
		}
	}
}
