// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// begin is the initial time of the tests' worlds.
var begin = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// words are the name and the options of a line: NAME key=value flag ...
type words struct {
	name    string
	options map[string]string
	order   []string
}

func wordsOf(line string) words {
	fields := strings.Fields(line)
	w := words{name: fields[0], options: map[string]string{}}
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		if old, twice := w.options[key]; twice {
			value = old + " " + value
		}
		w.options[key] = value
		w.order = append(w.order, key)
	}
	return w
}

func (w words) has(key string) bool { _, ok := w.options[key]; return ok }

func (w words) get(key, otherwise string) string {
	if value, ok := w.options[key]; ok {
		return value
	}
	return otherwise
}

func (w words) number(key string, otherwise int) int32 {
	n, err := strconv.Atoi(w.get(key, strconv.Itoa(otherwise)))
	if err != nil {
		panic(err)
	}
	return int32(n)
}

func (w words) list(key string) []string { return strings.Fields(w.options[key]) }

func (w words) age(t testing.TB, key, otherwise string) time.Time {
	t.Helper()
	d, err := time.ParseDuration(w.get(key, otherwise))
	if err != nil {
		t.Fatal(err)
	}
	return begin.Add(-d)
}

// versionOf returns the API version of a kind of controller.
func versionOf(kind string) string {
	switch kind {
	case "Job":
		return "batch/v1"
	case "Node", "ReplicationController":
		return "v1"
	}
	return "apps/v1"
}

func pairs(list []string) map[string]string {
	labels := map[string]string{}
	for _, pair := range list {
		key, value, _ := strings.Cut(pair, ":")
		labels[key] = value
	}
	return labels
}

// object parses one line of a world; see TestCases.
func object(t testing.TB, line string) []metav1.Object {
	kind, rest, _ := strings.Cut(line, " ")
	w := wordsOf(rest)
	switch kind {
	case "node":
		return append(storesOf(t, w), nodeOf(t, w))
	case "pod":
		p := podOf(t, w, w.name)
		return append(claimsOf(w, p), p)
	case "pods":
		count, err := strconv.Atoi(w.get("count", "1"))
		if err != nil {
			t.Fatal(err)
		}
		var list []metav1.Object
		for i := range count {
			list = append(list, podOf(t, w, fmt.Sprintf("%s-%d", w.name, i)))
		}
		return list
	case "budget":
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name}}
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: pairs(w.list("of"))}
		n := intstr.Parse(w.get("unavailable", "1"))
		b.Spec.MaxUnavailable = &n
		return []metav1.Object{b}
	case "service":
		return []metav1.Object{&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name}, Spec: v1.ServiceSpec{Selector: pairs(w.list("of"))}}}
	case "daemonset":
		return []metav1.Object{&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name}}}
	case "deployment":
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name, UID: types.UID("deployment/" + w.name)}}
		d.Spec.Strategy.Type = appsv1.DeploymentStrategyType(w.get("strategy", string(appsv1.RollingUpdateDeploymentStrategyType)))
		if w.has("surge") {
			n := intstr.Parse(w.options["surge"])
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &n}
		}
		if w.has("available") {
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: w.number("available", 1)}
		}
		return []metav1.Object{d}
	case "replicaset":
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name, UID: types.UID(w.name)}}
		of := &metav1.ObjectMeta{Name: w.options["of"], UID: types.UID("deployment/" + w.options["of"])}
		rs.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(of, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
		return []metav1.Object{rs}
	case "job": // with survives, the Job replaces evicted pods without counting a failure
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name, UID: types.UID(w.name)}}
		ignore := batchv1.PodFailurePolicyRule{Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}}}
		fail := batchv1.PodFailurePolicyRule{Action: batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{0}}}
		if w.has("backoff") {
			j.Spec.BackoffLimit = new(w.number("backoff", 0))
		}
		switch {
		case w.has("survives"):
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{ignore, fail}}
		case w.has("fails"):
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{fail, ignore}}
		}
		return []metav1.Object{j}
	case "podgroup":
		g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name}}
		if key := w.get("domain", ""); key != "" {
			g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: key}}}
		}
		return []metav1.Object{g}
	case "autoscaler":
		h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name}}
		h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{Kind: w.get("kind", "Deployment"), Name: w.get("of", w.name)}
		h.Spec.MaxReplicas = w.number("most", 10)
		if w.has("never-down") {
			h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleDown: &autoscalingv2.HPAScalingRules{SelectPolicy: new(autoscalingv2.DisabledPolicySelect)}}
		}
		return []metav1.Object{h}
	case "quota":
		q := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name}}
		q.Spec.Hard, q.Status.Used = v1.ResourceList{}, v1.ResourceList{}
		for _, key := range w.order {
			used, hard, _ := strings.Cut(w.options[key], "/")
			q.Spec.Hard[v1.ResourceName(key)], q.Status.Used[v1.ResourceName(key)] = resource.MustParse(hard), resource.MustParse(used)
		}
		return []metav1.Object{q}
	case "statefulset":
		s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name, UID: types.UID(w.name)}}
		if w.has("strategy") {
			s.Spec.UpdateStrategy.Type = appsv1.StatefulSetUpdateStrategyType(w.options["strategy"])
		}
		if w.has("partition") {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(w.number("partition", 0))}
		}
		s.Status = appsv1.StatefulSetStatus{
			ObservedGeneration: 1, ReadyReplicas: w.number("ready", 1), UpdatedReplicas: w.number("updated", 0),
			CurrentRevision: "1", UpdateRevision: w.get("update", "1"),
		}
		return []metav1.Object{s}
	case "volume":
		return volumeOf(w)
	}
	t.Fatalf("unknown kind %q", kind)
	return nil
}

