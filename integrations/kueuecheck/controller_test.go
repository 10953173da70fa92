// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kueuecheck

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueuefake "sigs.k8s.io/kueue/client-go/clientset/versioned/fake"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
)

// room is a query service of a cluster with room for a number of pods on nodes with a label.
type room struct {
	pods    int
	label   string
	err     error
	endless int // questions about more pods do not finish in time; 0 means none
	queries int
}

func (r *room) Fits(_ context.Context, request *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
	r.queries++
	if r.err != nil {
		return nil, r.err
	}
	wanted := 0
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(request.GetManifest()), 4096); ; {
		var job batchv1.Job
		if err := decoder.Decode(&job); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if got := job.Spec.Template.Spec.NodeSelector["pool"]; got != r.label {
			return nil, fmt.Errorf("node selector %q: want %q", got, r.label)
		}
		wanted += int(*job.Spec.Parallelism)
	}
	if r.endless > 0 && wanted > r.endless {
		return &berthv1alpha1.FitsResponse{Wanted: int32(wanted)}, nil
	}
	answer := &berthv1alpha1.FitsResponse{Wanted: int32(wanted), Placed: int32(min(wanted, r.pods)), Fits: wanted <= r.pods}
	if !answer.GetFits() {
		answer.Stops = "0/3 nodes are available: 3 Insufficient cpu."
	}
	return answer, nil
}

// workload returns a workload with quota and a check state, both of an age.
func workload(name string, pods, priority int32, state kueue.CheckState, age time.Duration) *kueue.Workload {
	return &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: name, UID: types.UID("job-" + name)}},
		},
		Spec: kueue.WorkloadSpec{Priority: &priority, PodSets: []kueue.PodSet{{Name: "main", Count: pods}}},
		Status: kueue.WorkloadStatus{
			Conditions: []metav1.Condition{{
				Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-age)),
			}},
			Admission: &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{{
				Name: "main", Flavors: map[v1.ResourceName]kueue.ResourceFlavorReference{v1.ResourceCPU: "spot"},
			}}},
			AdmissionChecks: []kueue.AdmissionCheckState{{
				Name: "places", State: state, LastTransitionTime: metav1.NewTime(time.Now().Add(-age)), RetryCount: ptr.To[int32](2),
			}},
		},
	}
}

// patience is the time that workloads wait for room.
const patience = 30 * time.Second

// start returns a new controller, as after a restart, and the function that reads a state.
func start(
	t *testing.T, berth fitter, pods []runtime.Object, workloads ...*kueue.Workload,
) (*Controller, func(name string) kueue.AdmissionCheckState) {
	t.Helper()
	objects := []runtime.Object{
		&kueue.AdmissionCheck{
			ObjectMeta: metav1.ObjectMeta{Name: "places"}, Spec: kueue.AdmissionCheckSpec{ControllerName: ControllerName},
		},
		&kueue.ResourceFlavor{
			ObjectMeta: metav1.ObjectMeta{Name: "spot"}, Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"pool": "spot"}},
		},
	}
	for _, w := range workloads {
		objects = append(objects, w)
	}
	client := kueuefake.NewSimpleClientset(objects...)
	options := Defaults()
	options.Rate, options.Patience = 1000, patience
	c, err := New(client, fake.NewClientset(pods...), berth, prometheus.NewRegistry(), options)
	if err != nil {
		t.Fatal(err)
	}
	c.kube.Start(t.Context().Done())
	c.kueue.Start(t.Context().Done())
	c.kube.WaitForCacheSync(t.Context().Done())
	c.kueue.WaitForCacheSync(t.Context().Done())
	return c, func(name string) kueue.AdmissionCheckState {
		w, err := client.KueueV1beta2().Workloads("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return w.Status.AdmissionChecks[0]
	}
}

