// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubectl/pkg/drain"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

var asOf = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// TestDrainsAgree verifies, for the first node of random clusters, that what-if, berth drain and
// kubectl's own filters (as far as they give a verdict) name the same pods as leaving, staying and
// preventing the drain, with the same reasons.
func TestDrainsAgree(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(1000) {
		objects, flags := drawCluster(rand.New(rand.NewPCG(seed, 17)))
		foreseen, became := foreseenDrain(t, objects, flags)
		planned, becomes := plannedDrain(objects, flags)
		for name, fate := range kubectlDrain(t, objects, flags) {
			if got, _, _ := strings.Cut(planned[name], " (held"); fate != "" && !strings.Contains(got, fate) && !strings.HasPrefix(got, "never") {
				t.Fatalf("seed %d, %+v: %s: planned %q, kubectl %q", seed, flags, name, planned[name], fate)
			}
		}
		// Budgets change the order of departures, and thus which departures make the Job fail.
		for name, want := range becomes {
			if refusedAny(planned) || heldAny(planned) || heldAny(foreseen) {
				break
			}
			// Forecasts list no departures of terminal pods.
			if seen[want]++; became[name] != want && (became[name] != "" || want != "lost") {
				t.Fatalf("seed %d, %+v: %s: what-if %q, berth drain %q\n%v\n%v", seed, flags, name, became[name], want, foreseen, planned)
			}
		}
		for name := range maps.Keys(planned) {
			got, want := foreseen[name], planned[name]
			begins := !refusedAny(planned) // otherwise what-if does not report departures
			if strings.HasPrefix(want, "never: ") && strings.HasPrefix(became[name], "Job/job fails: ") {
				continue // its Job has failed because of another pod, and deletes this pod
			}
			if (begins || strings.HasPrefix(want, "refused: ")) && !agrees(got, want) {
				t.Fatalf("seed %d, %+v: %s: what-if %q, berth drain %q\n%v\n%v", seed, flags, name, got, want, foreseen, planned)
			}
			kind, _, _ := strings.Cut(want, ":")
			seen[kind]++
		}
	}
	t.Log(seen)
	for _, kind := range []string{"leaves", "refused", "ignored", "ending", "never", "leaves (held)", "returns", "lost", "stuck",
		"Job/job fails: backoffLimit 0", "Job/job fails: backoffLimit 1", "Job/job fails: rule 1 of its podFailurePolicy", "index fails: backoffLimitPerIndex 0"} {
		if seen[kind] < 10 {
			t.Errorf("only %d pods are %q", seen[kind], kind)
		}
	}
}

// heldAny reports whether a budget delays or prevents any departure.
func heldAny(fates map[string]string) bool {
	for _, fate := range fates {
		if strings.HasPrefix(fate, "leaves (held)") || strings.HasPrefix(fate, "never: ") {
			return true
		}
	}
	return false
}

func refusedAny(fates map[string]string) bool {
	for _, fate := range fates {
		if strings.HasPrefix(fate, "refused: ") {
			return true
		}
	}
	return false
}

// agrees compares two fates of a pod. The order of evictions determines which pods use up a budget,
// and what-if reports pods never released by their budget as held.
func agrees(foreseen, planned string) bool {
	switch {
	case strings.HasPrefix(planned, "never: "):
		// The number of healthy pods is from the last eviction attempt.
		reason, _, _ := strings.Cut(strings.TrimPrefix(foreseen, "leaves (held): "), " and has")
		reason = strings.TrimPrefix(reason, "Cannot evict pod as it would violate the pod's disruption budget: ")
		return strings.HasPrefix(foreseen, "leaves (held)") && strings.Contains(planned, reason)
	case strings.HasPrefix(planned, "leaves"):
		return strings.HasPrefix(foreseen, "leaves") && !strings.Contains(foreseen, "more than one")
	}
	return foreseen == planned
}

type drainFlags struct{ IgnoreDaemonSets, DeleteEmptyDirData, Force bool }

