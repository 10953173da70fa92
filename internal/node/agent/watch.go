package agent

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/kube/feed"
)

// watchPods follows the pods that are bound to this node, until ctx ends.
func (a *Agent) watchPods(ctx context.Context) {
	bound := fields.OneTermEqualSelector("spec.nodeName", a.config.NodeName).String()
	pods := &boundPods{ctx: ctx, agent: a, known: map[types.UID]*v1.Pod{}}
	feed.Run(ctx, feed.From("pods", a.client.CoreV1().Pods(metav1.NamespaceAll), bound),
		feed.Whole[*v1.Pod]{Listed: pods.listed, Seen: pods.seen, Gone: pods.gone}.Sink())
}

// watchNode follows the node's own object: others set its taints, labels and resources.
func (a *Agent) watchNode(ctx context.Context) {
	self := fields.OneTermEqualSelector("metadata.name", a.config.NodeName).String()
	feed.Run(ctx, feed.From("nodes", a.client.CoreV1().Nodes(), self), a.ownNode().Sink())
}

func (a *Agent) ownNode() feed.Whole[*v1.Node] {
	return feed.Whole[*v1.Node]{
		Seen: a.object.seen,
		Gone: func(node *v1.Node) { a.nodeGone(node.ResourceVersion) },
		Listed: func(list []*v1.Node, version string) {
			for _, node := range list {
				a.object.seen(node)
			}
			if len(list) == 0 {
				a.nodeGone(version) // or it has not been registered yet, and will be
			}
		},
	}
}

// boundPods are the pods of this node by UID: a pod that took another's name is not an update of
// it.
type boundPods struct {
	ctx   context.Context
	agent *Agent
	known map[types.UID]*v1.Pod
}

func (p *boundPods) seen(pod *v1.Pod) {
	p.known[pod.UID] = pod
	p.agent.podSeen(p.ctx, pod)
}

func (p *boundPods) gone(pod *v1.Pod) {
	delete(p.known, pod.UID)
	p.agent.podGone(pod)
}

// listed handles pods that are gone before those that exist, so that they make room for them.
func (p *boundPods) listed(list []*v1.Pod, _ string) {
	there := map[types.UID]bool{}
	for _, pod := range list {
		there[pod.UID] = true
	}
	for uid, pod := range p.known {
		if !there[uid] {
			p.gone(pod)
		}
	}
	for _, pod := range list {
		p.seen(pod)
	}
	p.agent.apiListed()
}
