package simulate

import (
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/standin"
)

// claims stands in for what creates claims of volumes and devices: the API server's defaults,
// and the controllers of ephemeral volumes and of claim templates. The embedded Claims makes
// those of a pod and deletes them with it; this type adds what belongs to the cluster.
type claims struct {
	standin.Claims
	scheduler *scheduler
}

// templateNamed returns a template of device claims.
func (c *claims) templateNamed(namespace, name string) (*resourcev1.ResourceClaimTemplate, bool) {
	return world.Get[*resourcev1.ResourceClaimTemplate](c.scheduler.api, namespace, name)
}

// identifyClaims gives new claims what the API server gives them: a UID and, if they name no
// storage class, the default one. It is called after claims or storage classes were added,
// and goes through all claims. A claim with a UID, or with a volume, is left alone.
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

// addClaims adds claims that do not exist yet, and reports whether there was one. New ones have to
// be identified.
func (c *claims) addClaims(list []*v1.PersistentVolumeClaim) (added bool) {
	for _, claim := range list {
		if _, there := c.scheduler.c.Claims.Get(claim.Namespace, claim.Name); !there {
			c.scheduler.showObject(cycle.Claims, claim)
			added = true
		}
	}
	return added
}
