// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Pools to draw from. They are short so that independent draws often coincide.
var (
	nodeNames      = []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	namespaceNames = []string{"default", "default", "other", "third"}
	apps           = []string{"x", "y", "z"}
	// Keys of node labels. The last key is absent from all nodes.
	topologyKeys = []string{
		v1.LabelTopologyZone, v1.LabelTopologyZone, v1.LabelHostname, v1.LabelHostname, "disk",
		"k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "nowhere",
	}
)

// newProfile draws a configuration: mostly the default, sometimes a configuration with reordered or
// missing plugins or other arguments.
func newProfile(t *draw) *plugins.Profile {
	if t.chance(0.5) {
		return plugins.Default()
	}
	at, weights := maps.Clone(plugins.Default().At), maps.Clone(plugins.Default().Weights)
	args := map[string]any{}
	if t.chance(0.4) {
		names := slices.Clone(at[plugins.Filters])
		t.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		at[plugins.Filters] = names
	}
	if t.chance(0.3) {
		gone := one(t, "PodTopologySpread", "InterPodAffinity", "TaintToleration", "NodeResourcesFit", "NodeAffinity", "NodePorts")
		for _, points := range one(t, []plugins.Point{plugins.PreFilter, plugins.Filters}, []plugins.Point{plugins.PreScore, plugins.Score}) {
			at[points] = slices.DeleteFunc(slices.Clone(at[points]), func(name string) bool { return name == gone })
		}
	}
	if t.chance(0.3) {
		for _, name := range at[plugins.Score] {
			weights[name] = 1 + t.Int64N(5)
		}
	}
	if t.chance(0.4) {
		hard := one[int32](t, 0, 1, 100)
		args["InterPodAffinity"] = &config.InterPodAffinityArgs{HardPodAffinityWeight: &hard, IgnorePreferredTermsOfExistingPods: t.chance(0.5)}
	}
	if t.chance(0.3) {
		args["PodTopologySpread"] = &config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting, DefaultConstraints: []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: one(t, topologyKeys...), WhenUnsatisfiable: one(t, v1.DoNotSchedule, v1.ScheduleAnyway),
		}}}
	}
	if t.chance(0.3) {
		args["NodeResourcesFit"] = &config.NodeResourcesFitArgs{ScoringStrategy: one(t,
			&config.ScoringStrategy{Type: config.MostAllocated, Resources: []config.ResourceSpec{{Name: "cpu", Weight: 3}, {Name: "memory", Weight: 1}}},
			&config.ScoringStrategy{Type: config.LeastAllocated, Resources: []config.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "example.com/gpu", Weight: 5}}},
			&config.ScoringStrategy{
				Type: config.RequestedToCapacityRatio, Resources: []config.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}},
				RequestedToCapacityRatio: &config.RequestedToCapacityRatioParam{Shape: []config.UtilizationShapePoint{{Utilization: 0, Score: 0}, {Utilization: 60, Score: 10}, {Utilization: 100, Score: 3}}},
			})}
	}
	if t.chance(0.3) {
		args["NodeResourcesBalancedAllocation"] = &config.NodeResourcesBalancedAllocationArgs{Resources: one(t,
			[]config.ResourceSpec{{Name: "cpu", Weight: 1}}, []config.ResourceSpec{{Name: "memory", Weight: 1}, {Name: "example.com/gpu", Weight: 1}},
			[]config.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}, {Name: "ephemeral-storage", Weight: 1}})}
	}
	if t.chance(0.2) { // a learning plugin with fine scores
		for _, point := range one(t, []plugins.Point{plugins.Score}, []plugins.Point{plugins.Filters, plugins.Reserve}, []plugins.Point{plugins.Filters, plugins.Score, plugins.Reserve}) {
			at[point] = append(slices.Clone(at[point]), "Fragmentation")
		}
		weights["Fragmentation"] = 1 + t.Int64N(5)
		args["Fragmentation"] = &plugins.FragmentationArgs{Resource: "example.com/gpu", Unit: 1 + t.Int64N(2), Driver: one(t, "", "gpu.example.com")}
	}
	p, err := plugins.NewProfile(plugins.DefaultSchedulerName, at, weights, args)
	if err != nil {
		panic(err)
	}
	if t.chance(0.3) { // an out-of-tree plugin, and mandatory budgets
		p.Filters = slices.Insert(slices.Clone(p.Filters), t.IntN(len(p.Filters)+1), plugins.Filter(crowded{}))
		p.Scorers = append(p.Scorers, plugins.Weighted{Scorer: crowded{}, Weight: 3})
		p.KeepBudgets = true
	}
	if t.chance(0.3) { // all feasible nodes are equally good, or nearly so
		first := t.IntN(len(p.Scorers) + 1)
		p.Scorers = p.Scorers[first:min(first+t.IntN(2), len(p.Scorers))]
	}
	var names []string
	for _, f := range p.Filters {
		names = append(names, f.Name())
	}
	t.say("profile: %v, %+v, %d scorers", names, args, len(p.Scorers))
	return p
}

