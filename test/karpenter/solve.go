// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/logging"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/test"
)

// evaluators is the number of goroutines that evaluate nodes for a pod, as in Karpenter's
// benchmark.
const evaluators = 5

// took is the time of one run. Karpenter's benchmark measures only solve. cpu is the CPU time of
// all threads during solve, which depends less on other programs on the machine.
type took struct{ setup, solve, cpu time.Duration }

// solve runs Karpenter's scheduler on an empty cluster, with the settings of Karpenter's benchmark.
func solve(
	ctx context.Context, pods []*corev1.Pod, pool *v1.NodePool, types []*cloudprovider.InstanceType,
) (scheduling.Results, took, error) {
	log.SetLogger(logging.NopLogger)
	ctx = options.ToContext(injection.WithControllerName(ctx, "provisioner"), test.Options())
	pods = slices.Clone(pods) // the scheduler sorts the slice
	began := time.Now()

	provider := fake.NewCloudProvider()
	provider.InstanceTypes = types
	client := fakeclient.NewFakeClient()
	cluster := state.NewCluster(clock.RealClock{}, client, provider)
	pools := []*v1.NodePool{pool}
	byPool := map[string][]*cloudprovider.InstanceType{pool.Name: types}
	parallel := scheduling.NumConcurrentReconciles(evaluators)
	topology, err := scheduling.NewTopology(ctx, client, cluster, nil, pools, byPool, pods, parallel)
	if err != nil {
		return scheduling.Results{}, took{}, fmt.Errorf("make the topology: %w", err)
	}

	scheduler := scheduling.NewScheduler(ctx, client, pools, cluster, nil, topology, byPool, nil,
		events.NewRecorder(&record.FakeRecorder{}), clock.RealClock{}, nil, nil, parallel)
	ready, before := time.Now(), usage()
	results, err := scheduler.Solve(ctx, pods)
	return results, took{ready.Sub(began), time.Since(ready), usage().cpu - before.cpu}, err
}

// resources holds the resource usage of the process.
type resources struct {
	cpu     time.Duration
	peakMiB float64
}

func usage() resources {
	var of syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &of); err != nil {
		panic(err) // cannot happen: the arguments are valid
	}
	return resources{time.Duration(of.Utime.Nano() + of.Stime.Nano()), float64(of.Maxrss) / 1024}
}
