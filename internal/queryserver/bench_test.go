// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"flag"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
)

// fill adds 5,000 nodes, and 50,000 pods on them, to the lanes.
func fill(r *running) {
	send := func(o metav1.Object) {
		for _, l := range r.follower.lanes {
			l.apply(o, false)
		}
	}
	amounts := func(cpu, memory string) v1.ResourceList {
		return v1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory), "pods": resource.MustParse("110")}
	}
	for i := range 5000 {
		name := fmt.Sprint("node-", i)
		send(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name),
			Labels: map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprint("zone-", i%3)}},
			Status: v1.NodeStatus{Allocatable: amounts("32", "128Gi")}})
	}
	for i := range 50_000 {
		send(busyPod(i, fmt.Sprint("node-", i%5000)))
	}
}

func busyPod(i int, node string) *v1.Pod {
	name := fmt.Sprint("busy-", i)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), ResourceVersion: "1", Labels: map[string]string{"app": fmt.Sprint("app-", i%500)}},
		Spec: v1.PodSpec{NodeName: node, SchedulerName: "default-scheduler", Containers: []v1.Container{{Name: "c", Image: "i",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": *resource.NewMilliQuantity(int64(500+i%500), resource.DecimalSI)}}}}},
	}
}

// BenchmarkFits measures one short question in a lane, from the manifest to the answer.
func BenchmarkFits(b *testing.B) {
	r := start(b, nil)
	fill(r)
	i := 0
	for b.Loop() {
		d, err := readDemand(&berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf(fmt.Sprintf("%dm", 1000+100*(i%20)), "")})
		if err != nil {
			b.Fatal(err)
		}
		if err := r.follower.do(b.Context(), func(l *lane) {
			if answer, err := l.fits(b.Context(), d, "shop", (&view{whole: true}).checkTerms); err != nil || answer.Placed != 1 {
				b.Error(answer, err)
			}
		}); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

var perSecond = flag.Int("rate", 1000, "questions per second of BenchmarkFitsUnderLoad")

// BenchmarkFitsUnderLoad measures the latency over gRPC at a rate of questions, and the processor
// time of server and client per question, while 100 pods per second arrive.
func BenchmarkFitsUnderLoad(b *testing.B) {
	r := start(b, nil)
	fill(r)
	client := r.as(b, "admin", connect.WithGRPC())
	if _, err := client.Fits(b.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1", "")}); err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	var took []time.Duration
	var asking sync.WaitGroup
	pods, interval := 50_000, time.Second/time.Duration(*perSecond)
	before := processorTime()
	for b.Loop() {
		began := time.Now()
		for i := range 10 * *perSecond {
			time.Sleep(time.Until(began.Add(time.Duration(i) * interval)))
			if i%max(*perSecond/100, 1) == 0 {
				pods++
				for _, l := range r.follower.lanes {
					l.apply(busyPod(pods, fmt.Sprint("node-", pods%5000)), false)
				}
			}
			asked := began.Add(time.Duration(i) * interval)
			asking.Go(func() {
				_, err := client.Fits(b.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf(fmt.Sprintf("%dm", 1000+100*(i%20)), "")})
				mu.Lock()
				defer mu.Unlock()
				if took = append(took, time.Since(asked)); err != nil {
					b.Error(err)
				}
			})
		}
		asking.Wait()
	}
	b.ReportMetric(float64((processorTime()-before).Microseconds())/1000/float64(len(took)), "cpu-ms/question")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