// foreseenDrain returns the forecast's verdict on each pod of the node, and the fate of each
// departure.
func foreseenDrain(t *testing.T, objects []metav1.Object, flags drainFlags) (fates, became map[string]string) {
	t.Helper()
	set := manifest.Assemble("test", objects)
	set.Whole = true
	w, err := simulate.Open(set, simulate.Options{Now: asOf})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]types.UID{}
	for _, f := range w.Each() {
		there[f.Object.Name] = f.Object.UID
	}
	done, err := w.Do(&simulate.Operation{Drain: &simulate.Drain{
		Nodes: simulate.Nodes{Node: "n0"}, IgnoreDaemonSets: flags.IgnoreDaemonSets, DeleteEmptyDirData: flags.DeleteEmptyDirData, Force: flags.Force,
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.AdvanceUntilQuiet(time.Hour)

	fates, became = map[string]string{}, map[string]string{}
	note := func(kind string, list []simulate.Blocked) {
		for _, b := range list {
			message := ": " + b.Message
			if kind == "ending" {
				message = ""
			}
			fates[b.Name] = kind + message
		}
	}
	for _, d := range w.Departures() {
		if d.Cause == simulate.ByDrain {
			fates[d.Name] = "leaves"
		}
		became[d.Name] = cmp.Or(became[d.Name], map[simulate.Fate]string{
			simulate.Returns: "returns", simulate.Waits: "returns", simulate.Lost: "lost", simulate.Stays: "stuck", simulate.Ends: "lost",
			simulate.Fails: "fails", simulate.IndexFails: "index fails: " + d.Reason,
		}[d.Fate])
	}
	// A Job that fails later deletes its replacement pods.
	for _, object := range objects {
		if p, is := object.(*v1.Pod); is && became[p.Name] != "" && became[p.Name] != "stuck" {
			if owner := w.ControllerOf(p); owner != nil && owner.Kind == "Job" {
				for _, c := range owner.Object.(*batchv1.Job).Status.Conditions {
					became[p.Name] = "Job/job fails: " + c.Message
				}
			}
		}
	}
	for _, f := range w.Each() {
		if f.Object.UID == there[f.Object.Name] {
			delete(there, f.Object.Name)
		}
	}
	for name := range there { // pods that have completed do not depart
		fates[name] = cmp.Or(fates[name], "leaves")
	}
	note("refused", done.Drain.Refused)
	note("ignored", done.Drain.Ignored)
	note("ending", done.Drain.Terminating)
	note("leaves (held)", done.Drain.Waited)
	note("leaves (held)", done.Drain.Blocked)
	return fates, became
}

// plannedDrain returns the verdicts and fates in a drain plan.
func plannedDrain(objects []metav1.Object, flags drainFlags) (fates, becomes map[string]string) {
	plan := rebalance.PlanDrain(&rebalance.State{AsOf: asOf, World: world.Open(objects)}, &rebalance.Leaving{
		Nodes: []string{"n0"},
		DrainRules: disruption.DrainRules{
			IgnoreDaemonSets: flags.IgnoreDaemonSets, DeleteEmptyDirData: flags.DeleteEmptyDirData, Force: flags.Force,
		},
	}, rebalance.Options{Profiles: []*plugins.Profile{plugins.Default()}})
	fates, becomes = map[string]string{}, map[string]string{}
	for _, p := range plan.Pods {
		fates[p.Name], becomes[p.Name] = "leaves", "returns"
		switch _, why, index := strings.Cut(p.Fails, " of Job/job "); {
		case index:
			becomes[p.Name] = "index " + why
		case p.Fails != "":
			becomes[p.Name] = p.Fails
		case p.Lost:
			becomes[p.Name] = "lost"
		case p.Held && p.To == "" && p.Stranded == "":
			becomes[p.Name] = "stuck"
		}
		if p.Waits != "" {
			fates[p.Name] = "leaves (held): " + p.Waits
		}
	}
	for _, k := range plan.Refused {
		fates[k.Name] = "refused: " + k.Why
		if strings.HasPrefix(k.Why, "cannot evict Pods: ") { // berth drain does not start a drain that cannot complete
			fates[k.Name] = "never: " + k.Why
		}
	}
	for _, k := range plan.Ignored {
		fates[k.Name] = "ignored: " + k.Why
	}
	for _, k := range plan.Ending {
		fates[k.Name] = "ending"
	}
	return fates, becomes
}

// kubectlDrain returns the verdict of kubectl's filters on the node's pods: leaving or refused.
func kubectlDrain(t *testing.T, objects []metav1.Object, flags drainFlags) map[string]string {
	t.Helper()
	client := fake.NewClientset()
	fates := map[string]string{}
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Pod: // the fake clientset ignores the field selector for a node
			if o.Spec.NodeName == "n0" {
				fates[o.Name] = ""
				_ = client.Tracker().Add(o)
			}
		case *appsv1.DaemonSet:
			_ = client.Tracker().Add(runtime.Object(o))
		}
	}
	helper := &drain.Helper{
		Ctx: t.Context(), Client: client, IgnoreAllDaemonSets: flags.IgnoreDaemonSets, DeleteEmptyDirData: flags.DeleteEmptyDirData, Force: flags.Force,
	}
	list, errs := helper.GetPodsForDeletion("n0")
	for _, p := range list.Pods() {
		if fates[p.Name] = "leaves"; p.DeletionTimestamp != nil {
			fates[p.Name] = "ending"
		}
	}
	for _, err := range errs {
		reason, names, _ := strings.Cut(err.Error(), ": ")
		for name := range strings.SplitSeq(names, ", ") {
			reason, _, _ := strings.Cut(reason, " (use")
			fates[strings.TrimPrefix(name, "default/")] = "refused: " + strings.Replace(reason, "cannot delete daemonsets.apps", "daemonsets.apps", 1)
		}
	}
	delete(fates, "")
	return fates
}

