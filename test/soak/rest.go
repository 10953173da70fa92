// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// forgotten is the time after which a pending pod that could run counts as forgotten. It exceeds
// the sum of the longest back-off, a preemption and the victims' grace period.
const forgotten = 60 * time.Second

// awaitSettled is called after the faults have ended, while taints and silent nodes remain. It
// waits until every component is ready, every pod due for eviction has left, and every silent node
// is tainted. The observer reports delays.
func (c *campaign) awaitSettled(ctx context.Context) {
	began := time.Now()
	for end := began.Add(c.Rest); sleepFor(ctx, 500*time.Millisecond); {
		up := len(c.notUp(ctx)) == 0
		// Pods that tolerate a taint for a while return to its node, so that one may always be due.
		if up && (c.observer.checkLate(time.Now(), 0) == 0 || c.Faults && time.Since(began) > evictionDelayLimit+recovers) {
			return
		}
		if time.Now().After(end) {
			c.addViolation(comesToRest, fmt.Sprintf("%s after the end of faults not all parts are well (%v), or pods that "+
				"have to leave are there", c.Rest, c.notUp(ctx)), c.plane.name)
			return
		}
	}
}

// notUp describes the parts that are not ready.
func (c *campaign) notUp(ctx context.Context) (names []string) {
	for _, p := range c.parts {
		switch {
		case c.drains != nil && p == c.drains.part:
		case p.pid() == 0:
			names = append(names, p.name+" does not run")
		case p == c.plane:
			if err := c.checkReady(ctx); err != nil {
				names = append(names, fmt.Sprintf("%s does not answer: %v", p.name, err))
			}
		case p.kindName() != "nodes":
			if body, err := p.getPath("/readyz"); err != nil {
				names = append(names, fmt.Sprintf("%s is not ready: %v", p.name, err))
			} else if strings.TrimSpace(body) != "ok" {
				names = append(names, fmt.Sprintf("%s is not ready: %.200s", p.name, body))
			}
		}
	}

	return names
}

// awaitRest reverts changes to nodes, fills the nodes, and waits until the cluster is at rest:
// every pod runs, or is pending for a reason.
func (c *campaign) awaitRest(ctx context.Context) bool {
	began := time.Now()
	could := map[types.UID]time.Time{} // by pending pod: time since which the pod could have run
	var left []string
	whole := false // whether objects deleted in the storm were created again
	for sleepFor(ctx, time.Second) {
		asking, cancel := context.WithTimeout(ctx, 20*time.Second)
		var err error
		if !whole {
			err = errors.Join(createObjects(asking, c.client, c.Nodes), c.churn.fillNodes(asking))
			whole = err == nil
		}
		if err = errors.Join(err, c.churn.restoreNodes(asking)); err != nil {
			left = []string{fmt.Sprint("the API does not let all be as before: ", err)}
		} else {
			left, err = c.listUnrest(asking, could)
			if err != nil {
				left = []string{err.Error()}
			}
		}
		cancel()
		left = append(left, c.notUp(ctx)...)
		c.observer.checks.addOne(comesToRest)
		c.mu.Lock()
		c.unrest = left
		c.mu.Unlock()
		if len(left) == 0 {
			c.mu.Lock()
			c.rests = append(c.rests, time.Since(began))
			c.mu.Unlock()
			c.measureParts()
			return true
		}
		if time.Since(began) > c.Rest {
			c.addViolation(comesToRest, fmt.Sprintf("%s after all was well again: %s", c.Rest,
				strings.Join(left[:min(len(left), 5)], "; ")), namesIn(left)...)
			return false
		}
	}
	return false
}

// namesIn returns the names in the first three items. Each name is the second word of its item.
func namesIn(left []string) (names []string) {
	for _, l := range left[:min(len(left), 3)] {
		if words := strings.Fields(l); len(words) > 1 {
			names = append(names, words[1])
		}
	}
	return names
}

