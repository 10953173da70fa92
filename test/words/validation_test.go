// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package words

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/node"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	nodevalidation "k8s.io/kubernetes/pkg/apis/node/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	schedulingvalidation "k8s.io/kubernetes/pkg/apis/scheduling/validation"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// trials is the number of objects of a kind that a run tries, each from its own seed.
const trials = 3000

// object matches a whole object in an error. Upstream prints its internal type, with fields that
// users do not see; Berth prints the type of the API.
var object = regexp.MustCompile(`value: \{.*\}`)

// words formats errors as a user reads them. It sorts them, because Kubernetes reports them in the
// order of a map.
func words(errs field.ErrorList) []string {
	list := []string{}
	for _, err := range errs {
		list = append(list, object.ReplaceAllString(err.Error(), "value: {...}"))
	}
	slices.Sort(list)
	return list
}

func internal(t *testing.T, object, into runtime.Object) {
	t.Helper()
	if err := legacyscheme.Scheme.Convert(object, into, nil); err != nil {
		t.Fatal(err)
	}
}

// compare returns the number of errors. If the two results differ, it fails the test and prints the
// object.
func compare(t *testing.T, seed uint64, object any, ours, theirs []string) int {
	t.Helper()
	if slices.Equal(ours, theirs) {
		return len(ours)
	}
	var only []string
	for _, word := range ours {
		if !slices.Contains(theirs, word) {
			only = append(only, "only Berth:    "+word)
		}
	}
	for _, word := range theirs {
		if !slices.Contains(ours, word) {
			only = append(only, "only upstream: "+word)
		}
	}
	text, _ := json.Marshal(object)
	t.Fatalf("seed %d: %d and %d errors\n%s\n%s", seed, len(ours), len(theirs), strings.Join(only, "\n"), text)
	return 0
}

func TestPodsAreRefusedInUpstreamsWords(t *testing.T) {
	faults, sound := 0, 0
	for seed := range uint64(trials) {
		pod := newSource(seed).pod()
		legacyscheme.Scheme.Default(pod)
		var theirs core.Pod
		internal(t, pod, &theirs)
		opts := podutil.GetValidationOptionsFromPodSpecAndMeta(&theirs.Spec, nil, &theirs.ObjectMeta, nil)
		opts.ResourceIsPod = true
		opts.AllowTaintTolerationComparisonOperators = true // as in `berth up`
		n := compare(t, seed, pod, words(rules.ValidatePod(pod)), words(corevalidation.ValidatePodCreate(&theirs, opts)))
		if faults += n; n == 0 {
			sound++
		}
	}
	t.Logf("%d pods, %d of them sound, %d errors compared", trials, sound, faults)
}

func TestNodesAreRefusedInUpstreamsWords(t *testing.T) {
	faults := 0
	for seed := range uint64(trials) {
		s := newSource(seed)
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name(), Labels: s.labels()},
			Spec:   v1.NodeSpec{Taints: some(s, 4, s.taint)},
			Status: v1.NodeStatus{Capacity: s.amounts(), Allocatable: s.amounts()}}
		var theirs core.Node
		internal(t, n, &theirs)
		// Upstream reports taints under metadata.taints, a path that nodes do not have.
		expected := words(corevalidation.ValidateNode(&theirs))
		for i := range expected {
			expected[i] = strings.ReplaceAll(expected[i], "metadata.taints", "spec.taints")
		}
		slices.Sort(expected)
		faults += compare(t, seed, n, words(rules.ValidateNode(n)), expected)
	}
	t.Logf("%d nodes, %d errors compared", trials, faults)
}

func TestClassesAndBudgetsAreRefusedInUpstreamsWords(t *testing.T) {
	faults := 0
	for seed := range uint64(trials) {
		s := newSource(seed)
		faults += comparePriorityClass(t, s, seed) + compareRuntimeClass(t, s, seed) + comparePDB(t, s, seed)
	}
	t.Logf("%d of each, %d errors compared", trials, faults)
}

func comparePriorityClass(t *testing.T, s source, seed uint64) int {
	class := &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: pick(s, s.name(), "system-mine", "system-node-critical", "system-cluster-critical")},
		Value:      pick[int32](s, 0, -5, 1_000_000_000, 1_000_000_001, 2_000_000_000, 2_000_001_000), GlobalDefault: s.chance(30),
		PreemptionPolicy: maybe(s, 50, func() v1.PreemptionPolicy {
			return pick[v1.PreemptionPolicy](s, "Never", "PreemptLowerPriority", "", "Always")
		}),
	}
	var theirs scheduling.PriorityClass
	internal(t, class, &theirs)
	return compare(t, seed, class, words(rules.ValidatePriorityClass(class)), words(schedulingvalidation.ValidatePriorityClass(&theirs)))
}

func compareRuntimeClass(t *testing.T, s source, seed uint64) int {
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: s.name()}, Handler: pick(s, "kata", "", "Bad", "a.b")}
	if s.chance(60) {
		class.Overhead = &nodev1.Overhead{PodFixed: s.amounts()}
	}
	if s.chance(60) {
		class.Scheduling = &nodev1.Scheduling{NodeSelector: s.labels(), Tolerations: some(s, 3, s.toleration)}
		for i := range class.Scheduling.Tolerations { // upstream never accepts Gt and Lt in a RuntimeClass
			if op := class.Scheduling.Tolerations[i].Operator; op == v1.TolerationOpGt || op == v1.TolerationOpLt {
				class.Scheduling.Tolerations[i].Operator = v1.TolerationOpEqual
			}
		}
	}
	var theirs node.RuntimeClass
	internal(t, class, &theirs)
	return compare(t, seed, class, words(rules.ValidateRuntimeClass(class)), words(nodevalidation.ValidateRuntimeClass(&theirs)))
}

func comparePDB(t *testing.T, s source, seed uint64) int {
	amount := func() intstr.IntOrString {
		return pick(s, intstr.FromInt32(1), intstr.FromInt32(0), intstr.FromInt32(-1), intstr.FromString("50%"), intstr.FromString("100%"),
			intstr.FromString("101%"), intstr.FromString("0100%"), intstr.FromString("-1%"), intstr.FromString("5"), intstr.FromString("many"))
	}
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "budget", Namespace: "default"}}
	pdb.Spec.MinAvailable, pdb.Spec.MaxUnavailable, pdb.Spec.Selector = maybe(s, 60, amount), maybe(s, 40, amount), s.selector()
	pdb.Spec.UnhealthyPodEvictionPolicy = maybe(s, 40, func() policyv1.UnhealthyPodEvictionPolicyType {
		return pick[policyv1.UnhealthyPodEvictionPolicyType](s, "IfHealthyBudget", "AlwaysAllow", "", "Never")
	})
	var theirs policy.PodDisruptionBudget
	internal(t, pdb, &theirs)
	return compare(t, seed, pdb, words(rules.ValidatePDB(pdb)),
		words(policyvalidation.ValidatePodDisruptionBudget(&theirs, policyvalidation.PodDisruptionBudgetValidationOptions{})))
}
