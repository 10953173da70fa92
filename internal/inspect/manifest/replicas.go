// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// expandDeployments provides each Deployment with ReplicaSets for all its replicas: the ReplicaSets
// in the input, or a new one. If the ReplicaSets have fewer replicas than the Deployment, as while
// scaling up, the newest gets the missing replicas. If they have more, as during a rollout, they
// stay unchanged.
func (e *expansion) expandDeployments() {
	s := e.set
	byOwner, byName := map[rules.Owner][]*appsv1.ReplicaSet{}, map[types.NamespacedName][]*appsv1.ReplicaSet{}
	for _, rs := range s.ReplicaSets {
		// Match by UID or by name: Deployments of hand-written files lack a UID.
		if ref := metav1.GetControllerOfNoCopy(rs); rules.KindOf(ref) == rules.Deployment {
			byOwner[rules.OwnerOf(rs)] = append(byOwner[rules.OwnerOf(rs)], rs)
			name := types.NamespacedName{Namespace: rs.Namespace, Name: ref.Name}
			byName[name] = append(byName[name], rs)
		}
	}

	for i, d := range s.Deployments {
		own := byOwner[rules.AsOwner(rules.Deployment, d)]
		// Hand-written files lack UIDs: find the ReplicaSets by name, and make them refer to the
		// new UID.
		if d.UID == "" {
			own = byName[types.NamespacedName{Namespace: d.Namespace, Name: d.Name}]
			d.UID = uidOf("Deployment", d)
			for _, rs := range own {
				adopt(rs, d.UID)
			}
		}
		// A Deployment without any ReplicaSet is new.
		if len(own) == 0 {
			s.ReplicaSets = append(s.ReplicaSets, workload.NewReplicaSet(d))
			s.places["ReplicaSet"] = append(s.places["ReplicaSet"], s.places["Deployment"][i])
			continue
		}
		// If the Deployment was scaled up, its ReplicaSets may not have followed yet.
		missing := *d.Spec.Replicas
		for _, rs := range own {
			missing -= *rs.Spec.Replicas
		}
		if missing > 0 {
			newest := slices.MaxFunc(own,
				func(a, b *appsv1.ReplicaSet) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
			newest.Spec.Replicas = new(*newest.Spec.Replicas + missing)
		}
	}
}

// replicaSets creates the pods of all ReplicaSets, including those of Deployments.
func (e *expansion) replicaSets() {
	for i, rs := range e.set.ReplicaSets {
		e.expandReplicas(expanded{workload.Of(rs), e.set.places["ReplicaSet"][i]})
	}
}

// replicationControllers creates the pods of all ReplicationControllers.
func (e *expansion) replicationControllers() {
	for i, rc := range e.set.ReplicationControllers {
		e.expandReplicas(expanded{workload.Of(rc), e.set.places["ReplicationController"][i]})
	}
}

// expandReplicas creates the pods missing from a workload. It adopts the existing pods of a
// workload being deleted, but creates none.
func (e *expansion) expandReplicas(w expanded) {
	own := activePods(e.ownedPods(w))
	if w.Object.GetDeletionTimestamp() != nil {
		return
	}
	for range min(int(*w.Replicas), workload.Most) - len(own) {
		e.addNamed(w.NewPod(), w.Object.GetName()+"-", w.at)
	}
}
