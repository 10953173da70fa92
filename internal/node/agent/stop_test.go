package agent

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
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
