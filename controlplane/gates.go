package controlplane

import (
	"fmt"
	"maps"
	"sync"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// Kubernetes keeps feature gates once per process. gatesInUse is what the running control planes
// agreed on.
var gatesInUse struct {
	sync.Mutex
	users int
	gates map[string]bool
	undo  map[string]bool // what they were before
}

// claimGates sets the gates for the process, unless another control plane runs with others. release
// gives them back. It must be called before anything reads a gate, and release after everything
// that does has ended.
func claimGates(gates map[string]bool) (release func(), err error) {
	g := &gatesInUse
	g.Lock()
	defer g.Unlock()
	// Changing a gate under a control plane that runs would change what it does half-way.
	if g.users > 0 && !maps.Equal(g.gates, gates) {
		return nil, fmt.Errorf("feature gates %v: another control plane in this process runs with %v: stop it first", gates, g.gates)
	}
	if g.users == 0 {
		undo := map[string]bool{}
		// Only the gates that are going to be set are remembered.
		for feature := range utilfeature.DefaultMutableFeatureGate.GetAll() {
			if _, set := gates[string(feature)]; set {
				undo[string(feature)] = utilfeature.DefaultFeatureGate.Enabled(feature)
			}
		}
		if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
			return nil, err
		}
		g.gates, g.undo = maps.Clone(gates), undo
	}
	g.users++
	return sync.OnceFunc(func() {
		g.Lock()
		defer g.Unlock()
		if g.users--; g.users == 0 {
			// They were valid before; what cannot be undone (a gate locked meanwhile) is as it must
			// be.
			_ = utilfeature.DefaultMutableFeatureGate.SetFromMap(g.undo)
		}
	}), nil
}