func (m *machine) setNode(t *draw) { m.c.SetNode(m.newNode(t, one(t, nodeNames...))) }

// changeNode changes a part of an existing node.
func (m *machine) changeNode(t *draw) {
	nodes := m.c.SortedNodes()
	if len(nodes) == 0 {
		return
	}
	node := one(t, nodes...).Object().DeepCopy()
	other := m.newNode(t, node.Name)
	switch t.IntN(5) {
	case 0:
		node.Spec = other.Spec
	case 1:
		node.Status.Allocatable = other.Status.Allocatable
	case 2:
		node.Status.Images = other.Status.Images
	case 3:
		key := one(t, topologyKeys...)
		if value, ok := other.Labels[key]; ok {
			node.Labels[key] = value
		} else {
			delete(node.Labels, key)
		}
	default:
		node.Labels = other.Labels
	}
	m.c.SetNode(node)
}

func (m *machine) newNode(t *draw, name string) *v1.Node {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if !m.likes(t, "odd nodes") {
		node.Labels[v1.LabelHostname] = name
	} else if t.chance(0.5) {
		node.Labels[v1.LabelHostname] = "shared"
	}
	if zone := one(t, "z1", "z2", "z3", ""); zone != "" || m.likes(t, "odd nodes") {
		node.Labels[v1.LabelTopologyZone] = zone
	}
	if disk := one(t, "ssd", "hdd", ""); disk != "" {
		node.Labels["disk"] = disk
	}
	if serial := one(t, "", "1", "5", "5.5", "many"); serial != "" {
		node.Labels["serial"] = serial
	}
	if m.likes(t, "keys") {
		usual := one(t, 0.7, 1)
		for i := 1; i <= 9; i++ {
			if t.chance(usual) {
				node.Labels[fmt.Sprint("k", i)] = one(t, "v1", "v2", "v3")
			}
		}
	}
	for m.likes(t, "taints") && len(node.Spec.Taints) < 3 {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{
			Key: one(t, "k1", "k2"), Value: one(t, "v1", "v2"),
			Effect: one(t, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute),
		})
	}
	node.Spec.Unschedulable = m.likes(t, "taints") && t.chance(0.3)
	node.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse(one(t, "1", "2", "4", "3500m")),
		v1.ResourceMemory: resource.MustParse(one(t, "1Gi", "2Gi", "3000Mi")),
		v1.ResourcePods:   resource.MustParse(one(t, "3", "10")),
	}
	if m.likes(t, "huge") {
		node.Status.Allocatable[v1.ResourceMemory] = resource.MustParse(one(t, "9223372036854775807", "4611686018427387904", "0"))
	}
	if t.chance(0.5) {
		node.Status.Allocatable["example.com/gpu"] = resource.MustParse("2")
	}
	if t.chance(0.5) {
		node.Status.Images = []v1.ContainerImage{{Names: []string{"app:v1"}, SizeBytes: one[int64](t, 100<<20, 900<<20, 1<<63-1)}}
	}
	t.say("  node %s %v %v", name, node.Labels, node.Spec.Taints)
	return node
}

