// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package expander

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/queryserver"
)

// queries returns Berth's query service of a cluster with small nodes, and the context of a caller.
func queries(t testing.TB, nodes int) (*queryserver.Server, context.Context) {
	t.Helper()
	api := apitest.New(t)
	api.Set("namespaces", apitest.Object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "default"}})
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		size := map[string]any{"cpu": "250m", "memory": "16Gi", "pods": "110"}
		api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name,
			"labels": map[string]any{v1.LabelHostname: name, v1.LabelTopologyZone: []string{"a", "b"}[i%2]}},
			"status": map[string]any{"capacity": size, "allocatable": size}})
	}
	o := queryserver.Defaults()
	o.Running = func(_ context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error) {
		return config.RunningOf(nil, leases, nil, at)
	}
	s, err := queryserver.New(api.Config, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Follow(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	local, err := s.Local(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s, local
}

// service returns the query service of a cluster without nodes. Equal questions have equal results:
// otherwise, the random choice among equal nodes changes the number of pods by a few.
func service(t *testing.T) answers {
	t.Helper()
	s, local := queries(t, 0)
	var mu sync.Mutex
	known := map[string]*berthv1alpha1.FitsResponse{}
	return func(r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		question := fmt.Sprint(r.GetNodeCount(), r.GetManifest())
		if answer := known[question]; answer != nil {
			return answer, nil
		}
		answer, err := s.Fits(local, r)
		known[question] = answer
		return answer, err
	}
}

// group is a node group of the comparison.
type group struct {
	name        string
	cpu, memory int64 // in cores and GiB
	price       float64
	most        int32 // nodes that may be added
	zone        string
}

var groups = []group{
	{"small-a", 4, 16, 0.20, 20, "a"}, {"small-b", 4, 16, 0.20, 20, "b"}, {"compute-a", 16, 32, 0.70, 4, "a"},
	{"memory-b", 8, 64, 0.55, 4, "b"}, {"large-a", 32, 128, 1.70, 2, "a"}, {"spot-b", 16, 64, 0.35, 2, "b"},
}

func sizes(cpu, memory int64) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(memory<<20, resource.BinarySI), v1.ResourcePods: *resource.NewQuantity(110, resource.DecimalSI)}
}

func (g *group) node() *v1.Node {
	size := sizes(g.cpu*1000, g.memory<<10)
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: g.name, Labels: map[string]string{v1.LabelHostname: g.name, v1.LabelTopologyZone: g.zone}},
		Status:     v1.NodeStatus{Capacity: size, Allocatable: size},
	}
}

// pending returns mixed pods: of several sizes, some of one zone, some one per node.
func pending(random *rand.Rand) (pods []*v1.Pod) {
	for kind := range 2 + random.IntN(4) {
		app := fmt.Sprintf("app-%d", kind)
		requests := sizes(250*(1+random.Int64N(20)), 256*(1+random.Int64N(40)))
		delete(requests, v1.ResourcePods)
		spec := v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: requests}}}}
		switch random.IntN(4) {
		case 0:
			spec.NodeSelector = map[string]string{v1.LabelTopologyZone: []string{"a", "b"}[random.IntN(2)]}
		case 1:
			spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
				{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			}}}
		}
		for i := range 1 + random.IntN(20) {
			pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%d", app, i),
				Labels: map[string]string{"app": app}}, Spec: spec})
		}
	}
	return pods
}

// estimate fills nodes of a group first-fit with the largest pods first, as the autoscaler's
// estimator does, and returns the number of nodes and their pods.
func (g *group) estimate(pods []*v1.Pod) (nodes int32, fit []*v1.Pod) {
	type bin struct {
		cpu, memory int64
		apps        map[string]bool
	}
	var bins []*bin
	request := func(p *v1.Pod) (int64, int64) {
		r := p.Spec.Containers[0].Resources.Requests
		return r.Cpu().MilliValue(), r.Memory().Value() >> 20
	}
	score := func(p *v1.Pod) float64 {
		cpu, memory := request(p)
		return float64(cpu)/float64(g.cpu*1000) + float64(memory)/float64(g.memory<<10)
	}
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b *v1.Pod) int { return int(1e6 * (score(b) - score(a))) })
	for _, p := range pods {
		cpu, memory := request(p)
		if zone := p.Spec.NodeSelector[v1.LabelTopologyZone]; zone != "" && zone != g.zone {
			continue
		}
		takes := func(b *bin) bool {
			return b.cpu >= cpu && b.memory >= memory && (p.Spec.Affinity == nil || !b.apps[p.Labels["app"]])
		}
		at := slices.IndexFunc(bins, takes)
		if at < 0 {
			if fresh := (&bin{g.cpu * 1000, g.memory << 10, map[string]bool{}}); len(bins) < int(g.most) && takes(fresh) {
				bins, at = append(bins, fresh), len(bins)
			} else {
				continue
			}
		}
		bins[at].cpu, bins[at].memory, bins[at].apps[p.Labels["app"]] = bins[at].cpu-cpu, bins[at].memory-memory, true
		fit = append(fit, p)
	}
	return int32(len(bins)), fit
}

