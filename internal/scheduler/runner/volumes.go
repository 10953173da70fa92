// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// writeVolumes writes the decisions about a pod's volumes: the claimRef of each volume, and the
// selected node of each claim to be provisioned. Like upstream, it writes the volumes first, and
// stops at the first failure. Completed writes are not reverted; the next decision about the pod
// takes them into account. Each write has the resource version of the decision.
func (w *writer) writeVolumes(ctx context.Context, of *plugins.PodVolumes) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(len(of.Volumes)+len(of.Claims))*writtenWithin)
	defer cancel()
	volumes := w.client.CoreV1().PersistentVolumes()
	for _, volume := range of.Volumes {
		volume, err := fetchWhole(ctx, w, volumes.List, volume)
		if err == nil {
			_, err = volumes.Update(ctx, volume, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("bind volume %s: %w", volume.Name, err)
		}
	}

	for _, claim := range of.Claims {
		claims := w.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
		claim, err := fetchWhole(ctx, w, claims.List, claim)
		if err == nil {
			_, err = claims.Update(ctx, claim, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("provision a volume for claim %s: %w", claim.Name, err)
		}
	}

	return nil
}
