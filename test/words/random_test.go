// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package words

import (
	"fmt"
	"math/rand/v2"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// source draws mostly valid objects. Everything follows from the seed, which a failure prints.
type source struct {
	*rand.Rand
	// bad is the percentage of draws taken from invalid values. It is 0, 1 or 6, so that there are
	// valid objects, objects with one error and objects with several.
	bad int
}

func newSource(seed uint64) source {
	return source{rand.New(rand.NewPCG(seed, 1)), []int{0, 1, 6}[seed%3]}
}

func pick[T any](s source, values ...T) T { return values[s.IntN(len(values))] }

func (s source) chance(percent int) bool { return s.IntN(100) < percent }

// some draws up to n values.
func some[T any](s source, n int, draw func() T) []T {
	var list []T
	for range s.IntN(n + 1) {
		list = append(list, draw())
	}
	return list
}

func maybe[T any](s source, percent int, draw func() T) *T {
	if s.chance(percent) {
		return ptr.To(draw())
	}
	return nil
}

func (s source) key() string {
	if s.chance(s.bad) {
		return pick(s, "", "-a", "a_", "a/b/c", "/x", "x/", "UPPER.example.com/x", "a b", "ä", string(make([]byte, 300)),
			"0123456789012345678901234567890123456789012345678901234567890123")
	}
	return pick(s, "a", "b", "zone", "dedicated", "node.kubernetes.io/not-ready", "example.com/x_y.z")
}

func (s source) value() string {
	if s.chance(s.bad) {
		return pick(s, "-", "a b", "x_", "/", "0123456789012345678901234567890123456789012345678901234567890123")
	}
	return pick(s, "", "v", "v1", "0", "10", "V_1.x")
}

func (s source) name() string {
	if s.chance(s.bad) {
		return pick(s, "Upper", "-x", "x.", "a_b", "a..b", string(make([]byte, 254)))
	}
	return pick(s, "a", "b", "c-1", "node-1.example.com", "x0")
}

func (s source) effect() v1.TaintEffect {
	if s.chance(s.bad) {
		return pick[v1.TaintEffect](s, "", "NoRun", "noschedule")
	}
	return pick(s, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute)
}

func (s source) taint() v1.Taint {
	return v1.Taint{Key: s.key(), Value: s.value(), Effect: s.effect()}
}

func (s source) toleration() v1.Toleration {
	t := v1.Toleration{Key: s.key(), Operator: pick[v1.TolerationOperator](s, "", "Equal", "Exists", "Exists", "Gt", "Lt"), Effect: s.effect()}
	if s.chance(s.bad) {
		t.Operator = "Like"
	}
	if t.Operator != v1.TolerationOpExists || s.chance(s.bad) {
		t.Value = s.value()
	}
	if s.chance(20) {
		t.Effect = ""
	}
	if t.Effect == v1.TaintEffectNoExecute && s.chance(50) || s.chance(s.bad) {
		t.TolerationSeconds = ptr.To(pick[int64](s, -1, 0, 300))
	}
	return t
}

func (s source) labels() map[string]string {
	labels := map[string]string{}
	for range s.IntN(3) {
		labels[s.key()] = s.value()
	}
	return labels
}

func (s source) selector() *metav1.LabelSelector {
	if s.chance(15) {
		return nil
	}
	return &metav1.LabelSelector{
		MatchLabels: s.labels(),
		MatchExpressions: some(s, 2, func() metav1.LabelSelectorRequirement {
			r := metav1.LabelSelectorRequirement{Key: s.key(), Operator: pick[metav1.LabelSelectorOperator](s, "In", "NotIn", "Exists", "DoesNotExist")}
			if s.chance(s.bad) {
				r.Operator = "Gt"
			}
			if r.Operator == "In" || r.Operator == "NotIn" || s.chance(s.bad) {
				r.Values = some(s, 2, s.value)
			}
			return r
		}),
	}
}

func (s source) nodeRequirement() v1.NodeSelectorRequirement {
	r := v1.NodeSelectorRequirement{Key: s.key(), Operator: pick[v1.NodeSelectorOperator](s, "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")}
	if s.chance(s.bad) {
		r.Operator = "Equals"
	}
	switch {
	case r.Operator == "Gt" || r.Operator == "Lt":
		r.Values = []string{pick(s, "5", "many")}
	case r.Operator == "In" || r.Operator == "NotIn" || s.chance(s.bad):
		r.Values = some(s, 3, s.value)
	}
	return r
}

func (s source) nodeTerm() v1.NodeSelectorTerm {
	term := v1.NodeSelectorTerm{MatchExpressions: some(s, 2, s.nodeRequirement)}
	if s.chance(30) {
		term.MatchFields = some(s, 2, func() v1.NodeSelectorRequirement {
			r := v1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: pick[v1.NodeSelectorOperator](s, "In", "NotIn"), Values: []string{s.name()}}
			if s.chance(s.bad) {
				r.Key = pick(s, "metadata.namespace", "")
			}
			if s.chance(s.bad) {
				r.Operator = "Exists"
			}
			if s.chance(s.bad) {
				r.Values = some(s, 2, s.name)
			}
			return r
		})
	}
	return term
}

