package agent

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// A container that is replaced has its preStop hook run, however short its grace period is, unless
// it has none.
func TestPreStopOfAContainerThatIsReplaced(t *testing.T) {
	for grace, want := range map[int64]int32{0: 0, 1: 1, 2: 1, 30: 1} {
		t.Run(strconv.FormatInt(grace, 10), func(t *testing.T) {
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
			defer server.Close()
			host, port, err := net.SplitHostPort(server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			pod := boundPod("p")
			pod.Spec.TerminationGracePeriodSeconds = &grace
			pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
				Host: host, Port: intstr.Parse(port), Path: "/", Scheme: v1.URISchemeHTTP,
			}}}
			n, ctx := newNode(t, pod)
			n.podSeen(ctx, pod)
			await(t, "it runs", func() bool { return running(statusIn(t, n.api, "p")) })
			pod = pod.DeepCopy()
			pod.Spec.Containers[0].Image = "example.com/c:2"
			n.podSeen(ctx, pod)
			await(t, "it runs again", func() bool {
				s := statusIn(t, n.api, "p")
				return running(s) && s.ContainerStatuses[0].RestartCount == 1
			})
			if got := asked.Load(); got != want {
				t.Errorf("its hook ran %d times", got)
			}
		})
	}
}

// A runtime that cannot stop a container is asked again, but not over and over.
func TestContainerThatCannotBeStopped(t *testing.T) {
	pod := boundPod("p")
	n, ctx := newNode(t, pod)
	n.podSeen(ctx, pod)
	await(t, "it runs", func() bool { return running(statusIn(t, n.api, "p")) })
	stops := func(err error) []time.Time {
		n.runtime.mu.Lock()
		defer n.runtime.mu.Unlock()
		n.runtime.cannotStop = err
		return slices.Clone(n.runtime.stops)
	}
	refusal := errors.New("ttrpc: closed")
	stops(refusal)
	now, grace := metav1.Now(), int64(30)
	pod = pod.DeepCopy()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	n.podSeen(ctx, pod)
	await(t, "it is asked again", func() bool { return len(stops(refusal)) > 1 })
	if asked := stops(nil); asked[1].Sub(asked[0]) < stopAgain {
		t.Errorf("asked again after %v", asked[1].Sub(asked[0]))
	}
	n.dropGroup(t, pod.UID)
	await(t, "it is asked until it can", func() bool { return len(stops(nil)) > 2 })
}

// A pod that is being evicted is not probed for life any more, as when it is deleted.
func TestEvictedPodIsNotProbedForLife(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	pod := boundPod("p")
	pod.Spec.Containers[0].LivenessProbe = &v1.Probe{
		ProbeHandler:  v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Host: "127.0.0.1", Port: intstr.FromInt32(int32(closed.Addr().(*net.TCPAddr).Port))}},
		PeriodSeconds: 1, FailureThreshold: 1000,
	}
	pod.Spec.Containers[0].ReadinessProbe = pod.Spec.Containers[0].LivenessProbe.DeepCopy()
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 60}}}
	n, ctx := newNode(t, pod)
	n.podSeen(ctx, pod)
	await(t, "it is probed for life", func() bool { return strings.Contains(allEvents(n), "Liveness probe failed") })
	n.Evict(pod.UID, lifecycle.Ending{Phase: v1.PodFailed, Reason: "Evicted", By: time.Now().Add(time.Minute)})
	w := n.pods.get(pod.UID)
	await(t, "its hook runs", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.hooks) == 1
	})
	// Its other probe goes on, as often. One of each may have been in progress.
	await(t, "it is probed", func() bool { return strings.Contains(allEvents(n), "Readiness probe failed") })
	var events string
	await(t, "it is probed twice more", func() bool {
		events += allEvents(n)
		return strings.Count(events, "Readiness probe failed") >= 2
	})
	if strings.Contains(events, "Liveness probe failed") {
		t.Errorf("events: %s", events)
	}
}
