// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/berth-k8s/berth/internal/node/simnodes"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
	"github.com/berth-k8s/berth/test/bench/driver"
)

// Names in ResourceSlices and ResourceClaims. Claims allocate shares of a GPU by consumable
// capacity.
const (
	gpuDriver   = "gpu.example.com"
	gpuClass    = "gpu"
	gpuCapacity = "milli"
)

// PlayLive places the tasks of a mix on a running cluster with the profile Fragmentation, and
// verifies that allocations do not overlap. The cluster is berth up with simulated nodes that
// publish their GPUs in ResourceSlices. Each GPU pod has a claim.
func (t *Trace) PlayLive(ctx context.Context, bench *driver.Run, m *Mix, seed uint64) (*Run, error) {
	profile, err := profileOf(m)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(bench.Dir, "profile.yaml")
	if err := os.WriteFile(config, []byte(profile+"      driver: "+gpuDriver+"\n"), 0o644); err != nil {
		return nil, err
	}
	up, err := bench.StartUp(ctx, "--fresh", "--nodes", "0", "--ui-port", "-1", "--config", config)
	if err != nil {
		return nil, err
	}
	defer up.Stop()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	p := &livePlay{Cluster: up, trace: t, arrivals: t.Arrivals(m, seed), nodes: map[string]*Node{}}
	if err := p.startNodes(ctx, group); err != nil {
		return nil, err
	}
	r := &Run{Policy: "live", Mix: m.Name, Seed: seed, Decisions: len(p.arrivals)}
	began := time.Now()
	if err := p.createPods(ctx); err != nil {
		return nil, err
	}
	if err := p.waitForPods(ctx); err != nil {
		return nil, err
	}
	r.Took = time.Since(began)
	if r.Placements, err = p.readPlacements(ctx); err != nil {
		return nil, err
	}
	return r, t.checkRun(r, p.arrivals)
}

// livePlay is a mix played on a cluster.
type livePlay struct {
	*driver.Cluster
	trace    *Trace
	arrivals []Task
	nodes    map[string]*Node // nodes of the trace, by their names in the cluster
}

// startNodes starts simulated nodes of the shapes in the trace, waits until all are ready, and
// publishes their GPUs.
func (p *livePlay) startNodes(ctx context.Context, group *errgroup.Group) error {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: gpuClass}}
	if _, err := p.Client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	ready := make(chan int)
	shapes := p.listShapes()
	for _, shape := range shapes {
		group.Go(func() error {
			return simnodes.Run(ctx, p.Client, simnodes.Options{
				Shape: shape, Workers: 8, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
				Ready: func(nodes int, _ time.Duration) { ready <- nodes },
			})
		})
	}
	for range shapes {
		select {
		case <-ready:
		case <-ctx.Done():
			return group.Wait()
		}
	}

	names := slices.Collect(maps.Keys(p.nodes))
	p.Printf("%d nodes are ready", len(names))
	return driver.InParallel(ctx, len(names), func(ctx context.Context, i int) error {
		slice := sliceOf(names[i], p.nodes[names[i]].GPUs)
		_, err := p.Client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{})
		return err
	})
}

// listShapes lists the kinds of nodes.
func (p *livePlay) listShapes() (shapes []simkubelet.Shape) {
	type kind struct {
		cpu, memory, gpus int64
		model             string
	}

	at := map[kind]int{}
	for i := range p.trace.Nodes {
		n := &p.trace.Nodes[i]
		k := kind{n.CPU, n.Memory, n.GPUs, n.Model}
		number, known := at[k]
		if !known {
			number = len(shapes)
			at[k] = number
			shapes = append(shapes, simkubelet.Shape{
				Prefix: fmt.Sprintf("kind-%d-", number), Labels: map[string]string{modelLabel: n.Model},
				Capacity: v1.ResourceList{
					v1.ResourceCPU: *resource.NewMilliQuantity(n.CPU, resource.DecimalSI), v1.ResourceMemory: toQuantity(n.Memory),
					v1.ResourcePods: resource.MustParse("500"),
				},
				RenewInterval: simkubelet.RenewIntervalFor(len(p.trace.Nodes)), StatusInterval: 5 * time.Minute,
			})
		}

		shapes[number].Count++
		p.nodes[shapes[number].Name(shapes[number].Count)] = n
	}
	return shapes
}

// sliceOf returns the ResourceSlice with a node's GPUs.
func sliceOf(node string, gpus int64) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: gpuDriver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
	}}
	for i := range gpus {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name: fmt.Sprintf("gpu-%d", i), AllowMultipleAllocations: new(true),
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
				gpuCapacity: {Value: *resource.NewQuantity(Milli, resource.DecimalSI)},
			},
		})
	}
	return slice
}

