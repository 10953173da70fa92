// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lead

import (
	"context"
	"maps"

	v1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// annotated is a client that writes the elector's annotation with the Lease: client-go's lock keeps
// existing annotations, but adds none.
type annotated struct {
	coordinationv1.LeasesGetter
	elector *Elector
}

// Leases implements [coordinationv1.LeasesGetter].
func (a annotated) Leases(namespace string) coordinationv1.LeaseInterface {
	return annotatedLeases{a.LeasesGetter.Leases(namespace), a.elector}
}

// annotatedLeases writes the annotation with each creation and update.
type annotatedLeases struct {
	coordinationv1.LeaseInterface
	elector *Elector
}

// Create implements [coordinationv1.LeaseInterface].
func (l annotatedLeases) Create(ctx context.Context, lease *v1.Lease, o metav1.CreateOptions) (*v1.Lease, error) {
	return l.LeaseInterface.Create(ctx, l.elector.annotated(lease), o)
}

// Update implements [coordinationv1.LeaseInterface].
func (l annotatedLeases) Update(ctx context.Context, lease *v1.Lease, o metav1.UpdateOptions) (*v1.Lease, error) {
	return l.LeaseInterface.Update(ctx, l.elector.annotated(lease), o)
}

// annotated returns a Lease with this replica's annotation. A Lease that is being released, or is
// held by another replica, is returned unchanged, so a released Lease keeps the last annotation.
func (e *Elector) annotated(lease *v1.Lease) *v1.Lease {
	if e.annotation == "" || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != e.identity {
		return lease
	}
	with := *lease // the lock's copy must not change, because the request may fail
	with.Annotations = maps.Clone(lease.Annotations)
	if value := e.annotate(); value == "" {
		delete(with.Annotations, e.annotation)
	} else {
		metav1.SetMetaDataAnnotation(&with.ObjectMeta, e.annotation, value)
	}
	return &with
}
