// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simnodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

func testShape(count int) simkubelet.Shape {
	return simkubelet.Shape{
		Prefix: "node-", Count: count, Zones: 2, Region: "r1", Capacity: simkubelet.DefaultCapacity(), Version: "v1.36.3",
		RenewInterval: 10 * time.Second, StatusInterval: 5 * time.Minute, JobRunFor: time.Second,
	}
}

// served returns a client of an API server with these objects.
func served(objects ...fakeapi.Object) kubernetes.Interface {
	api := fakeapi.New()
	api.Put(objects...)
	return api.Client()
}

// start runs nodes on a client until the test ends, and returns once they are ready.
func start(t *testing.T, client kubernetes.Interface, count int) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Run(ctx, client, Options{
			Shape: testShape(count), Workers: 4, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
			Ready: func(int, time.Duration) { close(ready) },
		})
	}()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true,
		func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		t.Fatalf("not in 10 s: %s", what)
	}
}

func TestNodesRegisterRenewAndRunPods(t *testing.T) {
	client := served()
	start(t, client, 3)
	nodes, _ := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if len(nodes.Items) != 3 {
		t.Fatalf("%d nodes", len(nodes.Items))
	}
	eventually(t, "every node has a Lease", func() bool {
		leases, _ := client.CoordinationV1().Leases(v1.NamespaceNodeLease).List(t.Context(), metav1.ListOptions{})
		return len(leases.Items) == 3
	})
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", UID: "uid-a"},
		Spec:       v1.PodSpec{NodeName: "node-2", Containers: []v1.Container{{Name: "c", Image: "nginx"}}},
	}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod runs", func() bool {
		got, err := client.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
		return err == nil && got.Status.Phase == v1.PodRunning && strings.HasPrefix(got.Status.PodIP, "10.128.2.")
	})
}

func TestAnEndLeavesNothingRunning(t *testing.T) {
	before := goleak.IgnoreCurrent()
	stop := start(t, served(), 2)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, before)
}

func TestAskedToEndWhileItStartsIsNoError(t *testing.T) {
	client := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, context.Canceled
	})
	if err := Run(ctx, client, Options{Shape: testShape(1), Workers: 1, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Error(err)
	}
}

func TestANodeThatIsNotSimulatedIsRefused(t *testing.T) {
	client := served(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	err := Run(t.Context(), client, Options{Shape: testShape(1), Workers: 4, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "node node-1 exists and is not simulated") {
		t.Errorf("error %v", err)
	}
	// A machine with a number beyond the count does not prevent the start.
	client = served(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-7"}})
	start(t, client, 1)
	if _, err := client.CoreV1().Nodes().Get(t.Context(), "node-7", metav1.GetOptions{}); err != nil {
		t.Errorf("the machine's node is gone: %v", err)
	}
}

func TestNodesThatAProcessPlaysAreNotPlayedTwice(t *testing.T) {
	played := func(by string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1",
			Labels: map[string]string{simkubelet.LabelSimulated: "true"}, Annotations: map[string]string{AnnotationPlayer: by}}}
	}
	err := Run(t.Context(), served(played(playerOf(os.Getppid()))),
		Options{Shape: testShape(1), Workers: 4, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("already simulated by process %d", os.Getppid())) {
		t.Errorf("error %v", err)
	}
	// Ended processes, processes on other machines and reused process IDs do not count.
	host, _ := os.Hostname()
	for _, by := range []string{"", "elsewhere/1/1", host + "/999999999/1", fmt.Sprintf("%s/%d/1", host, os.Getppid()), playerID()} {
		client := served(played(by))
		start(t, client, 1)
		node, _ := client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
		if got := node.Annotations[AnnotationPlayer]; got != playerID() {
			t.Errorf("after %q the nodes are played by %q", by, got)
		}
	}
}

// TestALeaseIsRenewedAfterAConflict verifies that a Lease written concurrently by another client is
// read again and renewed.
func TestALeaseIsRenewedAfterAConflict(t *testing.T) {
	client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Namespace: v1.NamespaceNodeLease}})
	var log bytes.Buffer
	s := &sender{client: client, leases: map[string]*knownLease{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	renew := simkubelet.Action{Kind: simkubelet.Renew, Node: "node-1", UID: "uid"}
	if outcome, _ := s.sendAction(t.Context(), renew); outcome != simkubelet.OK {
		t.Fatalf("a Lease of an earlier run is not taken over: %v\n%s", outcome, &log)
	}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "node-1", errors.New("changed"))
	failed := false
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if failed {
			return false, nil, nil
		}
		failed = true
		return true, nil, conflict
	})
	if outcome, _ := s.sendAction(t.Context(), renew); outcome != simkubelet.Failed {
		t.Errorf("a conflict is %v, want failed", outcome)
	}
	client.ClearActions()
	if outcome, _ := s.sendAction(t.Context(), renew); outcome != simkubelet.OK {
		t.Errorf("after a conflict: %v\n%s", outcome, &log)
	}
	if !slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool { return a.Matches("get", "leases") }) {
		t.Error("after a conflict the Lease is not read again")
	}
	lease, _ := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(t.Context(), "node-1", metav1.GetOptions{})
	if *lease.Spec.LeaseDurationSeconds != 40 || *lease.Spec.HolderIdentity != "node-1" || lease.OwnerReferences[0].UID != "uid" {
		t.Errorf("the Lease is %+v", lease)
	}
}

