// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"maps"
	"sync"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// gatesInUse holds the feature gates agreed on by the running control planes; Kubernetes keeps them
// once per process.
var gatesInUse struct {
	sync.Mutex
	users int
	gates map[string]bool
	undo  map[string]bool // values before the first claim
}

// claimGates sets the process's gates, unless another control plane runs with different gates.
// release restores them. claimGates must precede every read of a gate, and release must follow the
// end of all readers.
func claimGates(gates map[string]bool) (release func(), err error) {
	g := &gatesInUse
	g.Lock()
	defer g.Unlock()
	// Changing a gate under a running control plane would change its behaviour half-way.
	if g.users > 0 && !maps.Equal(g.gates, gates) {
		return nil, fmt.Errorf("feature gates %v: another control plane in this process runs with %v: stop it first", gates, g.gates)
	}
	if g.users == 0 {
		undo := map[string]bool{}
		// Record only the gates about to be set.
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
			// The old values were valid; a gate that cannot be restored (locked meanwhile) already
			// has its only value.
			_ = utilfeature.DefaultMutableFeatureGate.SetFromMap(g.undo)
		}
	}), nil
}