func TestImportantWorkloadsGetTheRoomAndOthersRetry(t *testing.T) {
	c, state := start(t, &room{pods: 10, label: "spot"}, nil,
		workload("a-low", 6, 0, kueue.CheckStatePending, patience), workload("z-high", 6, 100, kueue.CheckStatePending, 0),
		workload("small", 4, 0, kueue.CheckStatePending, 0))
	if err := c.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]kueue.CheckState{
		"z-high": kueue.CheckStateReady, "a-low": kueue.CheckStateRetry, "small": kueue.CheckStateReady,
	} {
		if got := state(name); got.State != want {
			t.Errorf("%s is %s: %s; want %s", name, got.State, got.Message, want)
		}
	}
	got := state("a-low")
	if !strings.Contains(got.Message, "Insufficient cpu") || ptr.Deref(got.RequeueAfterSeconds, 0) != 20 {
		t.Errorf("the retry is %q after %d s; want the reason of the service after 20 s",
			got.Message, ptr.Deref(got.RequeueAfterSeconds, 0))
	}
	check, err := c.client.KueueV1beta2().AdmissionChecks().Get(t.Context(), "places", metav1.GetOptions{})
	if err != nil || !apimeta.IsStatusConditionTrue(check.Status.Conditions, kueue.AdmissionCheckActive) {
		t.Errorf("the check is not active: %v, %v", check.Status.Conditions, err)
	}
}

func TestReservationsSurviveARestartUntilPodsAreBoundOrTheHoldEnds(t *testing.T) {
	bound := func(n int) (pods []runtime.Object) {
		for i := range n {
			name := fmt.Sprintf("p-%d", i)
			pods = append(pods, &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{{UID: "job-first"}},
				},
				Spec: v1.PodSpec{NodeName: "n"},
			})
		}
		return pods
	}
	for _, test := range []struct {
		name  string
		bound int
		free  int // pods for which the cluster has room now
		age   time.Duration
		want  kueue.CheckState
	}{
		{"unbound pods keep their room", 0, 10, time.Second, kueue.CheckStateRetry},
		{"some bound pods free nothing", 4, 6, time.Second, kueue.CheckStateRetry},
		{"bound pods need no reservation", 8, 5, time.Second, kueue.CheckStateReady},
		{"the hold ends", 0, 10, time.Hour, kueue.CheckStateReady},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, state := start(t, &room{pods: test.free, label: "spot"}, bound(test.bound),
				workload("first", 8, 0, kueue.CheckStateReady, test.age), workload("second", 5, 100, kueue.CheckStatePending, patience))
			if err := c.pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := state("second"); got.State != test.want {
				t.Errorf("the second workload is %s: %s; want %s", got.State, got.Message, test.want)
			}
		})
	}
}

func TestAnUnavailableServiceDecidesNothing(t *testing.T) {
	c, state := start(t, &room{err: context.DeadlineExceeded}, nil, workload("a", 1, 0, kueue.CheckStatePending, 0))
	if err := c.pass(t.Context()); err == nil {
		t.Error("the pass succeeded")
	}
	if got := state("a"); got.State != kueue.CheckStatePending {
		t.Errorf("the workload is %s; want Pending", got.State)
	}
}

func TestAnEndlessQuestionHoldsUpNoOtherWorkload(t *testing.T) {
	c, state := start(t, &room{pods: 10, label: "spot", endless: 50}, nil,
		workload("huge", 100, 100, kueue.CheckStatePending, 0), workload("small", 4, 0, kueue.CheckStatePending, 0))
	if err := c.pass(t.Context()); err == nil {
		t.Error("the pass reports no error")
	}
	if huge, small := state("huge"), state("small"); huge.State != kueue.CheckStatePending || small.State != kueue.CheckStateReady {
		t.Errorf("huge is %s and small is %s, want Pending and Ready", huge.State, small.State)
	}
}