// TestManyFailuresAreOneLine verifies that the failing requests of all nodes, as without an API
// server, are logged as one line. Permanent refusals are always logged.
func TestManyFailuresAreOneLine(t *testing.T) {
	client := fake.NewClientset()
	err := errors.New("connection refused")
	client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	var log bytes.Buffer
	s := &sender{client: client, leases: map[string]*knownLease{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 100 {
		s.sendAction(t.Context(), simkubelet.Action{Kind: simkubelet.Renew, Node: "node-1", UID: "uid"})
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || strings.Contains(log.String(), "pod=") {
		t.Errorf("%d lines:\n%s", n, &log)
	}
	log.Reset()
	err = apierrors.NewBadRequest("no such field")
	for range 2 {
		s.sendAction(t.Context(), simkubelet.Action{Kind: simkubelet.PatchPod, Node: "node-1", Pod: types.NamespacedName{Namespace: "default", Name: "p"}})
	}
	if n := strings.Count(log.String(), "pod=default/p"); n != 2 {
		t.Errorf("refused twice, logged %d times:\n%s", n, &log)
	}
}

func TestErrorsAreToldApart(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, c := range []struct {
		err  error
		want simkubelet.Outcome
	}{
		{nil, simkubelet.OK},
		{apierrors.NewNotFound(pods, "a"), simkubelet.Gone},
		{apierrors.NewConflict(pods, "a", errors.New("changed")), simkubelet.Failed},
		{apierrors.NewForbidden(pods, "a", errors.New("no")), simkubelet.Failed},
		{apierrors.NewInternalError(errors.New("etcd")), simkubelet.Failed},
		{apierrors.NewTooManyRequests("later", 1), simkubelet.Failed},
		{context.DeadlineExceeded, simkubelet.Failed},
		{apierrors.NewBadRequest("what?"), simkubelet.Refused},
		{fmt.Errorf("register: %w", errNotSimulated), simkubelet.Refused},
	} {
		if got := outcomeOf(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

// TestConflictOfADeletionIsLookedInto verifies that a conflicting deletion is retried only if the
// object still exists. Otherwise the object has already been deleted, and another object may have
// its name.
func TestConflictOfADeletionIsLookedInto(t *testing.T) {
	meta := func(uid types.UID) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: "a", UID: uid}
	}
	for _, c := range []struct {
		there types.UID
		want  simkubelet.Outcome
	}{{"mine", simkubelet.Failed}, {"its successor", simkubelet.Gone}, {"", simkubelet.Gone}} {
		client := fake.NewClientset()
		if c.there != "" {
			node := meta(c.there)
			node.Namespace = ""
			client = fake.NewClientset(&v1.Pod{ObjectMeta: meta(c.there)}, &v1.Node{ObjectMeta: node})
		}
		client.PrependReactor("delete", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), "a", errors.New("UID in precondition: mine"))
		})
		s := &sender{client: client, log: slog.New(slog.DiscardHandler)}
		for _, kind := range []simkubelet.Kind{simkubelet.DeletePod, simkubelet.DeleteNode} {
			action := simkubelet.Action{Kind: kind, Node: "a", Pod: types.NamespacedName{Namespace: "default", Name: "a"}, UID: "mine"}
			if got, _ := s.sendAction(t.Context(), action); got != c.want {
				t.Errorf("%v while %q is there: %d, want %d", kind, c.there, got, c.want)
			}
		}
	}
}

// TestHeartbeatsComeFirst verifies that a slow API server gets the Leases first: while Leases are
// queued, most workers for pods pause. One worker continues, so that pods still progress.
func TestHeartbeatsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent [simkubelet.Report + 1]atomic.Int32
		send := func(_ context.Context, a simkubelet.Action) (simkubelet.Outcome, any) {
			time.Sleep(time.Second)
			sent[a.Kind].Add(1)
			return simkubelet.OK, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		group, ctx := errgroup.WithContext(ctx)
		done := make(chan result, 1000)
		heartbeats := startLane(ctx, group, 1, nil, send, done)
		for range 20 {
			heartbeats.addAction(simkubelet.Action{Kind: simkubelet.Renew})
		}
		pods := startLane(ctx, group, 4, heartbeats, send, done)
		for range 60 {
			pods.addAction(simkubelet.Action{Kind: simkubelet.DeletePod})
		}
		for sent[simkubelet.Renew].Load() < 19 {
			<-done
		}
		if n := sent[simkubelet.DeletePod].Load(); n < 15 || n > 25 {
			t.Errorf("%d pods were served beside 19 Leases, want as many as one worker of four can", n)
		}
		for sent[simkubelet.DeletePod].Load() < 60 {
			<-done
		}
		cancel()
		_ = group.Wait()
	})
}