func volumeOf(w words) []metav1.Object {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name, UID: types.UID(w.name)}}
	class := "disk"
	claim.Spec.VolumeName, claim.Spec.StorageClassName = w.name, &class
	claim.Status.Phase = v1.ClaimBound
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
	volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: w.name, UID: claim.UID}
	volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{w.get("zone", "")}}},
	}}}}
	volume.Status.Phase = v1.VolumeBound
	return []metav1.Object{claim, volume}
}

func nodeOf(t testing.TB, w words) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name, Labels: pairs(w.list("label"))}}
	n.Labels[v1.LabelHostname] = w.name
	if w.has("zone") {
		n.Labels["zone"] = w.options["zone"]
	}
	n.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU: resource.MustParse(w.get("cpu", "16")), v1.ResourceMemory: resource.MustParse(w.get("mem", "64Gi")),
		v1.ResourcePods: resource.MustParse(w.get("pods", "110")),
	}
	if w.has("gpu") {
		n.Status.Allocatable["example.com/gpu"] = resource.MustParse(w.options["gpu"])
	}
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.age(t, "ready", "1h"))}}
	if w.has("lost") {
		n.Status.Conditions[0].Status = v1.ConditionUnknown
	}
	for _, text := range w.list("taint") {
		key, effect, _ := strings.Cut(text, ":")
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffect(effect)})
	}
	if w.has("deleting") {
		n.DeletionTimestamp, n.Finalizers = &metav1.Time{Time: begin}, []string{"example.com/wait"}
	}
	if w.has("cordoned") {
		n.Spec.Unschedulable = true
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
	}
	return n
}

