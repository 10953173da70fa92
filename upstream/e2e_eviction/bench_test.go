package e2eeviction

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/controller/feed"
	"github.com/berth-k8s/berth/upstream/controlplane"
)

var (
	benchNodes   = flag.Int("bench.nodes", 1000, "nodes of the benchmark's cluster")
	benchTainted = flag.Int("bench.tainted", 300, "of these, nodes that are tainted")
	benchPods    = flag.Int("bench.pods", 30, "pods on each node")
)

// BenchmarkMassEviction taints many nodes of a cluster at once and measures how
// fast the pods go, with Berth and with upstream's controllers, and what Berth
// takes for it; upstream's run inside the control plane, where what they take
// cannot be told apart:
//
//	go test ./e2e_eviction -run '^$' -bench MassEviction -benchtime 1x
func BenchmarkMassEviction(b *testing.B) {
	for _, seconds := range []int64{0, 15} {
		for _, who := range []string{"berth", "upstream"} {
			b.Run(fmt.Sprintf("%s/seconds=%d", who, seconds), func(b *testing.B) {
				for range b.N {
					massEviction(b, who, seconds)
				}
			})
		}
	}
}

func massEviction(b *testing.B, who string, seconds int64) {
	plane := controlplane.Start(b, func(o *controlplane.Options) {
		if who == "upstream" { // alone, its taint eviction lacks an index and evicts nothing
			o.Controllers = []string{"*", "taint-eviction-controller", "node-lifecycle-controller"}
		}
	})
	config := rest.CopyConfig(plane.Config)
	config.ContentType = runtime.ContentTypeProtobuf
	client := kubernetes.NewForConfigOrDie(config)
	fill(b, client, seconds)

	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var left atomic.Int64
	var first atomic.Pointer[time.Time]
	go feed.Run(ctx, pods(client), feed.Sink{
		Listing: func() {}, Listed: func() {}, Gone: func(runtime.Object) {},
		Seen: func(o runtime.Object) {
			if pod, _ := meta.Accessor(o); pod.GetDeletionTimestamp() != nil {
				now := time.Now()
				first.CompareAndSwap(nil, &now)
				left.Add(1)
			}
		},
	})
	var p *process
	if who == "berth" {
		p = startReady(b, plane.Kubeconfig)
	}

	began := time.Now()
	each(b, *benchTainted, func(i int) error {
		_, err := client.CoreV1().Nodes().Patch(ctx, fmt.Sprintf("n-%d", i), "application/merge-patch+json",
			[]byte(`{"spec":{"taints":[{"key":"a","value":"x","effect":"NoExecute"}]}}`), metav1.PatchOptions{FieldManager: "kubectl-taint"})
		return err
	})
	due := int64(*benchTainted * *benchPods)
	for end := began.Add(2 * time.Minute); left.Load() < due && time.Now().Before(end); {
		<-time.After(20 * time.Millisecond)
	}
	took := time.Since(began) - time.Duration(seconds)*time.Second
	b.ReportMetric(float64(left.Load())/took.Seconds(), "evictions/s")
	b.ReportMetric(first.Load().Sub(began).Seconds()-float64(seconds), "s-to-first")
	b.ReportMetric(float64(due-left.Load()), "never")
	if p != nil {
		b.ReportMetric(peakMemory(b, p), "MiB")
		p.stop()
		cpu := p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
		b.ReportMetric(float64(cpu.Microseconds())/float64(due)/1000, "cpu-ms/eviction")
	}
}

// startReady runs Berth's taint eviction and waits until it has seen everything.
func startReady(b *testing.B, kubeconfig string) *process {
	b.Helper()
	p := startController(b, kubeconfig, alone, "--controllers=taint-eviction-controller")
	for status := 0; status != http.StatusOK; <-time.After(20 * time.Millisecond) {
		if response, err := http.Get("http://" + p.address + "/readyz"); err == nil {
			status = response.StatusCode
			response.Body.Close()
		}
	}
	return p
}

// peakMemory is what the process had at most, in MiB. What wait reports would
// be the parent's, if that was larger when it forked.
func peakMemory(b *testing.B, p *process) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if peak, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.Fields(peak)[0])
			if err != nil {
				b.Fatal(err)
			}
			return float64(kib) / 1024
		}
	}
	b.Fatal("no VmHWM")
	return 0
}

func fill(b *testing.B, client kubernetes.Interface, seconds int64) {
	each(b, *benchNodes, func(i int) error {
		_, err := client.CoreV1().Nodes().Create(b.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n-%d", i)}}, metav1.CreateOptions{})
		return err
	})
	var tolerations []v1.Toleration
	if seconds > 0 {
		tolerations = append(tolerations, tolerates("a", seconds))
	}
	each(b, *benchNodes**benchPods, func(i int) error {
		_, err := client.CoreV1().Pods("default").Create(b.Context(), &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%d", i), Labels: map[string]string{"app": "bench"}},
			Spec: v1.PodSpec{
				NodeName:                     fmt.Sprintf("n-%d", i%*benchNodes),
				Containers:                   []v1.Container{{Name: "c", Image: "none"}},
				Tolerations:                  tolerations,
				AutomountServiceAccountToken: new(bool),
			},
		}, metav1.CreateOptions{})
		return err
	})
}

// each does it for 0 to n-1, 32 at a time.
func each(b *testing.B, n int, do func(int) error) {
	b.Helper()
	var group errgroup.Group
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}

func pods(client kubernetes.Interface) feed.Source {
	return feed.Source{
		Name: "pods",
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Pods("default").List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().Pods("default").Watch(ctx, o)
		},
	}
}
