// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/client"
)

// asked is the rate of pods per second while questions are asked.
const asked = 100

// measureQuestions fills the cluster, starts `berth serve`, and schedules pods without questions,
// with questions, and without questions again.
func (b *bench) measureQuestions(ctx context.Context) error {
	if err := b.stub.load("heartbeats=%f", float64(b.nodes)/statusInterval); err != nil {
		return err
	}
	if err := b.bind(ctx, "fill", ""); err != nil {
		return err
	}
	server, err := b.Launch(driver.Berth, "serve", "serve", "--kubeconfig", b.stub.kubeconfig, "--caller-rate", "100000000")
	if err != nil {
		return err
	}
	defer server.Kill()
	url, err := server.WaitFor(ctx, "ready ")
	if err != nil {
		return err
	}
	c, err := client.New(strings.TrimPrefix(url, "ready "), client.Options{Token: "stub", Insecure: true, GRPC: true})
	if err != nil {
		return err
	}
	for ctx.Err() == nil { // until the cluster has been read
		if _, err = c.Fits(ctx, question(0)); err == nil {
			break
		}
		time.Sleep(time.Second)
	}

	b.pods, b.rate = int(b.asking.Seconds()*asked), asked
	for _, rate := range []int{0, b.questions, 0, b.questions} {
		before, took, fits, failed := server.CPU(), []time.Duration(nil), 0, error(nil)
		asking, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			took, fits, failed = ask(asking, c, rate)
		}()
		err := b.bind(ctx, fmt.Sprintf("%d questions per second", rate), "")
		stop()
		if <-done; err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
		if n := len(took); n > 0 {
			slices.Sort(took)
			own := server.CPU() - before
			b.Printf("%d answers, %d of them positive: p50 %v, p99 %v, p99.9 %v, most %v; %v of the server's CPU per question; peak %s", n, fits,
				took[n/2], took[n*99/100], took[n*999/1000], took[n-1], own/time.Duration(n), driver.Mebibytes(server.Peak()))
		}
	}
	return nil
}

// question returns one of 20 questions about pods of different sizes.
func question(i int) *berthv1alpha1.FitsRequest {
	return &berthv1alpha1.FitsRequest{Namespace: "scale", Manifest: fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: asked, labels: {app: asked}}
spec:
  containers:
  - name: c
    image: registry.k8s.io/pause:3.10
    resources: {requests: {cpu: %dm, memory: 256Mi}}
`, 1000+100*(i%20))}
}

// ask asks at a rate until the context ends. It returns the latencies from the time at which each
// question was due, the number of positive answers, and the first error.
func ask(ctx context.Context, c berthv1alpha1.QueryServiceClient, perSecond int) (took []time.Duration, fits int, failed error) {
	if perSecond == 0 {
		return nil, 0, nil
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	began := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(perSecond))
		time.Sleep(time.Until(due))
		running.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			answer, err := c.Fits(ctx, question(i))
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(due))
			if answer.GetFits() {
				fits++
			}
			if err != nil && failed == nil {
				failed = err
			}
		})
	}
	running.Wait()
	return took, fits, failed
}
