// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workloads

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Namespace is the namespace of all workloads.
const Namespace = "drained"

// A pod becomes ready some seconds after it starts, and takes some seconds to end.
const (
	readyAfter = 3
	endsAfter  = "2s"
	image      = "registry.example/app:v1"
	// restLimit limits each wait for the cluster to come to rest.
	restLimit = 10 * time.Minute
	// scaleLimit limits the wait for the scales to be restored.
	scaleLimit = 2 * time.Minute
)

// Cluster is a cluster whose pods are moved.
type Cluster struct {
	*driver.Cluster
	// NodeSelector selects the nodes of all workloads.
	NodeSelector map[string]string
}

// Outcome holds the results for the workloads of a cluster whose pods are moved.
type Outcome struct {
	Took     time.Duration
	Refused  int // evictions that the API server rejected with 429
	Outages  []time.Duration
	Leftover int // workloads with a different number of replicas than before, or a label of a surge
	Moves
}

// Play creates workloads, calls move, which moves their pods, waits until all pods are ready
// again, removes the workloads, and returns the results.
func (c *Cluster) Play(ctx context.Context, workloads int, create func(ctx context.Context, i int) error,
	move func(ctx context.Context) error) (*Outcome, error) {
	if _, err := c.CreateNamespace(ctx, Namespace); err != nil {
		return nil, err
	}
	if err := driver.InParallel(ctx, workloads, create); err != nil {
		return nil, err
	}
	if err := c.awaitRest(ctx); err != nil {
		return nil, err
	}

	seen, err := followPods(ctx, c.Cluster, Namespace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = seen.stop() }() // for early returns
	refused, err := c.tooMany(ctx)
	if err != nil {
		return nil, err
	}
	o, began := &Outcome{}, time.Now()
	if err := move(ctx); err != nil {
		return nil, err
	}
	o.Took = time.Since(began)

	// Some successors of the last pods may not exist yet. Successors still missing after the wait
	// are counted.
	if err := c.Until(ctx, "all pods to be ready", restLimit, c.nameUnready(ctx)); err != nil && ctx.Err() != nil {
		return nil, err
	}
	if o.Refused, err = c.tooMany(ctx); err != nil {
		return nil, err
	}
	o.Refused, o.Outages = o.Refused-refused, seen.listOutages()
	if o.Moves, err = seen.pairMoves(); err != nil {
		return nil, err
	}
	// Replacements may still be in progress. Scales that are not restored after the wait are
	// counted.
	err = c.Until(ctx, "the scales to be restored", scaleLimit, func() (why string, err error) {
		o.Leftover, err = c.countRescaled(ctx)
		return driver.Lacking(o.Leftover, 0), err
	})
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	return o, c.clearCluster(ctx)
}

// awaitRest waits until all pods are ready and counted by the budgets.
func (c *Cluster) awaitRest(ctx context.Context) error {
	if err := c.Until(ctx, "all pods to be ready", restLimit, c.nameUnready(ctx)); err != nil {
		return err
	}
	return c.Until(ctx, "the budgets to be counted", restLimit, func() (string, error) {
		list, err := c.Client.PolicyV1().PodDisruptionBudgets(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			if b := &list.Items[i]; b.Status.ExpectedPods == 0 || b.Status.CurrentHealthy < b.Status.ExpectedPods {
				return b.Name + " is not counted", nil
			}
		}
		return "", nil
	})
}

// nameUnready returns a condition for Until, which reports a workload whose pods are not all ready.
func (c *Cluster) nameUnready(ctx context.Context) func() (string, error) {
	return func() (string, error) {
		list, err := c.Client.AppsV1().Deployments(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			if s := &list.Items[i]; s.Status.ReadyReplicas < *s.Spec.Replicas {
				return fmt.Sprintf("%s has %d of %d", s.Name, s.Status.ReadyReplicas, *s.Spec.Replicas), nil
			}
		}
		return "", nil
	}
}

