// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

var wakeRuns = flag.Int("wake", 20, "runs of TestNoPodSleepsThroughWhatHelpsIt")

// TestNoPodSleepsThroughWhatHelpsIt verifies that after every change and the longest back-off, no
// pod is pending that the plain evaluator could place, or that could preempt others. Requeuing
// because of MaxWait is disabled.
func TestNoPodSleepsThroughWhatHelpsIt(t *testing.T) {
	for seed := range uint64(*wakeRuns) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := &sleepers{world: w, rng: rand.New(rand.NewPCG(seed, 11)), features: map[string]bool{}}
				s.features[features[seed%uint64(len(features))]] = true
				for range s.rng.IntN(3) {
					s.features[pick(s, features...)] = true
				}
				s.run()
			})
		})
	}
}

type sleepers struct {
	*world
	rng *rand.Rand
	// features holds the few features that pods and nodes have in this run. With more features, one
	// reason to wait would often hide another.
	features map[string]bool
	pods     int
	last     string
}

var features = []string{"room", "devices", "labels", "taints", "ports", "spread", "affinity", "anti", "gates", "priority", "resizes"}

func (s *sleepers) has(feature string, one int) bool { return s.features[feature] && s.chance(one) }

func (s *sleepers) chance(one int) bool { return s.rng.IntN(one) == 0 }

func pick[T any](s *sleepers, list ...T) T { return list[s.rng.IntN(len(list))] }

func (s *sleepers) run() {
	for i := range 4 {
		s.api.Put(s.node(i))
	}
	for _, name := range []string{"default", "other"} {
		s.api.Put(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": pick(s, "a", "b")}}})
	}
	s.start(Options{MaxWait: 1000 * time.Hour})
	s.until("begun", s.s.Synced)
	for range 120 {
		s.last = s.something()
		s.pass(25 * time.Second)
		s.judge()
		if s.Failed() {
			return
		}
	}
}

func (s *sleepers) node(i int) *v1.Node {
	n := aNode(fmt.Sprintf("n%d", i), "100")
	if s.features["room"] || s.features["priority"] || s.features["resizes"] {
		n.Status.Allocatable[v1.ResourceCPU] = resource.MustParse(pick(s, "1", "2"))
	}
	if s.features["spread"] || s.features["room"] {
		n.Status.Allocatable[v1.ResourcePods] = resource.MustParse(pick(s, "3", "6"))
	}
	if s.chance(2) {
		n.Status.Allocatable["example.com/gpu"] = resource.MustParse(pick(s, "1", "2"))
	}
	if !s.chance(4) {
		n.Labels[v1.LabelTopologyZone] = pick(s, "a", "b")
	}
	if s.chance(2) {
		n.Labels["disk"] = "ssd"
	}
	if s.has("taints", 2) {
		n.Spec.Taints = []v1.Taint{{Key: pick(s, "k", "l"), Effect: v1.TaintEffectNoSchedule}}
	}
	n.Spec.Unschedulable = s.has("taints", 6)
	return n
}

func (s *sleepers) pod() *v1.Pod {
	p := aPod(fmt.Sprintf("p%d", s.pods), pick(s, "100m", "500m", "900m"))
	s.pods++
	p.UID = types.UID(fmt.Sprintf("%s-%d", p.Name, s.rng.IntN(1<<30)))
	p.Namespace = pick(s, "default", "default", "other")
	p.Labels = map[string]string{"app": pick(s, "x", "y", "z")}
	if s.features["priority"] {
		withPriority(p, pick[int32](s, 0, 0, 10, 20))
	}
	spec := &p.Spec
	if s.has("devices", 2) {
		spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	}
	if s.has("labels", 2) {
		spec.NodeSelector = map[string]string{"disk": "ssd"}
	}
	if s.has("taints", 3) {
		spec.Tolerations = []v1.Toleration{{Key: pick(s, "k", "l"), Operator: v1.TolerationOpExists}}
	}
	if s.has("ports", 2) {
		spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	}
	if s.has("spread", 2) {
		spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: pick(s, v1.LabelTopologyZone, v1.LabelHostname), WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: s.selector(), NodeTaintsPolicy: pick(s, nil, new(v1.NodeInclusionPolicyHonor)), MinDomains: pick(s, nil, new(int32(2))),
		}}
	}
	if s.has("affinity", 2) {
		spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{s.term()}}}
	} else if s.has("anti", 2) {
		spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{s.term()}}}
	}
	if s.has("gates", 2) {
		spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/gate"}}
	}
	return p
}

func (s *sleepers) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(s, "x", "y", "z")}}
}

func (s *sleepers) term() v1.PodAffinityTerm {
	t := v1.PodAffinityTerm{TopologyKey: pick(s, v1.LabelTopologyZone, v1.LabelHostname), LabelSelector: s.selector()}
	if s.chance(3) {
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": pick(s, "a", "b")}}
	}
	return t
}

