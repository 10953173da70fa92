package live

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// api is as much of an API server as an Evictor talks to, over real HTTP.
type api struct {
	*httptest.Server
	t  *testing.T
	mu sync.Mutex // guards what follows

	version  int
	nodes    map[string]*v1.Node
	pods     map[string]*v1.Pod
	watchers map[chan metav1.WatchEvent]string // what they watch, "nodes" or "pods"
	down     bool                              // every request fails, watches are cut
	hang     chan struct{}                     // if set, deletes wait for it
	refuse   map[string]int                    // deletes of a pod that a webhook refuses
	busy     int                               // requests for pods that are being answered
	mostBusy int
	foreign  []string // deletes whose UID was not the pod's
}

func newAPI(t *testing.T) *api {
	a := &api{
		t: t, nodes: map[string]*v1.Node{}, pods: map[string]*v1.Pod{},
		watchers: map[chan metav1.WatchEvent]string{}, refuse: map[string]int{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) { a.list(w, r, "nodes") })
	mux.HandleFunc("GET /api/v1/pods", func(w http.ResponseWriter, r *http.Request) { a.list(w, r, "pods") })
	mux.HandleFunc("GET /api/v1/nodes/{name}", a.getNode)
	mux.HandleFunc("GET /api/v1/namespaces/default/pods/{name}", a.forPod(a.getPod))
	mux.HandleFunc("PATCH /api/v1/namespaces/default/pods/{name}/status", a.forPod(a.patchPod))
	mux.HandleFunc("DELETE /api/v1/namespaces/default/pods/{name}", a.forPod(a.deletePod))
	mux.HandleFunc("POST /api/v1/namespaces/default/events", func(w http.ResponseWriter, r *http.Request) {
		a.answer(w, http.StatusCreated, &v1.Event{})
	})
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		down := a.down
		a.mu.Unlock()
		if down {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *api) client() kubernetes.Interface {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	a.t.Cleanup(transport.CloseIdleConnections)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: a.URL, QPS: -1, Transport: transport})
}

func (a *api) locked(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
}

// changed tells the watchers, under mu.
func (a *api) changed(kind, what string, o runtime.Object, meta *metav1.ObjectMeta) {
	a.version++
	meta.ResourceVersion = strconv.Itoa(a.version)
	raw, err := json.Marshal(o)
	if err != nil {
		a.t.Error(err)
	}
	for watcher, watched := range a.watchers {
		if watched == kind {
			watcher <- metav1.WatchEvent{Type: what, Object: runtime.RawExtension{Raw: raw}}
		}
	}
}

func (a *api) addNode(name string, taints ...v1.Taint) {
	a.locked(func() {
		what := "ADDED"
		n := a.nodes[name]
		if n == nil {
			n = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
			a.nodes[name] = n
		} else {
			what = "MODIFIED"
		}
		n.Spec.Taints = taints
		now := metav1.Now()
		n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl-taint", Time: &now, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`)}}
		a.changed("nodes", what, n, &n.ObjectMeta)
	})
}

func (a *api) addPod(name, node string) {
	a.locked(func() {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.Now()}, Spec: v1.PodSpec{NodeName: node}}
		p.UID = types.UID(fmt.Sprintf("%s-%d", name, a.version))
		a.pods[name] = p
		a.changed("pods", "ADDED", p, &p.ObjectMeta)
	})
}

func (a *api) podsLeft() (left int) {
	a.locked(func() { left = len(a.pods) })
	return left
}

// breakDown cuts every connection and refuses new ones; repair ends it.
func (a *api) breakDown() {
	a.locked(func() {
		a.down = true
		for watcher := range a.watchers {
			close(watcher)
			delete(a.watchers, watcher)
		}
	})
}

func (a *api) repair() { a.locked(func() { a.down = false }) }

func (a *api) answer(w http.ResponseWriter, status int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(o); err != nil {
		a.t.Logf("answer: %v", err)
	}
}

func (a *api) fail(w http.ResponseWriter, status int, reason metav1.StatusReason) {
	a.answer(w, status, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(status), Reason: reason, Message: string(reason),
	})
}

