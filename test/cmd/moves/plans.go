// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// The goals of this measurement limit the time and memory of a plan.
const (
	planWithin = 10 * time.Second
	planMemory = 1 << 30
)

// planned is a requested plan.
type planned struct {
	name   string
	goals  func(o *options) []string // arguments of berth rebalance
	policy string                    // alternatively, a DeschedulerPolicy
	wait   bool                      // pods that need whole nodes are pending
}

// bigPods is the number of pending pods requesting all GPUs of a node.
const bigPods = 4

// plans lists the plans in the order in which they are made on the same cluster. None is carried
// out there.
var plans = []planned{
	{name: "nothing", policy: policyNothing},
	{name: "heal", goals: func(*options) []string { return []string{"heal"} }},
	{name: "spread", goals: func(*options) []string { return []string{"spread"} }},
	{name: "return", goals: func(*options) []string { return []string{"return"} }},
	{name: "consolidate", goals: func(o *options) []string { return []string{fmt.Sprintf("consolidate=%d", o.nodes/25)} }},
	{name: "all", goals: func(o *options) []string {
		return []string{"heal", "spread", "return", fmt.Sprintf("consolidate=%d", o.nodes/25)}
	}},
	{name: "policy", policy: policyViolations},
	{name: "policy-low", policy: policyLow},
	{name: "defragment", wait: true, goals: func(*options) []string {
		var list []string
		for i := range bigPods {
			list = append(list, bigPod(i).Name)
		}
		return []string{"defragment=" + strings.Join(list, ","), "-n", bigPod(0).Namespace}
	}},
}

// The policies are written as by users of the descheduler.
const (
	policyHead = `apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
`
	policyViolations = policyHead + `profiles:
- name: violations
  pluginConfig:
  - name: RemovePodsViolatingNodeTaints
  - name: RemovePodsViolatingInterPodAntiAffinity
  - name: RemoveDuplicates
  - name: RemovePodsViolatingNodeAffinity
    args: {nodeAffinityType: [requiredDuringSchedulingIgnoredDuringExecution]}
  - name: RemovePodsViolatingTopologySpreadConstraint
    args: {constraints: [DoNotSchedule]}
  plugins:
    deschedule: {enabled: [RemovePodsViolatingNodeTaints, RemovePodsViolatingNodeAffinity, RemovePodsViolatingInterPodAntiAffinity]}
    balance: {enabled: [RemovePodsViolatingTopologySpreadConstraint, RemoveDuplicates]}
`
	policyLow = policyHead + `maxNoOfPodsToEvictTotal: 200
profiles:
- name: low
  pluginConfig:
  - name: LowNodeUtilization
    args: {thresholds: {cpu: 20, memory: 20, pods: 20}, targetThresholds: {cpu: 60, memory: 60, pods: 60}}
  plugins:
    balance: {enabled: [LowNodeUtilization]}
`
	policyNothing = policyHead + "profiles: []\n"
)

func planNames() (list []string) {
	for _, p := range plans {
		list = append(list, p.name)
	}
	return list
}

// bigPod returns a pod that requests all GPUs of a node. It is pending: enough GPUs are free in the
// cluster, but no node has eight free GPUs.
func bigPod(i int) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("train-%d", i), Namespace: "team-0"}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "main", Image: image, Resources: v1.ResourceRequirements{Requests: driver.Amounts(8000, 16000)}}},
	}}
	forDevices(&pod.Spec, gpus)
	return pod
}

// made is a finished plan.
type made struct {
	*planned
	plan          rebalance.Plan
	usage         process.Usage
	before, after facts
}

func measurePlans(ctx context.Context, r *driver.Run, o *options) error {
	c, err := r.StartCluster(ctx, "--controllers=serviceaccount-controller", "--upstream-admission",
		"--disable-admission-plugins=TaintNodesByCondition") // no component here removes the taint of a new node
	if err != nil {
		return err
	}
	defer c.Stop()
	r.Printf("making %d nodes and %d pods", o.nodes, o.pods)
	planned, err := planCrowd(o.nodes, o.pods)
	if err != nil {
		return err
	}
	if err := planned.createObjects(ctx, c); err != nil {
		return err
	}

	load := process.LoadAverage()
	var all []made
	for i := range plans {
		if p := &plans[i]; driver.Chosen(o.plans, p.name) {
			m, err := p.makePlan(ctx, c, o)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			r.Printf("%s: %d moves, %d stays, %.1f s, %.1f s of CPU, %d MiB", p.name, len(m.plan.Moves),
				len(m.plan.Stays), m.usage.Took.Seconds(), m.usage.CPU.Seconds(), m.usage.Peak>>20)
			all = append(all, *m)
		}
	}
	writePlans(all, o, load)
	return nil
}