// TestScaleUpsComparedWithTheAutoscalersRules places the pods of 50 scale-ups, each in an empty
// cluster and in one round, on the nodes that each rule chooses. Berth places the pods in all
// cases.
func TestScaleUpsComparedWithTheAutoscalersRules(t *testing.T) {
	text := "nodeGroups: {"
	for _, g := range groups {
		text += fmt.Sprintf("%s: %v, ", g.name, g.price)
	}
	o := Defaults()
	o.PriceFile, o.Timeout = filepath.Join(t.TempDir(), "prices.yaml"), time.Minute
	if err := os.WriteFile(o.PriceFile, []byte(text+"}"), 0o600); err != nil {
		t.Fatal(err)
	}
	berth := service(t)
	e, err := New(berth, prometheus.NewRegistry(), o)
	if err != nil {
		t.Fatal(err)
	}
	client := autoscaler(t, e)
	type sum struct {
		pending, worse, better int32 // pods, and scale-ups with fewer and more pods than Berth's choice
		cheaper, dearer        int   // among the others
		cost                   float64
	}
	sums := map[string]*sum{"berth": {}, "least-waste": {}, "most-pods": {}}
	random := rand.New(rand.NewPCG(75, 1))
	total := int32(0)
	for range 50 {
		pods := pending(random)
		total += int32(len(pods))
		all := map[string]*v1.Pod{} // of the options, as only these are known to the expander
		request := &grpcplugin.BestOptionsRequest{NodeBytesMap: map[string][]byte{}}
		counts, chosen := map[string]int32{}, map[string]string{}
		waste, most := 1e9, 0
		for i := range groups {
			g := &groups[i]
			nodes, fit := g.estimate(pods)
			if len(fit) == 0 {
				continue
			}
			option := &grpcplugin.Option{NodeGroupId: g.name, NodeCount: nodes}
			var cpu, memory int64
			for _, p := range fit {
				all[p.Namespace+"/"+p.Name] = p
				option.PodBytes = append(option.PodBytes, encoded(t, p))
				cpu += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
				memory += p.Spec.Containers[0].Resources.Requests.Memory().Value() >> 20
			}
			request.Options = append(request.Options, option)
			request.NodeBytesMap[g.name], counts[g.name] = encoded(t, g.node()), nodes
			n := float64(nodes)
			if w := 2 - float64(cpu)/(n*float64(g.cpu*1000)) - float64(memory)/(n*float64(g.memory<<10)); w < waste {
				waste, chosen["least-waste"] = w, g.name
			}
			if len(fit) > most { // ties are broken randomly there, and by the order of the groups here
				most, chosen["most-pods"] = len(fit), g.name
			}
		}
		answer, err := client.BestOptions(t.Context(), request)
		if err != nil || len(answer.GetOptions()) == len(request.Options) && len(request.Options) > 2 {
			t.Fatalf("no choice: %v, %v", answer.GetOptions(), err)
		}
		chosen["berth"] = answer.GetOptions()[0].GetNodeGroupId()
		placed, cost := map[string]int32{}, map[string]float64{}
		for rule, name := range chosen {
			g := &groups[slices.IndexFunc(groups, func(g group) bool { return g.name == name })]
			workloads, err := jobs(all)
			if err != nil {
				t.Fatal(err)
			}
			question, err := manifest(g.node(), workloads)
			if err != nil {
				t.Fatal(err)
			}
			places, err := berth(&berthv1alpha1.FitsRequest{Manifest: question, NodeCount: counts[name], Every: true})
			if err != nil {
				t.Fatal(err)
			}
			placed[rule], cost[rule] = places.GetPlaced(), float64(counts[name])*g.price
			sums[rule].pending += int32(len(pods)) - placed[rule]
			sums[rule].cost += cost[rule]
		}
		for rule, s := range sums {
			switch {
			case placed[rule] > placed["berth"]:
				s.better++
			case placed[rule] < placed["berth"]:
				s.worse++
			case cost[rule] < cost["berth"]-1e-9:
				s.cheaper++
			case cost[rule] > cost["berth"]+1e-9:
				s.dearer++
			}
		}
	}
	for _, rule := range []string{"berth", "least-waste", "most-pods"} {
		s := sums[rule]
		t.Logf("| %-11s | %4d of %d | %6.2f | %6.4f | %2d | %2d | %2d | %2d |", rule, s.pending, total, s.cost,
			s.cost/float64(total-s.pending), s.better, s.cheaper, s.worse, s.dearer)
		if s.better > 0 || s.cheaper > 0 {
			t.Errorf("%s places more pods in %d scale-ups, and as many for less in %d; want none", rule, s.better, s.cheaper)
		}
	}
}
