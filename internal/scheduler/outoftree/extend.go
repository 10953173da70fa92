// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// extended is an extender in the form used by decisions. There is one per profile and extender,
// since its arguments depend on the profile's session; the HTTP client behind it (package extender)
// is shared by all profiles. Like upstream, each extender gets only the nodes that passed all
// filters and the extenders before it.
type extended struct {
	f *framework
	x fwk.Extender
}

var _ plugins.Extender = &extended{}

// Name is the extender's URL, which identifies it in logs and in pending queries.
func (e *extended) Name() string { return e.x.Name() }

// Interested reports whether the extender influences the pod's placement. An extender that only
// binds does not.
func (e *extended) Interested(p *cluster.Pod) bool {
	return (e.x.IsFilter() || e.x.IsPrioritizer() || e.x.SupportsPreemption()) && e.x.IsInterested(e.f.set.store.waitingInfo(p).pod)
}

// Filter calls the extender for nodes that passed all filters. It returns the rejections by node;
// nil means none. An error of an ignorable extender lets all nodes pass; any other extender's error
// fails the attempt.
func (e *extended) Filter(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) (map[*cluster.Node]*plugins.Rejection, error) {
	if !e.x.IsFilter() {
		return nil, nil
	}
	y := e.f.sessionOf(c, p)
	a, err := e.askFilter(y, y.nodeInfos(nodes))
	if err != nil {
		return nil, err
	}
	if a.err != nil {
		if e.isIgnorable(y.ctx, a.err, "Skipping extender as it returned error and has ignorable flag set") {
			return nil, nil
		}
		return nil, a.err
	}

	said := map[*cluster.Node]*plugins.Rejection{}
	for _, n := range nodes {
		if !a.passed[n.Name] {
			said[n] = extenderRejection(n.Name, a.failed, a.unresolvable)
		}
	}
	return said, nil
}

// extenderRejection returns the reason for rejecting a node. Like upstream, a node missing from the
// response is rejected as unresolvable, without a reason.
func extenderRejection(node string, failed, unresolvable extenderv1.FailedNodesMap) *plugins.Rejection {
	if why, ok := unresolvable[node]; ok {
		return &plugins.Rejection{Code: plugins.ExtenderName, Reasons: []string{why}, Unresolvable: true}
	}
	if why, ok := failed[node]; ok {
		return &plugins.Rejection{Code: plugins.ExtenderName, Reasons: []string{why}}
	}
	return &plugins.Rejection{Code: plugins.ExtenderName, Unresolvable: true}
}

// Score returns the extender's scores, scaled from the range 0 to 10 to the range 0 to 100, and
// multiplied by the extender's weight. Like upstream, a failing extender adds nothing: a score is
// only a preference. A node missing from the response gets 0.
//
// The scale is upstream's: a node with 7 from an extender of weight 2 gets 7 * 2 * (100 / 10) =
// 140.
func (e *extended) Score(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) ([]int64, error) {
	if !e.x.IsPrioritizer() {
		return nil, nil
	}
	y := e.f.sessionOf(c, p)
	a, err := e.askPrioritize(y, y.nodeInfos(nodes))
	if err != nil {
		return nil, err
	}
	if a.err != nil {
		klog.FromContext(y.ctx).V(5).Info("Failed to run extender's priority function. No "+
			"score given by this extender.", "error", a.err, "extender", e.Name())
		return nil, nil
	}

	byName := make(map[string]int64, len(*a.list))
	for _, host := range *a.list {
		byName[host.Host] += host.Score * a.weight * (fwk.MaxScore / extenderv1.MaxExtenderPriority)
	}

	return rules.Mapped(nodes, func(n *cluster.Node) int64 { return byName[n.Name] }), nil
}

