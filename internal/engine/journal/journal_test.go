// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// everyEvent holds at least one event of each type; see TestEveryTypeOfEventCanBeWritten.
var everyEvent = []cycle.Event{
	cycle.Follows{Kinds: []cycle.Kind{cycle.Nodes, cycle.Pods}}, cycle.Listing{Kind: cycle.Pods}, cycle.Listed{Kind: cycle.Pods},
	cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}},
	cycle.Gone{Kind: cycle.Pods, Object: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}},
	cycle.Read{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}, cycle.Led{}, cycle.WallSet{Ahead: -time.Minute},
	cycle.Configured{Source: []byte("kind: x")}, cycle.Tick{},
	cycle.Activate{Pods: []types.UID{"a", "b"}}, cycle.PermitAllowed{Ticket: 3, Plugin: "X"},
	cycle.PermitRejected{Ticket: 3, Plugin: "X", Message: "no", Preempted: true},
	cycle.ClaimMade{Ticket: 4, StandIn: cluster.Name{Namespace: "n", Name: "c"}, Claim: &resourcev1.ResourceClaim{}},
	cycle.Answered{Ticket: 5}, cycle.Answered{Ticket: 6, Outcome: cycle.Outcome{Fault: &cycle.Fault{Message: "no", Verdict: true}}},
	cycle.Answered{Ticket: 7, Outcome: cycle.Outcome{Withdrawn: true, Work: []cycle.PreBindWork{{Needed: true}}}},
	cycle.Happened{Event: &queue.Event{Resource: "foos.v1.example.com", Action: queue.Update, Label: "foos.v1.example.com/Update"}},
	cycle.Resumed{Pods: []queue.Saved{{UID: "a", Place: queue.Waiting, Progress: queue.Progress{Rejectors: []string{"X"}}}}, Rooms: map[types.UID]string{"a": "n"}},
}

