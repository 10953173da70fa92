// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/groups"
)

// heldMembers holds, for each group, the members rejected by a pod-level gate, with the plugin. A
// single held member gates the whole group. changed lists the groups that have got their first
// gated member, or lost their last, since regateHeld last ran.
type heldMembers struct {
	held    map[*groups.Group]map[types.UID]string
	changed []*groups.Group
}

// noteHeld records the pod-level gate that rejects a member, or "" if no such gate does.
func (hm *heldMembers) noteHeld(g *groups.Group, uid types.UID, gate string) {
	before := len(hm.held[g])
	switch {
	case gate != "" && before == 0:
		hm.held[g] = map[types.UID]string{uid: gate}
	case gate != "":
		hm.held[g][uid] = gate
	default:
		delete(hm.held[g], uid)
	}

	if len(hm.held[g]) == 0 {
		delete(hm.held, g)
	}
	if (before == 0) != (len(hm.held[g]) == 0) {
		hm.changed = append(hm.changed, g)
	}
}

// heldBy returns a pod-level gate that rejects a member of the group, or of another group of its
// tree, and thereby gates the whole group. It returns "" if there is no such gate.
func (hm *heldMembers) heldBy(g *groups.Group) (gate string) {
	if len(hm.held) == 0 {
		return ""
	}
	for _, g := range g.Tree() {
		for _, name := range hm.held[g] {
			if gate == "" || name < gate {
				gate = name
			}
		}
	}
	return gate
}
