// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// TestRequestCases runs testdata/requests.txt, which lists the results of all counting rules for
// each pod.
func TestRequestCases(t *testing.T) {
	datadriven.RunTest(t, "testdata/requests.txt", func(t *testing.T, d *datadriven.TestData) string {
		var pod v1.Pod
		if err := yaml.UnmarshalStrict([]byte(d.Input), &pod); err != nil {
			t.Fatal(err)
		}
		switch d.Cmd {
		case "requests":
			return fmt.Sprintf("waiting: %s\nplaced: %s\nscore waiting: %s\nscore placed: %s\n",
				amounts(Requests(&pod)), amounts(RequestsPlaced(&pod)),
				amounts(ScoreRequests(&pod)), amounts(ScoreRequestsPlaced(&pod)))
		case "qos":
			return string(QOS(&pod))
		case "ports":
			var out strings.Builder
			for _, p := range HostPorts(&pod) {
				fmt.Fprintf(&out, "%s:%d/%s ", p.HostIP, p.HostPort, p.Protocol)
			}
			return out.String()
		}
		return "unknown command " + d.Cmd
	})
}

func amounts(list v1.ResourceList) string {
	var words []string
	for name, q := range list {
		words = append(words, fmt.Sprintf("%s=%s", name, q.String()))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func TestPriorityOfAPodStoredWithoutOne(t *testing.T) {
	if got := Priority(&v1.Pod{}); got != 0 {
		t.Fatalf("got %d, want 0", got)
	}
}

// TestPlainRequestsAreTheSame verifies that the sums computed without the helper equal the helper's
// sums.
func TestPlainRequestsAreTheSame(t *testing.T) {
	amounts := map[v1.ResourceName][]string{
		v1.ResourceCPU:              {"", "0", "1", "100m", "1500u", "0.1", "9223372036854775807", "1e30"},
		v1.ResourceMemory:           {"", "0", "200Mi", "1500m", "1", "9223372036854775807", "1e30"},
		v1.ResourceEphemeralStorage: {"", "", "", "", "", "", "1Gi"},
	}
	plain := 0
	for seed := range 5000 {
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		pod := &v1.Pod{}
		for range rng.IntN(4) {
			requests := v1.ResourceList{}
			for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage} {
				if amount := amounts[name][rng.IntN(len(amounts[name]))]; amount != "" {
					requests[name] = resource.MustParse(amount)
				}
			}
			pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Resources: v1.ResourceRequirements{Requests: requests}})
		}
		cpu, memory, scoreCPU, scoreMemory, ok := PlainRequests(pod)
		if !ok {
			continue
		}
		plain++
		placed, score := RequestsPlaced(pod), ScoreRequestsPlaced(pod)
		for i, pair := range [][2]int64{
			{cpu, Amount(v1.ResourceCPU, placed[v1.ResourceCPU])}, {memory, Amount(v1.ResourceMemory, placed[v1.ResourceMemory])},
			{scoreCPU, Amount(v1.ResourceCPU, score[v1.ResourceCPU])}, {scoreMemory, Amount(v1.ResourceMemory, score[v1.ResourceMemory])},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%+v: amount %d is %d, want %d", pod.Spec.Containers, i, pair[0], pair[1])
			}
		}
	}
	if plain < 1000 {
		t.Errorf("%d pods were plain", plain)
	}
}
