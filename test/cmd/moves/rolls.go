// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// In the rolled cluster, a fifth of the workloads have one replica, and half of these have a budget
// that requires it. A little more than a quarter of the other workloads have a budget of one
// disruption.
const (
	perWorkload  = 10 // pods, on average
	singleOf     = 5
	sharedBudget = 7 // of 24 workloads, the first 7 have a budget if they have several replicas
)

// rollResult holds the results of draining every node in turn.
type rollResult struct {
	drain   string
	blocked int // nodes that were not empty within the time limit
	*outcome
}

// measureRolls measures the draining of every node of a cluster in turn, by kubectl drain and by
// berth drain with surges.
func measureRolls(ctx context.Context, r *driver.Run, o *options) error {
	d, err := startDrained(ctx, r, o)
	if err != nil {
		return err
	}
	defer d.Stop()
	scheduler, err := d.StartScheduler(&driver.Schedulers[1], "--secure-port", "0")
	if err != nil {
		return err
	}
	defer scheduler.Kill()

	var results []*rollResult
	load := process.LoadAverage()
	for _, drain := range []string{kubectl, berth} {
		if !driver.Chosen(o.drains, drain) {
			continue
		}
		one := &rollResult{drain: drain}
		d.Printf("roll by %s: %d pods of %d workloads come", drain, o.rollPods, o.rollPods/perWorkload)
		one.outcome, err = d.playMoves(ctx, o.rollPods/perWorkload, d.rollWorkload, func(ctx context.Context) error {
			if drain == berth {
				return d.rollByBerth(ctx)
			}
			return d.rollByKubectl(ctx, one)
		})
		if err != nil {
			return fmt.Errorf("roll by %s: %w", drain, err)
		}
		d.Printf("%s: %d pods moved in %.0f s, %d workloads without a ready replica for %.1f s in all", drain, one.moved,
			one.took.Seconds(), len(one.outages), sumDurations(one.outages).Seconds())
		results = append(results, one)
	}
	writeRolls(results, o, load)
	return nil
}

// rollByKubectl drains and uncordons one node after the other, like a script that uses kubectl. It
// also uncordons a node whose drain timed out.
func (d *drained) rollByKubectl(ctx context.Context, r *rollResult) error {
	kubectl := func(args ...string) error {
		args = slices.Concat([]string{"kubectl"}, args, []string{"--kubeconfig", d.Kubeconfig})
		_, err := d.Ask(ctx, nil, driver.Berth, "roll-kubectl", args...)
		return err
	}
	for i := range d.drainNodes {
		node := fmt.Sprintf("node-%d", i+1)
		if kubectl("drain", node, "--ignore-daemonsets", "--timeout", d.rollTimeout.String()) != nil {
			r.blocked++
		}
		if err := kubectl("uncordon", node); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (d *drained) rollByBerth(ctx context.Context) error {
	usage, err := d.Ask(ctx, nil, driver.Berth, "roll-berth", "drain", "--roll", v1.LabelHostname,
		"--uncordon-when", "drained", "--surge", "--ignore-daemonsets",
		"--config", filepath.Join(d.Dir, driver.SchedulerFile), "--kubeconfig", d.Kubeconfig)
	d.Printf("berth drain took %.1f s of CPU and %d MiB", usage.CPU.Seconds(), usage.Peak>>20)
	return err
}

// rollReplicas returns the replicas of the i-th workload: one, or enough for the average.
func rollReplicas(i int) int32 {
	if i%singleOf == 0 {
		return 1
	}
	if i%singleOf == 1 {
		return 13
	}
	return 12 // five workloads have 1 + 13 + 3 * 12 replicas
}

// rollFull returns the percentage of all nodes' CPU that the pods request. It leaves enough CPU for
// the pods of a drained node and the additional pods of surges.
func (d *drained) rollFull() int { return min(d.full, 80) }

// rollWorkload creates the i-th Deployment. A third of the Deployments get a budget.
func (d *drained) rollWorkload(ctx context.Context, i int) error {
	count, one := rollReplicas(i), intstr.FromInt32(1)
	var budget *policyv1.PodDisruptionBudgetSpec
	switch {
	case count == 1 && i%(2*singleOf) == 0:
		budget = &policyv1.PodDisruptionBudgetSpec{MinAvailable: &one}
	case count > 1 && i%24 < sharedBudget:
		budget = &policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one}
	}
	return d.createWorkload(ctx, fmt.Sprintf("app-%d", i), count, int64(d.drainNodes*drainedNode*d.rollFull()/100/d.rollPods), budget)
}

func writeRolls(results []*rollResult, o *options, load string) {
	rows := [][]string{{"drain", "took", "nodes blocked", "evictions refused", "pods moved", "a pod of the cluster",
		"workloads without a ready replica", "in all", "longest", "scales changed"}}
	for _, r := range results {
		rows = append(rows, []string{
			map[string]string{kubectl: "kubectl drain", berth: "berth drain --roll --surge"}[r.drain],
			fmt.Sprintf("%.0f s", r.took.Seconds()), strconv.Itoa(r.blocked), strconv.Itoa(r.refused),
			strconv.Itoa(r.moved), fmt.Sprintf("%.2f", float64(r.moved)/float64(o.rollPods)),
			strconv.Itoa(len(r.outages)), fmt.Sprintf("%.1f s", sumDurations(r.outages).Seconds()),
			fmt.Sprintf("%.1f s", longestOf(r.outages).Seconds()), strconv.Itoa(r.leftover),
		})
	}
	driver.Table(os.Stdout, fmt.Sprintf("Every one of %d nodes drained in turn, %d pods of %d workloads (load average %s)",
		o.drainNodes, o.rollPods, o.rollPods/perWorkload, load), rows)
}
