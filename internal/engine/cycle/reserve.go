// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// This file assumes a pod on the chosen node and runs Reserve. If a plugin refuses or fails,
// stop.go takes everything back; otherwise the pod continues in permit.go, prepare.go and
// bind.go. Devices are reserved in devices.go.

// assumePod assumes the pod on the node, reserves its volumes and devices, and starts its binding.
// If a plugin refuses or fails, everything is undone within the step, and the pod returns to the
// queue.
//
// Berth's own plugins reserve before the pod is assumed, and out-of-tree plugins reserve
// afterwards. kube-scheduler assumes a pod before running Reserve, so out-of-tree plugins may
// expect to find the pod on the node.
func (ps *placements) assumePod(b *placement, n *cluster.Node) {
	b.Node = n.Name
	if nominated := ps.cluster.Nominated(b.Pod.UID); nominated != nil && nominated.Nominated != n.Name {
		ps.nominations.clearNomination(b.Pod.UID)
	}

	if err := ps.reserveOwn(b, n); err != nil {
		ps.takeBack(b, err)
		return
	}

	ps.cluster.Place(b.Waiting, n)
	ps.enter(b)
	ps.events.podAdded(b.Waiting, nil)
	if err := ps.reserveOutside(b); err != nil {
		ps.takeBack(b, err)
		return
	}

	waits, err := ps.askPermit(b)
	if err != nil {
		ps.takeBack(b, err)
		return
	}

	for _, e := range b.profile.assumed {
		e.Assumed(&b.Attempt)
	}
	ps.proceed(b, waits)
}

// reserveOwn runs the Reserve step of Berth's own plugins. It records each reservation in b.undo
// immediately, since a later plugin may panic.
func (ps *placements) reserveOwn(b *placement, n *cluster.Node) (err error) {
	for _, r := range b.profile.Reservers {
		var give func()
		done := ps.startTiming(b.podAttempt, r.Name(), plugins.Reserve)
		switch r := r.(type) {
		case plugins.VolumeReserver:
			give, err = ps.reserveVolumes(b, r, n)
		case plugins.ClaimReserver:
			give, err = ps.reserveDevices(b, r, n)
		default:
			give, err = r.Reserve(ps.cluster, b.Waiting, n)
		}
		if give != nil {
			b.undo = append(b.undo, give)
		}
		done(err == nil)
		if err != nil {
			return fmt.Errorf("running Reserve plugin %q: %w", r.Name(), err)
		}
	}

	return nil
}

// reserveOutside runs the out-of-tree Reserve plugins. b.asked is set before the first call,
// because Unreserve is called for all plugins if one of them refuses or panics.
func (ps *placements) reserveOutside(b *placement) error {
	if len(b.profile.reserve) == 0 {
		return nil
	}
	began := ps.clock()
	b.asked = true

	for _, r := range b.profile.reserve {
		done := ps.startTiming(b.podAttempt, r.Name(), plugins.Reserve)
		refused := r.Reserve(&b.Attempt)
		done(refused == nil)
		if refused != nil {
			ps.observer().Ran(b.Profile, plugins.Reserve, false, ps.clock().Sub(began))
			if refused.Err != nil {
				return fmt.Errorf("running Reserve plugin %q: %w", r.Name(), refused.Err)
			}
			return &rejection{r.Name(), refused}
		}
	}

	ps.observer().Ran(b.Profile, plugins.Reserve, true, ps.clock().Sub(began))
	return nil
}

// reserveVolumes matches volumes with the pod's claims, and assumes the matches in the cluster
// model. The returned function undoes the assumption. The function is nil if no writes are needed.
func (ps *placements) reserveVolumes(b *placement, plugin plugins.VolumeReserver, n *cluster.Node) (undo func(), err error) {
	volumes, err := plugin.PodVolumes(ps.cluster, b.Waiting, n)
	if err != nil {
		ps.observer().VolumesFailed("assume")
	}
	if err != nil || len(volumes.Volumes)+len(volumes.Claims) == 0 {
		return nil, err
	}
	b.volumes = volumes
	b.own = append(b.own, ownWork{
		plugin: plugin.Name(), next: volumesBound,
		write:  func(b *placement, ticket Ticket) Action { return WriteVolumes{ticket, &b.Attempt, b.volumes} },
		failed: func(ps *placements) { ps.observer().VolumesFailed("bind") },
	})
	return volumes.Assume(ps.cluster), nil
}

// WriteVolumes writes the volumes and claims matched for the pod. Its outcome arrives after the
// writes. Afterwards the core itself waits until the claims are bound.
type WriteVolumes struct {
	Ticket  Ticket
	Attempt *Attempt
	Volumes plugins.PodVolumes
}

func (a WriteVolumes) String() string {
	var names []string
	for _, volume := range a.Volumes.Volumes {
		names = append(names, volume.Name)
	}
	for _, claim := range a.Volumes.Claims {
		names = append(names, claim.Namespace+"/"+claim.Name)
	}
	return fmt.Sprintf("write volumes of %s #%d: %s", a.Attempt, a.Ticket, strings.Join(names, ", "))
}

// volumesBound is the wait for the PV controller or a provisioner to bind all claims of the pod. If
// the node is deleted, the pod returns to the queue.
var volumesBound = waitFor{
	late:   "binding volumes: timed out waiting for the condition",
	within: func(b *placement) time.Duration { return b.volumes.Timeout },
	met: func(c *cluster.Cluster, b *placement) (bool, error) {
		n := c.Node(b.Node)
		if n == nil {
			return false, errNodeGone
		}
		return b.volumes.Bound(c, n)
	},
}