// listUnrest lists the objects not at rest in a snapshot of the cluster.
func (c *campaign) listUnrest(ctx context.Context, could map[types.UID]time.Time) (left []string, err error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}

	pods, err := c.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}

	for i := range nodes.Items {
		if n := &nodes.Items[i]; len(n.Spec.Taints) > 0 || !nodeReady(n) {
			left = append(left, fmt.Sprintf("node %s is not as before: taints %v", n.Name, n.Spec.Taints))
		}
	}

	if len(nodes.Items) != c.Nodes {
		left = append(left, fmt.Sprintf("there are %d nodes", len(nodes.Items)))
	}
	judge := newJudge(nodes.Items, pods.Items)
	for i := range pods.Items {
		p := &pods.Items[i]
		if isWaiting(p) {
			c.observer.checks.addOne(noneForgot)
			if why := judge.couldRun(p); why != "" {
				left = append(left, fmt.Sprintf("pod %s waits, and %s", podKey(p), why))
				c.noteCould(p, why, could)
				continue
			}
		} else if why := whyUnsettled(p); why != "" {
			left = append(left, fmt.Sprintf("pod %s %s", podKey(p), why))
		}
		delete(could, p.UID)
	}

	if !c.Faults {
		return left, nil
	}
	workloads, err := c.listWorkloads(ctx)
	return append(left, c.listRemains(nodes.Items, pods.Items, workloads)...), err
}

// noteCould reports a violation if a pod has been pending for long although it could run.
func (c *campaign) noteCould(p *v1.Pod, why string, could map[types.UID]time.Time) {
	since, known := could[p.UID]
	if !known {
		could[p.UID] = time.Now()
		return
	}
	if waited := time.Since(since); waited > forgotten {
		c.addViolation(noneForgot, fmt.Sprintf("pod %s has waited for %s with all well, and %s", podKey(p),
			waited.Round(time.Second), why), podKey(p))
		could[p.UID] = time.Now().Add(24 * time.Hour) // report each pod once
	}
}

func nodeReady(n *v1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady &&
			c.Status == v1.ConditionTrue
	})
}

// whyUnsettled describes why a pod is not at rest, or returns "".
func whyUnsettled(p *v1.Pod) string {
	switch {
	case p.DeletionTimestamp != nil:
		return "is leaving"
	case p.Status.Phase == v1.PodSucceeded, p.Status.Phase == v1.PodFailed, len(p.Spec.SchedulingGates) > 0:
		return ""
	case p.Spec.NodeName != "" && !isReady(p):
		return "is not ready on " + p.Spec.NodeName
	case p.Labels["app"] == "job":
		return "runs to its end"
	}
	return ""
}

// judge evaluates pending pods with the plain evaluator.
type judge struct {
	nodes   []v1.Node
	pods    []v1.Pod
	profile *plugins.Profile
	now     *cluster.Cluster
	without map[int32]*cluster.Cluster // by priority: the cluster without pods of lower priorities
}

func newJudge(nodes []v1.Node, pods []v1.Pod) *judge {
	j := &judge{nodes: nodes, pods: pods, profile: plugins.Default(), without: map[int32]*cluster.Cluster{}}
	j.now = j.pictureOf(func(*v1.Pod) bool { return true })
	return j
}

func (j *judge) pictureOf(counts func(*v1.Pod) bool) *cluster.Cluster {
	c := cluster.New()
	for i := range j.nodes {
		c.SetNode(&j.nodes[i])
	}
	for i := range j.pods {
		if p := &j.pods[i]; p.Spec.NodeName != "" && counts(p) {
			c.SetPod(p)
		}
	}
	return c
}

// couldRun describes how a pending pod could run, with or without preemption, or returns "".
func (j *judge) couldRun(p *v1.Pod) string {
	if e := decide.NewPlain(j.now, j.profile).Evaluate(j.now.Pending(p)); e.Err == nil && e.Feasible > 0 {
		return fmt.Sprintf("%d nodes could take it", e.Feasible)
	}
	if p.Spec.SchedulerName == careful {
		return "" // its possible victims depend on budgets
	}
	limit := priorityOf(p)
	if j.without[limit] == nil {
		j.without[limit] = j.pictureOf(func(other *v1.Pod) bool { return priorityOf(other) >= limit })
	}
	c := j.without[limit]
	if e := decide.NewPlain(c, j.profile).Evaluate(c.Pending(p)); e.Err == nil && e.Feasible > 0 {
		return fmt.Sprintf("%d nodes could take it in place of pods that matter less", e.Feasible)
	}
	return ""
}
