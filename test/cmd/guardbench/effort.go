// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/bench/workloads"
)

// sampling is the time between two samples of the effort.
const sampling = 5 * time.Second

// effort holds the requests and the memory that emptying the nodes required.
type effort struct {
	added               int     // replicas more than before, in the sample with most
	requests, rate      float64 // of the API server: all, and per second between the samples with most
	controller, webhook int64   // their most memory, in bytes
}

// watchEffort samples the effort while do runs.
func (b *bench) watchEffort(ctx context.Context, done *result, do func(ctx context.Context) error) error {
	before, err := b.countRequests(ctx)
	if err != nil {
		return err
	}
	sampled, stop := make(chan error, 1), make(chan struct{})
	go func() {
		last, at := before, time.Now()
		for {
			select {
			case <-stop:
				sampled <- nil
				return
			case <-time.After(sampling):
			}
			added, err := b.countAdded(ctx)
			if err != nil {
				sampled <- err
				return
			}
			count, err := b.countRequests(ctx)
			if err != nil {
				sampled <- err
				return
			}
			done.added, done.rate = max(done.added, added), max(done.rate, (count-last)/time.Since(at).Seconds())
			last, at = count, time.Now()
		}
	}()
	err = do(ctx)
	close(stop)
	if failed := <-sampled; err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	after, err := b.countRequests(ctx)
	done.requests, done.effort.controller = after-before, b.controller.Peak()
	if b.webhook != nil {
		done.effort.webhook = b.webhook.Peak()
	}
	return err
}

// countRequests returns the number of requests that the API server has answered.
func (b *bench) countRequests(ctx context.Context) (float64, error) {
	text, err := b.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	metrics, err := driver.ReadMetrics(bytes.NewReader(text))
	all, _ := driver.SumMetric(metrics["apiserver_request_total"])
	return all, err
}

// countAdded returns the number of replicas that the workloads have more than at first.
func (b *bench) countAdded(ctx context.Context) (added int, err error) {
	list, err := b.Client.AppsV1().Deployments(workloads.Namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		original, err := strconv.Atoi(list.Items[i].Annotations[workloads.ReplicasNote])
		if err != nil {
			return 0, err
		}
		added += int(*list.Items[i].Spec.Replicas) - original
	}
	return added, nil
}
