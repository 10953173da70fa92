// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// within is the limit for each wait of a test.
const within = 30 * time.Second

// api is an API server with the nodes a and b. The pod web-1 runs on a, and does not tolerate a
// taint of a. After its eviction, web-2 runs on b.
type api struct {
	*apitest.Server
	t       *testing.T
	mu      sync.Mutex
	writes  []string
	journal *v1.ConfigMap
	rooms   []string // successive contents of the Lease
	refuse  int      // number of evictions refused with 429
	leases  int      // status returned for Lease writes; 0 means that the writes are carried out
	evicted func()   // called when a pod is evicted
	leader  string   // program that renews the leader-election Lease; "" if there is no Lease
	said    []execute.Result
}

func newAPI(t *testing.T) *api {
	a := &api{Server: apitest.New(t), t: t}
	a.Set("nodes", node("a", `"taints": [{"key": "old", "effect": "NoSchedule"}]`))
	a.Set("nodes", node("b", ``))
	a.Set("pods", pod("web-1", "a"))
	server := httptest.NewServer(a)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	a.Config = &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}}
	return a
}

func object(text string) (o apitest.Object) {
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	return o
}

func node(name, spec string) apitest.Object {
	return object(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q, "uid": %[1]q}, "spec": {%s},
		"status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]}}`, name, spec))
}

func pod(name, node string) apitest.Object {
	return object(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": %q, "uid": %[1]q,
		"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": true}]},
		"spec": {"nodeName": %q, "schedulerName": "default-scheduler", "containers": [{"name": "main", "image": "web"}]},
		"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}`, name, node))
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isJournal := strings.Contains(r.URL.Path, "/configmaps")
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/leases/kube-scheduler") && a.leader != "" {
		a.answer(w, http.StatusOK, a.leads())
		return
	}
	if r.Method == http.MethodGet && !isJournal {
		a.Server.ServeHTTP(w, r)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	isLease := strings.Contains(r.URL.Path, "/leases")
	if r.Method != http.MethodGet && !isLease && !strings.HasSuffix(r.URL.Path, "/events") {
		a.writes = append(a.writes, r.Method+" "+r.URL.Path)
	}
	switch {
	case isJournal:
		a.serveJournal(w, r)
	case isLease:
		a.serveLease(w, r)
	case r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/nodes/a"):
		a.Set("nodes", node("a", `"unschedulable": true`))
		a.answer(w, http.StatusOK, &v1.Node{})
	case strings.HasSuffix(r.URL.Path, "/eviction"):
		a.evict(w, r)
	default:
		a.answer(w, http.StatusCreated, &v1.Event{})
	}
}

