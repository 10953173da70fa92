// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
)

// claims creates claims for volumes and devices. It acts for the API server, which sets defaults,
// and for the controllers of ephemeral volumes and claim templates. The embedded Claims creates and
// deletes the claims of a pod; the other methods handle all claims of the cluster.
type claims struct {
	claimcontrollers.Claims
	scheduler *scheduler
}

// templateNamed returns a device claim template by name.
func (c *claims) templateNamed(namespace, name string) (*resourcev1.ResourceClaimTemplate, bool) {
	return world.Get[*resourcev1.ResourceClaimTemplate](c.scheduler.api, namespace, name)
}

// identifyClaims assigns a UID to new claims and the default storage class to those without one,
// like the API server. It is called after claims or storage classes are added, and visits all
// claims. It skips claims with a UID or a volume.
func (c *claims) identifyClaims() {
	c.StorageClass = admission.DefaultStorageClass(c.scheduler.c.StorageClasses.All())
	for _, claim := range c.scheduler.c.Claims.All() {
		if claim.UID == "" && claim.Spec.VolumeName == "" {
			claim = claim.DeepCopy()
			if c.StorageClass != nil {
				admission.Claim(claim, c.StorageClass)
			}
			claim.UID = types.UID("claim/" + claim.Namespace + "/" + claim.Name)
			c.scheduler.showObject(cycle.Claims, claim)
		}
	}
}

// addClaims adds claims that do not exist yet and reports whether it added any. The caller must
// then identify the new ones.
func (c *claims) addClaims(list []*v1.PersistentVolumeClaim) (added bool) {
	for _, claim := range list {
		if _, there := c.scheduler.c.Claims.Get(claim.Namespace, claim.Name); !there {
			c.scheduler.showObject(cycle.Claims, claim)
			added = true
		}
	}
	return added
}
