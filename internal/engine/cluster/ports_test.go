// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// TestConflictAgreesWithEveryPair verifies that a single pass over both lists finds the same
// conflicts as comparing all pairs.
func TestConflictAgreesWithEveryPair(t *testing.T) {
	draw := func(t *rapid.T, label string) *Ports {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: make([]v1.Container, 1)}}
		for range rapid.IntRange(0, 6).Draw(t, label) {
			pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, v1.ContainerPort{
				HostPort: int32(rapid.IntRange(1, 4).Draw(t, "port")),
				HostIP:   rapid.SampledFrom([]string{"", "0.0.0.0", "10.0.0.1", "10.0.0.2", "::", "+"}).Draw(t, "ip"),
				Protocol: rapid.SampledFrom([]v1.Protocol{"", v1.ProtocolTCP, v1.ProtocolUDP}).Draw(t, "protocol"),
			})
		}
		return portsOf(pod)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		want := a != nil && b != nil && slices.ContainsFunc(a.List, func(p Port) bool { return slices.ContainsFunc(b.List, p.Conflicts) })
		if got := a.Conflict(b); got != want {
			t.Errorf("%v and %v: %t, want %t", a, b, got, want)
		}
	})
}
