// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// sample is the state of the cluster at some moment.
type sample struct {
	cost                        float64
	nodes, pods, ready, pending int
	claims                      map[types.UID]bool // nodes by UID
	down                        int                // Deployments without a ready pod
}

// sample reads the state of the cluster. It adds pods to seen.
func (c *cluster) sample(ctx context.Context, seen map[types.UID]bool) (sample, error) {
	s := sample{claims: map[types.UID]bool{}}
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	for _, n := range nodes.Items {
		s.nodes++
		s.claims[n.UID] = true
		s.cost += c.prices[offering{n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelTopologyZone], n.Labels[v1.CapacityTypeLabelKey]}]
	}
	pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	ready := map[string]int{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			continue
		}
		s.pods++
		if seen != nil {
			seen[p.UID] = true
		}
		if p.Spec.NodeName == "" {
			s.pending++
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				s.ready++
				ready[p.Labels["app"]]++
			}
		}
	}
	s.down = deployments - len(ready)
	return s, nil
}

// watch starts the chosen side and prints samples.
func (c *cluster) watch(ctx context.Context) error {
	seen := map[types.UID]bool{}
	before, err := c.sample(ctx, seen)
	if err != nil {
		return err
	}
	moved, kills, actions := len(seen), 0, 0
	if c.side == "karpenter" {
		err = c.apply(ctx, strings.ReplaceAll(nodePool, "consolidateAfter: Never", "consolidateAfter: 0s"))
	} else {
		err = c.startController()
	}
	if err != nil {
		return err
	}

	began, worst, down := time.Now(), before.ready, 0
	fmt.Printf("side %s, %d nodes, mix %v\n", c.side, before.nodes, c.mix)
	fmt.Println("| seconds | cost | nodes | pods moved | pending | ready at worst | without a ready pod |\n| --- | --- | --- | --- | --- | --- | --- |")
	next, known := time.Duration(0), before.claims
	if c.churn > 0 {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		go c.disturb(ctx)
	}
	for time.Since(began) < c.limit && ctx.Err() == nil {
		now, err := c.sample(ctx, seen)
		if err != nil {
			log.Print(err)
			time.Sleep(time.Second)
			continue
		}
		worst, down = min(worst, now.ready), max(down, now.down)
		if at := time.Since(began); at >= next {
			fmt.Printf("| %.0f | %.2f | %d | %d | %d | %d | %d |\n", at.Seconds(), now.cost, now.nodes, len(seen)-moved, now.pending, worst, down)
			for next <= at {
				next += c.every
			}
		}
		if changes := differences(known, now.claims); c.kill > 0 && changes > 0 {
			if actions += changes; actions/c.kill > kills {
				kills++
				c.controller.end(syscall.SIGKILL)
				if err := c.startController(); err != nil {
					return err
				}
			}
		}
		known = now.claims
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if c.kill > 0 {
		fmt.Printf("%d kills\n", kills)
	}
	return nil
}

// disturb deletes random pods, c.churn per second.
func (c *cluster) disturb(ctx context.Context) {
	ticker := time.NewTicker(time.Second / time.Duration(c.churn))
	defer ticker.Stop()
	var names []string
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if len(names) == 0 {
			pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, i := range rand.Perm(len(pods.Items))[:min(10*c.churn, len(pods.Items))] {
				names = append(names, pods.Items[i].Name)
			}
		}
		if len(names) > 0 {
			_ = c.client.CoreV1().Pods("default").Delete(ctx, names[0], metav1.DeleteOptions{}) // it may have left
			names = names[1:]
		}
	}
}

// differences counts the members of exactly one of two sets.
func differences(a, b map[types.UID]bool) int {
	count := 0
	for id := range a {
		if !b[id] {
			count++
		}
	}
	for id := range b {
		if !a[id] {
			count++
		}
	}
	return count
}

func (c *cluster) startController() (err error) {
	words := append([]string{c.berth, "controller", "--kubeconfig", c.controllerConfig, "--controllers=rebalance", "--goals=cost",
		"--leader-elect-resource-namespace=berth-system",
		"--catalog", c.options.types}, strings.Fields(c.berthFlags)...)
	c.controller, err = c.spawn("controller", nil, words...)
	return err
}
