// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// TestAQuotaThatIsFreedLetsMissingPodsBeMade verifies that controllers, which keep retrying, create
// the pods refused by a quota once the operations free it. Pods refused for another reason, such as
// a webhook, are not created.
func TestAQuotaThatIsFreedLetsMissingPodsBeMade(t *testing.T) {
	for _, c := range []struct {
		says string // the ReplicaSet's reason for not creating the third pod
		hard string
		want int
	}{
		{`pods "web-x" is forbidden: exceeded quota: few, requested: pods=1, used: pods=3, limited: pods=3`, "3", 1},
		{`admission webhook "policy.example.com" denied the request: no more`, "9", 0},
		{"", "9", 0}, // about to be created, regardless of the operation
	} {
		objects := town("8", 1, 1)
		spare := objects[1].(*v1.Pod).DeepCopy()
		spare.Name, spare.UID, spare.Labels, spare.OwnerReferences = "spare", "spare", nil, nil
		set := &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web", ResourceVersion: "1"},
			Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3), Template: v1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: *spare.Spec.DeepCopy(),
			}},
		}
		set.Spec.Template.Spec.NodeName = ""
		if c.says != "" {
			set.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: v1.ConditionTrue, Message: c.says}}
		}
		quota := &v1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "few"},
			Spec:       v1.ResourceQuotaSpec{Hard: v1.ResourceList{v1.ResourcePods: resource.MustParse(c.hard)}},
		}
		f := forecast(t, append(objects, spare, set, quota), whatif.Step{
			Operation: &simulate.Operation{Delete: &simulate.Delete{Object: "pod/spare"}},
		})
		if placed := len(f.Placed); placed != c.want {
			t.Errorf("%q: %d pods find a node, want %d: %+v", c.says, placed, c.want, f.Placed)
		}
		if pods := f.Utilisation.After.Pods; c.says == "" && pods != 3 {
			t.Errorf("%d pods at the end, want 3", pods)
		}
	}
}

// TestAPodThatWaitsForAnotherIsPending verifies that a forecast reports a pod that a StatefulSet
// does not recreate while another pod is pending. The pod is not among the pending pods, because it
// does not exist.
func TestAPodThatWaitsForAnotherIsPending(t *testing.T) {
	objects := town("8", 0, 2)
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "db"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2)},
	}
	for i, o := range objects[2:] {
		p := o.(*v1.Pod)
		p.Name, p.UID = fmt.Sprintf("db-%d", i), types.UID(fmt.Sprintf("db-%d", i))
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
		if i == 0 {
			p.Spec.NodeName, p.Spec.NodeSelector = "", map[string]string{"no": "such"}
		}
	}
	f := forecast(t, append(objects, set), whatif.Step{
		Operation: &simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-1"}}},
	})
	if len(f.Leaving) != 1 || f.Leaving[0].Fate != simulate.Waits || !f.Holds("pending") {
		t.Errorf("%+v, pending: %t", f.Leaving, f.Holds("pending"))
	}
	if got := f.Summary(); !strings.Contains(got, "1 not recreated yet") {
		t.Error(got)
	}
}

// TestANewTaintCountsFromItsOperation verifies that an added taint counts from the operation,
// although the node's list of taints was written before, for example by a cordon. An existing taint
// counts from that write, unless it has a time.
func TestANewTaintCountsFromItsOperation(t *testing.T) {
	const ago, longAgo = 100 * time.Second, 250 * time.Second
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	written := now.Add(-ago)
	note := fmt.Sprintf(`{"of":%q,"since":{"soon:NoExecute":%q}}`, written.Format(time.RFC3339), now.Add(-longAgo).Format(time.RFC3339))
	for _, c := range []struct {
		there bool
		note  string
		want  time.Duration
	}{{false, "", 300 * time.Second}, {true, "", 300*time.Second - ago}, {true, note, 300*time.Second - longAgo}} {
		objects := town("8", 1, 0)
		for _, o := range objects {
			switch o := o.(type) {
			case *v1.Pod:
				o.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
				o.Spec.Tolerations = []v1.Toleration{{Key: "soon", Operator: v1.TolerationOpExists, TolerationSeconds: ptr.To[int64](300)}}
			case *v1.Node:
				o.Spec.Unschedulable, o.Spec.Taints = true, []v1.Taint{{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}}
				if c.there {
					o.Spec.Taints = append(o.Spec.Taints, v1.Taint{Key: "soon", Effect: v1.TaintEffectNoExecute})
				}
				o.Annotations = map[string]string{eviction.NoteAnnotation: c.note}
				o.ManagedFields = []metav1.ManagedFieldsEntry{{
					Manager: "x", Operation: metav1.ManagedFieldsOperationUpdate, Time: ptr.To(metav1.NewTime(written)),
					FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`),
				}}
			}
		}
		w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		f, err := whatif.Run(w, []whatif.Step{{
			Operation: &simulate.Operation{Taint: &simulate.Tainting{Nodes: simulate.Nodes{Node: "node-0"}, Taints: []string{"soon:NoExecute"}}},
		}}, whatif.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if left := append(f.Leaving, f.Anyway...); len(left) != 1 || left[0].After.Duration() != c.want {
			t.Errorf("the taint is there: %t, note %q: %+v, want it after %v", c.there, c.note, left, c.want)
		}
	}
}

// TestAForecastWaitsForTheBackOffOfAJob verifies that a forecast includes a Job's back-off, even if
// all other events end earlier.
func TestAForecastWaitsForTheBackOffOfAJob(t *testing.T) {
	objects := append(town("8", 0, 0), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "job", UID: "job", ResourceVersion: "1"}})
	p := town("8", 1)[1].(*v1.Pod)
	p.Name, p.GenerateName, p.OwnerReferences[0] = "job-x", "job-", metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "job", Controller: ptr.To(true)}
	for span, want := range map[time.Duration]string{0: "to node-1 as job-", 5 * time.Second: "recreated after its Job's back-off"} {
		w, err := simulate.Open(manifest.Assemble("test", append(objects, p)), simulate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		step := whatif.Step{Operation: &simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-0"}}}}
		f, err := whatif.Run(w, []whatif.Step{step}, whatif.Options{For: span})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := f.Write(&text, ""); err != nil {
			t.Fatal(err)
		}
		if says := strings.Contains(text.String(), ", created after 10s"); !strings.Contains(text.String(), want) || says != (span == 0) {
			t.Errorf("%s says\n%s", span, text.String())
		}
	}
}
