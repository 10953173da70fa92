// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// newMirrors creates the mirrors of all kinds. Most kinds are only stored in a table of the cluster
// model; see mirrorTable. The listing order of kinds does not matter: all are listed before any
// decision.
func (c *Core) newMirrors() map[Kind]mirror {
	s, h, i := c.common, c.events, c.intake
	pods := newMirror(s, h, queue.Pod, func(pod, old *v1.Pod) {
		if pod.ManagedFields != nil { // avoids a write to a stripped object, which a journal may read concurrently
			pod.ManagedFields = nil // half of the object's size, and unused here
		}
		i.seePod(pod, old)
	}, func(_ cluster.Name, uid types.UID, last *v1.Pod) { i.losePod(last, uid) })
	// The mirror of pods is used as the index of pods by name.
	i.named = func(name cluster.Name) (uid types.UID, known bool) { uid, known = pods.known[name]; return uid, known }
	pods.single = func(pod *v1.Pod) *v1.Pod { own := *pod; return &own } // the class may keep a reference to its spec
	o := &c.cluster.Objects
	budgets := mirrorTable(s, h, &o.Budgets, queue.Budget, c.preemptions.budgetSeen)
	deviceClaims := mirrorTable(s, h, &o.ResourceClaims, queue.ResourceClaim, c.claims.mergeSeen)
	deviceClaims.forgetFirst(c.claims.forgetGone)
	// A slice is stored in the table with the taints of the rules selecting its devices.
	deviceSlices := mirrorTable(s, h, &o.ResourceSlices, queue.ResourceSlice, o.Tainted)
	sliceGone := deviceSlices.forget
	deviceSlices.forget = func(n cluster.Name, uid types.UID, last *resourcev1.ResourceSlice) {
		sliceGone(n, uid, last)
		o.Unpublish(n.Name)
	}
	budgets.forgetFirst(func(n cluster.Name) { delete(c.preemptions.budgets, n) })
	all := map[Kind]mirror{
		Nodes: newMirror(s, h, queue.Node, i.seeNode, func(n cluster.Name, _ types.UID, last *v1.Node) { i.loseNode(n.Name, last) }),
		Pods:  pods,

		Namespaces:             mirrorTable(s, h, &o.Namespaces, queue.Namespace, nil),
		Services:               mirrorTable(s, h, &o.Services, queue.Owner, nil),
		ReplicationControllers: mirrorTable(s, h, &o.ReplicationControllers, queue.Owner, nil),
		ReplicaSets:            mirrorTable(s, h, &o.ReplicaSets, queue.Owner, nil),
		StatefulSets:           mirrorTable(s, h, &o.StatefulSets, queue.Owner, nil),
		DisruptionBudgets:      budgets,
		Volumes:                mirrorTable(s, h, &o.Volumes, queue.Volume, nil),
		Claims:                 mirrorTable(s, h, &o.Claims, queue.Claim, c.claimSeen),
		StorageClasses:         mirrorTable(s, h, &o.StorageClasses, queue.StorageClass, nil),
		CSINodes:               mirrorTable(s, h, &o.CSINodes, queue.CSINode, nil),
		CSIDrivers:             mirrorTable(s, h, &o.CSIDrivers, queue.CSIDriver, nil),
		CSICapacities:          mirrorTable(s, h, &o.CSICapacities, queue.CSIStorageCapacity, nil),
		VolumeAttachments:      mirrorTable(s, h, &o.VolumeAttachments, queue.VolumeAttachment, nil),
		ResourceSlices:         deviceSlices,
		ResourceClaims:         deviceClaims,
		DeviceClasses:          mirrorTable(s, h, &o.DeviceClasses, queue.DeviceClass, nil),
		DeviceTaintRules: newMirror(s, h, "DeviceTaintRule",
			func(rule, _ *resourcev1.DeviceTaintRule) { c.applyTaintRule(rule.Name, rule) }, c.ruleGone),

		MoveLeases: newMirror(s, h, "Lease", func(lease, _ *coordinationv1.Lease) { c.moveReservations.seen(lease) },
			func(cluster.Name, types.UID, *coordinationv1.Lease) { c.moveReservations.withdraw() }),
	}
	if c.podGroups.gates.Generic {
		all[PodGroups] = newMirror(s, h, queue.PodGroup,
			func(g, _ *groups.PodGroup) { h.groupChanged(nameOf(g), g); c.podGroups.groupSeen(g) },
			func(n cluster.Name, _ types.UID, _ *groups.PodGroup) {
				h.groupChanged(n, nil)
				c.podGroups.groupGone(n)
			})
	}
	if c.podGroups.gates.Composite {
		all[CompositePodGroups] = newMirror(s, h, queue.CompositePodGroup,
			func(g, _ *groups.CompositePodGroup) { c.podGroups.compositeSeen(g) },
			func(n cluster.Name, _ types.UID, _ *groups.CompositePodGroup) { c.podGroups.compositeGone(n) })
	}
	return all
}

// claimSeen parses the claim's selector now rather than during an attempt, since the selector may
// be long.
func (c *Core) claimSeen(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	_, _ = c.cluster.VolumesFor(claim) // the attempt reports an error
	return claim
}

// mirrorTable mirrors a kind whose objects are stored in a table of the cluster model. as, if not
// nil, converts an object before it is stored. Changes of the objects may help pending pods.
func mirrorTable[T metav1.Object](c *common, news *clusterEvents, table *cluster.Table[T], resource queue.Resource,
	as func(T) T) *mirrored[T] {
	return newMirror(c, news, resource,
		func(object, _ T) {
			e := queue.Event{Resource: resource, Action: queue.Add, Label: string(resource) + "Add"}
			if old, ok := table.Get(object.GetNamespace(), object.GetName()); ok {
				if sameVersion(old, object) { // listed again: later assumptions about the object are still valid
					return
				}
				e.Action, e.Label, e.Old = queue.Update, string(resource)+"Update", old
			}
			if as != nil {
				object = as(object)
			}
			e.New = object
			table.Set(object)
			news.objects = true
			news.addEvent(e)
		},
		func(n cluster.Name, _ types.UID, _ T) {
			e := queue.Event{Resource: resource, Action: queue.Delete, Label: string(resource) + "Delete"}
			if old, ok := table.Get(n.Namespace, n.Name); ok {
				e.Old = old
			}
			table.Delete(n.Namespace, n.Name)
			news.objects = true
			news.addEvent(e)
		})
}
