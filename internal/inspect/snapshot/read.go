// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"golang.org/x/sync/errgroup"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// Snapshot is the state of a cluster.
type Snapshot struct {
	*manifest.Set
	simulate.Source
	// Missing lists the kinds that could not be read, and why, one per line.
	Missing []string
}

// pageSize is the number of objects per request: a few megabytes of pods.
const pageSize = 1000

// atATime bounds the concurrent lists, so that a command does not burden the API server.
const atATime = 4

// Read reads everything that decisions depend on. progress, if not nil, is called with the number
// of objects read so far.
func (c *Client) Read(ctx context.Context, progress func(objects int)) (*Snapshot, error) {
	kinds := Kinds()
	lists := make([][]metav1.Object, len(kinds))
	s := &Snapshot{Source: simulate.Source{From: c.config.Host, AsOf: metav1.NewTime(time.Now().UTC().Truncate(time.Second))}}
	var mu sync.Mutex
	read := 0
	var ofGroups []string // unreadable kinds of pod groups, reported only if a pod belongs to a group
	group, listing := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for i, k := range kinds {
		group.Go(func() error {
			version, err := c.ListAll(listing, k, func(object metav1.Object) {
				if c.DropManagedFields {
					object.SetManagedFields(nil)
				}
				lists[i] = append(lists[i], object)
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if k.Needed || !Optional(err) {
					return fmt.Errorf("list %s: %w%s", k.Resource, err, remedyOf(err))
				}
				switch line := fmt.Sprintf("%s: %v", k.Resource, err); {
				case apierrors.IsNotFound(err): // an unserved kind has no objects
				case k.GroupVersion == schedulingv1beta1.SchemeGroupVersion:
					ofGroups = append(ofGroups, line)
				default:
					s.Missing = append(s.Missing, line)
				}
				return nil
			}
			s.ResourceVersion = newer(s.ResourceVersion, version)
			if read += len(lists[i]); progress != nil {
				progress(read)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	s.Set = manifest.Assemble(c.config.Host, slices.Concat(lists...))
	if slices.ContainsFunc(s.Pods, func(p *v1.Pod) bool { return p.Spec.SchedulingGroup != nil }) {
		s.Missing = append(s.Missing, ofGroups...)
	}
	slices.Sort(s.Missing)
	s.Whole = len(s.Missing) == 0
	if !c.NodePools {
		return s, nil
	}
	return s, c.readNodePools(ctx, s)
}

// readNodePools adds Karpenter's NodePools to a snapshot, if the cluster has them.
func (c *Client) readNodePools(ctx context.Context, s *Snapshot) error {
	text, err := c.http[v1.SchemeGroupVersion].Get().AbsPath("/apis/karpenter.sh/v1/nodepools").
		SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil && Optional(err):
		s.Missing = append(s.Missing, fmt.Sprintf("nodepools: %v", err))
		return nil
	case err != nil:
		return fmt.Errorf("list nodepools: %w", connect.WithRemedy(err))
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("list nodepools: %w", err)
	}
	for _, item := range list.Items {
		s.NodePools = append(s.NodePools, manifest.Document{File: "NodePools of " + c.config.Host, Text: item})
	}
	return nil
}

// remedyOf names the role that grants the missing permission, if the error is a refusal. Binding
// the role in a single namespace does not cover nodes, which every result requires.
func remedyOf(err error) string {
	if !apierrors.IsForbidden(err) {
		return ""
	}
	return ". Answers depend on the nodes and on the pods of all namespaces; an administrator grants the permissions with " +
		"`kubectl create clusterrolebinding NAME --clusterrole=berth-view --user=USER`"
}

// ListAll lists a kind page by page and returns the list's resource version.
func (c *Client) ListAll(ctx context.Context, k Kind, take func(metav1.Object)) (version string, err error) {
	ask := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, k, o) }
	see := func(o runtime.Object) { take(o.(metav1.Object)) }
	version, begun, err := feed.Pages(ctx, metav1.ListOptions{Limit: pageSize}, ask, see)
	if apierrors.IsResourceExpired(err) && begun {
		return "", fmt.Errorf("the list of %s took longer than the API server keeps it: try again", k.Resource)
	}
	return version, err
}

// newer returns the later of two resource versions, which are compared as numbers.
func newer(a, b string) string {
	x, _ := strconv.ParseUint(a, 10, 64)
	y, _ := strconv.ParseUint(b, 10, 64)
	if y > x {
		return b
	}
	return a
}
