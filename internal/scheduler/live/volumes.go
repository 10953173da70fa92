package live

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// writeVolumes writes what was decided about a pod's volumes and claims: which claim a volume is
// for, and for which node a claim is to be provisioned. As upstream, volumes come first; the first
// failure ends it, and what was written stays: the pod is decided again, and finds it. Each write
// names the version that was decided about.
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
			return fmt.Errorf("have a volume made for claim %s: %w", claim.Name, err)
		}
	}

	return nil
}
