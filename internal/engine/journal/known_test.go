// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// TestKindsThatFollowLaterAreKnown verifies that kinds followed later are added to the earlier
// kinds, and that a repeated kind is recorded once.
func TestKindsThatFollowLaterAreKnown(t *testing.T) {
	k := newKnown()
	for _, kinds := range [][]cycle.Kind{{cycle.Nodes, cycle.Pods}, {cycle.ResourceClaims}, {cycle.Nodes, cycle.Pods, cycle.ResourceClaims}} {
		k.noteEvent(cycle.Follows{Kinds: kinds}, nil)
	}
	if got, want := fmt.Sprint(k.kinds), fmt.Sprint([]cycle.Kind{cycle.Nodes, cycle.Pods, cycle.ResourceClaims}); got != want {
		t.Errorf("follows %s, want %s", got, want)
	}
}

// TestRoomsAreTold verifies that the next file begins with the Lease of a reservation, after the
// pods, although decisions do not wait for Leases.
func TestRoomsAreTold(t *testing.T) {
	k := newKnown()
	lease := cycle.Seen{Kind: cycle.MoveLeases, Object: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: cycle.MoveLeaseNamespace, Name: cycle.MoveLeaseName, Annotations: map[string]string{cycle.MoveReservationAnnotation: "{}"},
	}}}
	written, err := encodeEvent(nil, lease)
	if err != nil {
		t.Fatal(err)
	}
	k.noteEvent(cycle.Follows{Kinds: []cycle.Kind{cycle.Pods}}, nil)
	k.noteEvent(lease, written)
	events := eventsOfMoment(t, k)
	seen, ok := events[len(events)-1].(cycle.Seen)
	if !ok || seen.Kind != cycle.MoveLeases || seen.Object.GetAnnotations()[cycle.MoveReservationAnnotation] != "{}" {
		t.Errorf("the last event is %#v", events[len(events)-1])
	}
}

// TestAListUnderWayGoesOnInTheNextFile verifies that the next file begins with all known objects,
// followed by the beginning of the list in progress with the objects that it has shown so far.
func TestAListUnderWayGoesOnInTheNextFile(t *testing.T) {
	k := newKnown()
	note := func(e cycle.Event) {
		written, err := encodeEvent(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		k.noteEvent(e, written)
	}
	see := func(name string) {
		note(cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}})
	}
	note(cycle.Follows{Kinds: []cycle.Kind{cycle.Nodes}})
	note(cycle.Listing{Kind: cycle.Nodes})
	see("a")
	see("b")
	note(cycle.Listed{Kind: cycle.Nodes})
	note(cycle.Listing{Kind: cycle.Nodes})
	see("b")

	var lines []string
	for _, e := range eventsOfMoment(t, k) {
		if seen, is := e.(cycle.Seen); is {
			lines = append(lines, seen.Object.GetName())
		} else {
			lines = append(lines, fmt.Sprintf("%T", e))
		}
	}
	if got, want := strings.Join(lines, " "), "cycle.Follows cycle.WallSet cycle.Listing a b cycle.Listed cycle.Listing b"; got != want {
		t.Errorf("told:\n%s, want\n%s", got, want)
	}
}

// eventsOfMoment returns the events at the beginning of the next file.
func eventsOfMoment(t *testing.T, k *known) []cycle.Event {
	t.Helper()
	at, decoded := make(chan *moment, 1), make(chan batch, batchesAhead)
	at <- k.copyMoment()
	go decodeState(t.Context(), at, nil, decoded)
	return eventsOf(t, &State{decoded: decoded})
}
