// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pluginparity

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// digest is a plugin whose result for a node is a digest of the node's NodeInfo. If two schedulers
// pass different data, the results differ.
type digest struct{}

const digestName = "Digest"

func newDigest(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return digest{}, nil }

func (digest) Name() string { return digestName }

// moved maps the names of pods to 1 if they were added hypothetically, and to -1 if they were
// removed. The key "" holds the number of nodes.
type moved map[string]int

func (m moved) Clone() fwk.StateData { return maps.Clone(m) }

// fits reports whether pods were added or removed hypothetically. It returns an error if the pods
// of the node do not agree.
func (m moved) fits(node fwk.NodeInfo) (supposed bool, err error) {
	there := map[string]bool{}
	for _, p := range node.GetPods() {
		there[p.GetPod().Name] = true
	}
	for name, by := range m {
		if name == "" || by == 0 {
			continue
		}
		supposed = true
		if there[name] != (by == 1) || by > 1 || by < -1 {
			return true, fmt.Errorf("pod %s is on %s: %t, and was added %d times", name, node.Node().Name, there[name], by)
		}
	}
	return supposed, nil
}

func (digest) PreFilter(_ context.Context, state fwk.CycleState, _ *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	state.Write(digestName, moved{"": len(nodes)})
	return nil, nil
}

func (d digest) PreFilterExtensions() fwk.PreFilterExtensions { return d }

func (digest) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, p fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	return move(state, p, 1)
}

func (digest) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, p fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	return move(state, p, -1)
}

func move(state fwk.CycleState, p fwk.PodInfo, by int) *fwk.Status {
	data, err := state.Read(digestName)
	if err != nil {
		return fwk.AsStatus(err)
	}
	data.(moved)[p.GetPod().Name] += by
	return nil
}

// Filter rejects about every fifth node, with the digested text as the reason. After hypothetical
// changes, it only verifies that the node has the pods of the state: random rejections would make
// the choice of victims depend on the order of equal pods.
func (digest) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	data, err := state.Read(digestName)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if supposed, err := data.(moved).fits(node); err != nil {
		return fwk.AsStatus(err)
	} else if supposed {
		return nil
	}
	words := describe(pod, node, data.(moved))
	if sum(words)%5 == 0 {
		return fwk.NewStatus(fwk.Unschedulable, "rejects "+words)
	}
	return nil
}

func (digest) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	return int64(sum(describe(pod, node, nil)) % 101), nil
}

func (digest) ScoreExtensions() fwk.ScoreExtensions { return nil }

func sum(words string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(words))
	return h.Sum32()
}

// describe formats the contents of a NodeInfo, including its pods.
func describe(pod *v1.Pod, node fwk.NodeInfo, m moved) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: ", pod.Name, node.Node().Name)
	for _, r := range []fwk.Resource{node.GetRequested(), node.GetNonZeroRequested(), node.GetAllocatable()} {
		fmt.Fprintf(&b, "%d %d %d %d %v; ", r.GetMilliCPU(), r.GetMemory(), r.GetEphemeralStorage(), r.GetAllowedPodNumber(), amounts(r))
	}
	fmt.Fprintf(&b, "%v %v; ", node.GetUsedPorts(), node.GetPVCRefCounts())
	for _, name := range slices.Sorted(maps.Keys(node.GetImageStates())) {
		image := node.GetImageStates()[name]
		fmt.Fprintf(&b, "%s %d; ", name, image.Size)
		if m == nil { // not for Filter: upstream's copies of a node lack the number
			fmt.Fprintf(&b, "%d; ", image.NumNodes)
		}
	}
	for _, list := range [][]fwk.PodInfo{node.GetPods(), node.GetPodsWithAffinity(), node.GetPodsWithRequiredAntiAffinity()} {
		fmt.Fprintf(&b, "%v; ", pods(list))
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name] != 0 {
			fmt.Fprintf(&b, "%s %+d; ", name, m[name])
		}
	}
	return b.String()
}

// amounts lists the nonzero resources other than CPU, memory and storage.
func amounts(r fwk.Resource) map[v1.ResourceName]int64 {
	some := map[v1.ResourceName]int64{}
	for name, n := range r.GetScalarResources() {
		if n != 0 {
			some[name] = n
		}
	}
	return some
}

func pods(list []fwk.PodInfo) []string {
	var words []string
	for _, p := range list {
		words = append(words, fmt.Sprintf("%s on %q, %d+%d+%d+%d terms", p.GetPod().Name, p.GetPod().Spec.NodeName,
			len(p.GetRequiredAffinityTerms()),
			len(p.GetRequiredAntiAffinityTerms()), len(p.GetPreferredAffinityTerms()), len(p.GetPreferredAntiAffinityTerms())))
	}
	slices.Sort(words)
	return words
}