func (s source) weight() int32 {
	if s.chance(s.bad) {
		return pick[int32](s, -1, 0, 101)
	}
	return pick[int32](s, 1, 50, 100)
}

func (s source) podTerm() v1.PodAffinityTerm {
	return v1.PodAffinityTerm{
		LabelSelector: s.selector(), NamespaceSelector: s.selector(), Namespaces: some(s, 2, s.name), TopologyKey: s.key(),
		MatchLabelKeys: some(s, 1, s.key), MismatchLabelKeys: some(s, 1, s.key),
	}
}

func (s source) weightedPodTerm() v1.WeightedPodAffinityTerm {
	return v1.WeightedPodAffinityTerm{Weight: s.weight(), PodAffinityTerm: s.podTerm()}
}

func (s source) affinity() *v1.Affinity {
	a := &v1.Affinity{}
	if s.chance(60) {
		a.NodeAffinity = &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: some(s, 2, func() v1.PreferredSchedulingTerm {
			return v1.PreferredSchedulingTerm{Weight: s.weight(), Preference: s.nodeTerm()}
		})}
		if s.chance(60) {
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: some(s, 2, s.nodeTerm)}
		}
	}
	if s.chance(40) {
		a.PodAffinity = &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: some(s, 2, s.podTerm),
			PreferredDuringSchedulingIgnoredDuringExecution: some(s, 2, s.weightedPodTerm)}
	}
	if s.chance(40) {
		a.PodAntiAffinity = &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: some(s, 2, s.podTerm),
			PreferredDuringSchedulingIgnoredDuringExecution: some(s, 2, s.weightedPodTerm)}
	}
	return a
}

func (s source) spread() v1.TopologySpreadConstraint {
	c := v1.TopologySpreadConstraint{MaxSkew: pick[int32](s, 1, 2, 5), TopologyKey: s.key(),
		WhenUnsatisfiable: pick(s, v1.DoNotSchedule, v1.ScheduleAnyway), LabelSelector: s.selector(), MatchLabelKeys: some(s, 1, s.key)}
	if s.chance(s.bad) {
		c.MaxSkew = pick[int32](s, 0, -1)
	}
	if s.chance(s.bad) {
		c.WhenUnsatisfiable = pick[v1.UnsatisfiableConstraintAction](s, "", "Never")
	}
	if s.chance(20) {
		c.MinDomains = ptr.To(pick[int32](s, 1, 3, 0))
	}
	inclusion := func() v1.NodeInclusionPolicy {
		if s.chance(s.bad) {
			return "honor"
		}
		return pick(s, v1.NodeInclusionPolicyHonor, v1.NodeInclusionPolicyIgnore)
	}
	c.NodeAffinityPolicy, c.NodeTaintsPolicy = maybe(s, 30, inclusion), maybe(s, 30, inclusion)
	return c
}

func (s source) quantity() resource.Quantity {
	if s.chance(s.bad) {
		return resource.MustParse(pick(s, "-1", "-100m", "0.5"))
	}
	return resource.MustParse(pick(s, "0", "1", "2", "1Gi", "2Mi", "1e3", "3", "100m"))
}