// createPods creates all claims, and then the pods in order.
func (p *livePlay) createPods(ctx context.Context) error {
	claims := p.Client.ResourceV1().ResourceClaims("default")
	err := driver.InParallel(ctx, len(p.arrivals), func(ctx context.Context, i int) error {
		if p.arrivals[i].GPUs == 0 {
			return nil
		}
		_, err := claims.Create(ctx, p.arrivals[i].claimNamed(nameOf(i)), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}

	p.Printf("all claims are there")
	for i := range p.arrivals {
		pod := p.arrivals[i].podNamed(nameOf(i))
		err := driver.Patiently(ctx, func() error {
			_, err := p.Client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
		if err != nil {
			return err
		}
	}
	p.Printf("all pods are there")
	return nil
}

func nameOf(arrival int) string { return fmt.Sprintf("task-%d", arrival) }

// claimNamed returns a claim with the given name for the GPUs of a task.
func (s *Shape) claimNamed(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: gpuClass,
			Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: gpuClass, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: s.GPUs,
				Capacity: &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
					gpuCapacity: *resource.NewQuantity(s.GPUMilli, resource.DecimalSI)}},
			},
		}}}},
	}
}

// podNamed returns a pod with the given name for a task. A pod with GPUs refers to the claim with
// the same name.
func (s *Shape) podNamed(name string) *v1.Pod {
	pod := s.newPod(s.requestsOf("", 0))
	if pod.Name = name; s.GPUs > 0 {
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: gpuClass, ResourceClaimName: &name}}
	}
	return pod
}

// waitForPods waits until each pod is bound or reported as unschedulable.
func (p *livePlay) waitForPods(ctx context.Context) error {
	const limit = 6 * time.Hour
	factory := informers.NewSharedInformerFactory(p.Client, 0)
	pods := factory.Core().V1().Pods().Lister()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	said := time.Now()
	return p.Until(ctx, "all pods to be decided", limit, func() (string, error) {
		list, err := pods.List(labels.Everything())
		if err != nil {
			return "", err
		}
		decided := 0
		for _, pod := range list {
			_, c := podutil.GetPodCondition(&pod.Status, v1.PodScheduled)
			if pod.Spec.NodeName != "" || c != nil && c.Reason == v1.PodReasonUnschedulable {
				decided++
			}
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			p.Printf("%d of %d pods are decided", decided, len(p.arrivals))
		}
		return driver.Lacking(decided, len(p.arrivals)), nil
	})
}

// readPlacements reads the nodes of the pods and the GPUs of their claims.
func (p *livePlay) readPlacements(ctx context.Context) ([]Placement, error) {
	pods, err := p.Client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	claims, err := p.Client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}

	at, gpus := map[string]string{}, map[string][]share{}
	for i := range pods.Items {
		if node := p.nodes[pods.Items[i].Spec.NodeName]; node != nil {
			at[pods.Items[i].Name] = node.Name
		}
	}
	for i := range claims.Items {
		if gpus[claims.Items[i].Name], err = sharesOfClaim(&claims.Items[i]); err != nil {
			return nil, err
		}
	}
	list := make([]Placement, len(p.arrivals))
	for i := range p.arrivals {
		if list[i] = (Placement{Task: p.arrivals[i].Name, Node: at[nameOf(i)]}); list[i].Node != "" {
			list[i].gpus = gpus[nameOf(i)]
		}
	}
	return list, nil
}

func sharesOfClaim(claim *resourcev1.ResourceClaim) (list []share, err error) {
	if claim.Status.Allocation == nil {
		return nil, nil
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		gpu := 0
		if _, err := fmt.Sscanf(r.Device, "gpu-%d", &gpu); err != nil {
			return nil, fmt.Errorf("claim %s has device %s: %w", claim.Name, r.Device, err)
		}
		milli := r.ConsumedCapacity[gpuCapacity]
		list = append(list, share{gpu, milli.Value()})
	}
	return list, nil
}

// Reduce keeps the given number of evenly spaced nodes of the trace.
func (t *Trace) Reduce(nodes int) {
	if nodes <= 0 || nodes >= len(t.Nodes) {
		return
	}
	var kept []Node
	t.GPUs = 0
	for i := range nodes {
		n := t.Nodes[i*len(t.Nodes)/nodes]
		kept = append(kept, n)
		t.GPUs += n.GPUs
	}
	t.Nodes = kept
}

// WriteLive prints a comparison of a run on a cluster with the same run by Play.
func WriteLive(w io.Writer, live, offline *Run) {
	fmt.Fprintf(w, "%s, seed %d: %.2f %% of the GPUs allocated live, %.2f %% offline, difference %+.2f; %d pods in %.0f s\n",
		live.Mix, live.Seed, live.Allocated, offline.Allocated, live.Allocated-offline.Allocated, live.Decisions, live.Took.Seconds())
}
