// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// load is work for schedulers and controllers: pods that are created at a constant rate, run for a
// while and end; taints that are added and soon removed; and nodes that fail in groups and recover.
type load struct {
	*cluster   // has a separate namespace
	nodes      int
	placements int
	rate       int // pods per second
	flaps      int
	failures   int
}

const (
	runFor   = "45s" // run time of each pod
	flapKey  = "flap"
	atOnce   = 4 // concurrent flaps
	waves    = 5 // number of waves of failing nodes
	settling = 8 * time.Second
	// loadLimit limits the time until all pods have a node after the last was created, and the time
	// until a node's failure or recovery is detected.
	loadLimit = 10 * time.Minute
)

// play runs the load to its end.
func (l *load) play() error {
	group, ctx := errgroup.WithContext(l.Context())
	group.Go(func() error { return l.createPods(ctx) })
	for part := range atOnce {
		group.Go(func() error { return l.flap(ctx, part) })
	}
	group.Go(func() error { return l.fail(ctx) })
	return group.Wait()
}

// placed waits until every pod has a node.
func (l *load) placed() {
	l.Helper()
	l.within(loadLimit, func() error {
		waiting, err := l.client.CoreV1().Pods(l.namespace).List(l.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName="})
		if err == nil && len(waiting.Items) > 0 {
			err = fmt.Errorf("%d pods have no node", len(waiting.Items))
		}
		return err
	})
}

// createPods creates the pods at the rate, or as fast as possible if that is slower.
func (l *load) createPods(ctx context.Context) error {
	const workers = 8
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	var next atomic.Int64
	for range workers {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= l.placements {
					return nil
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(l.rate)))):
				}
				if err := persist(ctx, func() error {
					_, err := l.client.CoreV1().Pods(l.namespace).Create(ctx, l.pod(i), metav1.CreateOptions{})
					if apierrors.IsAlreadyExists(err) {
						return nil // an earlier request created the pod, but its response was lost
					}
					return err
				}); err != nil {
					return fmt.Errorf("pod %d: %w", i, err)
				}
			}
		})
	}
	return group.Wait()
}

// persist calls do until do returns nil, and returns its last error after loadLimit. Operations may
// fail because of conflicts or a busy API server.
func persist(ctx context.Context, do func() error) (err error) {
	_ = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, loadLimit, true, func(context.Context) (bool, error) {
		err = do()
		return err == nil, nil
	})
	return err
}

// pod returns the i-th pod. Pods differ in their requests and tolerations; some are spread over
// zones, and some have a grace period.
func (l *load) pod(i int) *v1.Pod {
	app := fmt.Sprintf("app-%d", i%10)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("load-%d", i), Labels: map[string]string{"app": app}, Annotations: map[string]string{"berth.dev/run-for": runFor}},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyNever,
			Containers: []v1.Container{{Name: "c", Image: "registry.example/app:v1", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse(fmt.Sprintf("%dm", 50+i%7*50)), v1.ResourceMemory: resource.MustParse(fmt.Sprintf("%dMi", 64+i%5*64)),
			}}}},
		},
	}
	tolerates := func(key string, seconds int64) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds})
	}
	for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		tolerates(key, int64(i%4))
	}
	if i%3 > 0 {
		tolerates(flapKey, int64(i%3*2))
	}
	if i%4 == 0 {
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}}
	}
	return pod
}

// flap adds and removes taints of nodes. It runs concurrently for each part.
func (l *load) flap(ctx context.Context, part int) error {
	chance := rand.New(rand.NewPCG(uint64(part), 21)) // the same nodes and durations in each run
	for i := part; i < l.flaps; i += atOnce {
		// Each part has separate nodes, so that no part removes another's taint.
		node := fmt.Sprintf("node-%d", 1+part+atOnce*chance.IntN(l.nodes/atOnce))
		for _, on := range []bool{true, false} {
			if err := l.taint(ctx, node, on); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(200*time.Millisecond + time.Duration(chance.Int64N(int64(5*time.Second)))):
			}
		}
	}
	return nil
}

// taint adds the taint to a node, or removes it, without losing changes by other clients.
func (l *load) taint(ctx context.Context, name string, on bool) error {
	nodes := l.client.CoreV1().Nodes()
	return persist(ctx, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == flapKey })
		if on {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: flapKey, Value: "x", Effect: v1.TaintEffectNoExecute})
		}
		_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// fail makes nodes fail in waves. The nodes recover after their failure has been detected and pods
// had time to leave.
func (l *load) fail(ctx context.Context) error {
	for done := 0; done < l.failures; {
		var names []string
		for ; done < l.failures && len(names) < (l.failures+waves-1)/waves; done++ {
			names = append(names, fmt.Sprintf("node-%d", 1+done%l.nodes))
		}
		if err := l.nodesDo("fail", names); err != nil {
			return err
		}
		if err := l.untilTainted(ctx, names, true); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settling):
		}
		if err := l.nodesDo("recover", names); err != nil {
			return err
		}
		if err := l.untilTainted(ctx, names, false); err != nil {
			return err
		}
	}
	return nil
}

// nodesDo runs berth nodes fail or berth nodes recover for the nodes.
func (l *load) nodesDo(what string, names []string) error {
	return persist(l.Context(), func() error {
		if out, code := l.tryBerth("", append([]string{"nodes", what}, names...)...); code != 0 {
			return fmt.Errorf("berth nodes %s: exit code %d: %s", what, code, out)
		}
		return nil
	})
}

// untilTainted waits until all of the nodes, or none of them, have the NoExecute taint for
// unreachable nodes.
func (l *load) untilTainted(ctx context.Context, names []string, want bool) error {
	for end := time.Now().Add(loadLimit); ; time.Sleep(time.Second) {
		var list *v1.NodeList
		if err := persist(ctx, func() (err error) {
			list, err = l.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return err
		}); err != nil {
			return err
		}
		var wrong []string
		for i := range list.Items {
			node := &list.Items[i]
			has := slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool {
				return t.Key == v1.TaintNodeUnreachable && t.Effect == v1.TaintEffectNoExecute
			})
			if slices.Contains(names, node.Name) && has != want {
				wrong = append(wrong, node.Name)
			}
		}
		if len(wrong) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %v %s: tainted as unreachable: %v, want %v", loadLimit, strings.Join(wrong, ", "), !want, want)
		}
	}
}
