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

// This file reserves the volumes of a placement, writes them before the binding, and waits until
// they are bound.

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
	b.own = append(b.own, ownWork{plugin: plugin.Name(), write: writeVolumes, failed: bindingVolumesFailed, next: volumesBound})
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

// writeVolumes creates the action for the volumes matched by reserveVolumes.
func writeVolumes(b *placement, ticket Ticket) Action {
	return WriteVolumes{ticket, &b.Attempt, b.volumes}
}

// bindingVolumesFailed counts a failure to write volumes, or a timeout while waiting for their
// binding.
func bindingVolumesFailed(ps *placements) { ps.observer().VolumesFailed("bind") }

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
