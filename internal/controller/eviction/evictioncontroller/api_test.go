// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// api is an API server that records the requests of an Evictor for its pods.
type api struct {
	*fakeapi.Server
	t *testing.T

	mu       sync.Mutex
	hang     bool           // deletes get no response
	slow     time.Duration  // delay of deletes by a webhook
	refuse   map[string]int // number of deletes refused by a webhook, by pod
	busy     int            // number of requests for single pods in flight
	mostBusy int
	deleted  map[string]time.Time // time of deletion, by the name of the pod
}

func newAPI(t *testing.T) *api {
	a := &api{Server: fakeapi.New(), t: t, refuse: map[string]int{}, deleted: map[string]time.Time{}}
	a.repair()
	return a
}

func (a *api) client() kubernetes.Interface { return fakeapi.ClientOf(a) }

// RoundTrip counts the requests in flight for single pods, and checks that deleted pods were
// marked.
func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.Path, "/pods/") {
		return a.Server.RoundTrip(r)
	}
	a.locked(func() {
		a.busy++
		a.mostBusy = max(a.mostBusy, a.busy)
	})
	defer a.locked(func() { a.busy-- })
	if r.Method == http.MethodDelete {
		a.checkMarked(path.Base(r.URL.Path))
		defer a.noteDeleted(path.Base(r.URL.Path))
	}
	return a.Server.RoundTrip(r)
}

// noteDeleted records the current time as the time of deletion if the pod no longer exists.
func (a *api) noteDeleted(name string) {
	if slices.ContainsFunc(a.Pods(), func(p *v1.Pod) bool { return p.Name == name }) {
		return
	}
	a.locked(func() {
		if a.deleted[name].IsZero() {
			a.deleted[name] = time.Now()
		}
	})
}

// deletedAt returns the time recorded by noteDeleted.
func (a *api) deletedAt(name string) (at time.Time) {
	a.locked(func() { at = a.deleted[name] })
	return at
}

// checkMarked checks that a pod to be deleted has the DisruptionTarget condition.
func (a *api) checkMarked(name string) {
	for _, p := range a.Pods() {
		if p.Name == name && !slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.DisruptionTarget && (c.Reason == eviction.Reason || c.Reason == eviction.DeviceReason)
		}) {
			a.t.Errorf("pod %s deleted without its condition", name)
		}
	}
}

// fault delays every request, so that requests overlap. It also makes deletes fail, slow or hang as
// configured.
func (a *api) fault(r *http.Request) fakeapi.Fault {
	f := fakeapi.Fault{Late: 5 * time.Millisecond}
	if r.Method != http.MethodDelete {
		return f
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if name := path.Base(r.URL.Path); a.refuse[name] > 0 {
		a.refuse[name]--
		f.Status = http.StatusForbidden
	}
	f.Late += a.slow
	if a.hang {
		f.Late = time.Hour
	}
	return f
}

func (a *api) locked(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
}

func (a *api) addNode(name string, taints ...v1.Taint) {
	now := metav1.Now()
	a.Put(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "kubectl-taint", Time: &now, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`)},
		}},
		Spec: v1.NodeSpec{Taints: taints},
	})
}

func (a *api) podsOn(node string) (count int) {
	for _, p := range a.Pods() {
		if p.Spec.NodeName == node {
			count++
		}
	}
	return count
}

// fill makes a node with pods.
func (a *api) fill(node string, pods int) {
	a.addNode(node)
	for i := range pods {
		a.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%d", node, i)}, Spec: v1.PodSpec{NodeName: node}})
	}
}

// breakDown cuts every connection and refuses new ones; repair ends it.
func (a *api) breakDown() {
	a.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Lost: true} })
	a.Cut("pods", false)
	a.Cut("nodes", false)
}

func (a *api) repair() { a.SetFault(a.fault) }
