// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// Crowd is a fake API server with nodes, pods and events. It serves the paged lists and the watches
// that the dashboard and its queries need. It forbids and records all requests other than GET, and
// requests for secrets.
type Crowd struct {
	Nodes []*v1.Node
	Pods  []*v1.Pod
	// Other holds lists of further kinds by resource. They do not change.
	Other map[string]any

	mu      sync.Mutex
	events  []*v1.Event
	version int
	log     []change
	changed chan struct{}
	server  *httptest.Server
	wrote   []string
}

type change struct {
	version  int
	resource string
	line     []byte
}

// NewCrowd returns a crowd with the given numbers of nodes, zones and pods. Nodes and pods are
// evenly distributed.
func NewCrowd(nodes, zones, pods int) *Crowd {
	c := &Crowd{version: 1, changed: make(chan struct{})}
	for i := range nodes {
		c.Nodes = append(c.Nodes, c.node(i, zones))
	}
	for i := range pods {
		on := ""
		if nodes > 0 {
			on = c.Nodes[(i*7919)%nodes].Name
		}
		c.Pods = append(c.Pods, c.Pod(i, on))
	}
	c.server = httptest.NewServer(c)
	return c
}

func (c *Crowd) node(i, zones int) *v1.Node {
	name := fmt.Sprintf("node-%d", i+1)
	return &v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name), ResourceVersion: "1", CreationTimestamp: metav1.Now(),
			Labels: map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprintf("z%d", i%zones+1),
				v1.LabelArchStable: "amd64"},
		},
		Status: v1.NodeStatus{
			Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("16"),
				v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110")},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady",
				LastTransitionTime: metav1.Now()}},
		},
	}
}

// Pod returns the i-th pod. It is pending if on, the name of its node, is empty.
func (c *Crowd) Pod(i int, on string) *v1.Pod {
	cpu := resource.NewMilliQuantity(int64(200+i*37%1400), resource.DecimalSI)
	memory := resource.NewQuantity(int64(256+i*61%5000)<<20, resource.BinarySI)
	p := &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("pod-%d", i+1), UID: types.UID(fmt.Sprintf("uid-%d", i+1)),
			ResourceVersion: "1", CreationTimestamp: metav1.Now(),
			Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%50)},
		},
		Spec: v1.PodSpec{
			NodeName: on, SchedulerName: v1.DefaultSchedulerName,
			Containers: []v1.Container{{Name: "c", Image: "image", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: *cpu, v1.ResourceMemory: *memory},
			}}},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning},
	}

	if on == "" {
		p.Status = v1.PodStatus{Phase: v1.PodPending, Conditions: []v1.PodCondition{{
			Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable,
			Message: fmt.Sprintf("0/%d nodes are available: %d Insufficient cpu. preemption: none helps.", len(c.Nodes), len(c.Nodes)),
		}}}
	}
	return p
}

// Close stops the server.
func (c *Crowd) Close() {
	c.server.CloseClientConnections()
	c.server.Close()
}

// Kubeconfig writes a kubeconfig for the server to a folder and returns its path.
func (c *Crowd) Kubeconfig(folder string) (string, error) {
	file := path.Join(folder, "crowd.kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}]}`, c.server.URL)
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// Wrote returns the forbidden requests.
func (c *Crowd) Wrote() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrote
}

// SetNode changes the i-th node.
func (c *Crowd) SetNode(i int, edit func(*v1.Node)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.Nodes[i].DeepCopy()
	edit(n)
	c.Nodes[i] = n
	c.note("nodes", "MODIFIED", n)
}

// SetPod replaces the i-th pod. If i is the number of pods, SetPod adds the pod.
func (c *Crowd) SetPod(i int, p *v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := "MODIFIED"
	if i == len(c.Pods) {
		c.Pods = append(c.Pods, nil)
		kind = "ADDED"
	}
	c.Pods[i] = p
	c.note("pods", kind, p)
}

// Happen adds an event.
func (c *Crowd) Happen(e *v1.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	c.events = append(c.events, e)
	c.note("events", "ADDED", e)
}

func (c *Crowd) note(resource, kind string, object metav1.Object) {
	c.version++
	object.SetResourceVersion(strconv.Itoa(c.version))
	line, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		panic(err) // cannot happen: the object is plain data
	}
	c.log = append(c.log, change{c.version, resource, append(line, '\n')})
	close(c.changed)
	c.changed = make(chan struct{})
}

