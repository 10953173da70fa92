package simulate

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// trueFirst orders true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// compareWorth orders the pods of a workload as the ReplicaSet controller does, those that it
// removes first at the front. together counts the workload's pods by node.
func (c *controllers) compareWorth(a, b *pod, together map[string]int) int {
	order := cmp.Or(
		trueFirst(a.NodeName == "", b.NodeName == ""), cmp.Compare(phaseOrder(a),
			phaseOrder(b)), trueFirst(seemsUnready(a), seemsUnready(b)),
		cmp.Compare(rules.DeletionCost(a.object), rules.DeletionCost(b.object)),
		cmp.Compare(together[b.NodeName], together[a.NodeName]),
	)
	if x, y := readySince(a), readySince(b); order == 0 && !seemsUnready(a) && !x.Equal(y) {
		return cmp.Or(c.compareAge(x, y), cmp.Compare(a.UID, b.UID))
	}
	return cmp.Or(order, compareRestarts(a.object, b.object), c.compareAge(a.Created, b.Created), cmp.Compare(a.UID, b.UID))
}

// phaseOrder is how far a pod has come: Pending, Unknown, Running. One that this world has placed
// runs, and so does one in a hand-written manifest.
func phaseOrder(p *pod) int {
	switch said := p.object.Status.Phase; {
	case p.NodeName != "" && p.tried, said == "", said == v1.PodRunning:
		return 2
	case said == v1.PodUnknown:
		return 1
	}
	return 0
}

// seemsUnready reports whether the ReplicaSet controller takes a pod for not ready: a kubelet says
// so, or has not said anything yet.
func seemsUnready(p *pod) bool {
	silent := !slices.ContainsFunc(p.object.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady })
	return p.unready || silent && p.object.Status.Phase != "" && !p.tried
}

// compareRestarts orders pods whose containers were restarted more often first; sidecars count if
// the others are equal.
func compareRestarts(a, b *v1.Pod) int {
	containers, sidecars := restartCounts(a)
	others, theirs := restartCounts(b)
	return cmp.Or(cmp.Compare(others, containers), cmp.Compare(theirs, sidecars))
}

func restartCounts(p *v1.Pod) (containers, sidecars int32) {
	for i := range p.Status.ContainerStatuses {
		containers = max(containers, p.Status.ContainerStatuses[i].RestartCount)
	}
	for i := range p.Status.InitContainerStatuses {
		status := &p.Status.InitContainerStatuses[i]
		if slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool {
			return c.Name == status.Name && c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
		}) {
			sidecars = max(sidecars, status.RestartCount)
		}
	}
	return containers, sidecars
}

// compareAge orders what is younger first. Ages are compared on a logarithmic scale: to the
// ReplicaSet controller, pods of about the same age are equal, so that not all of the newest go.
func (c *controllers) compareAge(x, y time.Time) int {
	return cmp.Compare(ageMagnitude(c.clock.time().Sub(x)), ageMagnitude(c.clock.time().Sub(y)))
}

func readySince(p *pod) time.Time {
	since := p.since
	for i := range p.object.Status.Conditions {
		if c := &p.object.Status.Conditions[i]; c.Type == v1.PodReady && !c.LastTransitionTime.IsZero() {
			since = c.LastTransitionTime.Time
		}
	}
	return since
}

func ageMagnitude(age time.Duration) int {
	if age <= 0 {
		return -1
	}
	return bits.Len64(uint64(age)) - 1
}