// clearCluster removes the workloads and their pods.
func (c *Cluster) clearCluster(ctx context.Context) error {
	spaces := c.Client.CoreV1().Namespaces()
	if err := spaces.Delete(ctx, Namespace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return c.Until(ctx, "the namespace to go", restLimit, func() (string, error) {
		_, err := spaces.Get(ctx, Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
}

// ReplicasNote records a workload's original number of replicas.
const ReplicasNote = "example.com/replicas"

// Create creates a Deployment and, unless it is nil, its budget. Its pods take some seconds to
// become ready, and some seconds to end.
func (c *Cluster) Create(ctx context.Context, name string, count int32, cpu int64, budget *policyv1.PodDisruptionBudgetSpec) error {
	grace, selector := int64(30), driver.OfApp(name)
	meta := metav1.ObjectMeta{Name: name, Annotations: map[string]string{ReplicasNote: strconv.Itoa(int(count))}}
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: selector.MatchLabels, Annotations: map[string]string{"berth.dev/terminate-after": endsAfter}},
		Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace, NodeSelector: c.NodeSelector, Containers: []v1.Container{{
			Name: "main", Image: image, Resources: v1.ResourceRequirements{Requests: driver.Amounts(cpu, 64)},
			ReadinessProbe: &v1.Probe{
				ProbeHandler:        v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(8080)}},
				InitialDelaySeconds: readyAfter, PeriodSeconds: 1,
			},
		}}},
	}

	if _, err := c.Client.AppsV1().Deployments(Namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: meta,
		Spec: appsv1.DeploymentSpec{Replicas: &count, Selector: selector, Template: template}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if budget == nil {
		return nil
	}
	budget.Selector = selector
	_, err := c.Client.PolicyV1().PodDisruptionBudgets(Namespace).Create(ctx,
		&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *budget}, metav1.CreateOptions{})
	return err
}

// In a mix of workloads, a fifth of the workloads have one replica, and half of these have a budget
// that requires it. A little more than a quarter of the other workloads have a budget of one
// disruption.
const (
	// PerWorkload is the number of pods of a workload, on average.
	PerWorkload  = 10
	singleOf     = 5
	sharedBudget = 7 // of 24 workloads, the first 7 have a budget if they have several replicas
)

// CreateMixed creates the i-th workload of a mix, with pods that request cpu.
func (c *Cluster) CreateMixed(ctx context.Context, i int, cpu int64) error {
	count, one := mixedReplicas(i), intstr.FromInt32(1)
	var budget *policyv1.PodDisruptionBudgetSpec
	switch {
	case count == 1 && i%(2*singleOf) == 0:
		budget = &policyv1.PodDisruptionBudgetSpec{MinAvailable: &one}
	case count > 1 && i%24 < sharedBudget:
		budget = &policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one}
	}
	return c.Create(ctx, fmt.Sprintf("app-%d", i), count, cpu, budget)
}

// mixedReplicas returns the replicas of the i-th workload: one, or enough for the average.
func mixedReplicas(i int) int32 {
	if i%singleOf == 0 {
		return 1
	}
	if i%singleOf == 1 {
		return 13
	}
	return 12 // five workloads have 1 + 13 + 3 * 12 replicas
}

// countRescaled counts the workloads with a changed number of replicas or a surge's label.
func (c *Cluster) countRescaled(ctx context.Context) (count int, err error) {
	list, err := c.Client.AppsV1().Deployments(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		o := &list.Items[i]
		if o.Annotations[ReplicasNote] != strconv.Itoa(int(*o.Spec.Replicas)) || len(o.Labels) > 0 {
			count++
		}
	}
	return count, nil
}

// tooMany returns the number of evictions rejected by the API server with 429.
func (c *Cluster) tooMany(ctx context.Context) (count int, err error) {
	text, err := c.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	metrics, err := driver.ReadMetrics(bytes.NewReader(text))
	refused, _ := driver.SumMetric(metrics["apiserver_request_total"], "code=429", "subresource=eviction")
	return int(refused), err
}
