// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Writers is the maximum number of concurrent requests of InParallel.
const Writers = 32

// InParallel calls do for 0 to n-1, with up to Writers calls at a time, and ends at the first
// error.
func InParallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(Writers)
	for i := 0; i < n && running.Err() == nil; i++ {
		group.Go(func() error { return do(running, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err() // without an error, the work may still be incomplete
}

// Patiently calls do, and retries while the namespace is so new that its service account is
// missing.
func Patiently(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "service account") {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// CreateNamespace creates a namespace and returns a resource version at which the namespace is
// empty.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) (version string, err error) {
	ns, err := c.Client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return ns.ResourceVersion, nil
}

// CreateNodes creates n nodes.
func (c *Cluster) CreateNodes(ctx context.Context, n int, node func(i int) *v1.Node) error {
	return InParallel(ctx, n, func(ctx context.Context, i int) error {
		_, err := c.Client.CoreV1().Nodes().Create(ctx, node(i), metav1.CreateOptions{})
		return err
	})
}

// CreatePods creates n pods, skipping existing ones.
func (c *Cluster) CreatePods(ctx context.Context, namespace string, n int, pod func(i int) *v1.Pod) error {
	return InParallel(ctx, n, func(ctx context.Context, i int) error {
		return Patiently(ctx, func() error {
			_, err := c.Client.CoreV1().Pods(namespace).Create(ctx, pod(i), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	})
}

// CreateMissing creates those of the pods that do not exist in the namespace.
func (c *Cluster) CreateMissing(ctx context.Context, namespace string, pods []*v1.Pod) error {
	there, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for i := range there.Items {
		known[there.Items[i].Name] = true
	}
	missing := slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return known[pod.Name] })
	return c.CreatePods(ctx, namespace, len(missing), func(i int) *v1.Pod { return missing[i] })
}

// DeletePods deletes the pods of a namespace and waits until they have disappeared.
func (c *Cluster) DeletePods(ctx context.Context, namespace string) error {
	const limit = 5 * time.Minute
	pods := c.Client.CoreV1().Pods(namespace)
	return c.Until(ctx, "the pods of "+namespace+" to go", limit, func() (string, error) {
		// On a slow machine the deletion may exceed the API server's timeout. The next poll sends
		// another request.
		if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}); err != nil {
			c.Printf("%s: not all pods are deleted yet: %v", namespace, err)
		}
		left, err := c.CountPods(ctx, namespace)
		return Lacking(left, 0), err
	})
}

// Lacking describes a difference between the numbers, or returns "" if they are equal.
func Lacking(have, want int) string {
	if have == want {
		return ""
	}
	return fmt.Sprintf("there are %d, not %d", have, want)
}

// CountPods returns the number of pods in a namespace.
func (c *Cluster) CountPods(ctx context.Context, namespace string) (int, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return countItems(len(list.Items), list.ListMeta), nil
}

// CountEvents returns the number of events in a namespace.
func (c *Cluster) CountEvents(ctx context.Context, namespace string) (int, error) {
	list, err := c.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return countItems(len(list.Items), list.ListMeta), nil
}

// countItems returns the number of all items, given a list limited to one item.
func countItems(items int, meta metav1.ListMeta) int {
	if meta.RemainingItemCount != nil {
		items += int(*meta.RemainingItemCount)
	}
	return items
}