func (c *controllers) scaleWorkload(op *Scale) (*Done, error) {
	if kind, _, _ := strings.Cut(op.Workload, "/"); slices.Contains([]string{"pod", "pods", "po"}, kind) {
		return nil, fmt.Errorf("%q: a pod has no replicas: name a deployment, replicaset or statefulset", op.Workload)
	}
	l, err := c.workloads.findNamed(op.Workload, op.Namespace)
	switch {
	case err != nil:
		return nil, err
	case l.replicas == nil:
		return nil, fmt.Errorf("%s has no replicas to set", op.Workload)
	case op.Replicas < 0 || op.Replicas > mostPods:
		return nil, fmt.Errorf("%d replicas: must be from 0 to %d", op.Replicas, mostPods)
	case len(c.workloads.makersOf(l)) == 0:
		return nil, fmt.Errorf("%s has no ReplicaSet that could be read, so that its pods are not known", op.Workload)
	}

	c.setReplicas(l, op.Replicas)
	owner := c.workloads.deploymentOf(l)
	if owner == nil {
		return &Done{}, nil
	}

	c.fillUp(owner, int(*owner.replicas))
	return &Done{Notes: []string{fmt.Sprintf("%s belongs to %s, which sets its replicas back: scale that",
		op.Workload, strings.ToLower(owner.ref()))}}, nil
}

func (c *controllers) setReplicas(l *workload, replicas int) {
	c.report.addEvent(Event{Kind: "Scaled", Message: fmt.Sprintf("%s %s/%s from %d to %d", strings.ToLower(l.kind),
		l.object.GetNamespace(), l.object.GetName(), len(c.podsOf(l)), replicas)})
	c.workloads.keepWorkload(resizedCopy(l.object, replicas))
	c.fillUp(l, replicas)
}

// resizedCopy returns a copy of a workload with that number of replicas.
func resizedCopy(object metav1.Object, replicas int) metav1.Object {
	n := int32(replicas)
	switch o := object.(type) {
	case *appsv1.Deployment:
		d := *o
		d.Spec.Replicas = &n
		return &d
	case *appsv1.ReplicaSet:
		r := *o
		r.Spec.Replicas = &n
		return &r
	case *v1.ReplicationController:
		r := *o
		r.Spec.Replicas = &n
		return &r
	case *appsv1.StatefulSet:
		s := *o
		s.Spec.Replicas = &n
		return &s
	}

	return object
}

// fillUp removes the pods that a workload has too many, and makes those that it has too few.
func (c *controllers) fillUp(l *workload, replicas int) {
	if set, ok := l.object.(*appsv1.StatefulSet); ok {
		c.fillOrdinals(l, set, replicas)
		return
	}

	pods := c.podsOf(l)
	for _, p := range pods[:max(0, len(pods)-replicas)] {
		c.dropPod(p, ByScaling, l.ref())
	}

	makers := c.workloads.makersOf(l)
	if len(makers) == 0 {
		return
	}

	newest := makers[len(makers)-1]
	maker := workloadOf(newest)
	for i := len(pods); i < replicas && !c.allowed.mustStop(); i++ {
		c.pods.createPod(c.podOf(newest, maker.kind, maker.template), false)
	}

	if l.kind != "Deployment" {
		return
	}
	for _, r := range makers {
		c.workloads.keepWorkload(resizedCopy(r, len(c.podsOf(workloadOf(r)))))
	}
}

// fillOrdinals does the same for a StatefulSet: it is by their ordinals that its pods are wanted or
// missing. A pod that has not ended yet, or that a finalizer keeps, is waited for.
func (c *controllers) fillOrdinals(l *workload, set *appsv1.StatefulSet, replicas int) {
	for _, p := range c.podsOf(l) {
		if !hasReplica(set, p.Name, replicas) {
			c.dropPod(p, ByScaling, l.ref())
		}
	}
	stuck := map[Name]bool{}
	for _, list := range c.stuck {
		for _, p := range list {
			stuck[Name{p.Namespace(), p.Name}] = true
		}
	}
	first, claimed := manifest.FirstOrdinal(set), false
	for ordinal := first; ordinal < first+replicas && !c.allowed.mustStop(); ordinal++ {
		p, claims := manifest.StatefulPod(set, ordinal)
		name := Name{p.Namespace, p.Name}
		if there := c.pods.named[name]; there != nil && there.Pod == nil && rules.IsTerminal(there.object) &&
			len(there.object.Finalizers) == 0 {
			c.pods.forgetPod(there) // the controller deletes it, and makes it again under its name
		} else if there != nil || stuck[name] {
			continue
		}
		claimed = c.claims.addClaims(claims) || claimed
		c.pods.createPod(p, false)
	}
	if claimed {
		c.claims.identifyClaims()
	}
}