// Spare sends the candidate places for preemption to the extender, and returns the accepted ones in
// the order of the nodes. The extender may change the victims; Berth evicts those in the response.
// Like upstream, a response without victims for a node is an error, unless the extender is
// ignorable: then that node is skipped.
func (e *extended) Spare(c *cluster.Cluster, p *cluster.Pod, places []plugins.Place) ([]plugins.Place, error) {
	if !e.x.SupportsPreemption() {
		return places, nil
	}
	y := e.f.sessionOf(c, p)
	victims := make(map[string]*extenderv1.Victims, len(places))

	for _, place := range places {
		pods := rules.Mapped(place.Victims, func(p *cluster.Pod) *v1.Pod { return y.podOf(p, place.Node.Name).GetPod() })
		victims[place.Node.Name] = &extenderv1.Victims{Pods: pods, NumPDBViolations: int64(place.Violations)}
	}

	a, err := e.askPreempt(y, c, victims)
	if err != nil {
		return nil, err
	}
	if a.err != nil {
		if e.isIgnorable(y.ctx, a.err, "Skipped extender as it returned error and has ignorable flag set") {
			return places, nil
		}
		return nil, a.err
	}

	var spared []plugins.Place
	for name, v := range a.left {
		if _, asked := a.asked[name]; asked && victims[name] == nil {
			continue // not a candidate any longer; like upstream, nodes added by the extender are accepted
		}
		if v == nil || len(v.Pods) == 0 {
			if e.x.IsIgnorable() {
				continue
			}
			return nil, fmt.Errorf("expected at least one victim pod on node %q", name)
		}
		// A node or a victim may have been deleted during the request. Then the remaining victims,
		// if any, are not the set accepted by the extender.
		n, placed := c.Node(name), placedPods(c, v.Pods)
		if n != nil && len(placed) == len(v.Pods) {
			spared = append(spared, plugins.Place{Node: n, Victims: placed, Violations: int(v.NumPDBViolations)})
		}
	}

	// The response is a map; decisions must not depend on its order.
	slices.SortFunc(spared, func(a, b plugins.Place) int { return cmp.Compare(a.Node.Index, b.Node.Index) })
	return spared, nil
}

// placedPods returns the pods that are still placed. The rest were deleted during the request.
func placedPods(c *cluster.Cluster, pods []*v1.Pod) (placed []*cluster.Pod) {
	for _, pod := range pods {
		if p := c.Pod(pod.UID); p != nil {
			placed = append(placed, p)
		}
	}
	return placed
}

// isIgnorable reports whether the extender's error may be ignored, and logs an ignored one.
func (e *extended) isIgnorable(ctx context.Context, err error, words string) bool {
	if e.x.IsIgnorable() {
		klog.FromContext(ctx).Info(words, "extender", e.Name(), "err", err)
	}
	return e.x.IsIgnorable()
}

// nodeInfos returns the nodes in the state of the snapshot, in the order given, without
// hypothetical changes of the cluster. The nodes must belong to the cluster of the snapshot.
func (y *session) nodeInfos(nodes []*cluster.Node) []fwk.NodeInfo {
	return rules.Mapped(nodes, func(n *cluster.Node) fwk.NodeInfo { return y.snapshot.infos[n.Index] })
}

// extenderBinder is an extender that binds, replacing the plugins at Bind. It precedes all of them
// (see buildProfile). The first interested extender binds the pod; upstream's order is the same.
type extenderBinder struct {
	set *Set
	x   fwk.Extender
}

var _ cycle.Binder = &extenderBinder{}

// Name is the extender's URL prefix, its name in Profile.At for Bind.
func (b *extenderBinder) Name() string { return b.x.Name() }

// Bind implements cycle.Binder. passed is true if the next binder must bind the pod, because the
// extender does not manage the pod, or has failed and is ignorable. Bind blocks until the extender
// responds.
func (b *extenderBinder) Bind(ctx context.Context, a *cycle.Attempt) (passed bool, err error) {
	if !b.x.IsInterested(a.Pod) {
		return true, nil
	}
	err = b.x.Bind(&v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: a.Pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: a.Node},
	})
	if err != nil && b.x.IsIgnorable() {
		klog.FromContext(ctx).Info("Skipping extender in bind as it returned error and has ignorable flag set",
			"extender", b.Name(), "err", err)
		return true, nil
	}
	return false, err
}