func TestOwnWritesCountBeforeTheInformerHasThem(t *testing.T) {
	stale := workload("first", 8, 0, kueue.CheckStatePending, 0)
	stale.ResourceVersion = "7"
	own := workload("first", 8, 0, kueue.CheckStateReady, 0)
	own.ResourceVersion = "9"
	berth := &room{pods: 10, label: "spot"}
	c, state := start(t, berth, nil, stale, workload("second", 5, 0, kueue.CheckStatePending, patience))
	c.written[own.UID] = own
	if err := c.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := state("second"); got.State != kueue.CheckStateRetry || berth.queries != 1 {
		t.Errorf("the second workload is %s after %d questions; want Retry after one", got.State, berth.queries)
	}
}

func TestAWorkloadWaitsForRoomBeforeItRetries(t *testing.T) {
	berth := &room{pods: 4, label: "spot"}
	patient := workload("patient", 6, 0, kueue.CheckStatePending, 0)
	patient.Status.AdmissionChecks[0].Message = "Reset to Pending after eviction. Previously: Retry"
	c, state := start(t, berth, nil, patient, workload("tired", 6, 0, kueue.CheckStatePending, patience))
	writes := 0
	c.client.(*kueuefake.Clientset).PrependReactor("update", "workloads", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if w := a.(clienttesting.UpdateAction).GetObject(); w.(*kueue.Workload).Name == "patient" {
			writes++
		}
		return false, nil, nil
	})
	seen := func() (bool, error) { // by the informer
		w, err := c.kueue.Kueue().V1beta2().Workloads().Lister().Workloads("default").Get("patient")
		return err == nil && w.Status.AdmissionChecks[0].Message == state("patient").Message, err
	}
	for range 3 {
		if err := c.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true,
			func(context.Context) (bool, error) { return seen() }); err != nil {
			t.Fatal(err)
		}
	}
	got := state("patient")
	if got.State != kueue.CheckStatePending || !strings.HasPrefix(got.Message, "Waiting for room: 4 of 6 pods fit") || writes != 1 {
		t.Errorf("the patient workload is %s: %s, after %d writes; want it to wait after one", got.State, got.Message, writes)
	}
	if got := state("tired"); got.State != kueue.CheckStateRetry {
		t.Errorf("the tired workload is %s; want Retry", got.State)
	}
	berth.pods = 6
	if err := c.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := state("patient"); got.State != kueue.CheckStateReady || got.Message != "All pods have a node." {
		t.Errorf("the patient workload is %s: %s; want Ready", got.State, got.Message)
	}
}

func TestEndedPodsStartADecision(t *testing.T) {
	for name, phase := range map[string]v1.PodPhase{"ended": v1.PodSucceeded, "deleted": ""} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}, Spec: v1.PodSpec{NodeName: "n"}}
			core := fake.NewClientset(pod)
			// The fake loses changes between a list and the begin of the watch.
			watched, once := make(chan struct{}), sync.Once{}
			core.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
				w, err := core.Tracker().Watch(action.GetResource(), action.GetNamespace(), action.(clienttesting.WatchActionImpl).ListOptions)
				once.Do(func() { close(watched) })
				return true, w, err
			})
			c, err := New(kueuefake.NewSimpleClientset(), core, &room{}, prometheus.NewRegistry(), Defaults())
			if err != nil {
				t.Fatal(err)
			}
			c.kube.Start(t.Context().Done())
			c.kube.WaitForCacheSync(t.Context().Done())
			<-watched
			pods := core.CoreV1().Pods("default")
			if phase == "" {
				err = pods.Delete(t.Context(), "p", metav1.DeleteOptions{})
			} else {
				pod = pod.DeepCopy()
				pod.Status.Phase = phase
				_, err = pods.Update(t.Context(), pod, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			decides := make(chan struct{})
			go func() {
				c.queue.Get()
				close(decides)
			}()
			select {
			case <-decides:
			case <-time.After(30 * time.Second):
				t.Error("no decision")
			}
		})
	}
}
