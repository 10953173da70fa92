// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"

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
	server, err := b.Launch(driver.Berth, "serve", "serve", "--kubeconfig", b.stub.kubeconfig)
	if err != nil {
		return err
	}
	defer server.Kill()
	url, err := server.WaitFor(ctx, "ready ")
	if err != nil {
		return err
	}
	connect := func(token string) (berthv1alpha1.QueryServiceClient, error) {
		return client.New(strings.TrimPrefix(url, "ready "), client.Options{Token: token, Insecure: true})
	}
	c, err := connect("usual")
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
		if err := b.askWhileBinding(ctx, server, c, rate, fmt.Sprintf("%d questions per second", rate)); err != nil {
			return err
		}
	}
	// Another caller asks the most expensive questions without pause.
	rate := b.questions / 10
	if err := b.askWhileBinding(ctx, server, c, rate, fmt.Sprintf("%d questions per second", rate)); err != nil {
		return err
	}
	other, err := connect("greedy")
	if err != nil {
		return err
	}
	greedy, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	var counts [2]atomic.Int64 // answers and refusals
	for i := range 16 {
		running.Go(func() {
			for greedy.Err() == nil {
				if err := askMuch(greedy, other, i); err == nil {
					counts[0].Add(1)
				} else {
					counts[1].Add(1)
				}
			}
		})
	}
	err = b.askWhileBinding(ctx, server, c, rate, fmt.Sprintf("%d questions per second next to a greedy caller", rate))
	stop()
	running.Wait()
	b.Printf("the greedy caller got %d answers and %d refusals", counts[0].Load(), counts[1].Load())
	return err
}

// askMuch asks an expensive question: about 10,000 pods, as many pods as fit, the capacity, or all
// pending pods.
func askMuch(ctx context.Context, c berthv1alpha1.QueryServiceClient, i int) (err error) {
	q := question(i)
	switch i % 4 {
	case 0:
		q.Count = 10_000
		_, err = c.Fits(ctx, q)
	case 1:
		q.Max = true
		_, err = c.Fits(ctx, q)
	case 2:
		_, err = c.Capacity(ctx, &berthv1alpha1.CapacityRequest{})
	default:
		_, err = c.Pending(ctx, &berthv1alpha1.PendingRequest{})
	}
	return err
}

// askWhileBinding asks at a rate while pods are scheduled, and prints the latencies.
func (b *bench) askWhileBinding(ctx context.Context, server *process.Process, c berthv1alpha1.QueryServiceClient, rate int, name string) error {
	before, took, fits, failed := server.CPU(), []time.Duration(nil), 0, error(nil)
	asking, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		took, fits, failed = ask(asking, c, rate)
	}()
	err := b.bind(ctx, name, "")
	stop()
	if <-done; err == nil {
		err = failed
	}
	if n := len(took); n > 0 {
		slices.Sort(took)
		own := server.CPU() - before
		b.Printf("%d answers, %d of them positive: p50 %v, p99 %v, p99.9 %v, most %v; %v of the server's CPU per question; peak %s", n, fits,
			took[n/2], took[n*99/100], took[n*999/1000], took[n-1], own/time.Duration(n), driver.Mebibytes(server.Peak()))
	}
	return err
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
