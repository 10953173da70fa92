// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// tolerations lets pods with equal tolerations, such as the pods of a workload, share one list in
// memory. When mostShared lists are remembered, all are forgotten: if lists differ that much, few
// are shared.
type tolerations struct {
	known map[string][]v1.Toleration
}

// mostShared bounds the number of remembered lists.
const mostShared = 10_000

// shareList returns an immutable list equal to the given one, or nil for an empty one. A new list
// is copied, because the given list may keep a whole page of pods in memory.
func (t *tolerations) shareList(list []v1.Toleration) []v1.Toleration {
	if len(list) == 0 {
		return nil
	}
	var key strings.Builder
	for i := range list {
		key.WriteString(list[i].String())
	}
	if known, ok := t.known[key.String()]; ok {
		return known
	}
	if t.known == nil || len(t.known) >= mostShared {
		t.known = map[string][]v1.Toleration{}
	}
	t.known[key.String()] = slices.Clone(list)
	return t.known[key.String()]
}