func (m *machine) podLabels(t *draw, name string) map[string]string {
	labels := map[string]string{"app": one(t, apps...)}
	if m.likes(t, "unique") {
		labels["pod"] = name
	}
	if t.chance(0.2) {
		labels["tier"] = one(t, "front", "back")
	}
	return labels
}

// newPod returns a pod of one of the sequence's few workloads, or a unique one.
func (m *machine) newPod(t *draw) *v1.Pod {
	if len(m.workloads) == 0 || t.chance(0.2) {
		pod := m.draw(t)
		if len(m.workloads) < 4 {
			m.workloads = append(m.workloads, pod)
		}
		return pod
	}
	pod := m.another(one(t, m.workloads...))
	if t.chance(0.2) {
		pod.Labels = m.podLabels(t, pod.Name)
	}
	return pod
}

// draw draws all fields of a pod.
func (m *machine) draw(t *draw) *v1.Pod {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: one(t, "app:v1", "app", "other:v2")}}}}
	m.name(pod)
	pod.Namespace, pod.Labels = one(t, namespaceNames...), m.podLabels(t, pod.Name)
	requests := v1.ResourceList{}
	if cpu := one(t, "", "100m", "700m", "1"); cpu != "" {
		requests[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory := one(t, "", "64Mi", "700Mi"); memory != "" {
		requests[v1.ResourceMemory] = resource.MustParse(memory)
	}
	if m.likes(t, "huge") {
		requests[one(t, v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage)] =
			resource.MustParse(one(t, "9223372036854775807", "9223371865056083968", "9223372036854775", "4611686018427387904", "1e30"))
	}
	if m.likes(t, "gpu") {
		requests["example.com/gpu"] = resource.MustParse("1")
	}
	pod.Spec.Containers[0].Resources.Requests = requests
	priority := one[int32](t, 0, 10, 20)
	if t.chance(0.1) { // the lowest priority and the system priorities
		priority = one[int32](t, math.MinInt32, 2000000000, 2000001000)
	}
	pod.Spec.Priority = &priority
	if t.chance(0.05) || m.likes(t, "never") {
		pod.Spec.PreemptionPolicy = new(v1.PreemptNever)
	}
	for m.likes(t, "ports") && len(pod.Spec.Containers[0].Ports) < 3 {
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, v1.ContainerPort{
			HostPort: one[int32](t, 80, 81), HostIP: one(t, "", "0.0.0.0", "10.0.0.1", "::"), Protocol: one(t, "", v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP),
		})
	}
	for m.likes(t, "taints") && len(pod.Spec.Tolerations) < 3 {
		toleration := v1.Toleration{
			Key: one(t, "k1", "k2", ""), Operator: v1.TolerationOpExists, Effect: one(t, "", v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule),
		}
		if toleration.Key != "" && t.chance(0.4) {
			toleration.Operator, toleration.Value = v1.TolerationOpEqual, one(t, "v1", "v2")
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
	}
	if m.likes(t, "selects") {
		pod.Spec.NodeSelector = map[string]string{one(t, "disk", v1.LabelTopologyZone): one(t, "ssd", "z1")}
	}
	if m.likes(t, "volumes") {
		m.volumes(t, pod)
	}
	if m.likes(t, "devices") {
		pod.Namespace = "default"
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimName: new(one(t, claimNames...))}}
	}
	m.affinity(t, pod)
	for m.likes(t, "spread") && len(pod.Spec.TopologySpreadConstraints) < 4 {
		m.spread(t, pod)
	}
	if len(pod.Spec.TopologySpreadConstraints) > 0 && m.likes(t, "keys") && t.chance(0.3) {
		for range 24 { // exceeds the number of bits in a byte
			m.spread(t, pod)
		}
	}
	return pod
}

