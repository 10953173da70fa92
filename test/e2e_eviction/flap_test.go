// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// flap is a script that adds, removes and again adds the taint of a node, and in some cases removes
// it at the end. Two pods run on the node. One of them tolerates the taint for some seconds. The
// other, named quick, does not tolerate the taint and, like a pod of a StatefulSet, is created
// again under the same name when it has ended.
type flap struct {
	*stage
	name    string
	waits   []time.Duration // intervals between changes of the taint
	seconds int64           // tolerationSeconds of the tolerating pod
	again   time.Duration   // delay after which the pod quick is created again

	mu       sync.Mutex // guards the fields below
	switched []switching
	lives    []*life
	notes    []string // faults of the script itself
}

// switching is the addition or removal of the taint, at some time between begin and end.
type switching struct {
	on         bool
	begin, end time.Time
}

// life is the life of a pod. The pod was created at some time between begin and end.
type life struct {
	uid        types.UID
	name       string
	seconds    int64 // tolerationSeconds; 0 means no toleration
	begin, end time.Time
	left       time.Time // time at which the pod left; zero if it has not
}

// stage is the environment of flaps and situations.
type stage struct {
	*cluster
	*diary
	excuse time.Time     // delays are excused until this time
	late   time.Duration // maximum permitted delay
	slow   atomic.Int64  // longest duration of a request by the test
}

func newStage(t *testing.T, c *cluster) *stage {
	s := &stage{cluster: c, diary: newDiary(t, c.client)}
	var sending sync.WaitGroup
	t.Cleanup(sending.Wait) // the context ends before
	sending.Go(func() { s.probe(t.Context()) })
	return s
}

// probe sends a write every 200 ms, so that timed also records stalls of the API server while the
// test sends no other request.
func (s *stage) probe(ctx context.Context) {
	maps := s.client.CoreV1().ConfigMaps("default")
	probe := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
	if _, err := maps.Create(ctx, probe, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		if ctx.Err() == nil {
			s.Errorf("probe: %v", err)
		}
		return
	}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
		began := time.Now()
		if _, err := maps.Patch(ctx, probe.Name, mergePatch, fmt.Appendf(nil, `{"data": {"n": "%d"}}`, n), metav1.PatchOptions{}); err == nil {
			s.timed(began)
		}
	}
}

// timed records the maximum latency of the tests' requests, which includes effects of other load on
// the machine.
func (s *stage) timed(begin time.Time) {
	took := int64(time.Since(begin))
	for slow := s.slow.Load(); took > slow && !s.slow.CompareAndSwap(slow, took); slow = s.slow.Load() {
	}
}

// crossing is the maximum time for which a pod may still be evicted after the taint was removed,
// because the requests crossed in flight.
func (s *stage) crossing() time.Duration {
	return time.Second/2 + 3*time.Duration(s.slow.Load())
}

// punctual is the maximum delay of a pod's eviction. An eviction takes three requests, and may wait
// for the evictions of other pods.
func (s *stage) punctual() time.Duration {
	return 2*time.Second + s.late + 6*time.Duration(s.slow.Load())
}

// spacings lists the intervals between two changes of the taint. They are dense where requests may
// cross in flight.
var spacings = []time.Duration{
	0, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond, 80 * time.Millisecond,
	100 * time.Millisecond, 150 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond, 500 * time.Millisecond,
	650 * time.Millisecond, 800 * time.Millisecond, time.Second, 1200 * time.Millisecond, 1400 * time.Millisecond,
	1600 * time.Millisecond, 1800 * time.Millisecond, 2 * time.Second,
}

// flapNumber returns the i-th script. Consecutive scripts cover all pairs of the first steps
// spacings.
func flapNumber(s *stage, prefix string, i, steps int) *flap {
	r := rand.New(rand.NewPCG(uint64(i), 15))
	f := &flap{stage: s, name: fmt.Sprintf("%s-%d", prefix, i), again: spacings[r.IntN(12)]}
	f.waits = []time.Duration{spacings[i%steps], spacings[i/steps%steps]}
	longest := spacings[steps-1]
	f.seconds = 2 + int64(longest/time.Second)
	if i%3 == 0 { // the script ends with the removal of the taint
		f.waits = append(f.waits, spacings[r.IntN(steps)])
	}
	return f
}

const flapKey = "flap"

func (f *flap) prepare() {
	if err := f.createNode(f.name, "z"); err != nil {
		f.note("node: %v", err)
		return
	}
	f.create("waits", f.seconds)
	f.create("quick", 0)
}

func (f *flap) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notes = append(f.notes, fmt.Sprintf(format, args...))
}