func write(t *testing.T, dir string, h Header, most int64, events ...cycle.Event) error {
	t.Helper()
	h.Began = began
	w, err := Create(dir, h, records.Limits{Size: most}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range events {
		w.Add(began.Add(time.Duration(i)*time.Millisecond), e, []cycle.Action{cycle.Ready{}})
	}
	return w.Close(context.Background())
}

func onlyFile(t *testing.T, dir string) []byte {
	t.Helper()
	files, err := records.Files(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readAll(t *testing.T, data []byte) (records []Record, r *Reader, err error) {
	t.Helper()
	r, err = NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			return records, r, nil
		}
		if err != nil {
			return records, r, err
		}
		records = append(records, record)
	}
}

func TestEveryEventIsReadAsItWasWritten(t *testing.T) {
	dir := t.TempDir()
	if err := write(t, dir, Header{Seed: 7, Configuration: "c"}, 1<<20, everyEvent...); err != nil {
		t.Fatal(err)
	}
	records, r, err := readAll(t, onlyFile(t, dir))
	if err != nil || len(records) != len(everyEvent) || r.Header.Seed != 7 || r.Header.Configuration != "c" || r.Cut {
		t.Fatalf("%d of %d records, header %+v, cut %t: %v", len(records), len(everyEvent), r.Header, r.Cut, err)
	}
	for i, record := range records {
		want, _ := json.Marshal(everyEvent[i])
		got, _ := json.Marshal(record.Event)
		if reflect.TypeOf(record.Event) != reflect.TypeOf(everyEvent[i]) || string(got) != string(want) {
			t.Errorf("%T %s was read as %T %s", everyEvent[i], want, record.Event, got)
		}
		if record.Actions != "ready" || !record.At.Equal(began.Add(time.Duration(i)*time.Millisecond)) {
			t.Errorf("record %d: %q at %v", i, record.Actions, record.At)
		}
	}
}

// TestAJournalThatWasCutOffIsReadUpToThere verifies that, of a file cut off at any byte, all
// complete records are read, and nothing else.
func TestAJournalThatWasCutOffIsReadUpToThere(t *testing.T) {
	dir := t.TempDir()
	long := cycle.Configured{Source: bytes.Repeat([]byte("long "), 100)} // its length takes two bytes in the file
	if err := write(t, dir, Header{}, 1<<20, append([]cycle.Event{long}, everyEvent...)...); err != nil {
		t.Fatal(err)
	}
	data := onlyFile(t, dir)
	whole, _, err := readAll(t, data)
	if err != nil {
		t.Fatal(err)
	}
	complete := 0 // number of prefixes that end with a complete record
	defer func() {
		if complete != len(whole) {
			t.Errorf("%d times it is not said to be cut, want %d", complete, len(whole))
		}
	}()
	for n := range data {
		records, r, err := readAll(t, data[:n])
		if r != nil && !r.Cut {
			complete++
		}
		if err != nil && len(records) > 0 {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if len(records) >= len(whole) {
			t.Fatalf("cut at %d: %d records of %d", n, len(records), len(whole))
		}
	}
}

// TestARecordMayBeLong verifies that one record may hold the state of 100,000 pending pods.
func TestARecordMayBeLong(t *testing.T) {
	dir, resumed := t.TempDir(), cycle.Resumed{}
	for i := range 100_000 {
		resumed.Pods = append(resumed.Pods, queue.Saved{
			UID: types.UID(fmt.Sprint("pod-", i)), Place: queue.Waiting,
			Progress: queue.Progress{Rejectors: []string{"NodeResourcesFit"}, Message: strings.Repeat("x", 200)},
		})
	}
	if err := write(t, dir, Header{}, 1<<30, resumed, cycle.Tick{}); err != nil {
		t.Fatal(err)
	}
	if records, _, err := readAll(t, onlyFile(t, dir)); err != nil || len(records) != 2 || len(records[0].Event.(cycle.Resumed).Pods) != 100_000 {
		t.Errorf("%d records: %v", len(records), err)
	}
}

func TestSecretsAreNotWritten(t *testing.T) {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Annotations: map[string]string{"note": "TOPSECRET"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "TOPSECRET"}},
		},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "c", Command: []string{"TOPSECRET"}, Args: []string{"TOPSECRET"}, Env: []v1.EnvVar{{Name: "X", Value: "TOPSECRET"}},
			LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"TOPSECRET"}}}},
		}}},
		Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
			Name: "c", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Message: "TOPSECRET"}},
		}}},
	}
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: map[string]string{v1.LastAppliedConfigAnnotation: "TOPSECRET"}}}
	template := v1.PodTemplateSpec{Spec: pod.Spec}
	owners := []cycle.Event{
		cycle.Seen{Kind: cycle.ReplicaSets, Object: &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Template: template}}},
		cycle.Seen{Kind: cycle.StatefulSets, Object: &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Template: template}}},
		cycle.Seen{Kind: cycle.ReplicationControllers, Object: &v1.ReplicationController{Spec: v1.ReplicationControllerSpec{Template: &template}}},
	}
	before := pod.DeepCopy()
	dir := t.TempDir()
	seen := append(owners, cycle.Seen{Kind: cycle.Pods, Object: pod}, cycle.Seen{Kind: cycle.Services, Object: service})
	if err := write(t, dir, Header{}, 1<<20, seen...); err != nil {
		t.Fatal(err)
	}
	if data := onlyFile(t, dir); bytes.Contains(data, []byte("TOPSECRET")) {
		t.Errorf("a secret was written:\n%q", data)
	}
	if !reflect.DeepEqual(pod, before) || service.Annotations[v1.LastAppliedConfigAnnotation] != "TOPSECRET" || len(template.Spec.Containers) == 0 {
		t.Error("the object itself was changed")
	}
}

func TestAJournalEndsWhenItIsLargeEnoughAndOldOnesMakeRoom(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "20200101T000000.000"+".journal")
	if err := os.WriteFile(old, make([]byte, 3000), 0o600); err != nil {
		t.Fatal(err)
	}
	events := make([]cycle.Event, 1000)
	for i := range events {
		events[i] = cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("n", 100)}}}
	}
	if err := write(t, dir, Header{}, 4000, events...); err == nil || !strings.Contains(err.Error(), "reached its size") {
		t.Errorf("it ended with %v", err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old one is there still: %v", err)
	}
	if n := len(onlyFile(t, dir)); n < 1000 || n > 4000 {
		t.Errorf("%d bytes were written", n)
	}
}

