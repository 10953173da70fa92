// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/berth-k8s/berth/internal/node/simnodes"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

// churn performs actions of users and administrators, in an order determined by the seed.
type churn struct {
	client kubernetes.Interface
	rng    *rand.Rand
	nodes  int
	counts *counts
	jobs   int
	mends  int // factor for the frequency of actions that revert changes to nodes; 0 means 1
}

// action is a change to the workloads or nodes.
type action struct {
	name  string
	often int
	do    func(context.Context) error
}

// listActions returns the possible actions with their relative frequencies.
func (c *churn) listActions() []action {
	mends := max(1, c.mends)

	return []action{
		{"workload scaled", 10, c.scaleWorkload},
		{"workload rolled", 3, c.rollWorkload},
		{"job made", 4, c.makeJob},
		{"pod deleted", 3, c.deletePod},
		{"workload deleted and made anew", 1, c.recreateWorkload},

		{"node tainted NoExecute", 6, func(ctx context.Context) error { return c.taintNode(ctx, evictKey, v1.TaintEffectNoExecute) }},
		{"node tainted NoSchedule", 2, func(ctx context.Context) error { return c.taintNode(ctx, rejectKey, v1.TaintEffectNoSchedule) }},
		{"node tainted PreferNoSchedule", 1,
			func(ctx context.Context) error { return c.taintNode(ctx, avoidKey, v1.TaintEffectPreferNoSchedule) }},
		{"node untainted", 4 * mends, c.untaintNode},
		{"node cordoned", 2, func(ctx context.Context) error { return c.cordonNode(ctx, c.randomNode(), true) }},
		{"node uncordoned", 3 * mends, func(ctx context.Context) error { return c.uncordonOne(ctx) }},
		{"node drained", 2, c.drainNode},
		{"node silenced", 2, c.failNodes},
		{"node recovered", 2 * mends, c.recoverNode},
		{"node under pressure", 1, c.pressNode},
	}
}

// runActions performs one action after the other until the context ends.
func (c *churn) runActions(ctx context.Context) {
	deeds, sum := c.listActions(), 0
	for _, d := range deeds {
		sum += d.often
	}

	for sleepFor(ctx, time.Duration(c.rng.Int64N(int64(600*time.Millisecond)))) {
		dice := c.rng.IntN(sum)
		i := slices.IndexFunc(deeds, func(d action) bool { dice -= d.often; return dice < 0 })
		doing, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := deeds[i].do(doing)
		cancel()
		switch {
		case err == nil:
			c.counts.addOne(deeds[i].name)
		case ctx.Err() == nil:
			c.counts.addOne("not done: the API did not let it")
		}
	}
}

func (c *churn) randomNode() string { return fmt.Sprintf("node-%d", 1+c.rng.IntN(c.nodes)) }

func (c *churn) randomWorkload() *workload {
	all := allWorkloads()
	return &all[c.rng.IntN(len(all))]
}

