package agentparity

import (
	"fmt"
	"os"
	"slices"
	"testing"

	cadvisor "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	theirtopology "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// logger is that of the kubelet's components.
var logger = klog.Background()

// comparison is a made-up machine of which the kubelet and the agent give pods the same resources.
type comparison struct {
	machine      *topology.Machine
	theirMachine *theirtopology.CPUTopology
	nodes        []cadvisor.Node
	alignment    topology.Alignment
	manager      topologymanager.Manager
	allocators   []allocator
	pods         []*v1.Pod // those that are there
}

// allocator gives pods one kind of resource, on both sides.
type allocator struct {
	theirs topologymanager.HintProvider
	// draft provides the agent's for a pod that is to be admitted; keep is called when it is.
	draft func() (provider topology.Provider, keep func())
	// remove takes everything back from a pod; it may have nothing.
	remove func(uid types.UID)
	// diff is how both sides differ; empty: they agree.
	diff func() string
	// torn reports that the kubelet's own state contradicts itself, so that there is nothing left
	// to agree with. nil: it never does.
	torn func() bool
}

func newComparison(t *rapid.T) *comparison {
	c := &comparison{}
	c.machine, c.theirMachine, c.nodes = aMachine(t)
	policy := rapid.SampledFrom([]string{"none", "best-effort", "restricted", "single-numa-node"}).Draw(t, "alignment")
	scope := rapid.SampledFrom([]string{"container", "pod"}).Draw(t, "scope")
	var err error
	if c.manager, err = topologymanager.NewManager(c.nodes, policy, scope, nil); err != nil {
		t.Fatal(err)
	}
	if c.alignment, err = topology.NewAlignment(policy, scope, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// add a kind of resource, which is asked for hints after those before it.
func (c *comparison) add(g allocator) {
	c.manager.AddHintProvider(logger, g.theirs)
	c.allocators = append(c.allocators, g)
}

// run has pods come and go. The same ones must be refused, for the same reason, and containers must
// have the same afterwards.
func (c *comparison) run(t *rapid.T, newPod func(name string) *v1.Pod) {
	for i := range rapid.IntRange(1, 12).Draw(t, "steps") {
		if len(c.pods) > 0 && rapid.IntRange(0, 2).Draw(t, "a pod goes") == 0 {
			c.remove(rapid.SampledFrom(c.pods).Draw(t, "goes").UID)
		} else {
			c.admit(t, newPod(fmt.Sprint("p", i)))
		}
		for _, g := range c.allocators {
			if g.torn != nil && g.torn() {
				return
			}
			if diff := g.diff(); diff != "" {
				t.Fatalf("the kubelet's, and ours: %s", diff)
			}
		}
	}
}

func (c *comparison) admit(t *rapid.T, pod *v1.Pod) {
	c.pods = append(c.pods, pod)
	result := c.manager.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	var providers []topology.Provider
	var keeps []func()
	for _, g := range c.allocators {
		provider, keep := g.draft()
		providers, keeps = append(providers, provider), append(keeps, keep)
	}
	refused := c.alignment.Assign(c.machine, pod, providers...)
	got, want := "", ""
	if !result.Admit {
		want = result.Reason + ": " + result.Message
	}
	if refused != nil {
		got = refused.Reason + ": " + refused.Message
	}
	if got != want {
		t.Fatalf("%s: %q, the kubelet says %q", pod.Name, got, want)
	}
	if refused != nil {
		c.remove(pod.UID)
		return
	}
	for _, keep := range keeps {
		keep()
	}
}

func (c *comparison) remove(uid types.UID) {
	c.pods = slices.DeleteFunc(c.pods, func(pod *v1.Pod) bool { return pod.UID == uid })
	for _, g := range c.allocators {
		g.remove(uid)
	}
}

// givenTo is what some made-up containers have, by pod.
func givenTo[V any](t *rapid.T, value func() V) map[types.UID]map[string]V {
	out := map[types.UID]map[string]V{}
	name := rapid.StringMatching(`[a-z][a-z0-9-]{0,5}`)
	for range rapid.IntRange(0, 3).Draw(t, "pods") {
		uid := types.UID(name.Draw(t, "pod"))
		out[uid] = map[string]V{}
		for range rapid.IntRange(1, 3).Draw(t, "containers") {
			out[uid][name.Draw(t, "container")] = value()
		}
	}
	return out
}

// rewritten is a checkpoint that the kubelet has read and written again; it must be the same, byte
// for byte.
func rewritten(t *rapid.T, file string, text []byte, rewrite func() error) []byte {
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rewrite(); err != nil {
		t.Fatalf("the kubelet cannot read %s: %v", text, err)
	}
	again, err := os.ReadFile(file)
	if err != nil || string(again) != string(text) {
		t.Fatalf("the kubelet writes %s, %v\nnot            %s", again, err, text)
	}
	return again
}

// compareOnMachines compares the kubelet and the agent on random machines: add adds the kinds of
// resources, and returns how pods are made that request them.
func compareOnMachines(t *testing.T, add func(*rapid.T, *comparison) (newPod func(name string) *v1.Pod)) {
	rapid.Check(t, func(t *rapid.T) {
		c := newComparison(t)
		c.run(t, add(t, c))
	})
}
