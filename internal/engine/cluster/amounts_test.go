// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math"
	"math/big"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestSumsOfHugeRequests verifies that after adding and removing pods, by binding, by a visit or on
// a copy, the requested amounts of a node are the sum of the requests or the largest int64, never
// less.
func TestSumsOfHugeRequests(t *testing.T) {
	amounts := []string{"", "0", "1", "300Mi", "4611686018427387904", "9223371865056083968", "9223372036854775807", "1e30"}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) string { return rapid.SampledFrom(amounts).Draw(t, name) }
		c := New()
		n := c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		var pods []types.UID
		var guests []*Pod
		next := 0
		pod := func(node string) *v1.Pod {
			next++
			name := fmt.Sprint("p", next)
			requests := v1.ResourceList{}
			for _, resourceName := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "example.com/gpu"} {
				if amount := draw(string(resourceName)); amount != "" {
					requests[resourceName] = resource.MustParse(amount)
				}
			}
			return &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
				Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: requests}}}},
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"place": func(*rapid.T) {
				p := c.SetPod(pod("n"))
				pods = append(pods, p.UID())
			},
			"remove": func(t *rapid.T) {
				if len(pods) == 0 {
					t.Skip("no pod")
				}
				i := rapid.IntRange(0, len(pods)-1).Draw(t, "which")
				c.RemovePod(pods[i])
				pods = append(pods[:i], pods[i+1:]...)
			},
			"visit": func(*rapid.T) { guests = append(guests, c.Visit(c.Pending(pod("")), n)) },
			"leave": func(t *rapid.T) {
				if len(guests) == 0 {
					t.Skip("no guest")
				}
				c.Leave(guests[0])
				guests = guests[1:]
			},
			"on a copy": func(t *rapid.T) {
				copied := n.Copy(nil)
				for range rapid.IntRange(0, 3).Draw(t, "take") {
					if len(copied.Pods) > 0 {
						copied.Take(copied.Pods[rapid.IntRange(0, len(copied.Pods)-1).Draw(t, "which")])
					}
				}
				copied.Add(c.Pending(pod("")))
				checkSums(t, copied)
			},
			"": func(t *rapid.T) {
				checkSums(t, n)
				room := &c.Rooms[n.Index]
				if room.RequestedCPU != n.Requested.MilliCPU || room.RequestedMemory != n.Requested.Memory {
					t.Fatalf("the room knows of %d and %d, the node of %+v", room.RequestedCPU, room.RequestedMemory, n.Requested)
				}
				sumUp(t, "non-zero cpu", room.NonZeroCPU, n.Pods, func(c *PodClass) int64 { return c.NonZeroCPU })
				sumUp(t, "non-zero memory", room.NonZeroMemory, n.Pods, func(c *PodClass) int64 { return c.NonZeroMemory })
			},
		})
	})
}

func checkSums(t *rapid.T, n *Node) {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "example.com/gpu"} {
		sumUp(t, string(name), n.Requested.Amount(name), n.Pods, func(c *PodClass) int64 { return c.Requests.Amount(name) })
	}
}

func sumUp(t *rapid.T, name string, got int64, pods []*Pod, of func(*PodClass) int64) {
	sum := new(big.Int)
	for _, p := range pods {
		sum.Add(sum, big.NewInt(of(p.Class)))
	}
	want := int64(math.MaxInt64)
	if sum.IsInt64() {
		want = sum.Int64()
	}
	if got != want {
		t.Fatalf("%s: %d are requested, want %d", name, got, want)
	}
}
