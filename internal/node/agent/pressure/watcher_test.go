package pressure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// fakeNode is a node on which a pod that is evicted frees, some time later, what it used.
type fakeNode struct {
	mu       sync.Mutex // of what a test changes while it is watched
	signal   Signal
	free     int64 // of 1000, without what pods use
	pods     []Candidate
	leaving  map[types.UID]time.Time
	takes    time.Duration // to go
	images   int64         // what removing images frees
	removal  time.Duration // of images
	unread   error
	walk     time.Duration // to measure disks
	measured int
	log      []string
	began    time.Time
}

func (n *fakeNode) say(format string, args ...any) {
	n.log = append(n.log, fmt.Sprintf("%s ", time.Since(n.began).Round(time.Second))+fmt.Sprintf(format, args...))
}

func (n *fakeNode) available() int64 {
	free := n.free
	for _, c := range n.pods {
		if !n.gone(c.Pod.UID) {
			used := memoryUsed(c)
			free -= used.Value()
		}
	}
	return free
}

func (n *fakeNode) gone(uid types.UID) bool {
	since, leaving := n.leaving[uid]
	return leaving && time.Since(since) >= n.takes
}

func (n *fakeNode) Levels(context.Context) (Levels, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return Levels{Signals: map[Signal]Level{n.signal: {n.available(), 1000}}}, n.unread
}

