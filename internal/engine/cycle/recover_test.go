package cycle

import (
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// panics is an out-of-tree plugin that panics for one pod.
type panics struct{}

func (panics) Name() string { return "Panics" }
func (panics) Begin(a *Attempt) {
	if a.Pod.Name == "bad" {
		panic("index out of range")
	}
}

// TestAPanicCostsItsPodTheAttempt and nobody else anything: the pod is told why and backs off to the end, others are placed.
func TestAPanicCostsItsPodTheAttempt(t *testing.T) {
	w := newWorld(1, Options{Profiles: []Profile{profileWith(panics{})}})
	w.putNode(aNode("n", "4"))
	w.deliver(Nodes)
	for _, name := range []string{"bad", "good"} {
		w.put(aPod(name, "1"))
		w.deliver(Pods)
	}
	said := w.tell(Tick{})
	for _, want := range []string{
		"panic while default/bad was decided: index out of range",
		"FailedScheduling of default/bad: internal error while the pod was decided: index out of range",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("does not say %q:\n%s", want, said)
		}
	}
	if item := w.core.queue.Get("uid-bad"); item == nil || item.Place() != queue.Backoff || !item.Ready().After(w.now) {
		t.Errorf("the pod is %+v", item)
	}
	if said := w.tell(Tick{}); !strings.Contains(said, "bind default/good to n") {
		t.Errorf("the other pod: %q", said)
	}
	if wake := w.core.Wake(w.now); !wake.After(w.now) {
		t.Error("it is tried again at once")
	}
}