// drawCluster generates three nodes, pods with all kinds of owners, budgets, and kubectl's flags at
// random.
func drawCluster(r *rand.Rand) (objects []metav1.Object, flags drainFlags) {
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "1", CreationTimestamp: metav1.NewTime(asOf.Add(-time.Hour))}
	}
	for i := range 3 {
		n := &v1.Node{ObjectMeta: named(fmt.Sprintf("n%d", i))}
		n.Namespace, n.Labels = "", map[string]string{v1.LabelHostname: n.Name}
		n.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("110")}
		objects = append(objects, n)
	}

	apps := appsv1.SchemeGroupVersion.WithKind
	d := &appsv1.Deployment{ObjectMeta: named("web"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)}}
	rs := &appsv1.ReplicaSet{ObjectMeta: named("web-1"), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3)}}
	rs.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(d, apps("Deployment"))}
	set := &appsv1.StatefulSet{ObjectMeta: named("db"), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](100)}}
	daemons, job := &appsv1.DaemonSet{ObjectMeta: named("agent")}, &batchv1.Job{ObjectMeta: named("job")}
	job.Spec.BackoffLimit = []*int32{nil, ptr.To[int32](0), ptr.To[int32](1)}[r.IntN(3)]
	switch r.IntN(4) {
	case 0:
		job.Spec.BackoffLimit, job.Spec.BackoffLimitPerIndex = nil, ptr.To(r.Int32N(2))
		job.Spec.CompletionMode, job.Spec.Completions = ptr.To(batchv1.IndexedCompletion), ptr.To[int32](20)
	case 1:
		job.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:          []batchv1.PodFailurePolicyAction{batchv1.PodFailurePolicyActionIgnore, batchv1.PodFailurePolicyActionFailJob}[r.IntN(2)],
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: v1.DisruptionTarget}},
		}}}
	}
	if r.IntN(3) == 0 {
		first := objects[0].(*v1.Node)
		first.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown}}
		if r.IntN(3) == 0 {
			first.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoSchedule}}
		}
	}
	objects = append(objects, d, rs, set, daemons, job)
	owners := []*metav1.OwnerReference{
		nil, metav1.NewControllerRef(rs, apps("ReplicaSet")), metav1.NewControllerRef(rs, apps("ReplicaSet")), metav1.NewControllerRef(set, apps("StatefulSet")),
		metav1.NewControllerRef(daemons, apps("DaemonSet")), metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job")),
		metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job")), metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job")),
		metav1.NewControllerRef(&metav1.ObjectMeta{Name: "gone", UID: "gone"}, apps("DaemonSet")),
		metav1.NewControllerRef(&metav1.ObjectMeta{Name: "other", UID: "other"}, appsv1.SchemeGroupVersion.WithKind("CloneSet")),
	}

	flags = drainFlags{r.IntN(4) > 0, r.IntN(4) > 0, r.IntN(4) > 0}
	for i := range 2 + r.IntN(6) {
		p := &v1.Pod{ObjectMeta: named(fmt.Sprintf("db-%d", i))}
		p.Labels = map[string]string{"app": string(rune('a' + r.IntN(3)))}
		p.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: fmt.Sprint(i)}
		if owner := owners[r.IntN(len(owners))]; owner != nil {
			p.OwnerReferences = []metav1.OwnerReference{*owner}
		}
		p.Spec = v1.PodSpec{NodeName: fmt.Sprintf("n%d", r.IntN(2)), SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "i"}}}
		ready := v1.ConditionTrue
		if r.IntN(5) == 0 {
			ready = v1.ConditionFalse
		}
		p.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: ptr.To(p.CreationTimestamp), Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}}
		switch r.IntN(10) {
		case 0:
			p.Status.Phase = v1.PodSucceeded
		case 1:
			p.Status.Phase = v1.PodPending
		case 2:
			p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "x"}
		case 3:
			p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.NewTime(asOf.Add(time.Minute))), []string{"example.com/wait"}
		case 4:
			p.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		}
		objects = append(objects, p)
	}
	for i := range r.IntN(3) {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: named(fmt.Sprintf("b%d", i))}
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": string(rune('a' + r.IntN(2)))}}
		limit := intstr.FromInt32(int32(r.IntN(2)))
		if b.Spec.MaxUnavailable = &limit; r.IntN(2) == 0 {
			b.Spec.MaxUnavailable, b.Spec.MinAvailable = nil, &limit
		}
		objects = append(objects, b)
	}
	return objects, flags
}