// TestAPartingIsFound verifies that a replay reports an event whose recorded actions differ from
// the replayed ones.
func TestAPartingIsFound(t *testing.T) {
	dir := t.TempDir()
	if err := write(t, dir, Header{}, 1<<20, cycle.Tick{}); err != nil { // the replayed tick has no actions, not even the recorded "ready"
		t.Fatal(err)
	}
	r, err := NewReader(bytes.NewReader(onlyFile(t, dir)))
	if err != nil {
		t.Fatal(err)
	}
	result, err := Replay(r, Options{Profiles: defaults})
	if err != nil || result.Parting == nil || result.Parting.Event != 0 || result.Parting.Recorded != "ready" || result.Parting.Replayed != "" {
		t.Errorf("%+v, %v", result.Parting, err)
	}
}

func defaults(Header, []byte) ([]cycle.Profile, error) {
	return []cycle.Profile{{Profile: plugins.Default()}}, nil
}

// FuzzRead verifies that reading and replaying any file content never panics.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	w, err := Create(dir, Header{Began: began}, records.Limits{Size: 1 << 20}, nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range everyEvent {
		w.Add(began, e, nil)
	}
	if err := w.Close(context.Background()); err != nil {
		f.Fatal(err)
	}
	files, _ := records.Files(dir)
	data, err := os.ReadFile(files[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(magic))
	f.Fuzz(func(_ *testing.T, data []byte) {
		r, err := NewReader(bytes.NewReader(data))
		if err != nil {
			return
		}
		_, _ = Replay(r, Options{Profiles: defaults, Continue: true})
	})
}

