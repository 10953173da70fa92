// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

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

// These are the commands that drain nodes.
const (
	berth   = "berth"
	kubectl = "kubectl"
)

// The workloads of the drained cluster are Deployments with this number of replicas and a budget of
// one disruption. A pod becomes ready some seconds after it starts, and takes some seconds to end.
const (
	replicas    = 20
	readyAfter  = 3
	endsAfter   = "2s"
	drainedNode = 16000 // millicores
	drainLimit  = 10 * time.Minute
	drainSpace  = "drained"
	// restLimit limits each wait for the cluster to come to rest.
	restLimit = 10 * time.Minute
)

// drained is the cluster whose nodes are drained.
type drained struct {
	*driver.Cluster
	*options
}

// outcome holds the results for the workloads of a drained cluster.
type outcome struct {
	took     time.Duration
	refused  int // evictions that the API server rejected with 429
	outages  []time.Duration
	leftover int // workloads with a different number of replicas than before, or a label of a surge
	moves
}

// startDrained starts a control plane, Berth's controllers and simulated nodes.
func startDrained(ctx context.Context, r *driver.Run, o *options) (*drained, error) {
	c, err := r.StartCluster(ctx)
	if err != nil {
		return nil, err
	}
	d := &drained{Cluster: c, options: o}
	if err := d.startNodes(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return d, nil
}

func (d *drained) startNodes(ctx context.Context) error {
	if err := d.Serve(driver.Berth, "controller", "--leader-elect=false", "--health-bind-address=127.0.0.1:0",
		"--kubeconfig", d.Kubeconfig); err != nil {
		return err
	}
	return d.StartNodes(ctx, d.drainNodes, "--zones", strconv.Itoa(zones), "--cpu", fmt.Sprintf("%dm", drainedNode))
}

// playMoves creates workloads, calls move, which moves their pods, waits until all pods are ready
// again, removes the workloads, and returns the results.
func (d *drained) playMoves(ctx context.Context, workloads int, create func(ctx context.Context, i int) error,
	move func(ctx context.Context) error) (*outcome, error) {
	if _, err := d.CreateNamespace(ctx, drainSpace); err != nil {
		return nil, err
	}
	if err := driver.InParallel(ctx, workloads, create); err != nil {
		return nil, err
	}
	if err := d.awaitRest(ctx); err != nil {
		return nil, err
	}

	seen, err := followPods(ctx, d.Cluster, drainSpace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = seen.stop() }() // for early returns
	refused, err := d.tooMany(ctx)
	if err != nil {
		return nil, err
	}
	o, began := &outcome{}, time.Now()
	if err := move(ctx); err != nil {
		return nil, err
	}
	o.took = time.Since(began)

	// Some successors of the last pods may not exist yet. Successors still missing after the wait
	// are counted.
	if err := d.Until(ctx, "all pods to be ready", restLimit, d.nameUnready(ctx)); err != nil && ctx.Err() != nil {
		return nil, err
	}
	if o.refused, err = d.tooMany(ctx); err != nil {
		return nil, err
	}
	o.refused, o.outages = o.refused-refused, seen.listOutages()
	if o.moves, err = seen.pairMoves(); err != nil {
		return nil, err
	}
	if o.leftover, err = d.countRescaled(ctx); err != nil {
		return nil, err
	}
	return o, d.clearCluster(ctx)
}

// awaitRest waits until all pods are ready and counted by the budgets.
func (d *drained) awaitRest(ctx context.Context) error {
	if err := d.Until(ctx, "all pods to be ready", restLimit, d.nameUnready(ctx)); err != nil {
		return err
	}
	return d.Until(ctx, "the budgets to be counted", restLimit, func() (string, error) {
		list, err := d.Client.PolicyV1().PodDisruptionBudgets(drainSpace).List(ctx, metav1.ListOptions{})
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
func (d *drained) nameUnready(ctx context.Context) func() (string, error) {
	return func() (string, error) {
		list, err := d.Client.AppsV1().Deployments(drainSpace).List(ctx, metav1.ListOptions{})
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
func (d *drained) clearCluster(ctx context.Context) error {
	spaces := d.Client.CoreV1().Namespaces()
	if err := spaces.Delete(ctx, drainSpace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return d.Until(ctx, "the namespace to go", restLimit, func() (string, error) {
		_, err := spaces.Get(ctx, drainSpace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
}

// replicasNote records a workload's original number of replicas.
const replicasNote = "example.com/replicas"

// createWorkload creates a Deployment and, unless it is nil, its budget. Its pods take some seconds
// to become ready, and some seconds to end.
func (d *drained) createWorkload(ctx context.Context, name string, count int32, cpu int64, budget *policyv1.PodDisruptionBudgetSpec) error {
	grace, selector := int64(30), driver.OfApp(name)
	meta := metav1.ObjectMeta{Name: name, Annotations: map[string]string{replicasNote: strconv.Itoa(int(count))}}
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: selector.MatchLabels, Annotations: map[string]string{"berth.dev/terminate-after": endsAfter}},
		Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []v1.Container{{
			Name: "main", Image: image, Resources: v1.ResourceRequirements{Requests: driver.Amounts(cpu, 64)},
			ReadinessProbe: &v1.Probe{
				ProbeHandler:        v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(8080)}},
				InitialDelaySeconds: readyAfter, PeriodSeconds: 1,
			},
		}}},
	}

	if _, err := d.Client.AppsV1().Deployments(drainSpace).Create(ctx, &appsv1.Deployment{ObjectMeta: meta,
		Spec: appsv1.DeploymentSpec{Replicas: &count, Selector: selector, Template: template}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if budget == nil {
		return nil
	}
	budget.Selector = selector
	_, err := d.Client.PolicyV1().PodDisruptionBudgets(drainSpace).Create(ctx,
		&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *budget}, metav1.CreateOptions{})
	return err
}

// countRescaled counts the workloads with a changed number of replicas or a surge's label.
func (d *drained) countRescaled(ctx context.Context) (count int, err error) {
	list, err := d.Client.AppsV1().Deployments(drainSpace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		o := &list.Items[i]
		if o.Annotations[replicasNote] != strconv.Itoa(int(*o.Spec.Replicas)) || len(o.Labels) > 0 {
			count++
		}
	}
	return count, nil
}

// tooMany returns the number of evictions rejected by the API server with 429.
func (d *drained) tooMany(ctx context.Context) (count int, err error) {
	text, err := d.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	metrics, err := driver.ReadMetrics(bytes.NewReader(text))
	refused, _ := driver.SumMetric(metrics["apiserver_request_total"], "code=429", "subresource=eviction")
	return int(refused), err
}