func (f *flap) create(which string, seconds int64) *life {
	l := &life{name: which + "-" + f.name, seconds: seconds, begin: time.Now()}
	var tolerations []v1.Toleration
	if seconds > 0 {
		tolerations = append(tolerations, tolerates(flapKey, seconds))
	}
	pod, err := f.createPod(l.name, f.name, tolerations...)
	for apierrors.IsAlreadyExists(err) && time.Since(l.begin) < 5*time.Second { // the previous pod is terminating
		<-time.After(2 * time.Millisecond)
		pod, err = f.createPod(l.name, f.name, tolerations...)
	}
	if err != nil {
		f.note("pod: %v", err)
		return l
	}
	l.uid, l.end = pod.UID, time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lives = append(f.lives, l)
	return l
}

// play changes the taint and creates the pod quick again. It returns when no further eviction is
// expected, or when patience has passed after the last expected eviction.
func (f *flap) play(patience time.Duration) {
	if len(f.lives) != 2 {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.comeBack(f.lives[1])
	}()
	f.turn(true)
	for i, wait := range f.waits {
		<-time.After(wait)
		f.turn(i%2 == 1)
	}
	f.mu.Lock()
	last := f.switched[len(f.switched)-1]
	f.mu.Unlock()
	settled := func() time.Time { // later if the cluster is slow
		if !last.on { // wait until the tolerationSeconds of earlier taints have passed
			return later(last.end.Add(time.Duration(f.seconds+1)*time.Second), f.excuse.Add(time.Second))
		}
		return later(last.end, f.excuse).Add(time.Duration(f.seconds)*time.Second + f.punctual() + patience)
	}
	<-ended
	f.mu.Lock()
	lives := f.lives
	f.mu.Unlock()
	for _, l := range lives {
		for !f.leavesBy(l.uid, settled()) && time.Now().Before(settled()) {
		}
		l.left, _ = f.when(l.uid)
	}
}

// comeBack creates the pod quick again, up to twice, when it leaves while the taint may still be
// changing.
func (f *flap) comeBack(l *life) {
	total := 2 * time.Second
	for _, wait := range f.waits {
		total += wait
	}
	end := later(time.Now(), f.excuse).Add(total)
	for range 2 {
		if !f.leavesBy(l.uid, end) {
			return
		}
		<-time.After(f.again)
		l = f.create("quick", 0)
	}
}

func (f *flap) turn(on bool) {
	var keys []string
	if on {
		keys = append(keys, flapKey)
	}
	s := switching{on: on, begin: time.Now()}
	_, err := f.client.CoreV1().Nodes().Patch(f.Context(), f.name, mergePatch, taintPatch(keys...), kubectlTaint)
	s.end = time.Now()
	f.timed(s.begin)
	if err != nil {
		f.note("taint: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.switched = append(f.switched, s)
}

// verdict states whether a life ended as required.
type verdict string

const (
	right   verdict = ""
	stays   verdict = "there, though it had to go"
	goes    verdict = "gone, though it must not"
	tooLate verdict = "late"
)

// judge compares the end of a life with the end required by the changes of the taint. Times in the
// API are in whole seconds, so an eviction may be up to a second early.
func (f *flap) judge(l *life) verdict {
	for i, s := range f.switched {
		if !s.on {
			continue
		}
		least, most := later(s.begin, l.begin), later(s.end, l.end)
		if l.seconds > 0 {
			least = least.Add(time.Duration(l.seconds-1) * time.Second)
			most = most.Add(time.Duration(l.seconds) * time.Second)
		}
		if i+1 < len(f.switched) { // the taint was removed again
			off := f.switched[i+1].end
			if !l.left.IsZero() && !least.After(off) && !l.left.Before(least) && l.left.Before(off.Add(f.crossing())) {
				return right
			}
			continue
		}
		switch limit := later(most, f.excuse).Add(f.punctual()); {
		case l.left.IsZero():
			return stays
		case l.left.Before(least):
			return goes
		case l.left.After(limit):
			return tooLate
		}
		return right
	}
	if l.left.IsZero() {
		return right
	}
	return goes
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// tell describes a life for an error message.
func (f *flap) tell(l *life) string {
	begin := f.switched[0].begin
	text := fmt.Sprintf("%s (tolerates %d s) created %v", l.name, l.seconds, l.end.Sub(begin).Round(time.Millisecond))
	for _, s := range f.switched {
		text += fmt.Sprintf(", on=%t %v", s.on, s.end.Sub(begin).Round(time.Millisecond))
	}
	if l.left.IsZero() {
		return text + ", still there"
	}
	return text + fmt.Sprintf(", gone %v", l.left.Sub(begin).Round(time.Millisecond))
}