// TestACraftedJournalIsAnError verifies that replaying a crafted journal returns an error instead
// of panicking. Each of its events is well formed, but never written by a scheduler.
func TestACraftedJournalIsAnError(t *testing.T) {
	node, err := (&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for what, event := range map[string][]byte{
		"a pod that is a node":    records.AppendText(records.AppendText([]byte{typeRead}, string(cycle.Nodes)), node),
		"a list without its gate": records.AppendText([]byte{typeListing}, string(cycle.PodGroups)),
	} {
		dir := t.TempDir()
		f, err := records.Create(dir, magic, Header{Began: began}, began, records.Limits{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		payload := records.AppendText(append(binary.AppendVarint(nil, 0), event...), "")
		if err := errors.Join(f.Write(payload), f.Close()); err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(bytes.NewReader(onlyFile(t, dir)))
		if err != nil {
			t.Fatal(err)
		}
		if result, err := Replay(r, Options{Profiles: defaults}); err == nil {
			t.Errorf("%s: %+v", what, result)
		}
	}
}

// continued continues the journal in another file, and returns a new core with the state of the
// journal.
func continued(t *testing.T, w *Writer, now time.Time, seed uint64) *cycle.Core {
	t.Helper()
	core, err := Core(Header{Seed: seed}, []cycle.Profile{{Profile: plugins.Default()}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range eventsOf(t, w.Prepare(t.Context(), now, seed)) {
		w.AddNext(now, e, core.Step(now, e))
	}
	w.Turn()
	return core
}

// eventsOf reads a state to its end.
func eventsOf(t *testing.T, state *State) (events []cycle.Event) {
	t.Helper()
	for {
		switch e, ready, err := state.Next(); {
		case err != nil:
			t.Fatal(err)
		case !ready:
			runtime.Gosched()
		case e == nil:
			return events
		default:
			events = append(events, e)
		}
	}
}

// drive steps a core and writes the journal, one pod per round, and continues in another file
// whenever that is due. each, if set, is called before each round, and may step the core as well.
func drive(t *testing.T, w *Writer, rounds int, each func(round int, step func(cycle.Event))) {
	t.Helper()
	now := began
	core, err := Core(Header{Seed: 1}, []cycle.Profile{{Profile: plugins.Default()}})
	if err != nil {
		t.Fatal(err)
	}
	step := func(e cycle.Event) {
		now = now.Add(time.Second)
		w.Add(now, e, core.Step(now, e))
	}
	amounts := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("2Gi"), v1.ResourcePods: resource.MustParse("9")}
	step(cycle.Follows{Kinds: []cycle.Kind{cycle.Nodes, cycle.Pods}})
	for _, kind := range []cycle.Kind{cycle.Nodes, cycle.Pods} {
		step(cycle.Listing{Kind: kind})
		step(cycle.Listed{Kind: kind})
	}
	step(cycle.Led{})
	for i := range 3 {
		step(cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Status: v1.NodeStatus{Allocatable: amounts}}})
	}
	for i := range rounds {
		if each != nil {
			each(i, step)
		}
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))},
			Spec:       v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "i"}}},
		}
		step(cycle.Seen{Kind: cycle.Pods, Object: pod})
		now = now.Add(time.Second)
		actions := slices.Clone(core.Step(now, cycle.Tick{}))
		w.Add(now, cycle.Tick{}, actions)
		bind, ok := actions[len(actions)-1].(cycle.Bind)
		if !ok {
			t.Fatalf("pod %d: %v", i, actions)
		}
		step(cycle.Answered{Ticket: bind.Ticket})
		bound := pod.DeepCopy()
		bound.Spec.NodeName = bind.Attempt.Node
		step(cycle.Seen{Kind: cycle.Pods, Object: bound})
		if i >= 5 {
			gone := bound.DeepCopy()
			gone.Name, gone.UID = fmt.Sprint("p", i-5), types.UID(fmt.Sprint("u", i-5))
			step(cycle.Gone{Kind: cycle.Pods, Object: gone})
		}
		if i%10 == 0 {
			time.Sleep(time.Second) // advances the fake clock of the synctest bubble
			synctest.Wait()
		}
		if !w.Due() {
			continue
		}
		if !core.Calm() {
			t.Fatal("it is not calm")
		}
		now = now.Add(time.Second)
		saved := core.Save()
		core = continued(t, w, now, uint64(i))
		step(saved)
	}
	if err := w.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// TestAJournalGoesOnInAnotherFile verifies that the journal continues in another file when the
// current one is large or old enough. The oldest files are removed, and each remaining file is
// replayed independently to the same bytes.
func TestAJournalGoesOnInAnotherFile(t *testing.T) {
	for _, l := range []records.Limits{{Size: 60_000}, {Size: 1 << 30, Age: 40 * time.Minute}} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			w, err := Create(dir, Header{Began: began, Seed: 1}, l, nil)
			if err != nil {
				t.Fatal(err)
			}
			drive(t, w, 800, nil)
			files, err := records.Files(dir)
			if err != nil || len(files) < 2 {
				t.Fatalf("%v: %q, %v", l, files, err)
			}
			var size int64
			for i, name := range files {
				data, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				size += int64(len(data))
				r, err := NewReader(bytes.NewReader(data))
				if err != nil {
					t.Fatal(err)
				}
				result, err := Replay(r, Options{Profiles: defaults})
				if err != nil || result.Parting != nil || result.Bound == 0 {
					t.Errorf("%v, file %d: %+v, %v", l, i, result, err)
				}
			}
			if first := filepath.Base(files[0]); l.Age == 0 && strings.HasPrefix(first, "20260101T000000") || size > l.Size {
				t.Errorf("%v: the first file is %s, all have %d bytes", l, first, size)
			}
		})
	}
}

