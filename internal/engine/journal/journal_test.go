package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// everyEvent has one of each type that can be written down.
var everyEvent = []cycle.Event{
	cycle.Follows{Kinds: []cycle.Kind{cycle.Nodes, cycle.Pods}}, cycle.Listing{Kind: cycle.Pods}, cycle.Listed{Kind: cycle.Pods},
	cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}},
	cycle.Gone{Kind: cycle.Pods, Object: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}},
	cycle.Read{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}, cycle.Led{}, cycle.Configured{Source: []byte("kind: x")}, cycle.Tick{},
	cycle.Activate{Pods: []types.UID{"a", "b"}}, cycle.PermitAllowed{Ticket: 3, Plugin: "X"},
	cycle.PermitRejected{Ticket: 3, Plugin: "X", Message: "no", Preempted: true},
	cycle.ClaimMade{Ticket: 4, StandIn: cluster.Name{Namespace: "n", Name: "c"}, Claim: &resourcev1.ResourceClaim{}},
	cycle.Answered{Ticket: 5}, cycle.Answered{Ticket: 6, Outcome: cycle.Outcome{Fault: &cycle.Fault{Message: "no", Verdict: true}}},
	cycle.Answered{Ticket: 7, Outcome: cycle.Outcome{Withdrawn: true, Work: []cycle.PreBindWork{{Needed: true}}}},
}

func write(t *testing.T, dir string, h Header, most int64, events ...cycle.Event) error {
	t.Helper()
	h.Began = began
	w, err := Create(dir, h, most)
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
	files, err := Files(dir)
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

// TestAJournalThatWasCutOffIsReadUpToThere: a kill may end it anywhere; what was complete is read, and nothing is made up.
func TestAJournalThatWasCutOffIsReadUpToThere(t *testing.T) {
	dir := t.TempDir()
	if err := write(t, dir, Header{}, 1<<20, everyEvent...); err != nil {
		t.Fatal(err)
	}
	data := onlyFile(t, dir)
	whole, _, err := readAll(t, data)
	if err != nil {
		t.Fatal(err)
	}
	for n := range data {
		records, _, err := readAll(t, data[:n])
		if err != nil && len(records) > 0 {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if len(records) >= len(whole) {
			t.Fatalf("cut at %d: %d records of %d", n, len(records), len(whole))
		}
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
	old := filepath.Join(dir, "20200101T000000.000"+suffix)
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

// TestAPartingIsFound: a journal that says something else than the core is told of with the event.
func TestAPartingIsFound(t *testing.T) {
	dir := t.TempDir()
	if err := write(t, dir, Header{}, 1<<20, cycle.Tick{}); err != nil { // nothing follows from it, and not "ready"
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

// FuzzRead: whatever is in a file, it is an error or a record, never a panic, also when it is replayed.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	w, err := Create(dir, Header{Began: began}, 1<<20)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range everyEvent {
		w.Add(began, e, nil)
	}
	if err := w.Close(context.Background()); err != nil {
		f.Fatal(err)
	}
	files, _ := Files(dir)
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
		for range 1000 {
			if _, err := r.Next(); err != nil {
				return
			}
		}
	})
}