func (m *machine) affinity(t *draw, pod *v1.Pod) {
	a := &v1.Affinity{}
	if m.likes(t, "node affinity") {
		a.NodeAffinity = &v1.NodeAffinity{}
		preferred := &a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		for range one(t, 0, 1, 1, 3) {
			*preferred = append(*preferred, v1.PreferredSchedulingTerm{Weight: one[int32](t, 1, 30), Preference: nodeTerm(t)})
		}
		if t.chance(0.5) {
			required := &v1.NodeSelector{}
			for range one(t, 1, 1, 2, 3) {
				required.NodeSelectorTerms = append(required.NodeSelectorTerms, nodeTerm(t))
			}
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
		}
	}
	if m.likes(t, "pod affinity") {
		a.PodAffinity = &v1.PodAffinity{}
		a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = m.podTerms(t)
	}
	if m.likes(t, "pod affinity") {
		a.PodAntiAffinity = &v1.PodAntiAffinity{}
		a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = m.podTerms(t)
	}
	if a.NodeAffinity != nil || a.PodAffinity != nil || a.PodAntiAffinity != nil {
		pod.Spec.Affinity = a
	}
}

// podTerms draws up to three terms or, rarely, terms for many topology keys, like a malicious pod.
func (m *machine) podTerms(t *draw) (required []v1.PodAffinityTerm, preferred []v1.WeightedPodAffinityTerm) {
	if t.chance(0.45) {
		required = append(required, m.podTerm(t))
	}
	for range one(t, 0, 1, 1, 2) {
		preferred = append(preferred, v1.WeightedPodAffinityTerm{Weight: one[int32](t, 1, 7, 100), PodAffinityTerm: m.podTerm(t)})
	}
	if m.likes(t, "keys") && t.chance(0.3) {
		for _, key := range topologyKeys {
			term := m.podTerm(t)
			term.TopologyKey = key
			if t.chance(0.7) {
				preferred = append(preferred, v1.WeightedPodAffinityTerm{Weight: one[int32](t, 1, 7), PodAffinityTerm: term})
			} else if t.chance(0.3) {
				required = append(required, term)
			}
		}
	}
	return required, preferred
}

func nodeTerm(t *draw) (term v1.NodeSelectorTerm) {
	if t.chance(0.25) {
		term.MatchFields = []v1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: one(t, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn), Values: []string{one(t, nodeNames...)},
		}}
		if t.chance(0.7) {
			return term
		}
	}
	for range one(t, 1, 1, 2) {
		r := v1.NodeSelectorRequirement{
			Key: one(t, "disk", v1.LabelTopologyZone, v1.LabelHostname), Operator: one(t, v1.NodeSelectorOpIn, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn,
				v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist, v1.NodeSelectorOpGt, v1.NodeSelectorOpLt),
		}
		switch r.Operator {
		case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
			r.Values = []string{one(t, "ssd", "z1", "z2", "a", "")}
		case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
			r.Key, r.Values = "serial", []string{one(t, "0", "3", "9223372036854775807")}
		}
		term.MatchExpressions = append(term.MatchExpressions, r)
	}
	return term
}

func (m *machine) topologyKey(t *draw) string {
	if m.likes(t, "keys") {
		return one(t, topologyKeys...)
	}
	return one(t, topologyKeys[:5]...)
}

func (m *machine) podTerm(t *draw) v1.PodAffinityTerm {
	term := v1.PodAffinityTerm{TopologyKey: m.topologyKey(t), LabelSelector: labelSelector(m, t)}
	switch t.IntN(6) {
	case 0:
		term.Namespaces = []string{one(t, "other", "third")}
	case 1:
		term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": one(t, "a", "b")}}
	case 2:
		term.NamespaceSelector = one(t, &metav1.LabelSelector{}, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: one(t, "team", "env"), Operator: one(t, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpIn), Values: []string{"a"},
		}}}, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: one(t, "team", "env"), Operator: one(t, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist),
		}}})
	}
	return term
}