// ServeHTTP implements http.Handler.
func (c *Crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := path.Base(r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	if r.Method != http.MethodGet || strings.Contains(r.URL.Path, "secrets") {
		c.mu.Lock()
		c.wrote = append(c.wrote, r.Method+" "+r.URL.Path)
		c.mu.Unlock()
		w.WriteHeader(http.StatusForbidden)
		return
	}
	if r.URL.Query().Get("watch") != "" {
		c.watch(w, r, name)
		return
	}
	c.list(w, r, name)
}

func (c *Crowd) list(w http.ResponseWriter, r *http.Request, resource string) {
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	c.mu.Lock()
	items, kind, more := page(c, resource, from, limit)
	version := c.version
	c.mu.Unlock()
	if kind == "" {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
		return
	}
	apiVersion := "v1"
	if parts := strings.Split(r.URL.Path, "/"); parts[1] == "apis" {
		apiVersion = parts[2] + "/" + parts[3]
	}
	if list := listOf(items); list != nil && strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		l := list.(metav1.ListInterface)
		if l.SetResourceVersion(strconv.Itoa(version)); more > 0 {
			l.SetContinue(strconv.Itoa(more))
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, w)
		return
	}
	meta := map[string]any{"resourceVersion": strconv.Itoa(version)}
	if more > 0 {
		meta["continue"] = strconv.Itoa(more)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind + "List", "apiVersion": apiVersion, "metadata": meta, "items": items})
}

// listOf returns the list of nodes or pods that an API server encodes; nil for other items.
func listOf(items any) runtime.Object {
	switch items := items.(type) {
	case []*v1.Node:
		list := &v1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
		for _, n := range items {
			list.Items = append(list.Items, *n)
		}
		return list
	case []*v1.Pod:
		list := &v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		for _, p := range items {
			list.Items = append(list.Items, *p)
		}
		return list
	}
	return nil
}

func page(c *Crowd, resource string, from, limit int) (items any, kind string, more int) {
	switch resource {
	case "nodes":
		part, more := cut(c.Nodes, from, limit)
		return part, "Node", more
	case "pods":
		part, more := cut(c.Pods, from, limit)
		return part, "Pod", more
	case "events":
		part, more := cut(c.events, from, limit)
		return part, "Event", more
	}
	kind = map[string]string{"deployments": "Deployment", "poddisruptionbudgets": "PodDisruptionBudget", "resourceslices": "ResourceSlice",
		"resourceclaims": "ResourceClaim", "leases": "Lease", "podgroups": "PodGroup"}[resource]
	if items = c.Other[resource]; items == nil {
		kind = ""
	}
	return items, kind, 0
}

// cut returns a page of a list, and the start of the next page, or 0. A page may be read without
// the lock, because items are replaced when they change, and never modified.
func cut[T any](list []T, from, limit int) ([]T, int) {
	from = min(from, len(list))
	to := len(list)
	if limit > 0 && from+limit < to {
		to = from + limit
	}
	part := append([]T{}, list[from:to]...)
	if to == len(list) {
		return part, 0
	}
	return part, to
}

func (c *Crowd) watch(w http.ResponseWriter, r *http.Request, resource string) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	flusher := w.(http.Flusher)
	flusher.Flush()
	next := 0
	for {
		c.mu.Lock()
		news, changed := c.log[next:len(c.log):len(c.log)], c.changed
		next = len(c.log)
		c.mu.Unlock()
		for _, n := range news {
			if n.resource == resource && n.version > from {
				if _, err := w.Write(n.line); err != nil {
					return
				}
			}
		}

		flusher.Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-time.After(time.Minute):
		}
	}
}
