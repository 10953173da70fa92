package agent

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

func podNamed(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u"}}
}

// writer is a status writer for one pod on a fake API.
func writer(t *testing.T, pod *v1.Pod) (*fake.Clientset, *statuses, *worker) {
	client := fake.NewClientset(pod)
	s := newStatuses(client, func(w *worker) *v1.Pod { return w.object() })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return client, s, &worker{uid: pod.UID, pod: pod}
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not so: " + what)
		}
	}
}

func statusIn(t *testing.T, client *fake.Clientset, name string) v1.PodStatus {
	t.Helper()
	pod, err := client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod.Status
}

// Someone else's condition, written in between, is not lost, and neither is the node's word.
func TestConflictingStatusIsWrittenOnTop(t *testing.T) {
	client, s, w := writer(t, podNamed("p"))
	conflicted := false
	client.PrependReactor("update", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicted {
			return false, nil, nil
		}
		conflicted = true
		other := podNamed("p")
		other.Status.Conditions = []v1.PodCondition{{Type: "example.com/gate", Status: v1.ConditionTrue}}
		if err := client.Tracker().Update(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, other, "default"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("changed"))
	})
	s.set(w, v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}})
	await(t, "both conditions are there", func() bool {
		st := statusIn(t, client, "p")
		return st.Phase == v1.PodRunning && len(st.Conditions) == 2
	})
}

// While the API is away, only the newest status is kept; it is written when the API is back.
func TestStatusWaitsForTheAPI(t *testing.T) {
	client, s, w := writer(t, podNamed("p"))
	away := make(chan struct{})
	tried := make(chan struct{}, 100)
	client.PrependReactor("update", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case <-away:
			return false, nil, nil
		default:
			tried <- struct{}{}
			return true, nil, errors.New("connection refused")
		}
	})
	s.set(w, v1.PodStatus{Phase: v1.PodPending})
	<-tried
	s.set(w, v1.PodStatus{Phase: v1.PodRunning})
	<-tried
	close(away)
	await(t, "the newest status is there", func() bool { return statusIn(t, client, "p").Phase == v1.PodRunning })
}

// A pod that is over is removed after its last status, with its UID as a condition.
func TestPodIsRemovedAfterItsLastStatus(t *testing.T) {
	client, s, w := writer(t, podNamed("p"))
	s.set(w, v1.PodStatus{Phase: v1.PodFailed})
	s.remove(w)
	await(t, "the pod is gone", func() bool {
		_, err := client.CoreV1().Pods("default").Get(context.Background(), "p", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	var verbs []string
	for _, action := range client.Actions() {
		switch a := action.(type) {
		case clienttesting.UpdateAction:
			verbs = append(verbs, "update")
		case clienttesting.DeleteActionImpl:
			verbs = append(verbs, "delete "+string(*a.DeleteOptions.Preconditions.UID))
		}
	}
	if len(verbs) != 2 || verbs[0] != "update" || verbs[1] != "delete u" {
		t.Errorf("requests: %v", verbs)
	}
}

func TestMergedStatus(t *testing.T) {
	have := v1.PodStatus{
		Phase: v1.PodFailed, Reason: "Gone", NominatedNodeName: "n",
		Conditions: []v1.PodCondition{
			{Type: "example.com/gate", Status: v1.ConditionTrue}, {Type: v1.PodReady, Status: v1.ConditionTrue},
			{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "PreemptionByScheduler"},
		},
	}
	want := v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{
		{Type: v1.PodReady, Status: v1.ConditionFalse}, {Type: "example.com/gate", Status: v1.ConditionFalse},
		{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "PreemptionByScheduler"},
	}}
	got := mergeStatus(have, want)
	if got.Phase != v1.PodFailed || got.Reason != "Gone" || got.NominatedNodeName != "n" {
		t.Errorf("a phase that is for ever was left: %+v", got)
	}
	said := map[v1.PodConditionType]v1.ConditionStatus{}
	for _, c := range got.Conditions {
		said[c.Type] = c.Status
	}
	if len(got.Conditions) != 3 || said["example.com/gate"] != v1.ConditionTrue || said[v1.PodReady] != v1.ConditionFalse {
		t.Errorf("conditions: %+v", got.Conditions)
	}
}

// TestWebhookThatIsGoneDelaysTheEndOfPods has the API server wait for a webhook for the longest
// time that it can be told to, and then delete the pod.
func TestWebhookThatIsGoneDelaysTheEndOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New()
		api.Put(podNamed("p"))
		pod := api.Pods()[0]
		s := newStatuses(api.Client(), func(w *worker) *v1.Pod { return w.object() })
		defer s.queue.ShutDown()
		w := &worker{uid: pod.UID, pod: pod}
		api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Late: 30 * time.Second} })
		s.remove(w)
		if err := s.write(t.Context(), w); err != nil || len(api.Pods()) != 0 {
			t.Errorf("%v, and %d pods are left", err, len(api.Pods()))
		}
	})
}

// TestAPodIsDeletedAfterAConflict: a webhook may answer 409 as well. Only another pod of that name
// means that this one has gone.
func TestAPodIsDeletedAfterAConflict(t *testing.T) {
	api := fakeapi.New()
	api.Put(podNamed("p"))
	pod := api.Pods()[0]
	api.SetFault(func(r *http.Request) fakeapi.Fault {
		if r.Method == http.MethodDelete {
			return fakeapi.Fault{Status: http.StatusConflict}
		}
		return fakeapi.Fault{}
	})
	if err := deletePod(t.Context(), api.Client(), pod); !apierrors.IsConflict(err) {
		t.Errorf("%v for a pod that is still there, want the conflict", err)
	}
	before := pod.DeepCopy()
	before.UID = "before"
	if err := deletePod(t.Context(), api.Client(), before); err != nil {
		t.Errorf("%v for a pod whose name another one has", err)
	}
	api.Delete(pod)
	if err := deletePod(t.Context(), api.Client(), pod); err != nil {
		t.Errorf("%v for a pod that has gone meanwhile", err)
	}
}

// What a static pod reports while its mirror is being made is the newer status: the mirror does not
// get the one from before in its place.
func TestStatusReportedWhileTheMirrorIsMadeCounts(t *testing.T) {
	client := fake.NewClientset()
	a := &Agent{client: client, pods: newPods(), mirrors: newMirrors(client, func() *v1.Node { return &v1.Node{} })}
	a.statuses = newStatuses(client, a.target)
	pod := podNamed("p")
	pod.Annotations = map[string]string{}
	w := &worker{uid: pod.UID, pod: pod, static: true, agent: a, reported: &v1.PodStatus{Phase: v1.PodPending}}
	a.pods.workers[w.uid] = w
	report := func(phase v1.PodPhase) {
		w.mu.Lock()
		w.reported = &v1.PodStatus{Phase: phase}
		w.mu.Unlock()
		a.statuses.set(w, v1.PodStatus{Phase: phase})
	}
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		report(v1.PodRunning)
		return false, nil, nil
	})
	a.keepMirrors(t.Context(), map[string]string{})
	if wish := a.statuses.want[w]; wish == nil || wish.status.Phase != v1.PodRunning {
		t.Errorf("the mirror is to get %+v, and the pod is running", wish)
	}
	a.statuses.drop(w) // it is written; then somebody deletes the mirror
	a.keepMirrors(t.Context(), map[string]string{})
	if wish := a.statuses.want[w]; wish == nil || wish.status.Phase != v1.PodRunning {
		t.Errorf("the next mirror is to get %+v, and the pod is running", wish)
	}
}
