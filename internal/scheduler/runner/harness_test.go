// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

func TestMain(m *testing.M) {
	if os.Getenv(answering) != "" {
		answerUntilEOF()
	}
	klog.InitFlags(nil)
	flag.Parse()
	if flag.Lookup("v").Value.String() == "0" {
		klog.LogToStderr(false)
		klog.SetOutput(discard{})
	}
	os.Exit(m.Run())
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// world runs a scheduler with a fake API server, in virtual time.
type world struct {
	*testing.T
	api   *fakeapi.Server
	s     *Scheduler
	stop  context.CancelFunc
	ended chan struct{}
	err   error // result of Run, valid when ended is closed

	journal string // directory of the journal; empty if the run is not recorded
	writer  *journal.Writer
	limits  records.Limits // limits of the journal's files; zero: a single file
	files   int            // number of replayed files
}

func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, api: fakeapi.New()}
		test(w)
		w.end()
	})
}

// start starts a scheduler. If o has no profiles, the default profile is used and the run is
// recorded.
func (w *world) start(o Options) {
	w.Helper()
	w.journal, w.writer = "", nil
	if o.Profiles == nil {
		o.Profiles = []cycle.Profile{{Profile: plugins.Default()}}
		w.record(&o)
	}
	w.run(o)
}

// run starts a scheduler with the options as they are.
func (w *world) run(o Options) {
	w.Helper()
	s, err := New(w.api.Client(), w.api.Client(), o)
	if err != nil {
		w.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.s, w.stop, w.ended = s, stop, make(chan struct{})
	go func() {
		defer close(w.ended)
		w.err = s.Run(ctx, 4)
	}()
}

// end stops the scheduler and replays its journal. The synctest bubble fails the test if goroutines
// remain.
func (w *world) end() {
	if w.stop != nil {
		w.stop()
		<-w.ended
		if w.err != nil {
			w.Error(w.err)
		}
		w.stop = nil
		w.replay()
	}
}

var errOtherProfiles = errors.New("other profiles")

// record creates a journal and adds it to the options.
func (w *world) record(o *Options) {
	w.Helper()
	w.journal, o.Seed = w.TempDir(), 7
	var err error
	w.writer, err = journal.Create(w.journal, journal.Header{
		Began: time.Now(), Seed: o.Seed, FirstBackoff: o.FirstBackoff, LastBackoff: o.LastBackoff, MaxWait: o.MaxWait, Shadow: o.Shadow != nil,
		Groups: o.Groups, PrepareAside: true,
	}, records.Limits{Size: cmp.Or(w.limits.Size, 1<<30), Age: w.limits.Age}, nil)
	if err != nil {
		w.Fatal(err)
	}
	o.Journal = w.writer
}

// replay replays the journal, and checks that the core returns the same actions, byte for byte.
func (w *world) replay() {
	w.Helper()
	if w.writer == nil {
		return
	}
	if err := w.writer.Close(context.Background()); err != nil {
		w.Errorf("journal: %v", err)
		return
	}
	files, err := records.Files(w.journal)
	if err != nil || len(files) != 1 && w.limits.Size == 0 {
		w.Fatalf("journals %q: %v", files, err)
	}
	w.files = len(files)
	for _, name := range files {
		w.replayFile(name)
	}
}

func (w *world) replayFile(name string) {
	w.Helper()
	f, err := os.Open(name)
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	r, err := journal.NewReader(f)
	if err != nil {
		w.Fatal(err)
	}
	result, err := journal.Replay(r, journal.Options{Profiles: func(_ journal.Header, configuration []byte) ([]cycle.Profile, error) {
		if configuration == nil {
			return nil, errOtherProfiles
		}
		return []cycle.Profile{{Profile: plugins.Default()}}, nil
	}})
	switch {
	case errors.Is(err, errOtherProfiles): // the journal does not contain these profiles
	case err != nil:
		w.Errorf("replay after %d events: %v", result.Events, err)
	case result.Parting != nil:
		w.Errorf("replayed, event %d at %v says\n%s\nand was recorded with\n%s", result.Parting.Event, result.Parting.At, result.Parting.Replayed, result.Parting.Recorded)
	}
}

// pass advances the time by d, and then waits until all goroutines are idle.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// until advances the time until condition returns true.
func (w *world) until(what string, condition func() bool) {
	w.Helper()
	for range 600 {
		synctest.Wait()
		if condition() {
			return
		}
		time.Sleep(time.Second)
	}
	w.Fatalf("ten minutes later: not %s", what)
}

func (w *world) nodeOf(pod string) string {
	for _, p := range w.api.Pods() {
		if p.Name == pod {
			return p.Spec.NodeName
		}
	}
	return "gone"
}

func (w *world) untilBound(pods ...string) {
	w.Helper()
	for _, pod := range pods {
		w.until(pod+" is bound", func() bool { n := w.nodeOf(pod); return n != "" && n != "gone" })
	}
}

// condition returns the message of the pod's PodScheduled condition.
func (w *world) condition(pod string) string {
	for _, p := range w.api.Pods() {
		if p.Name == pod {
			for _, c := range p.Status.Conditions {
				if c.Type == v1.PodScheduled {
					return c.Reason + ": " + c.Message
				}
			}
		}
	}
	return ""
}

// do calls look on the owner's goroutine, where it may access the scheduler's state.
func (w *world) do(look func()) {
	w.Helper()
	if err := w.s.callOwner(context.Background(), look); err != nil {
		w.Fatal(err)
	}
}

func aNode(name string, cpu string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}},
	}
}