// something makes a random change and returns its description.
func (s *sleepers) something() string {
	pods, nodes := s.api.Pods(), fakeapi.All(s.api, &v1.Node{})
	switch s.rng.IntN(14) {
	case 0:
		n := s.node(s.rng.IntN(7))
		s.api.Put(n)
		return "put node " + n.Name
	case 1:
		if len(nodes) > 2 {
			n := nodes[s.rng.IntN(len(nodes))]
			s.api.Delete(n)
			for _, p := range pods {
				if p.Spec.NodeName == n.Name {
					s.api.Delete(p)
				}
			}
			return "removed node " + n.Name
		}
	case 2, 3, 4:
		if len(pods) > 0 {
			p := pods[s.rng.IntN(len(pods))]
			s.api.Delete(p)
			return fmt.Sprintf("removed pod %s from %q", p.Name, p.Spec.NodeName)
		}
	case 5:
		if len(pods) > 0 {
			p := pods[s.rng.IntN(len(pods))]
			fakeapi.Change(s.api, p, func(p *v1.Pod) { p.Labels = map[string]string{"app": pick(s, "x", "y", "z")} })
			return fmt.Sprintf("labelled pod %s on %q", p.Name, p.Spec.NodeName)
		}
	case 6:
		if len(pods) > 0 {
			p := pods[s.rng.IntN(len(pods))]
			fakeapi.Change(s.api, p, func(p *v1.Pod) {
				p.Spec.SchedulingGates = nil
				p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: pick(s, "k", "l"), Operator: v1.TolerationOpExists})
			})
			return fmt.Sprintf("opened pod %s on %q", p.Name, p.Spec.NodeName)
		}
	case 7:
		if len(pods) > 0 {
			p := pods[s.rng.IntN(len(pods))]
			fakeapi.Change(s.api, p, func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("50m")
				if s.features["resizes"] && p.Spec.NodeName != "" { // the kubelet may have completed the resize
					p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: p.Spec.Containers[0].Name, AllocatedResources: v1.ResourceList{
						v1.ResourceCPU: resource.MustParse(pick(s, "50m", "900m"))}}}
				}
			})
			return fmt.Sprintf("made pod %s on %q smaller", p.Name, p.Spec.NodeName)
		}
	case 8:
		n := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pick(s, "default", "other")}}
		fakeapi.Change(s.api, n, func(n *v1.Namespace) { n.Labels = map[string]string{"team": pick(s, "a", "b")} })
		return "labelled namespace " + n.Name
	case 9:
		n := nodes[s.rng.IntN(len(nodes))]
		fakeapi.Change(s.api, n, func(n *v1.Node) {
			fresh := s.node(0)
			switch s.rng.IntN(3) {
			case 0:
				n.Spec.Taints, n.Spec.Unschedulable = fresh.Spec.Taints, fresh.Spec.Unschedulable
			case 1:
				n.Status = fresh.Status
			default:
				n.Labels[v1.LabelTopologyZone] = pick(s, "a", "b")
			}
		})
		return "changed node " + n.Name
	default:
		for range 3 {
			if len(pods) < 40 {
				s.api.Put(s.pod())
			}
		}
		return "added pods"
	}
	return "nothing"
}

// judge compares the state of every pending pod with the verdict of the plain evaluator.
func (s *sleepers) judge() {
	s.Helper()
	truth := cluster.New()
	for _, n := range fakeapi.All(s.api, &v1.Node{}) {
		truth.SetNode(n)
	}
	for _, n := range fakeapi.All(s.api, &v1.Namespace{}) {
		truth.Namespaces.Set(n)
	}
	pods, profile := s.api.Pods(), plugins.Default()
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			truth.SetPod(p)
		} else if p.Status.NominatedNodeName != "" {
			truth.Nominate(truth.Pending(p), p.Status.NominatedNodeName)
		}
	}
	for _, p := range pods {
		if p.Spec.NodeName != "" || len(p.Spec.SchedulingGates) > 0 {
			continue
		}
		pending := truth.Pending(p)
		e := decide.NewPlain(truth, profile).Evaluate(pending)
		if e.Feasible > 0 {
			s.Errorf("after %q: %s sleeps, and %d nodes could take it; it was told %s", s.last, p.Name, e.Feasible, s.condition(p.Name))
		} else if found := decide.NewPlain(truth, profile).Preempt(pending, e); found.Node != nil {
			s.Errorf("after %q: %s sleeps, and could make room on %s; it was told %s", s.last, p.Name, found.Node.Name, s.condition(p.Name))
		}
	}
	s.do(func() {
		if err := s.s.core.View().Queue.Check(); err != nil {
			s.Error(err)
		}
		for item := range s.s.core.View().Queue.Each {
			if s.Failed() {
				s.Logf("%s %s %v gate %s attempts %d", item.Pod.Name, item.Place(), item.Rejectors, item.Gate, item.Attempts)
			}
		}
	})
}
