// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"errors"
	"strconv"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// claimant is a player with Berth's engine in which each GPU task has a ResourceClaim and each node
// has a ResourceSlice of its GPUs.
type claimant struct{ *engine }

func newClaimant(t *Trace, m *Mix, seed uint64) (*claimant, error) {
	profile, err := profileOf(m)
	if err != nil {
		return nil, err
	}
	e, err := newEngine(t, profile+"      driver: "+gpuDriver+"\n", seed)
	if err != nil {
		return nil, err
	}

	e.cluster.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: gpuClass}})
	for i := range t.Nodes {
		node := e.cluster.Node(t.Nodes[i].Name).Object().DeepCopy()
		delete(node.Status.Allocatable, gpuMilli)
		e.cluster.SetNode(node)
		e.cluster.ResourceSlices.Set(sliceOf(node.Name, t.Nodes[i].GPUs))
	}
	return &claimant{e}, nil
}

// placeTask implements player.
func (e *claimant) placeTask(t *Task) (node string, gpus []share, err error) {
	e.placed++
	name := nameOf(e.placed)
	object := t.podNamed(name)
	object.Namespace, object.UID, object.Spec.SchedulerName = "default", types.UID(strconv.Itoa(e.placed)), v1.DefaultSchedulerName
	if t.GPUs > 0 {
		claim := t.claimNamed(name)
		claim.Namespace, claim.UID = "default", types.UID(name)
		e.cluster.ResourceClaims.Set(claim)
	}

	p := e.cluster.Pending(object)
	decision := e.decider.Decide(p)
	for unfinished := (*plugins.Unfinished)(nil); errors.As(decision.Err, &unfinished) && unfinished.Found > 0; {
		decision = e.decider.Decide(p) // continue the search for devices; the results so far are kept
	}
	if decision.Node == nil {
		e.cluster.ResourceClaims.Delete("default", name)
		return "", nil, decision.Err
	}
	if err := e.placeOn(p, decision.Node); err != nil {
		return "", nil, err
	}

	if claim, ok := e.cluster.ResourceClaims.Get("default", name); ok {
		gpus, err = sharesOfClaim(claim)
	}
	return decision.Node.Name, gpus, err
}