func (a *api) serveJournal(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method != http.MethodGet:
		var m v1.ConfigMap
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			a.t.Error(err)
		}
		if a.journal != nil && m.ResourceVersion != a.journal.ResourceVersion {
			a.refused(w, http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		m.ResourceVersion = fmt.Sprint(len(a.writes))
		a.journal = &m
		a.answer(w, http.StatusOK, &m)
	case a.journal == nil:
		a.refused(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		a.answer(w, http.StatusOK, a.journal)
	}
}

func (a *api) leads() *coordinationv1.Lease {
	holder, renewed := "somebody", metav1.NewMicroTime(time.Now())
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-scheduler", ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:metadata": {"f:labels": {}}}`)},
			{Manager: a.leader, FieldsV1: metav1.NewFieldsV1(`{"f:spec": {"f:renewTime": {}}}`)},
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed},
	}
}

// serveLease serves the Lease that holds the reservation. Initially, the Lease does not exist. A
// JSON patch removes the reservation if it equals the tested value.
func (a *api) serveLease(w http.ResponseWriter, r *http.Request) {
	if a.leases != 0 {
		a.refused(w, a.leases, metav1.StatusReasonForbidden)
		return
	}
	if r.Header.Get("Content-Type") == string(types.JSONPatchType) {
		var operations []struct{ Op, Path, Value string }
		if err := json.NewDecoder(r.Body).Decode(&operations); err != nil {
			a.t.Error(err)
		}
		for _, o := range operations {
			if shown := last(a.rooms); o.Path != "/metadata/annotations/berth.dev~1room" || shown == "" || o.Op == "test" && o.Value != shown {
				a.refused(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
				return
			}
		}
		a.rooms = append(a.rooms, "")
		a.answer(w, http.StatusOK, &coordinationv1.Lease{})
		return
	}
	var lease coordinationv1.Lease
	if err := json.NewDecoder(r.Body).Decode(&lease); err != nil {
		a.t.Error(err)
	}
	if r.Method == http.MethodPatch && len(a.rooms) == 0 {
		a.refused(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	a.rooms = append(a.rooms, lease.Annotations[cycle.MoveReservationAnnotation])
	a.answer(w, http.StatusOK, &lease)
}

func last(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1]
}

func (a *api) evict(w http.ResponseWriter, r *http.Request) {
	var e policyv1.Eviction
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		a.t.Error(err)
	}
	if e.DeleteOptions == nil || e.DeleteOptions.Preconditions == nil || *e.DeleteOptions.Preconditions.UID != "web-1" {
		a.t.Errorf("evicted with %+v, want the UID as a precondition", e.DeleteOptions)
	}
	if a.refuse > 0 {
		a.refuse--
		a.refused(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
		return
	}
	if a.evicted != nil {
		a.evicted()
	}
	a.Delete(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}})
	a.Set("pods", pod("web-2", "b"))
	a.answer(w, http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess})
}

func (a *api) refused(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	a.answer(w, code, &metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "no"})
}

func (a *api) answer(w http.ResponseWriter, code int, o runtime.Object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(o); err != nil {
		a.t.Error(err)
	}
}

// move starts a Mover whose only goal is "heal", and waits for its first run to end.
func (a *api) move(t *testing.T) (lines []string, done execute.Done) {
	t.Helper()
	configuration, err := config.Default(config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(a.Config)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	m := movecontroller.New(client, eventlog.New(client, "test"), movecontroller.Options{
		Policy: func(policy.Priorities) (*rebalance.Policy, error) {
			return &rebalance.Policy{Goals: []rebalance.Goal{*rebalance.OwnGoal("heal", 0)}}, nil
		},
		Profiles: configuration.Profiles,
		OnProgress: func(e execute.MoveProgress) {
			a.said = append(a.said, e.Result)
			if e.Move != nil {
				lines = append(lines, fmt.Sprintf("%s %s", e.Move.Name, e.Result))
			}
		},
		Done: func(a execute.Done) { done = a; cancel() },
	})
	if err := m.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if done.Plan == nil {
		t.Fatalf("no run ended within %v; told %v", within, lines)
	}
	return lines, done
}

// TestAMoveIsInTheJournalBeforeThePodIsEvicted verifies that a move is journaled before the pod is
// evicted, and removed from the journal after a refusal or when the successor has arrived.
func TestAMoveIsInTheJournalBeforeThePodIsEvicted(t *testing.T) {
	a := newAPI(t)
	a.refuse = 1
	lines, done := a.move(t)
	if want := []string{"web-1 Evicted", "web-1 Arrived"}; !slices.Equal(lines, want) || done.Moves != 1 || done.Stopped != "" {
		t.Errorf("told %v, done %+v, want %v", lines, done, want)
	}
	maps, eviction := "/api/v1/namespaces/kube-system/configmaps", "POST /api/v1/namespaces/default/pods/web-1/eviction"
	note := "PUT " + maps + "/berth-rebalance"
	want := []string{"POST " + maps, eviction, note, eviction, note}
	if !slices.Equal(a.writes, want) {
		t.Errorf("written %q,\nwant %q", a.writes, want)
	}
	if text := a.journal.Data["journal"]; strings.Contains(text, "web-1") || !strings.Contains(text, "default/ReplicaSet/web") {
		t.Errorf("the journal has %s, want no move and that web rests", text)
	}
}

// TestTheRoomOfTheSuccessorIsKept verifies that a move reserves room for the successor, and
// releases the reservation in the end.
func TestTheRoomOfTheSuccessorIsKept(t *testing.T) {
	a := newAPI(t)
	a.move(t)
	a.kept(t)
}

// kept verifies that the Lease first holds the room for web-1's successor, and then none.
func (a *api) kept(t *testing.T) {
	t.Helper()
	if len(a.rooms) != 2 || a.rooms[1] != "" {
		t.Fatalf("the Lease has shown %q, want a room and then none", a.rooms)
	}
	var rooms []cycle.MoveReservation
	if err := json.Unmarshal([]byte(a.rooms[0]), &rooms); err != nil || len(rooms) != 1 {
		t.Fatal(err, rooms)
	}
	room := rooms[0]
	if room.Begun == "" {
		t.Error("the room does not say when the move began")
	}
	room.Begun = ""
	if want := (cycle.MoveReservation{Namespace: "default", Name: "web-1", UID: "web-1", Owner: "web", Node: "b", GraceSeconds: 30}); room != want {
		t.Errorf("room is kept as %+v, want %+v", room, want)
	}
}

// TestAMoveOfAProcessThatDiedIsFollowed verifies that the journaled move of a killed process is
// followed without another eviction, and that its reservation is released in the end.
func TestAMoveOfAProcessThatDiedIsFollowed(t *testing.T) {
	a := newAPI(t)
	a.rooms = []string{`[{"namespace":"default","name":"web-1","uid":"web-1","owner":"web","node":"b","begun":"2026-11-20T10:00:00Z"}]`}
	a.Delete(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}})
	successor := pod("web-2", "b")
	successor["metadata"].(map[string]any)["creationTimestamp"] = "2026-11-20T10:00:01Z"
	a.Set("pods", successor)
	a.journal = &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "0"}, Data: map[string]string{"journal": `{"move": {"namespace": "default",
		"name": "web-1", "uid": "web-1", "owner": "ReplicaSet/web", "ownerUID": "web", "from": "a", "to": "b", "cause": "heal", "begun": "2026-11-20T10:00:00Z"}}`}}
	lines, done := a.move(t)
	if want := []string{"web-1 Resumed", "web-1 Arrived"}; !slices.Equal(lines, want) || done.Stopped != "" {
		t.Errorf("told %v, done %+v, want %v", lines, done, want)
	}
	if slices.ContainsFunc(a.writes, func(w string) bool { return strings.HasSuffix(w, "/eviction") }) {
		t.Errorf("evicted again: %q", a.writes)
	}
	if last(a.rooms) != "" {
		t.Errorf("the Lease has shown %q, want that the room is free in the end", a.rooms)
	}
}

// TestWhatHasNoEffectInAPolicyIsSaid verifies that the notes of a policy are reported before
// anything else, and not only in plans.
func TestWhatHasNoEffectInAPolicyIsSaid(t *testing.T) {
	a := newAPI(t)
	client := kubernetes.NewForConfigOrDie(a.Config)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var lines []string
	m := movecontroller.New(client, eventlog.New(client, "test"), movecontroller.Options{
		Policy: func(policy.Priorities) (*rebalance.Policy, error) {
			return &rebalance.Policy{Notes: []string{"policy.yaml:3: nodeFit is no field"}}, nil
		},
		OnProgress: func(e execute.MoveProgress) { lines = append(lines, e.Message) },
		Done:       func(execute.Done) { cancel() },
	})
	if err := m.Run(ctx); err != nil || len(lines) == 0 || lines[0] != "note: policy.yaml:3: nodeFit is no field" {
		t.Errorf("told %q, %v", lines, err)
	}
}

// TestWhatCannotBeReadIsAnError verifies that Run fails if a kind cannot be listed: moves could not
// be proved without its objects.
func TestWhatCannotBeReadIsAnError(t *testing.T) {
	a := newAPI(t)
	a.Refuse("persistentvolumes", http.StatusForbidden)
	client := kubernetes.NewForConfigOrDie(a.Config)
	m := movecontroller.New(client, eventlog.New(client, "test"), movecontroller.Options{Policy: func(policy.Priorities) (*rebalance.Policy, error) { return &rebalance.Policy{}, nil }})
	if err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "persistentvolumes cannot be listed") {
		t.Errorf("%v, want that persistentvolumes cannot be listed", err)
	}
}

// drain drains node a.
func (a *api) drain(t *testing.T) (lines []string, done execute.DrainDone) {
	t.Helper()
	configuration, err := config.Default(config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	options := execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a"}}}
	drainer := movecontroller.NewDrainer(kubernetes.NewForConfigOrDie(a.Config), configuration.Profiles, options, func(a execute.DrainProgress) {
		lines = append(lines, string(a.Result))
		if a.Result == execute.Unreserved {
			lines = append(lines, a.Message)
		}
	}, func(a execute.DrainDone) { done = a; cancel() })
	if err := drainer.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if done.Stopped != "" || done.Evicted != 1 || done.Left != 0 {
		t.Errorf("done %+v, want one pod evicted; told %v", done, lines)
	}
	return lines, done
}

// TestADrainCordonsBeforeItEvicts verifies that nodes are cordoned first, and that the drain ends
// when the pod is deleted and its successor scheduled.
func TestADrainCordonsBeforeItEvicts(t *testing.T) {
	a := newAPI(t)
	a.drain(t)
	want := []string{"PATCH /api/v1/nodes/a", "POST /api/v1/namespaces/default/pods/web-1/eviction"}
	if !slices.Equal(a.writes, want) {
		t.Errorf("written %q, want %q", a.writes, want)
	}
}

// TestADrainHasTheRoomOfTheSuccessorKept verifies that a drain reserves room for the successor
// before the eviction, and releases the reservation in the end.
func TestADrainHasTheRoomOfTheSuccessorKept(t *testing.T) {
	a := newAPI(t)
	a.evicted = func() {
		if len(a.rooms) != 1 {
			t.Errorf("when the pod is evicted the Lease has shown %q, want its successor's room", a.rooms)
		}
	}
	a.drain(t)
	a.kept(t)
}

// TestTheRoomOfAnotherProcessIsLeftAlone verifies that a drain does not release a newer reservation
// of another process.
func TestTheRoomOfAnotherProcessIsLeftAlone(t *testing.T) {
	a := newAPI(t)
	a.evicted = func() { a.rooms = append(a.rooms, "another's") }
	a.drain(t)
	if shown := last(a.rooms); shown != "another's" {
		t.Errorf("the Lease has shown %q", a.rooms)
	}
}

// TestThatNoRoomIsKeptIsSaid verifies that a drain continues if the Lease cannot be written, and
// reports it once.
func TestThatNoRoomIsKeptIsSaid(t *testing.T) {
	a := newAPI(t)
	a.leases = http.StatusForbidden
	lines, _ := a.drain(t)
	said := slices.IndexFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "no room is kept for successors: the Lease kube-system/berth-rebalance cannot be written: ")
	})
	if said < 0 || strings.Count(strings.Join(lines, " "), string(execute.Unreserved)) != 1 {
		t.Errorf("told %q", lines)
	}
	if len(a.writes) != 2 {
		t.Errorf("written %q, want that the node is drained all the same", a.writes)
	}
}

// TestWhereAnotherSchedulerPlacesThatIsSaid verifies that another scheduler is detected from the
// name of the field manager that renews the leader-election Lease, and is reported.
func TestWhereAnotherSchedulerPlacesThatIsSaid(t *testing.T) {
	for program, want := range map[string]bool{"kube-scheduler": true, "berth": false} {
		a := newAPI(t)
		a.leader = program
		lines, _ := a.drain(t)
		is := slices.Contains(lines, "no room is kept for successors: "+program+" places pods (by the Lease kube-system/kube-scheduler); each arrival is checked")
		if is != want {
			t.Errorf("%s: told %q", program, lines)
		}
		a = newAPI(t)
		a.leader = program
		if _, done := a.move(t); done.Moves != 1 || slices.Contains(a.said, execute.Unreserved) != want {
			t.Errorf("%s: said %v, done %+v", program, a.said, done)
		}
	}
}
