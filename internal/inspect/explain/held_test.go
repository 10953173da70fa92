// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/decision"
)

// TestHeldRoomIsExplained verifies that the explanation names the pod group for which room is held,
// both for a pod that may not use the room and for a pod of that group.
func TestHeldRoomIsExplained(t *testing.T) {
	d := &decision.Decision{Namespace: "default", Name: "small", Held: &decision.Held{
		Group: decision.Name{Namespace: "default", Name: "train"}, Nodes: []string{"m", "n"},
		Until: metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)),
	}}
	const until = "Until 2026-01-01 12:00:00Z at the latest, room on m, n is held for "
	for _, row := range []struct {
		group *decision.Group
		whom  string
	}{
		{nil, "pod group default/train, which has been waiting for long: this pod cannot use it."},
		{&decision.Group{Name: "other"}, "pod group default/train, which has been waiting for long: this pod cannot use it."},
		{&decision.Group{Name: "train"}, "its pod group."},
	} {
		d.Group = row.group
		if line := heldLine(d); line != until+row.whom {
			t.Errorf("%+v: %s", row.group, line)
		}
	}
	d.Group, d.Held.Composite = nil, true
	if line := heldLine(d); !strings.Contains(line, "held for composite pod group default/train, which") {
		t.Error(line)
	}
	d.Group, d.Held.Composite = &decision.Group{Name: "train"}, false
	d.Held.ExpectedStart = d.Held.Until
	if line := heldLine(d); line != until+"its pod group. The group is expected to start by 2026-01-01 12:00:00Z." {
		t.Error(line)
	}
}