// labelSelector draws a pod selector: for an app, for a single past, present or future pod, for
// nearly all pods, for all, or for none.
func labelSelector(m *machine, t *draw) *metav1.LabelSelector {
	app := map[string]string{"app": one(t, apps...)}
	if m.likes(t, "unique") && t.chance(0.6) {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"pod": fmt.Sprintf("pod-%d", 1+t.IntN(m.next+3))}}
	}
	switch t.IntN(12) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return nil
	case 2:
		return &metav1.LabelSelector{MatchLabels: app, MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "tier", Operator: one(t, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}}}
	case 3:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: one(t, "app", "tier"), Operator: one(t, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{"x", "front"}}}}
	}
	return &metav1.LabelSelector{MatchLabels: app}
}

func (m *machine) spread(t *draw, pod *v1.Pod) {
	c := v1.TopologySpreadConstraint{
		MaxSkew: one[int32](t, 1, 2, 3), TopologyKey: m.topologyKey(t),
		WhenUnsatisfiable: one(t, v1.DoNotSchedule, v1.ScheduleAnyway), LabelSelector: labelSelector(m, t),
	}
	if t.chance(0.4) {
		honor := v1.NodeInclusionPolicyHonor
		c.NodeTaintsPolicy = &honor
	}
	if t.chance(0.3) {
		ignore := v1.NodeInclusionPolicyIgnore
		c.NodeAffinityPolicy = &ignore
	}
	if c.WhenUnsatisfiable == v1.DoNotSchedule && t.chance(0.4) {
		c.MinDomains = new(one[int32](t, 1, 2, 5))
	}
	if t.chance(0.2) && c.LabelSelector != nil {
		c.MatchLabelKeys = []string{one(t, "pod", "tier")}
	}
	same := func(o v1.TopologySpreadConstraint) bool { // the API server rejects two constraints with the same key and action
		return o.TopologyKey == c.TopologyKey && o.WhenUnsatisfiable == c.WhenUnsatisfiable
	}
	if !slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, same) {
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, c)
	} else if t.chance(0.5) {
		m.spread(t, pod)
	}
}

// summary describes the parts of a pod that may affect decisions.
func summary(pod *v1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s %v priority %d", pod.Namespace, pod.Name, pod.Labels, *pod.Spec.Priority)
	for name, quantity := range pod.Spec.Containers[0].Resources.Requests {
		fmt.Fprintf(&b, " %s=%s", name, quantity.String())
	}
	if pod.Spec.NodeName != "" {
		fmt.Fprintf(&b, " on %s", pod.Spec.NodeName)
	}
	if len(pod.Spec.NodeSelector) > 0 {
		fmt.Fprintf(&b, " selects %v", pod.Spec.NodeSelector)
	}
	if len(pod.Spec.Volumes) > 0 {
		fmt.Fprintf(&b, " %d volumes", len(pod.Spec.Volumes))
	}
	if a := pod.Spec.Affinity; a != nil {
		if a.NodeAffinity != nil {
			b.WriteString("\n    node affinity")
		}
		terms := func(name string, required []v1.PodAffinityTerm, preferred []v1.WeightedPodAffinityTerm) {
			for i := range required {
				fmt.Fprintf(&b, "\n    %s %s", name, termText(&required[i]))
			}
			for i := range preferred {
				fmt.Fprintf(&b, "\n    %s %d %s", name, preferred[i].Weight, termText(&preferred[i].PodAffinityTerm))
			}
		}
		if a.PodAffinity != nil {
			terms("affinity", a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a.PodAntiAffinity != nil {
			terms("anti-affinity", a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		fmt.Fprintf(&b, "\n    spread %s %s %d %s", c.WhenUnsatisfiable, c.TopologyKey, c.MaxSkew, metav1.FormatLabelSelector(c.LabelSelector))
	}
	return b.String()
}

func termText(t *v1.PodAffinityTerm) string {
	text := t.TopologyKey + " " + metav1.FormatLabelSelector(t.LabelSelector)
	if len(t.Namespaces) > 0 {
		text += fmt.Sprintf(" in %v", t.Namespaces)
	}
	if t.NamespaceSelector != nil {
		text += " in " + metav1.FormatLabelSelector(t.NamespaceSelector)
	}
	return text
}