func (s source) resourceName() v1.ResourceName {
	if s.chance(s.bad) {
		return pick[v1.ResourceName](s, "gpu", "pods", "storage", "hugepages-", "hugepages-x", "requests.cpu", "requests.hugepages-2Mi", "-x", "",
			"requests.example.com/gpu", "kubernetes.io/x", "example.com/", "x.kubernetes.io/y", "a/b/c")
	}
	return pick[v1.ResourceName](s, "cpu", "cpu", "memory", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu")
}

func (s source) amounts() v1.ResourceList {
	list := v1.ResourceList{}
	for range s.IntN(4) {
		list[s.resourceName()] = s.quantity()
	}
	return list
}

func (s source) requirements() v1.ResourceRequirements {
	r := v1.ResourceRequirements{Requests: s.amounts()}
	if s.chance(50) {
		r.Limits = s.amounts()
		for name, quantity := range r.Requests {
			if s.chance(70) {
				r.Limits[name] = quantity
			}
		}
	}
	return r
}

func (s source) port() v1.ContainerPort {
	p := v1.ContainerPort{ContainerPort: pick[int32](s, 80, 443, 8080), HostPort: pick[int32](s, 0, 80, 443), HostIP: pick(s, "", "10.0.0.1")}
	if s.chance(s.bad) {
		p.ContainerPort = pick[int32](s, 0, -1, 65536)
	}
	if s.chance(s.bad) {
		p.HostPort = pick[int32](s, -1, 65536)
	}
	p.Protocol = pick(s, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)
	if s.chance(s.bad) {
		p.Protocol = "HTTP"
	}
	return p
}

func (s source) container(name string) v1.Container {
	if s.chance(s.bad) {
		name = pick(s, "c0", "Bad", "x.y")
	}
	c := v1.Container{Name: name, Image: "busybox", Ports: some(s, 2, s.port)}
	if s.chance(70) {
		c.Resources = s.requirements()
	}
	c.Resources.Claims = some(s, 1, func() v1.ResourceClaim {
		return v1.ResourceClaim{Name: pick(s, "a", "b", "c-1", "absent"), Request: pick(s, "", "", "r", "Bad")}
	})
	return c
}

func (s source) pod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.name(), Namespace: "default", Labels: s.labels()}}
	if s.chance(s.bad) {
		pod.Namespace = pick(s, "", "a.b", "Upper")
	}
	spec := &pod.Spec
	for i := range 1 + s.IntN(3) {
		spec.Containers = append(spec.Containers, s.container(fmt.Sprintf("c%d", i)))
	}
	for i := range s.IntN(3) {
		c := s.container(fmt.Sprintf("i%d", i))
		if s.chance(40) {
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	spec.HostNetwork = s.chance(10)
	if s.chance(30) {
		spec.Resources = ptr.To(s.requirements())
	}
	spec.NodeSelector = s.labels()
	if s.chance(60) {
		spec.Affinity = s.affinity()
	}
	spec.TopologySpreadConstraints = some(s, 3, s.spread)
	spec.SchedulingGates = some(s, 1, func() v1.PodSchedulingGate { return v1.PodSchedulingGate{Name: s.key()} })
	spec.Tolerations = some(s, 3, s.toleration)
	if s.chance(20) {
		spec.NodeName = s.name()
	}
	spec.PriorityClassName = pick(s, "", s.name())
	spec.RuntimeClassName = maybe(s, 20, s.name)
	spec.PreemptionPolicy = maybe(s, 20, func() v1.PreemptionPolicy {
		return pick[v1.PreemptionPolicy](s, "Never", "PreemptLowerPriority", "", "Always")
	})
	if s.chance(20) {
		spec.Overhead = s.amounts()
	}
	spec.ResourceClaims = some(s, 2, func() v1.PodResourceClaim {
		return v1.PodResourceClaim{Name: s.name(), ResourceClaimName: maybe(s, 60, s.name), ResourceClaimTemplateName: maybe(s, 30, s.name)}
	})
	if s.chance(s.bad) {
		spec.RestartPolicy = "Sometimes"
	}
	return pod
}
