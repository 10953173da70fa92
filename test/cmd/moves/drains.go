// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/bench/workloads"
	"github.com/berth-k8s/berth/test/internal/process"
)

// These are the commands that drain nodes.
const (
	berth   = "berth"
	kubectl = "kubectl"
)

// The workloads of the drained cluster are Deployments with this number of replicas and a budget of
// one disruption.
const (
	replicas    = 20
	drainedNode = 16000 // millicores
	drainLimit  = 10 * time.Minute
)

// drained is the cluster whose nodes are drained.
type drained struct {
	workloads.Cluster
	*options
}

// startDrained starts a control plane, Berth's controllers and simulated nodes.
func startDrained(ctx context.Context, r *driver.Run, o *options) (*drained, error) {
	c, err := r.StartCluster(ctx)
	if err != nil {
		return nil, err
	}
	d := &drained{Cluster: workloads.Cluster{Cluster: c}, options: o}
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

// drainResult holds the results of one drain.
type drainResult struct {
	scheduler, drain string
	usage            process.Usage
	ended            error
	*workloads.Outcome
}

// measureDrains measures the draining of the first nodes of a cluster, with each command under each
// scheduler.
func measureDrains(ctx context.Context, r *driver.Run, o *options) error {
	d, err := startDrained(ctx, r, o)
	if err != nil {
		return err
	}
	defer d.Stop()

	var results []drainResult
	load := process.LoadAverage()
	for _, s := range o.schedulers {
		p, err := d.StartScheduler(&s, "--secure-port", "0")
		if err != nil {
			return err
		}
		for _, drain := range []string{kubectl, berth} {
			if !driver.Chosen(o.drains, drain) {
				continue
			}
			one, err := d.measureDrain(ctx, s.Name, drain)
			if err != nil {
				p.Kill()
				return fmt.Errorf("%s beside %s: %w", drain, s.Name, err)
			}
			r.Printf("%s beside %s: %d pods in %.1f s, pending for %v in all", drain, s.Name, len(one.Pending),
				one.usage.Took.Seconds(), workloads.Sum(one.Pending).Round(time.Millisecond))
			results = append(results, *one)
		}
		if _, err := p.Stop(); err != nil {
			return err
		}
	}

	writeDrains(results, o, load)
	return nil
}

// measureDrain drains the first nodes with one command, and uncordons them again.
func (d *drained) measureDrain(ctx context.Context, scheduler, drain string) (r *drainResult, err error) {
	d.Printf("%s beside %s: %d pods come", drain, scheduler, d.drainPods)
	var nodes []string
	for i := range d.drained {
		nodes = append(nodes, fmt.Sprintf("node-%d", i+1))
	}
	args := []string{"drain", "--config", filepath.Join(d.Dir, driver.SchedulerFile)}
	if drain == kubectl {
		args = []string{"kubectl", "drain"}
	}
	args = append(append(args, nodes...), "--ignore-daemonsets", "--timeout", drainLimit.String(), "--kubeconfig", d.Kubeconfig)

	r = &drainResult{scheduler: scheduler, drain: drain}
	r.Outcome, err = d.Play(ctx, max(1, d.drainPods/replicas), d.drainWorkload, func(ctx context.Context) error {
		r.usage, r.ended = d.Ask(ctx, nil, driver.Berth, "drain-"+scheduler+"-"+drain, args...)
		if r.ended != nil {
			d.Printf("%s beside %s: %v", drain, scheduler, r.ended)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}

	for _, name := range nodes {
		if _, err := d.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType,
			[]byte(`{"spec": {"unschedulable": false}}`), metav1.PatchOptions{}); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// weights are the relative requests of the workloads' pods.
var weights = []int{1, 1, 2, 4}

// drainWorkload creates the i-th Deployment with its budget.
func (d *drained) drainWorkload(ctx context.Context, i int) error {
	apps := max(1, d.drainPods/replicas)
	count := d.drainPods / apps
	left, all := (d.drainNodes-d.drained)*drainedNode*d.full/100, 0
	for k := range apps {
		all += weights[k%len(weights)] * count
	}
	one := intstr.FromInt32(1)
	return d.Create(ctx, fmt.Sprintf("app-%d", i), int32(count), int64(left/all*weights[i%len(weights)]),
		&policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one})
}

func writeDrains(results []drainResult, o *options, load string) {
	rows := [][]string{{"scheduler", "drain", "took", "moved", "twice", "never placed", "refused", "pending in all",
		"a pod", "longest", "eviction to ready in all", "a pod", "longest", "CPU of the drain", "memory"}}
	for i := range results {
		r := &results[i]
		row := []string{
			r.scheduler, r.drain + " drain",
			fmt.Sprintf("%.1f s", r.usage.Took.Seconds()), strconv.Itoa(r.Moved), strconv.Itoa(r.Twice),
			strconv.Itoa(r.Moved - len(r.Ready)), strconv.Itoa(r.Refused),
		}
		for _, of := range [][]time.Duration{r.Pending, r.Ready} {
			row = append(row, driver.Short(workloads.Sum(of)),
				driver.Short(workloads.Sum(of)/time.Duration(max(1, len(of)))), driver.Short(workloads.Longest(of)))
		}
		if r.ended != nil {
			row[2] += " (failed)"
		}
		rows = append(rows, append(row, driver.Short(r.usage.CPU), driver.Mebibytes(r.usage.Peak)))
	}

	driver.Table(os.Stdout, fmt.Sprintf("Drains: %d of %d nodes, %d pods with budgets, %d %% of what is left asked for (load average %s)",
		o.drained, o.drainNodes, o.drainPods, o.full, load), rows)
}
