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

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/bench/workloads"
	"github.com/berth-k8s/berth/test/internal/process"
)

// rollResult holds the results of draining every node in turn.
type rollResult struct {
	drain   string
	blocked int // nodes that were not empty within the time limit
	*workloads.Outcome
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
		d.Printf("roll by %s: %d pods of %d workloads come", drain, o.rollPods, o.rollPods/workloads.PerWorkload)
		one.Outcome, err = d.Play(ctx, o.rollPods/workloads.PerWorkload, d.rollWorkload, func(ctx context.Context) error {
			if drain == berth {
				return d.rollByBerth(ctx)
			}
			return d.rollByKubectl(ctx, one)
		})
		if err != nil {
			return fmt.Errorf("roll by %s: %w", drain, err)
		}
		d.Printf("%s: %d pods moved in %.0f s, %d workloads without a ready replica for %.1f s in all", drain, one.Moved,
			one.Took.Seconds(), len(one.Outages), workloads.Sum(one.Outages).Seconds())
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

// rollFull returns the percentage of all nodes' CPU that the pods request. It leaves enough CPU for
// the pods of a drained node and the additional pods of surges.
func (d *drained) rollFull() int { return min(d.full, 80) }

// rollWorkload creates the i-th workload.
func (d *drained) rollWorkload(ctx context.Context, i int) error {
	return d.CreateMixed(ctx, i, int64(d.drainNodes*drainedNode*d.rollFull()/100/d.rollPods))
}

func writeRolls(results []*rollResult, o *options, load string) {
	rows := [][]string{{"drain", "took", "nodes blocked", "evictions refused", "pods moved", "a pod of the cluster",
		"workloads without a ready replica", "in all", "longest", "scales changed"}}
	for _, r := range results {
		rows = append(rows, []string{
			map[string]string{kubectl: "kubectl drain", berth: "berth drain --roll --surge"}[r.drain],
			fmt.Sprintf("%.0f s", r.Took.Seconds()), strconv.Itoa(r.blocked), strconv.Itoa(r.Refused),
			strconv.Itoa(r.Moved), fmt.Sprintf("%.2f", float64(r.Moved)/float64(o.rollPods)),
			strconv.Itoa(len(r.Outages)), fmt.Sprintf("%.1f s", workloads.Sum(r.Outages).Seconds()),
			fmt.Sprintf("%.1f s", workloads.Longest(r.Outages).Seconds()), strconv.Itoa(r.Leftover),
		})
	}
	driver.Table(os.Stdout, fmt.Sprintf("Every one of %d nodes drained in turn, %d pods of %d workloads (load average %s)",
		o.drainNodes, o.rollPods, o.rollPods/workloads.PerWorkload, load), rows)
}