func aPod(name, cpu string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName,
			Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)},
			}}},
		},
	}
}

func withPriority(pod *v1.Pod, priority int32) *v1.Pod {
	pod.Spec.Priority = &priority
	return pod
}

func on(pod *v1.Pod, node string) *v1.Pod {
	pod.Spec.NodeName = node
	return pod
}

// isBinding reports whether a request binds a pod of that name, or any pod if pod is empty.
func isBinding(r *http.Request, pod string) bool {
	return strings.HasSuffix(r.URL.Path, "/"+pod+"/binding") || pod == "" && strings.HasSuffix(r.URL.Path, "/binding")
}

func isPodGet(r *http.Request, pod string) bool {
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods/"+pod)
}

// times injects the fault f into the first n requests for which match returns true.
func times(n int, match func(*http.Request) bool, f fakeapi.Fault) func(*http.Request) fakeapi.Fault {
	var mu = make(chan int, 1)
	mu <- n
	return func(r *http.Request) fakeapi.Fault {
		if !match(r) {
			return fakeapi.Fault{}
		}
		left := <-mu
		defer func() { mu <- left }()
		if left == 0 {
			return fakeapi.Fault{}
		}
		left--
		return f
	}
}

// checkRoom checks that no node is overcommitted and no pod was bound twice.
func (w *world) checkRoom() {
	w.Helper()
	used := map[string]int64{}
	for _, p := range w.api.Pods() {
		if p.Spec.NodeName != "" && p.Status.Phase != v1.PodSucceeded {
			used[p.Spec.NodeName] += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		}
	}
	for _, n := range fakeapi.All(w.api, &v1.Node{}) {
		if room := n.Status.Allocatable.Cpu().MilliValue(); used[n.Name] > room {
			w.Errorf("node %s can take %d and has %d", n.Name, room, used[n.Name])
		}
	}
	seen := map[string]bool{}
	for _, b := range w.api.Bindings() {
		key := fmt.Sprint(b.Pod, b.UID)
		if seen[key] {
			w.Errorf("pod %s was bound twice", b.Pod)
		}
		seen[key] = true
	}
}

func oneOf() *resource.Quantity { return resource.NewQuantity(1, resource.DecimalSI) }

func many() *resource.Quantity { return resource.NewQuantity(1<<40, resource.DecimalSI) }