func (c *churn) patchWorkload(ctx context.Context, l *workload, body string) error {
	var err error
	if l.set {
		_, err = c.client.AppsV1().StatefulSets(namespace).Patch(ctx, l.name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	} else {
		_, err = c.client.AppsV1().Deployments(namespace).Patch(ctx, l.name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	}
	return err
}

func (c *churn) scaleWorkload(ctx context.Context) error {
	l := c.randomWorkload()
	return c.patchWorkload(ctx, l, fmt.Sprintf(`{"spec":{"replicas":%d}}`, c.rng.IntN(l.mostPods(c.nodes)+1)))
}

func (c *churn) rollWorkload(ctx context.Context) error {
	return c.patchWorkload(ctx, c.randomWorkload(),
		fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"rolled":"%d"}}}}}`, c.rng.Uint32()))
}

func (c *churn) recreateWorkload(ctx context.Context) error {
	l, policy := c.randomWorkload(), metav1.DeletePropagationBackground
	replicas := c.rng.IntN(l.mostPods(c.nodes) + 1)
	options := metav1.DeleteOptions{PropagationPolicy: &policy}
	var err error
	if l.set {
		err = c.client.AppsV1().StatefulSets(namespace).Delete(ctx, l.name, options)
	} else {
		err = c.client.AppsV1().Deployments(namespace).Delete(ctx, l.name, options)
	}
	if err != nil {
		return err
	}
	return retry.OnError(retry.DefaultBackoff, func(error) bool { return true },
		func() error { return l.createWorkload(ctx, c.client, replicas) })
}

func (c *churn) makeJob(ctx context.Context) error {
	c.jobs++
	j := newJob(fmt.Sprintf("job-%d", c.jobs), int32(1+c.rng.IntN(8)), int32(1+c.rng.IntN(4)), int64(100+100*c.rng.IntN(8)))
	_, err := c.client.BatchV1().Jobs(namespace).Create(ctx, j, metav1.CreateOptions{})
	return err
}

func (c *churn) deletePod(ctx context.Context) error {
	l := c.randomWorkload()
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + l.name, ResourceVersion: "0"})
	if err != nil || len(pods.Items) == 0 {
		return err
	}
	return c.client.CoreV1().Pods(namespace).Delete(ctx, pods.Items[c.rng.IntN(len(pods.Items))].Name, metav1.DeleteOptions{})
}

// changeNode updates a node, retrying on conflicts.
func (c *churn) changeNode(ctx context.Context, name string, change func(*v1.Node)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(node)
		_, err = c.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// taintNode adds a taint to a node. TimeAdded is empty, as with kubectl, or is taken from a clock
// that may be wrong by an hour.
func (c *churn) taintNode(ctx context.Context, key string, effect v1.TaintEffect) error {
	t := v1.Taint{Key: key, Value: fmt.Sprint(c.rng.IntN(3)), Effect: effect}
	if wrong := []time.Duration{0, 0, -time.Hour, time.Hour}; effect == v1.TaintEffectNoExecute && c.rng.IntN(3) == 0 {
		t.TimeAdded = &metav1.Time{Time: time.Now().Add(wrong[c.rng.IntN(len(wrong))]).Truncate(time.Second)}
	}
	return c.changeNode(ctx, c.randomNode(), func(n *v1.Node) {
		if !slices.ContainsFunc(n.Spec.Taints, func(has v1.Taint) bool { return has.MatchTaint(&t) }) {
			n.Spec.Taints = append(n.Spec.Taints, t)
		}
	})
}

func isOurs(t v1.Taint) bool { return strings.HasPrefix(t.Key, "soak/") }

// someNode returns a random matching node, or "".
func (c *churn) someNode(ctx context.Context, is func(*v1.Node) bool) (string, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return "", err
	}
	start := c.rng.IntN(c.nodes)
	for i := range nodes.Items {
		if n := &nodes.Items[(start+i)%len(nodes.Items)]; is(n) {
			return n.Name, nil
		}
	}
	return "", nil
}

func (c *churn) untaintNode(ctx context.Context) error {
	name, err := c.someNode(ctx, func(n *v1.Node) bool { return slices.ContainsFunc(n.Spec.Taints, isOurs) })
	if name == "" {
		return err
	}
	return c.changeNode(ctx, name, func(n *v1.Node) { n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, isOurs) })
}

func (c *churn) cordonNode(ctx context.Context, name string, cordoned bool) error {
	body := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, cordoned)
	_, err := c.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

func (c *churn) uncordonOne(ctx context.Context) error {
	name, err := c.someNode(ctx, func(n *v1.Node) bool { return n.Spec.Unschedulable })
	if name == "" {
		return err
	}
	return c.cordonNode(ctx, name, false)
}

// drainNode cordons a node and requests the eviction of each of its pods once, except DaemonSet
// pods. Budgets may forbid an eviction.
func (c *churn) drainNode(ctx context.Context) error {
	name := c.randomNode()
	if err := c.cordonNode(ctx, name, true); err != nil {
		return err
	}

	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
	if err != nil {
		return err
	}

	for i := range pods.Items {
		if pods.Items[i].Labels["app"] == "daemon" {
			continue
		}
		meta := metav1.ObjectMeta{Name: pods.Items[i].Name, Namespace: namespace}
		if c.client.CoreV1().Pods(namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: meta}) == nil {
			c.counts.addOne("pod evicted by drain")
		}
	}

	return nil
}

func (c *churn) nodeFaults() simnodes.Faults { return simnodes.Faults{Client: c.client} }

// failNodes stops the heartbeats of a node or occasionally of a zone, like `berth nodes fail`.
func (c *churn) failNodes(ctx context.Context) error {
	which := simnodes.Selection{Names: []string{c.randomNode()}}
	if c.rng.IntN(6) == 0 {
		which = simnodes.Selection{Zones: []string{fmt.Sprintf("z%d", 1+c.rng.IntN(3))}}
	}
	_, err := c.nodeFaults().Fail(ctx, which, 0)
	return err
}

func isSilent(n *v1.Node) bool { return n.Annotations[simkubelet.AnnotationHeartbeat] != "" }

func (c *churn) recoverNode(ctx context.Context) error {
	name, err := c.someNode(ctx, isSilent)
	if name == "" {
		return err
	}
	_, err = c.nodeFaults().Recover(ctx, simnodes.Selection{Names: []string{name}})
	return err
}

func (c *churn) pressNode(ctx context.Context) error {
	_, err := c.nodeFaults().SetConditions(ctx, simnodes.Selection{Names: []string{c.randomNode()}},
		simkubelet.Conditions{v1.NodeMemoryPressure: v1.ConditionTrue})
	return err
}

// fillNodes scales Deployments beyond the capacity of the nodes: one by its CPU, and one by an
// extended resource. Every node is then full at rest, so the observer notices capacity lost by a
// scheduler's accounting.
func (c *churn) fillNodes(ctx context.Context) error {
	for name, replicas := range map[string]int{filler: c.nodes * nodeCPU * 2, guarded: c.nodes*nodeWidgets + 1} {
		body := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
		if _, err := c.client.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, body,
			metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// restoreNodes reverts all changes to nodes.
func (c *churn) restoreNodes(ctx context.Context) error {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}

	for i := range nodes.Items {
		n := &nodes.Items[i]
		if !n.Spec.Unschedulable && !isSilent(n) && n.Annotations[simkubelet.AnnotationConditions] == "" &&
			!slices.ContainsFunc(n.Spec.Taints, isOurs) {
			continue
		}
		if err := c.changeNode(ctx, n.Name, func(n *v1.Node) {
			n.Spec.Unschedulable = false
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, isOurs)
			for _, annotation := range []string{simkubelet.AnnotationConditions, simkubelet.AnnotationHeartbeat,
				simkubelet.AnnotationHeartbeatUntil} {
				delete(n.Annotations, annotation)
			}
		}); err != nil {
			return err
		}
	}

	return nil
}
