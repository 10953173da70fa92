// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestWhatIsKeptOfAPodIsDecidedTheSame verifies that a trimmed pod belongs to the same class, and
// has the same position in the queue.
func TestWhatIsKeptOfAPodIsDecidedTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cluster.New()
		s := &intake{common: &common{cluster: c}}
		for i := range 8 {
			pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Image: "i", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(rapid.SampledFrom([]string{"1", "2"}).Draw(t, "cpu"))},
			}}}}}
			pod.Namespace, pod.Name = "default", rapid.StringN(1, 5, 5).Draw(t, "name")
			pod.UID = types.UID(string(rune('a' + i)))
			pod.Labels = map[string]string{"app": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app")}
			pod.Annotations = map[string]string{"note": pod.Name}
			pod.Spec.Containers[0].Name = rapid.SampledFrom([]string{"c", "d"}).Draw(t, "container")
			pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "OWN", Value: pod.Name}}
			if rapid.Bool().Draw(t, "volume") {
				pod.Spec.Volumes = []v1.Volume{{Name: "token-" + pod.Name, VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}}}
			}
			if rapid.Bool().Draw(t, "claim") {
				pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}})
			}
			if rapid.Bool().Draw(t, "gated") {
				pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}}
			}
			if rapid.Bool().Draw(t, "deadline") {
				pod.Spec.ActiveDeadlineSeconds = new(int64(i + 1))
			}
			p := c.Pending(pod)
			kept := s.trimmer.trimPod(pod, p.Class)
			if again := c.Pending(kept); again.Class != p.Class || again.Name() != p.Name() || again.UID() != p.UID() {
				t.Fatalf("%v is decided as %v", pod, kept)
			}
			if kept.Spec.Containers[0].Name != pod.Spec.Containers[0].Name || len(kept.Spec.Volumes) != len(pod.Spec.Volumes) ||
				!reflect.DeepEqual(kept.Spec.ActiveDeadlineSeconds, pod.Spec.ActiveDeadlineSeconds) {
				t.Fatalf("%v is kept as %v", pod, kept)
			}
			if a := podChanges(pod, kept, 0); a != 0 {
				t.Fatalf("what is kept of %v is taken for a change: %b", pod, a)
			}
		}
	})
}