// makePlan makes a plan with GOMAXPROCS=1 and measures its cost and benefit.
func (p *planned) makePlan(ctx context.Context, c *driver.Cluster, o *options) (*made, error) {
	if p.wait {
		for i := range bigPods {
			if err := createPod(ctx, c.Client, bigPod(i)); err != nil {
				return nil, err
			}
		}
	}

	args := []string{"rebalance"}
	if p.goals != nil {
		args = append(args, p.goals(o)...)
	} else {
		file := filepath.Join(c.Dir, p.name+".yaml")
		if err := os.WriteFile(file, []byte(p.policy), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "--policy", file)
	}

	m := &made{planned: p}
	environment := []string{"GOMAXPROCS=1", "KUBECONFIG=" + c.Kubeconfig}
	var err error
	if m.usage, err = c.Ask(ctx, environment, driver.Berth, p.name, append(args, "-o", "json")...); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(c.Dir, p.name+".out"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &m.plan); err != nil {
		return nil, err
	}

	nodes, pods, err := readCluster(ctx, c.Client)
	if err != nil {
		return nil, err
	}

	m.before = factsOf(nodes, pods)
	carryOut(&m.plan, nodes, pods)
	m.after = factsOf(nodes, pods)
	return m, nil
}

// readCluster returns the nodes and pods of the cluster.
func readCluster(ctx context.Context, client kubernetes.Interface) ([]v1.Node, []v1.Pod, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, nil, err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, nil, err
	}
	return nodes.Items, pods.Items, nil
}

func writePlans(all []made, o *options, load string) {
	rows := [][]string{{"plan", "with reading", "CPU", "peak memory", "moves", "stay", "what it counts"}}
	for i := range all {
		m := &all[i]
		var counts []string
		for _, c := range m.plan.Measures {
			counts = append(counts, fmt.Sprintf("%s %d → %d", c.Name, c.Before, c.After))
		}
		rows = append(rows, []string{
			m.name, fmt.Sprintf("%.1f s", m.usage.Took.Seconds()) + driver.Mark(m.usage.Took <= planWithin),
			fmt.Sprintf("%.1f s", m.usage.CPU.Seconds()),
			fmt.Sprintf("%d MiB", m.usage.Peak>>20) + driver.Mark(m.usage.Peak <= planMemory),
			fmt.Sprint(len(m.plan.Moves)), fmt.Sprint(len(m.plan.Stays)), strings.Join(counts, "; "),
		})
	}

	driver.Table(os.Stdout, fmt.Sprintf("Plans of berth rebalance: %d nodes, %d pods, one core (load average %s)",
		o.nodes, o.pods, load), rows)
	fmt.Printf("\nBefore and after, counted from the cluster and the moves. Room: pods of %d CPUs and %d GiB that "+
		"would find a node, and how much of what is free they cannot use.\n\n", bigCPU/1000, bigMemory>>30)
	rows = [][]string{{"plan", "violated constraints", "nodes in use", "room for big pods", "free CPU out of their reach", "pending"}}
	for i := range all {
		m := &all[i]
		row := []string{m.name}
		for _, of := range []func(f *facts) string{
			func(f *facts) string { return fmt.Sprint(f.violated) },
			func(f *facts) string { return fmt.Sprint(f.inUse) },
			func(f *facts) string { return fmt.Sprint(f.room) },
			func(f *facts) string { return fmt.Sprintf("%.1f %%", 100*f.fragmented) },
			func(f *facts) string { return fmt.Sprint(f.pending) },
		} {
			row = append(row, of(&m.before)+" → "+of(&m.after))
		}
		rows = append(rows, row)
	}

	driver.Table(os.Stdout, "", rows)
}