func podOf(t testing.TB, w words, name string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.get("ns", "default"), Name: name, Labels: pairs(w.list("label")), Annotations: pairs(w.list("note"))}}
	p.UID = types.UID(p.Namespace + "/" + name)
	p.CreationTimestamp = metav1.NewTime(w.age(t, "age", "1h"))
	started := p.CreationTimestamp
	p.Status.StartTime, p.Status.Phase = &started, v1.PodRunning
	if owner := w.get("owner", "ReplicaSet/"+w.name); owner != "none" {
		kind, owned, _ := strings.Cut(owner, "/")
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: w.get("group", versionOf(kind)), Kind: kind, Name: owned, UID: types.UID(owned), Controller: &yes}}
	}
	p.Spec.NodeName, p.Spec.SchedulerName = w.get("on", ""), v1.DefaultSchedulerName
	requests := v1.ResourceList{}
	for key, of := range map[string]v1.ResourceName{"cpu": v1.ResourceCPU, "mem": v1.ResourceMemory, "gpu": "example.com/gpu"} {
		if w.has(key) {
			requests[of] = resource.MustParse(w.options[key])
		}
	}
	p.Spec.Containers = []v1.Container{{Name: "main", Image: w.get("image", "app"), Resources: v1.ResourceRequirements{Requests: requests, Limits: v1.ResourceList{}}}}
	if w.has("gpu") {
		p.Spec.Containers[0].Resources.Limits["example.com/gpu"] = requests["example.com/gpu"]
	}
	if w.has("prio") {
		prio, err := strconv.Atoi(w.options["prio"])
		if err != nil {
			t.Fatal(err)
		}
		value := int32(prio)
		p.Spec.Priority = &value
	}
	p.Spec.NodeSelector = pairs(w.list("select"))
	for _, text := range w.list("tolerate") {
		p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: text, Operator: v1.TolerationOpExists})
	}
	podAffinity(w, p)
	for _, text := range w.list("spread") {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, spreadOf(t, p, text))
	}
	if w.has("podgroup") {
		group := w.options["podgroup"]
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	}
	if w.has("emptydir") {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	}
	for _, claim := range w.list("claim") {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	if w.has("grace") {
		grace, err := strconv.ParseInt(w.options["grace"], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		p.Spec.TerminationGracePeriodSeconds = &grace
	}
	podStatus(t, w, p)
	return p
}

func podStatus(t testing.TB, w words, p *v1.Pod) {
	restarts, err := strconv.Atoi(w.get("restarts", "0"))
	if err != nil {
		t.Fatal(err)
	}
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "main", RestartCount: int32(restarts)}}
	switch {
	case w.has("failed"):
		p.Status.Phase, p.Status.Reason = v1.PodFailed, w.options["failed"]
	case w.has("completed"):
		p.Status.Phase = v1.PodSucceeded
	case w.has("starting"):
		p.Status.Phase, p.Status.Conditions = v1.PodPending, []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse}}
	case w.has("unready"):
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse}}
	case p.Spec.NodeName == "":
		p.Status = v1.PodStatus{Phase: v1.PodPending}
	default:
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	}
}

func podAffinity(w words, p *v1.Pod) {
	a := &v1.Affinity{}
	term := func(text string) v1.PodAffinityTerm {
		parts := strings.Split(text, ":")
		return v1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{parts[0]: parts[1]}}, TopologyKey: keyOf(parts[2])}
	}
	for _, text := range w.list("anti") {
		a.PodAntiAffinity = &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term(text)}}
	}
	for _, text := range w.list("near") {
		a.PodAffinity = &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term(text)}}
	}
	node := &v1.NodeAffinity{}
	for _, text := range w.list("need") {
		key, value, _ := strings.Cut(text, ":")
		node.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}}}}
	}
	for _, text := range w.list("prefer") {
		key, value, _ := strings.Cut(text, ":")
		node.PreferredDuringSchedulingIgnoredDuringExecution = append(node.PreferredDuringSchedulingIgnoredDuringExecution, v1.PreferredSchedulingTerm{
			Weight:     100,
			Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}}})
	}
	if w.has("need") || w.has("prefer") {
		a.NodeAffinity = node
	}
	if *a != (v1.Affinity{}) {
		p.Spec.Affinity = a
	}
}

func keyOf(word string) string {
	if word == "host" {
		return v1.LabelHostname
	}
	return word
}

// spreadOf parses KEY:SKEW[:soft][:honor][:LABEL]. LABEL is a matchLabelKey, and the selector
// matches the pod's label app.
func spreadOf(t testing.TB, p *v1.Pod, text string) v1.TopologySpreadConstraint {
	parts := strings.Split(text, ":")
	skew, err := strconv.Atoi(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	c := v1.TopologySpreadConstraint{
		MaxSkew: int32(skew), TopologyKey: keyOf(parts[0]), WhenUnsatisfiable: v1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}},
	}
	for _, word := range parts[2:] {
		honor := v1.NodeInclusionPolicyHonor
		switch word {
		case "soft":
			c.WhenUnsatisfiable = v1.ScheduleAnyway
		case "honor":
			c.NodeTaintsPolicy = &honor
		default:
			c.MatchLabelKeys = []string{word}
		}
	}
	return c
}