func (a *api) list(w http.ResponseWriter, r *http.Request, kind string) {
	if r.URL.Query().Get("watch") != "" {
		a.watch(w, r, kind)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	version := metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}
	if kind == "nodes" {
		list := v1.NodeList{ListMeta: version}
		for _, n := range a.nodes {
			list.Items = append(list.Items, *n)
		}
		a.answer(w, http.StatusOK, list)
		return
	}
	list := v1.PodList{ListMeta: version}
	for _, p := range a.pods {
		list.Items = append(list.Items, *p)
	}
	a.answer(w, http.StatusOK, list)
}

// watch shows changes from now on; a watch that asks for more has to list.
func (a *api) watch(w http.ResponseWriter, r *http.Request, kind string) {
	events := make(chan metav1.WatchEvent, 10_000)
	a.mu.Lock()
	if r.URL.Query().Get("resourceVersion") != strconv.Itoa(a.version) {
		a.mu.Unlock()
		a.fail(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	a.watchers[events] = kind
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	encoder := json.NewEncoder(w)
	for {
		select {
		case <-r.Context().Done():
			a.locked(func() { delete(a.watchers, events) })
			return
		case event, open := <-events:
			if !open {
				panic(http.ErrAbortHandler)
			}
			if encoder.Encode(event) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func (a *api) getNode(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.nodes[r.PathValue("name")]; n != nil {
		a.answer(w, http.StatusOK, n)
		return
	}
	a.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
}

// forPod counts what is being answered, and finds the pod.
func (a *api) forPod(do func(http.ResponseWriter, *http.Request, *v1.Pod)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var hang chan struct{}
		a.locked(func() {
			a.busy++
			a.mostBusy = max(a.mostBusy, a.busy)
			if r.Method == http.MethodDelete {
				hang = a.hang
			}
		})
		if hang != nil {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.busy--
		if p := a.pods[r.PathValue("name")]; p != nil {
			do(w, r, p)
			return
		}
		a.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

func (a *api) getPod(w http.ResponseWriter, _ *http.Request, p *v1.Pod) {
	a.answer(w, http.StatusOK, p)
}

func (a *api) patchPod(w http.ResponseWriter, r *http.Request, p *v1.Pod) {
	var patch struct{ Metadata metav1.ObjectMeta }
	var body json.RawMessage
	if json.NewDecoder(r.Body).Decode(&body) != nil || json.Unmarshal(body, &patch) != nil {
		a.fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	if patch.Metadata.UID != p.UID || patch.Metadata.ResourceVersion != "" && patch.Metadata.ResourceVersion != p.ResourceVersion {
		a.fail(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	before, err := json.Marshal(p)
	if err != nil {
		a.t.Error(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, body, v1.Pod{})
	if err != nil || json.Unmarshal(after, p) != nil {
		a.t.Errorf("patch %s: %v", body, err)
	}
	a.changed("pods", "MODIFIED", p, &p.ObjectMeta)
	a.answer(w, http.StatusOK, p)
}

func (a *api) deletePod(w http.ResponseWriter, r *http.Request, p *v1.Pod) {
	var options metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil || options.Preconditions == nil || options.Preconditions.UID == nil {
		a.t.Errorf("delete without UID: %v", err)
		return
	}
	switch {
	case *options.Preconditions.UID != p.UID:
		a.foreign = append(a.foreign, p.Name)
		a.fail(w, http.StatusConflict, metav1.StatusReasonConflict)
	case a.refuse[p.Name] > 0:
		a.refuse[p.Name]--
		a.fail(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	default:
		marked := false
		for _, c := range p.Status.Conditions {
			marked = marked || c.Type == v1.DisruptionTarget && strings.HasPrefix(c.Reason, "DeletionByTaint")
		}
		if !marked {
			a.t.Errorf("pod %s deleted without its condition", p.Name)
		}
		delete(a.pods, p.Name)
		a.changed("pods", "DELETED", p, &p.ObjectMeta)
		a.answer(w, http.StatusOK, p)
	}
}