// TestAKillLosesASecondAtMost verifies that an added record is in the file within a second, without
// Close.
func TestAKillLosesASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		w, err := Create(dir, Header{Began: began}, records.Limits{Size: 1 << 20}, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.Add(began, cycle.Tick{}, nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if records, _, err := readAll(t, onlyFile(t, dir)); err != nil || len(records) != 1 {
			t.Errorf("%d records, %v", len(records), err)
		}
		if err := w.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestWhatIsStrippedMayBeStrippedAgain verifies that stripping a stripped object changes nothing.
// Objects are stripped for the core, and again when they are written.
func TestWhatIsStrippedMayBeStrippedAgain(t *testing.T) {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"note": "x"}},
		Spec:       v1.PodSpec{ResourceClaims: []v1.PodResourceClaim{{Name: "c"}}},
		Status:     v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "c", ContainerID: "containerd://1"}}},
	}
	once := Stripped(pod)
	if again := Stripped(once); !reflect.DeepEqual(once, again) {
		t.Errorf("%v\nis stripped to\n%v", once, again)
	}
}

var writeFormat = flag.Bool("write-format", false, "TestOlderJournalsAreRead writes the journal of this format anew")

// TestOlderJournalsAreRead verifies that this build reads and replays files of earlier builds.
func TestOlderJournalsAreRead(t *testing.T) {
	const name = "testdata/format-1.journal"
	if *writeFormat {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			w, err := Create(dir, Header{Began: began, Seed: 1}, records.Limits{Size: 1 << 20}, nil)
			if err != nil {
				t.Fatal(err)
			}
			drive(t, w, 20, nil)
		})
		if err := os.WriteFile(name, onlyFile(t, dir), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if result, err := Replay(r, Options{Profiles: defaults}); err != nil || result.Parting != nil || result.Bound != 20 || result.Cut {
		t.Errorf("%+v, parts at %+v: %v", result, result.Parting, err)
	}
}

// TestReplaysHaveTheTimeOfTheWall verifies that the wait for devices is limited according to the
// wall clock, which the times in claims refer to. This also holds in a replay, and in a file that
// begins later.
func TestReplaysHaveTheTimeOfTheWall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, now := t.TempDir(), began
		w, err := Create(dir, Header{Began: began, Seed: 1}, records.Limits{Size: 1 << 20}, nil)
		if err != nil {
			t.Fatal(err)
		}
		core, err := Core(Header{Seed: 1}, []cycle.Profile{{Profile: plugins.Default()}})
		if err != nil {
			t.Fatal(err)
		}
		step := func(e cycle.Event) string {
			now = now.Add(time.Millisecond)
			actions := core.Step(now, e)
			w.Add(now, e, actions)
			return Text(actions)
		}
		kinds := []cycle.Kind{cycle.Nodes, cycle.Pods, cycle.ResourceSlices, cycle.ResourceClaims, cycle.DeviceClasses}
		step(cycle.Follows{Kinds: kinds})
		step(cycle.WallSet{Ahead: time.Hour})
		for _, kind := range kinds {
			step(cycle.Listing{Kind: kind})
			step(cycle.Listed{Kind: kind})
		}
		step(cycle.Led{})
		step(cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("9")}}}})
		since := metav1.NewTime(began)
		step(cycle.Seen{Kind: cycle.ResourceClaims, Object: &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "c", UID: "c"},
			Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{AllocationTimestamp: &since, Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "x", Pool: "n", Device: "gpu", BindingConditions: []string{"Ready"}, BindingFailureConditions: []string{"Failed"}}},
			}}},
		}})
		pod := func(name string) string {
			step(cycle.Seen{Kind: cycle.Pods, Object: &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name)},
				Spec: v1.PodSpec{
					SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "i"}},
					ResourceClaims: []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new("c")}},
				},
			}})
			return step(cycle.Tick{})
		}
		if text := pod("p"); !strings.Contains(text, "claim d/c") {
			t.Errorf("the claim is not given up: %s", text)
		}
		core = continued(t, w, now, 2)
		if text := pod("q"); !strings.Contains(text, "claim d/c") {
			t.Errorf("the claim is not given up in the next file: %s", text)
		}
		if err := w.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		files, err := records.Files(dir)
		if err != nil || len(files) != 2 {
			t.Fatalf("%q, %v", files, err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			r, err := NewReader(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if result, err := Replay(r, Options{Profiles: defaults}); err != nil || result.Parting != nil {
				t.Errorf("%s: %+v, %v", name, result.Parting, err)
			}
		}
	})
}
