// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package question

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// The limits of one forecast, over all of its operations. Each is a multiple of a plausible manual
// request, and a fraction of the capacity of a machine with a few gigabytes of memory.
const (
	MostBody       = 1 << 20 // bytes of a request, including its manifest
	mostOperations = 200
	mostApplied    = 4 // number of times the manifest is read
	MostAddedNodes = 10_000
	MostAddedPods  = 100_000
	MostTemplates  = 64 << 20 // encoded bytes; in memory a pod can take forty times as much
)

// WhatIf is the request for a forecast by a remote caller, with the contents of its files. It is
// not stored anywhere.
type WhatIf struct {
	*berthv1alpha1.WhatIfRequest
	applied int // number of times the manifest was read
}

// Parser parses the operations of a forecast in the form of the command line; names without a
// namespace are in the given namespace.
type Parser func(args []string, namespace string) ([]whatif.Step, error)

// Steps parses and checks the operations before the cluster is read.
func (q *WhatIf) Steps(parse Parser) ([]whatif.Step, error) {
	steps, err := parse(q.Operations, cmp.Or(q.Namespace, metav1.NamespaceDefault))
	if err == nil {
		err = checkAffordable(steps)
	}
	if err == nil {
		err = q.readCatalog(steps)
	}
	return steps, err
}

// newAllowance returns an allowance that ends the work with the context, and bounds the number of
// created pods and nodes, including replicas, daemon pods on new nodes and objects in manifests.
// Exceeding it ends the forecast with an error.
func newAllowance(ctx context.Context) simulate.Allowance {
	return simulate.Allowance{Stop: ctx.Err, Pods: MostAddedPods, Nodes: MostAddedNodes}
}

// checkAffordable rejects oversized steps before the cluster is read. It counts everything that can
// be counted without the cluster; newAllowance bounds the rest.
func checkAffordable(steps []whatif.Step) error {
	if len(steps) > mostOperations {
		return fmt.Errorf("%d operations: a forecast takes at most %d", len(steps), mostOperations)
	}
	nodes, pods := 0, 0
	for _, s := range steps {
		if s.Operation == nil {
			continue
		}
		if s.AddNodes != nil {
			nodes = addSaturating(nodes, s.AddNodes.Count)
		}
		if s.AddPods != nil {
			pods = addSaturating(pods, s.AddPods.Count)
		}
		if s.Scale != nil {
			pods = addSaturating(pods, s.Scale.Replicas)
		}
		if nodes > MostAddedNodes {
			return fmt.Errorf("%s: a forecast adds at most %d nodes in sum", s.Words, MostAddedNodes)
		}
		if pods > MostAddedPods {
			return fmt.Errorf("%s: a forecast adds at most %d pods in sum", s.Words, MostAddedPods)
		}
	}

	return nil
}

// addSaturating adds n to a small sum without overflow, whatever n is. A negative n counts as 0.
// Both sum and result stay far below the limits of an int.
func addSaturating(sum, n int) int { return sum + min(max(n, 0), 1<<30) }

// readCatalog reads the submitted catalog, if needed. It fills in the catalog at the placeholder
// left by Parse.
func (q *WhatIf) readCatalog(steps []whatif.Step) error {
	for i, s := range steps {
		if s.Catalog == nil {
			continue
		}
		if i < len(steps)-1 {
			return errors.New("provision: is for what the other operations leave pending: name it last")
		}
		catalog, err := provision.ReadCatalog([]string{"-"}, strings.NewReader(q.Catalog))
		if err != nil {
			return fmt.Errorf("the entered catalog: %w", err)
		}
		*s.Catalog = *catalog
	}
	return nil
}

// ReadApplied parses the submitted manifest, named "-". It never reads files of this machine. The
// manifest is parsed again for each "apply", because the operations must not share
// objects.
func (q *WhatIf) ReadApplied(files []string, over *manifest.Set) (*manifest.Set, error) {
	if slices.ContainsFunc(files, func(name string) bool { return name != "-" }) {
		return nil, errors.New("apply -f - is the entered manifest: no file is read")
	}
	if q.applied++; q.applied > mostApplied {
		return nil, fmt.Errorf("apply -f -: at most %d times in a forecast", mostApplied)
	}
	set, err := manifest.Read([]string{"-"}, bytes.NewReader([]byte(q.Manifest)), manifest.Options{Over: over, Namespace: q.Namespace})
	if err != nil {
		return nil, err
	}
	if pods := EstimatePods(set); pods > MostAddedPods {
		return nil, fmt.Errorf("the manifest asks for %d pods: a forecast adds at most %d in sum", pods, MostAddedPods)
	}
	return set, nil
}

// EstimatePods estimates the number of pods in the expanded manifests before any pod is created. A
// manifest of a kilobyte can request a billion pods.
func EstimatePods(set *manifest.Set) int {
	sum, size := len(set.Pods), 0 // size of the objects, of which each pod copies a part
	for _, object := range set.Controllers() {
		n := 0
		switch o := object.(type) {
		case *batchv1.Job:
			n = int(ptr.Deref(o.Spec.Parallelism, 1))
		case *appsv1.DaemonSet:
			n = len(set.Nodes)
		default:
			n = int(ptr.Deref(workload.Of(o).Replicas, 0))
		}
		sum, size = addSaturating(sum, n), addSaturating(size, n*object.(interface{ Size() int }).Size())
	}
	if size > MostTemplates {
		sum = max(sum, MostAddedPods+1)
	}
	return sum
}

// Open opens the world of a set for one question, by the running configuration. Work in the world
// ends with the context. read reads the files of "apply -f"; it is nil without such files.
func Open(ctx context.Context, set *manifest.Set, running *config.Running, source simulate.Source,
	read func([]string, *manifest.Set) (*manifest.Set, error)) (*simulate.World, error) {
	return simulate.Open(set, simulate.Options{Profiles: running.Profiles, Seed: 1, Now: source.AsOf.Time, Read: read,
		Allowance: newAllowance(ctx), Gates: running.Groups.Named()})
}
