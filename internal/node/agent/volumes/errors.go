package volumes

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/node/agent/csi"
)

// SetUpError is why one volume could not be set up or updated. Its text is that of the FailedMount
// event.
type SetUpError struct {
	Volume string
	Err    error
	// Stale: the volume exists with its previous content. Containers need not wait for it.
	Stale bool
}

func (e *SetUpError) Error() string {
	if staged := (*csi.StageError)(nil); errors.As(e.Err, &staged) {
		return fmt.Sprintf("MountVolume.MountDevice failed for volume %q : %v", staged.Volume, e.Err)
	}
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *SetUpError) Unwrap() error { return e.Err }

// SetUpErrors are those of a pod, at least one.
type SetUpErrors struct{ List []*SetUpError }

func (e *SetUpErrors) Error() string {
	var texts []string
	for _, one := range e.List {
		texts = append(texts, one.Error())
	}
	return strings.Join(texts, "; ")
}

// Blocking reports whether a container has to wait: a volume has never been set up.
func (e *SetUpErrors) Blocking() bool {
	return slices.ContainsFunc(e.List, func(one *SetUpError) bool { return !one.Stale })
}
