// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simnodes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

// Faults makes simulated nodes fail by annotating them. The simulating process follows the
// annotations, so a fault can be set from anywhere and survives restarts of that process. It needs
// the permission to get, list and patch nodes.
type Faults struct{ Client kubernetes.Interface }

// Selection selects nodes by name, by zone, or both. An empty selection selects nothing.
type Selection struct{ Names, Zones []string }

// Fail stops the heartbeats and all other activity of the selected nodes' kubelets for the given
// duration; 0 means until Recover. It returns the names of the nodes. Some nodes may have been
// annotated despite an error.
func (f Faults) Fail(ctx context.Context, which Selection, duration time.Duration) ([]string, error) {
	annotations := map[string]any{
		simkubelet.AnnotationHeartbeat:      simkubelet.HeartbeatStopped,
		simkubelet.AnnotationHeartbeatUntil: nil,
	}
	if duration > 0 {
		// The annotation holds a point in time instead of a duration, so that the fault ends on
		// time even if the process restarts.
		annotations[simkubelet.AnnotationHeartbeatUntil] = time.Now().Add(duration).UTC().Format(time.RFC3339)
	}
	return f.annotateAll(ctx, which, func(*v1.Node) map[string]any { return annotations })
}

// Recover restores the heartbeats of the selected nodes. Their pods resume where they stopped.
func (f Faults) Recover(ctx context.Context, which Selection) ([]string, error) {
	return f.annotateAll(ctx, which, func(*v1.Node) map[string]any {
		return map[string]any{simkubelet.AnnotationHeartbeat: nil, simkubelet.AnnotationHeartbeatUntil: nil}
	})
}

// SetConditions makes the selected nodes report conditions in addition to earlier ones. An empty
// status removes a condition. The change is applied to the annotation's present value, so that
// concurrent changes are not lost.
func (f Faults) SetConditions(ctx context.Context, which Selection, change simkubelet.Conditions) ([]string, error) {
	return f.annotateAll(ctx, which, func(node *v1.Node) map[string]any {
		// A malformed value was written by hand: it is replaced.
		asked, err := simkubelet.ParseConditions(node.Annotations[simkubelet.AnnotationConditions])
		if err != nil {
			asked = simkubelet.Conditions{}
		}
		maps.Copy(asked, change)
		maps.DeleteFunc(asked, func(_ v1.NodeConditionType, s v1.ConditionStatus) bool { return s == "" })
		if len(asked) == 0 {
			return map[string]any{simkubelet.AnnotationConditions: nil}
		}
		return map[string]any{simkubelet.AnnotationConditions: asked.String()}
	})
}

// annotateAll annotates the selected nodes and returns their names.
func (f Faults) annotateAll(ctx context.Context, which Selection, annotations func(*v1.Node) map[string]any) ([]string, error) {
	nodes, err := f.selectNodes(ctx, which)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(nodes))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i, node := range nodes {
		names[i] = node.Name
		group.Go(func() error { return f.annotateNode(ctx, node, annotations) })
	}
	return names, group.Wait()
}

// annotateNode patches the node at the version read, and retries after a conflict, so that
// concurrent changes are not lost. It changes nothing but the annotations.
func (f Faults) annotateNode(ctx context.Context, node *v1.Node, annotations func(*v1.Node) map[string]any) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion, "annotations": annotations(node),
		}})
		if err != nil {
			return err
		}
		_, err = f.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsConflict(err) {
			// The next try starts from the API's present state.
			if fresh, getErr := f.Client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{}); getErr == nil {
				node = fresh
			}
		}
		return err
	})

	if err != nil {
		return fmt.Errorf("node %s: %w", node.Name, connect.WithRemedy(err))
	}
	return nil
}

// selectNodes returns the distinct nodes of a selection: a named node may also be in a named zone.
// An unknown name or zone is an error, and no node is changed.
func (f Faults) selectNodes(ctx context.Context, which Selection) ([]*v1.Node, error) {
	var nodes []*v1.Node
	taken := map[string]bool{}
	take := func(node *v1.Node) {
		if !taken[node.Name] {
			taken[node.Name] = true
			nodes = append(nodes, node)
		}
	}

	for _, name := range which.Names {
		node, err := f.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("node %s: not found; list the nodes with: kubectl get nodes -l %s",
				name, simkubelet.LabelSimulated)
		case err != nil:
			return nil, connect.WithRemedy(err)
		// An annotation would be useless on a machine.
		case node.Labels[simkubelet.LabelSimulated] == "":
			return nil, fmt.Errorf("node %s: is not a simulated node (it has no label %s)", name, simkubelet.LabelSimulated)
		}
		take(node)
	}

	for _, zone := range which.Zones {
		list, err := f.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: simkubelet.LabelSimulated})
		if err != nil {
			return nil, connect.WithRemedy(err)
		}
		zones := map[string]bool{}
		for i := range list.Items {
			in := list.Items[i].Labels[v1.LabelTopologyZone]
			if zones[in] = true; in == zone {
				take(&list.Items[i])
			}
		}
		if !zones[zone] {
			return nil, fmt.Errorf("zone %s: no simulated node is in it; %s", zone, thereAre(zones))
		}
	}

	return nodes, nil
}

// thereAre lists the existing zones for an error message. Nodes without a zone have the zone "".
func thereAre(zones map[string]bool) string {
	delete(zones, "")
	if len(zones) == 0 {
		return "there are no zones"
	}
	// Shorter names first, so that z2 precedes z10.
	names := slices.SortedFunc(maps.Keys(zones), func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return "there are " + strings.Join(names, ", ")
}
