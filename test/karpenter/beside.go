// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
)

// compare runs Karpenter's scheduler and berth on the same pods, one after the other, for each of
// several numbers of pods, and prints a table. For Karpenter, only the scheduler is timed. For
// berth, the whole command is timed, which also reads the pods and the types from files.
func (o settings) compare(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, rowFormat, "pods", "by", "cost per hour", "nodes", "pending", "seconds", "CPU seconds", "astray", "not below")
	for _, text := range strings.Split(o.counts, ",") {
		count, err := strconv.Atoi(text)
		if err != nil || count < 1 {
			return fmt.Errorf("-pods %q: numbers of pods, separated by commas", o.counts)
		}
		pods, err := makePods(o.mix, count, o.seed)
		if err != nil {
			return err
		}

		one := o
		one.pods = count
		karpenter, err := one.measure(ctx, pods)
		if err != nil {
			return err
		}
		berth, least, err := one.askBerth(ctx, pods)
		if err != nil {
			return err
		}
		row(out, count, "Karpenter", karpenter.outcome, "")
		row(out, count, "berth", berth, fmt.Sprintf("%.2f", least))
		if berth.CostPerHour > karpenter.CostPerHour || berth.Pending > 0 {
			return fmt.Errorf("%d pods: berth's nodes cost %.2f, and Karpenter's %.2f; %d pods are pending",
				count, berth.CostPerHour, karpenter.CostPerHour, berth.Pending)
		}
	}
	return nil
}

const rowFormat = "%-6v  %-9v  %13v  %5v  %7v  %7v  %11v  %6v  %9v\n"

func row(out io.Writer, pods int, by string, r outcome, least string) {
	two := func(of float64) string { return fmt.Sprintf("%.2f", of) }
	fmt.Fprintf(out, rowFormat, pods, by, two(r.CostPerHour), r.Nodes, r.Pending, two(r.SolveSeconds), two(r.CPUSeconds), r.Astray, least)
}

// berthPlan contains the fields of berth's output that are compared.
type berthPlan struct {
	Provision struct {
		Nodes []struct {
			Type         string   `json:"type"`
			Zone         string   `json:"zone"`
			CapacityType string   `json:"capacityType"`
			Pods         []string `json:"pods"`
		} `json:"nodes"`
		Least   float64 `json:"leastPerHour"`
		Pending []any   `json:"pending"`
	} `json:"provision"`
}

// askBerth runs berth as often as Karpenter, and checks its plan by the same code as Karpenter's
// plan. The times in the outcome are medians.
func (o settings) askBerth(ctx context.Context, pods []*corev1.Pod) (outcome, float64, error) {
	dir, err := os.MkdirTemp("", "berth-karpenter-")
	if err != nil {
		return outcome{}, 0, err
	}
	defer os.RemoveAll(dir)
	types := instanceTypes()
	if err := writeWorld(dir, pods, nodePool(), types); err != nil {
		return outcome{}, 0, err
	}

	var runs []took
	var said berthPlan
	for range o.times {
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, o.beside, "what-if", "-f", filepath.Join(dir, podsFile), "provision",
			"--catalog", filepath.Join(dir, nodePoolsFile), "--catalog", filepath.Join(dir, typesFile), "-o", "json")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		began := time.Now()
		if err := cmd.Run(); err != nil {
			return outcome{}, 0, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
		}
		runs = append(runs, took{solve: time.Since(began), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()})
		said = berthPlan{}
		if err := json.Unmarshal(stdout.Bytes(), &said); err != nil {
			return outcome{}, 0, fmt.Errorf("what berth says: %w", err)
		}
	}

	p, err := said.plan(pods, types)
	if err == nil {
		err = p.check(pods)
	}
	if err != nil {
		return outcome{}, 0, fmt.Errorf("berth's plan does not hold: %w", err)
	}
	slices.SortFunc(runs, func(a, b took) int { return int(a.solve - b.solve) })
	return newOutcome(p, pods, runs[len(runs)/2]), said.Provision.Least, nil
}

// plan converts berth's plan to the type of Karpenter's plan.
func (b *berthPlan) plan(pods []*corev1.Pod, types []*cloudprovider.InstanceType) (plan, error) {
	byName := map[string]*corev1.Pod{}
	for _, pod := range pods {
		byName[pod.Namespace+"/"+pod.Name] = pod
	}

	p := plan{pending: len(b.Provision.Pending)}
	var unknown []error
	for _, from := range b.Provision.Nodes {
		n := node{}
		for _, t := range types {
			for _, offering := range t.Offerings {
				if t.Name == from.Type && offering.Zone() == from.Zone && offering.CapacityType() == from.CapacityType {
					n.InstanceType, n.offering = t, offering
				}
			}
		}
		if n.offering == nil {
			unknown = append(unknown, fmt.Errorf("%s is not offered in %s as %s", from.Type, from.Zone, from.CapacityType))
			continue
		}

		for _, name := range from.Pods {
			if byName[name] == nil {
				unknown = append(unknown, fmt.Errorf("there is no pod %s", name))
				continue
			}
			n.pods = append(n.pods, byName[name])
		}
		p.nodes = append(p.nodes, n)
		p.cost += n.offering.Price
	}
	return p, errors.Join(unknown...)
}
