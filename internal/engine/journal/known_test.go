package journal

import (
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// TestKindsThatFollowLaterAreKnown in addition to the first ones; each once, though the next file
// begins with all of them.
func TestKindsThatFollowLaterAreKnown(t *testing.T) {
	k := newKnown()
	for _, kinds := range [][]cycle.Kind{{cycle.Nodes, cycle.Pods}, {cycle.ResourceClaims}, {cycle.Nodes, cycle.Pods, cycle.ResourceClaims}} {
		k.noteEvent(cycle.Follows{Kinds: kinds}, nil)
	}
	if got, want := fmt.Sprint(k.kinds), fmt.Sprint([]cycle.Kind{cycle.Nodes, cycle.Pods, cycle.ResourceClaims}); got != want {
		t.Errorf("follows %s, want %s", got, want)
	}
}

// TestRoomsAreTold although decisions do not wait for them: the next file begins with the Lease,
// after the pods.
func TestRoomsAreTold(t *testing.T) {
	k := newKnown()
	lease := cycle.Seen{Kind: cycle.Rooms, Object: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: cycle.RoomNamespace, Name: cycle.RoomName, Annotations: map[string]string{cycle.RoomAnnotation: "{}"},
	}}}
	written, err := encodeEvent(nil, lease)
	if err != nil {
		t.Fatal(err)
	}
	k.noteEvent(cycle.Follows{Kinds: []cycle.Kind{cycle.Pods}}, nil)
	k.noteEvent(lease, written)
	events, err := k.listEvents()
	if err != nil {
		t.Fatal(err)
	}
	seen, ok := events[len(events)-1].(cycle.Seen)
	if !ok || seen.Kind != cycle.Rooms || seen.Object.GetAnnotations()[cycle.RoomAnnotation] != "{}" {
		t.Errorf("the last event is %#v", events[len(events)-1])
	}
}