func (n *fakeNode) Summary(ctx context.Context, cpuAndMemory bool) (*stats.Summary, error) {
	if !cpuAndMemory {
		select {
		case <-time.After(n.walk):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.measured++
	summary := &stats.Summary{}
	for _, c := range n.pods {
		usage := *c.Usage
		usage.PodRef.UID = string(c.Pod.UID)
		summary.Pods = append(summary.Pods, usage)
	}
	return summary, nil
}

func (n *fakeNode) active() (pods []*v1.Pod) {
	for _, c := range n.pods {
		if _, leaving := n.leaving[c.Pod.UID]; !leaving {
			pods = append(pods, c.Pod)
		}
	}
	return pods
}

// watch runs a watcher over the node for a while, and tells what happened.
func watch(t *testing.T, n *fakeNode, config Config, d time.Duration, meanwhile ...func()) []string {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n.leaving, n.began = map[types.UID]time.Time{}, time.Now()
		var w *Watcher
		w, err := New(config, Node{
			Stats: n, Pods: n.active, Gone: n.gone,
			Evict: func(_ context.Context, e Eviction) error {
				n.say("evict %s", e.Pod.Name)
				n.leaving[e.Pod.UID] = time.Now()
				return nil
			},
			Images: func(ctx context.Context) error {
				n.say("remove images")
				select {
				case <-time.After(n.removal):
				case <-ctx.Done():
					return ctx.Err()
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				n.free, n.images = n.free+n.images, 0
				return nil
			},
			Event: func(pod *v1.Pod, _ map[string]string, _, reason, _ string) {
				if pod == nil {
					n.say("event %s", reason)
				}
			},
			Changed: func() { n.say("conditions %v", w.Conditions()) },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.Run(ctx); close(ended) }()
		for _, change := range meanwhile {
			time.Sleep(d / 2)
			n.mu.Lock()
			change()
			n.mu.Unlock()
		}
		time.Sleep(d)
		cancel()
		<-ended
	})
	return n.log
}

func user(name string, memory int64) Candidate {
	return used{Name: name, Memory: resource.NewQuantity(memory, resource.BinarySI)}.candidate()
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("what happened:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The condition is there within a second, pods go one at a time, the next only when the last is
// gone and it was not enough.
func TestPodsGoOneAtATime(t *testing.T) {
	n := &fakeNode{signal: Memory, free: 1000, takes: 7 * time.Second, pods: []Candidate{user("a", 300), user("b", 350), user("c", 400)}}
	got := watch(t, n, Config{Hard: map[string]string{"memory.available": "500"}, Transition: time.Minute}, 2*time.Minute)
	expect(t, got,
		"0s conditions [MemoryPressure]",
		"0s event EvictionThresholdMet", "0s evict c",
		"7s event EvictionThresholdMet", "7s evict b",
		"1m14s conditions []")
}

// While a pod takes its time to go, the node says what is so: here another shortage.
func TestConditionsAreKeptUpWhileAPodGoes(t *testing.T) {
	n := &fakeNode{signal: Memory, free: 900, takes: 20 * time.Second, pods: []Candidate{user("a", 500)}}
	hard := map[string]string{"memory.available": "500", "nodefs.available": "50%"}
	got := watch(t, n, Config{Hard: hard, Transition: time.Minute}, 10*time.Second, func() { n.signal = NodeFs })
	expect(t, got, "0s conditions [MemoryPressure]", "0s event EvictionThresholdMet", "0s evict a", "5s conditions [DiskPressure MemoryPressure]")
}

// A pod that does not go in time no longer keeps the next from being evicted.
func TestPodThatHangsDoesNotProtectOthers(t *testing.T) {
	n := &fakeNode{signal: Memory, free: 1000, takes: time.Hour, pods: []Candidate{user("a", 300), user("b", 350), user("c", 400)}}
	got := watch(t, n, Config{Hard: map[string]string{"memory.available": "500"}}, 40*time.Second)
	expect(t, got,
		"0s conditions [MemoryPressure]",
		"0s event EvictionThresholdMet", "0s evict c",
		"30s event EvictionThresholdMet", "30s evict b")
}

// Images go before pods when it is disk; a disk that is then free enough costs no pod.
func TestImagesGoBeforePods(t *testing.T) {
	n := &fakeNode{signal: NodeFs, free: 90, images: 200, pods: []Candidate{user("a", 0)}}
	config := Config{Hard: map[string]string{"nodefs.available": "10%"}, Transition: 30 * time.Second}
	expect(t, watch(t, n, config, time.Minute),
		"0s conditions [DiskPressure]", "0s event EvictionThresholdMet", "0s remove images", "30s conditions []")

	n = &fakeNode{signal: NodeFs, free: 50, images: 20, pods: []Candidate{user("a", 0)}}
	expect(t, watch(t, n, config, 5*time.Second),
		"0s conditions [DiskPressure]", "0s event EvictionThresholdMet", "0s remove images", "0s evict a",
		"1s event EvictionThresholdMet", "1s remove images")
}

// With nobody to evict it is tried again now and then, not all the time.
func TestNobodyToEvict(t *testing.T) {
	n := &fakeNode{signal: Memory, free: 100}
	got := watch(t, n, Config{Hard: map[string]string{"memory.available": "500"}}, 25*time.Second)
	expect(t, got,
		"0s conditions [MemoryPressure]",
		"0s event EvictionThresholdMet", "10s event EvictionThresholdMet", "20s event EvictionThresholdMet")
}

// Signals that cannot be read change nothing; afterwards it goes on.
func TestUnreadSignals(t *testing.T) {
	n := &fakeNode{signal: Memory, free: 100, unread: errors.New("gone")}
	got := watch(t, n, Config{Hard: map[string]string{"memory.available": "50"}}, 9*time.Second, func() {
		n.unread, n.free = nil, 20
	})
	expect(t, got, "5s conditions [MemoryPressure]", "5s event EvictionThresholdMet")
}

// While nothing is short, pods are not measured, unless they have limits of their own.
func TestPodsAreMeasuredOnlyIfNeeded(t *testing.T) {
	n := &fakeNode{signal: Memory, free: 1000, pods: []Candidate{user("a", 10)}}
	expect(t, watch(t, n, Config{Hard: map[string]string{"memory.available": "50"}}, time.Minute))
	if n.measured != 0 {
		t.Errorf("measured %d times", n.measured)
	}
	limit := resource.MustParse("10Mi")
	n.pods = []Candidate{used{Name: "full", SizeLimit: &limit, Volumes: map[string]resource.Quantity{"scratch": resource.MustParse("11Mi")}}.candidate()}
	expect(t, watch(t, n, Config{}, 25*time.Second), "0s evict full")
	if n.measured != 1 {
		t.Errorf("measured %d times, want once: afterwards there was no pod left with limits", n.measured)
	}
}

// Memory that runs short while disks are being measured, which takes longer than it lasts, is seen
// within a second, and a pod goes for it.
func TestMemoryDoesNotWaitForDisks(t *testing.T) {
	limited := user("greedy", 600)
	limit := resource.MustParse("1Gi")
	limited.Pod.Spec.Volumes = []v1.Volume{{Name: "files", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
	n := &fakeNode{signal: Memory, free: 1000, pods: []Candidate{limited}, takes: time.Second, walk: 22 * time.Second}
	got := watch(t, n, Config{Hard: map[string]string{"memory.available": "100"}}, 11*time.Second, func() { n.free = 650 })
	expect(t, got, "6s conditions [MemoryPressure]", "6s event EvictionThresholdMet", "6s evict greedy", "7s conditions []")
}

// Nor does memory wait for a runtime that takes its time to remove images.
func TestMemoryDoesNotWaitForTheRuntime(t *testing.T) {
	n := &fakeNode{signal: NodeFs, free: 700, removal: time.Minute, takes: time.Second, pods: []Candidate{user("greedy", 650)}}
	config := Config{Hard: map[string]string{"memory.available": "100", "nodefs.available": "10%"}}
	got := watch(t, n, config, 11*time.Second, func() { n.signal = Memory })
	expect(t, got, "0s conditions [DiskPressure]", "0s event EvictionThresholdMet", "0s remove images",
		"6s conditions [MemoryPressure]", "6s event EvictionThresholdMet", "6s evict greedy", "7s conditions []")
}

// What the kernel tells is looked at when it tells it, not at the next look.
func TestNudge(t *testing.T) {
	n := &fakeNode{signal: Memory, free: 1000}
	synctest.Test(t, func(t *testing.T) {
		nudge, armed := make(chan struct{}, 1), int64(0)
		var w *Watcher
		w, err := New(Config{Hard: map[string]string{"memory.available": "100"}}, Node{
			Stats: n, Pods: n.active, Gone: n.gone, Event: func(*v1.Pod, map[string]string, string, string, string) {}, Changed: func() {},
			Nudge: nudge, Arm: func(machine, _ int64) { armed = machine },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.Run(ctx); close(ended) }()
		time.Sleep(100 * time.Millisecond) // in the bubble's time
		if armed != 900 {
			t.Errorf("armed for %d bytes, want the 900 down to the threshold", armed)
		}
		n.mu.Lock()
		n.free = 50
		n.mu.Unlock()
		nudge <- struct{}{}
		synctest.Wait()
		if got := w.Conditions(); !slices.Equal(got, []v1.NodeConditionType{v1.NodeMemoryPressure}) {
			t.Errorf("%v at once after the nudge", got)
		}
		cancel()
		<-ended
	})
}
