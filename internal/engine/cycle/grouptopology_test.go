// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kube-scheduler/config/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestOfManyDomainsThatWithJustEnoughMemoryIsTried verifies that, of many domains, the one with
// just enough memory is tried, even if a float64 cannot distinguish the amounts. Another, larger
// domain is closed by a taint.
func TestOfManyDomainsThatWithJustEnoughMemoryIsTried(t *testing.T) {
	const memory, taken = 1<<54 + 1, 3
	core, err := New(Options{Seed: 1, Profiles: []Profile{profileWith()}, Groups: groups.Gates{Generic: true, Topology: true}})
	if err != nil {
		t.Fatal(err)
	}
	now, bound := begin, ""
	step := func(e Event) {
		for _, action := range core.Step(now, e) {
			if a, ok := action.(Bind); ok {
				bound = a.Attempt.Node
			}
		}
	}
	of := func(name string, bytes int64) *v1.Pod {
		p := aPod(name, "1")
		p.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = *resource.NewQuantity(bytes, resource.BinarySI)
		return p
	}
	kinds := []Kind{Nodes, Pods, PodGroups}
	step(Follows{kinds})
	step(Led{})
	for _, kind := range kinds {
		step(Listing{kind})
		switch kind {
		case Nodes:
			for i := range 102 {
				n := aNode(fmt.Sprintf("n%d", i), "4")
				n.Status.Allocatable[v1.ResourceMemory] = *resource.NewQuantity(1<<30, resource.BinarySI)
				switch i {
				case 100:
					n.Status.Allocatable[v1.ResourceMemory] = *resource.NewQuantity(memory, resource.BinarySI)
				case 101:
					n.Status.Allocatable[v1.ResourceMemory] = *resource.NewQuantity(2*memory, resource.BinarySI)
					n.Spec.Taints = []v1.Taint{{Key: "closed", Effect: v1.TaintEffectNoSchedule}}
				}
				step(Seen{kind, n})
			}
		case Pods:
			there := of("there", taken)
			there.Spec.NodeName = "n100"
			step(Seen{kind, there})
			p := of("p", memory-taken)
			name := "g"
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name}
			step(Seen{kind, p})
		case PodGroups:
			g := gangOf("g", 1)
			g.Spec.SchedulingConstraints = oneOf(v1.LabelHostname)
			step(Seen{kind, g})
		}
		step(Listed{kind})
	}
	for range 10 {
		step(Tick{})
		now = now.Add(time.Second)
	}
	if bound != "n100" {
		t.Errorf("the group is bound to %q, want n100", bound)
	}
}

// TestTheDomainThatIsFullestByWhatIsScoredWins verifies that if NodeResourcesFit scores by GPUs,
// the rack with the most used GPUs is chosen, not the rack with the most used CPU.
func TestTheDomainThatIsFullestByWhatIsScoredWins(t *testing.T) {
	for _, row := range []struct {
		resources []config.ResourceSpec
		want      string
	}{
		{nil, "busy"},
		{[]config.ResourceSpec{{Name: string(gpu), Weight: 5}, {Name: string(v1.ResourceCPU), Weight: 1}}, "taken"},
	} {
		profile := plugins.Default()
		for i, f := range profile.Filters {
			if f.Name() != "NodeResourcesFit" || row.resources == nil {
				continue
			}
			fit, err := plugins.NewNodeResourcesFit(&config.NodeResourcesFitArgs{ScoringStrategy: &config.ScoringStrategy{
				Type: config.LeastAllocated, Resources: row.resources,
			}})
			if err != nil {
				t.Fatal(err)
			}
			profile.Filters[i] = fit
		}
		var objects []Seen
		for name, there := range map[string]*v1.Pod{"busy": aPod("b", "6"), "taken": aPod("t", "1")} {
			n := aNode(name, "8")
			n.Labels["rack"] = name
			withGPUs(n.Status.Allocatable, 8)
			there.Spec.NodeName = name
			if name == "taken" {
				withGPUs(there.Spec.Containers[0].Resources.Requests, 6)
			}
			objects = append(objects, Seen{Nodes, n}, Seen{Pods, there})
		}
		p := aPod("p", "1")
		withGPUs(p.Spec.Containers[0].Resources.Requests, 2)
		g := gangOf("g", 1)
		g.Spec.SchedulingConstraints = oneOf("rack")
		on, _, text := gangIn(t, Options{Profiles: []Profile{{Profile: profile}}}, g, objects, []*v1.Pod{p})
		if on["p"] != row.want {
			t.Errorf("scored by %v it is in %q, want %q: %s", row.resources, on["p"], row.want, text)
		}
	}
}

// TestATreeSaysWhatFailsWhereItWouldBe verifies that the pods of a fitting group report the
// shortage of its tree. All pods of this group except one fit into zone a, so zone b is tried as
// well, where the group does not fit. The other group of the tree fits nowhere.
func TestATreeSaysWhatFailsWhereItWouldBe(t *testing.T) {
	core, err := New(Options{
		Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Topology: true, Composite: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	for name, cpu := range map[string]string{"a": "1500m", "b": "4"} {
		n := aNode(name, cpu)
		n.Labels[v1.LabelTopologyZone] = name
		core.Step(begin, Seen{Nodes, n})
	}
	there := aPod("there", "100m")
	there.Labels, there.Spec.NodeName = map[string]string{"app": "x"}, "b"
	core.Step(begin, Seen{Pods, there})
	root, block, inner := compositeOf("root", 2), compositeOf("block", 0), compositeOf("inner", 0)
	block.Spec.ParentCompositePodGroupName, inner.Spec.ParentCompositePodGroupName = new("root"), new("block")
	block.Spec.SchedulingConstraints = &schedulingv1alpha3.CompositePodGroupSchedulingConstraints{
		Topology: []schedulingv1alpha3.TopologyConstraint{{Key: v1.LabelTopologyZone}},
	}
	for _, c := range []*groups.CompositePodGroup{root, block, inner} {
		core.Step(begin, Seen{CompositePodGroups, c})
	}
	for _, x := range []struct {
		group, parent, cpu string
		pods               int
	}{{"fits", "inner", "1", 2}, {"large", "root", "4", 1}} {
		g := gangOf(x.group, 1)
		g.Spec.ParentCompositePodGroupName = &x.parent
		core.Step(begin, Seen{PodGroups, g})
		for i := range x.pods {
			p := aPod(fmt.Sprintf("%s-%d", x.group, i), x.cpu)
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &x.group}
			p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
				TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: there.Labels},
			}}}}
			core.Step(begin, Seen{Pods, p})
		}
	}

	core.Step(begin, Tick{})
	const want = `composite pod group "root" is unschedulable: 1 of 2 groups fit, 2 are needed at once`
	if got := core.View().Queue.Get(aPod("fits-0", "1").UID).Message; !strings.HasPrefix(got, want) {
		t.Errorf("it says %q, want %q", got, want)
	}
}