// TestALaneIsBoundedAndLosesNothing verifies that the number of actions in flight is limited to the
// number of workers, and that no queued action is lost.
func TestALaneIsBoundedAndLosesNothing(t *testing.T) {
	const workers, actions = 3, 500
	var underWay, most, sent atomic.Int32
	send := func(context.Context, simkubelet.Action) (simkubelet.Outcome, any) {
		if n := underWay.Add(1); n > most.Load() {
			most.Store(n)
		}
		sent.Add(1)
		underWay.Add(-1)
		return simkubelet.OK, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	group, ctx := errgroup.WithContext(ctx)
	done := make(chan result)
	l := startLane(ctx, group, workers, nil, send, done)
	for range actions {
		l.addAction(simkubelet.Action{Kind: simkubelet.DeletePod, Node: "node-1"})
	}
	for range actions {
		<-done
	}
	cancel()
	_ = group.Wait()
	if sent.Load() != actions || most.Load() > workers {
		t.Errorf("%d sent, %d at once; want %d, at most %d", sent.Load(), most.Load(), actions, workers)
	}
}

// TestWebhookThatIsGoneDelaysTheEndOfPods verifies that the deletion of a pod succeeds although the
// API server waits for a webhook for the longest configurable time. Heartbeats time out earlier,
// because the next heartbeat replaces them.
func TestWebhookThatIsGoneDelaysTheEndOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New()
		api.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}})
		pod := api.Pods()[0]
		api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Late: 30 * time.Second} })
		s := &sender{client: api.Client(), leases: map[string]*knownLease{}, log: slog.New(slog.DiscardHandler)}
		remove := simkubelet.Action{Kind: simkubelet.DeletePod, Pod: types.NamespacedName{Namespace: "default", Name: "p"}, UID: pod.UID}
		if outcome, _ := s.sendAction(t.Context(), remove); outcome != simkubelet.OK || len(api.Pods()) != 0 {
			t.Errorf("%v, and %d pods are left", outcome, len(api.Pods()))
		}
		began := time.Now()
		if outcome, _ := s.sendAction(t.Context(), simkubelet.Action{Kind: simkubelet.Renew, Node: "n", UID: "n"}); outcome != simkubelet.Failed || time.Since(began) > 10*time.Second {
			t.Errorf("a renewal ended as %v after %v", outcome, time.Since(began))
		}
	})
}
