package live

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writers is how many requests of the bench itself are under way at once.
const writers = 32

// eachParallel does something for 0 to n-1, many at a time.
func eachParallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(writers, n) {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return group.Wait()
}

// registerNodes makes the nodes and the priority class.
func (b *bench) registerNodes(ctx context.Context) error {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: highClass}, Value: 1000}
	if _, err := b.client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	return eachParallel(ctx, b.Nodes, func(ctx context.Context, i int) error {
		node := newNode(i)
		if b.Gang > 0 {
			node.Labels[rackLabel] = rackName(b.rackOf(i))
		}
		_, err := b.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		return err
	})
}

// createNamespace makes a namespace and returns the version of the API's data at which it is empty.
func (b *bench) createNamespace(ctx context.Context, name string) (version string, err error) {
	ns, err := b.client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return ns.ResourceVersion, nil
}

// createPods makes n pods.
func (b *bench) createPods(ctx context.Context, namespace string, n int, pod func(i int) *v1.Pod) error {
	return eachParallel(ctx, n, func(ctx context.Context, i int) error {
		_, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod(i), metav1.CreateOptions{})
		return err
	})
}

// cleanLimit is for deleting all pods of a namespace.
const cleanLimit = 5 * time.Minute

// deletePods deletes the pods of a namespace and returns when they are gone.
func (b *bench) deletePods(ctx context.Context, namespace string) error {
	pods := b.client.CoreV1().Pods(namespace)
	return b.pollUntil(ctx, "the pods of "+namespace+" to go", cleanLimit, func() (bool, error) {
		// On a slow machine it takes longer than the API server lets a request take: it is cut off,
		// and goes on with the next one.
		if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &noGrace}, metav1.ListOptions{}); err != nil {
			b.printProgress("%s: not all pods are deleted yet: %v", namespace, err)
		}
		left, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(left.Items) == 0, err
	})
}

// fillNodes sees to it that every node is full of lower pods.
func (b *bench) fillNodes(ctx context.Context) error {
	var pods []*v1.Pod
	for i := range b.Nodes * lowerPerNode {
		pods = append(pods, lowerPod(i, b.Nodes))
	}
	return b.createMissing(ctx, fillNamespace, pods)
}

// createMissing creates those of the pods that a namespace does not have.
func (b *bench) createMissing(ctx context.Context, namespace string, pods []*v1.Pod) error {
	there, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for i := range there.Items {
		known[there.Items[i].Name] = true
	}
	missing := slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return known[pod.Name] })
	return b.createPods(ctx, namespace, len(missing), func(i int) *v1.Pod { return missing[i] })
}

// fillNamespace has the lower pods of the preemption mode.
const fillNamespace = "bench-fill"
