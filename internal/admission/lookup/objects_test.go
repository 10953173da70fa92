// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func filled(t *testing.T, objects ...runtime.Object) (*fake.Clientset, *Caches) {
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	caches := NewCaches(client, factory)
	if _, err := caches.For(t.Context()).Namespace("default"); err != ErrCold {
		t.Errorf("a cold cache answers: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return client, caches
}

// TestWhatTheCacheDoesNotKnowIsLookedUp verifies that uncached objects are looked up at the API
// server, here after the watches have stopped.
func TestWhatTheCacheDoesNotKnowIsLookedUp(t *testing.T) {
	client, caches := filled(t, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	known := false
	client.PrependReactor("get", "priorityclasses", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if name := action.(clienttesting.GetAction).GetName(); known && name == "new" {
			return true, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: 7}, nil
		}
		return false, nil, nil
	})
	objects := caches.For(t.Context())
	if class, err := objects.PriorityClass("new"); class != nil || err != nil {
		t.Errorf("a class that is not there: %v, %v", class, err)
	}
	asked := len(client.Actions())
	if class, err := objects.PriorityClass("new"); class != nil || err != nil || len(client.Actions()) != asked {
		t.Errorf("looked for at once again: %v, %v", class, err)
	}
	known = true
	caches.absent.Remove("priorityclasses/new") // as if a second had passed
	if class, err := objects.PriorityClass("new"); err != nil || class == nil || class.Value != 7 {
		t.Errorf("a class that the cache has not seen yet: %v, %v", class, err)
	}
	before := len(client.Actions())
	if namespace, err := objects.Namespace("default"); err != nil || namespace == nil || len(client.Actions()) != before {
		t.Errorf("what the cache knows is looked up all the same: %v, %v", namespace, err)
	}
}

func TestNobodyKnowsIsNotThereIsNone(t *testing.T) {
	client, caches := filled(t)
	down := errors.New("connection refused")
	client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, down })
	if _, err := caches.For(t.Context()).RuntimeClass("kata"); !errors.Is(err, down) {
		t.Errorf("a runtime class: %v", err)
	}
	if _, err := caches.Fresh(t.Context()).DefaultPriorityClass(); !errors.Is(err, down) {
		t.Errorf("the default class, looked up: %v", err)
	}
	if class, err := caches.For(t.Context()).DefaultPriorityClass(); class != nil || err != nil {
		t.Errorf("the default class, from the cache: %v, %v", class, err)
	}
}

// TestMadeUpNamesAreFewQuestionsAtOnce verifies that a flood of made-up names causes few concurrent
// queries, and does not delay cached objects.
func TestMadeUpNamesAreFewQuestionsAtOnce(t *testing.T) {
	client, caches := filled(t, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	answer := make(chan struct{})
	var underWay, most atomic.Int64
	look := func(ctx context.Context) error {
		return caches.For(ctx).(objects).look(func(context.Context) error {
			most.Store(max(most.Load(), underWay.Add(1)))
			<-answer
			underWay.Add(-1)
			return nil
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range 100 {
		go func() { ended <- look(ctx) }()
	}
	for underWay.Load() < lookups {
		goruntime.Gosched()
	}
	before := len(client.Actions())
	if namespace, err := caches.For(t.Context()).Namespace("default"); err != nil || namespace == nil || len(client.Actions()) != before {
		t.Errorf("what is known: %v, %v", namespace, err)
	}
	cancel()
	busy := 0
	for range 100 - lookups {
		if errors.Is(<-ended, ErrBusy) {
			busy++
		}
	}
	close(answer)
	for range lookups {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != lookups || busy != 100-lookups {
		t.Errorf("%d looks at once, and %d of 100 were refused as too many", most.Load(), busy)
	}
}

func TestWhatIsNotThereIsRememberedWithinBounds(t *testing.T) {
	_, caches := filled(t)
	for i := range 2 * absentees {
		if class, err := caches.For(t.Context()).RuntimeClass(fmt.Sprint("made-up-", i)); class != nil || err != nil {
			t.Fatal(class, err)
		}
	}
	if kept := len(caches.absent.Keys()); kept > absentees {
		t.Errorf("%d names are remembered", kept)
	}
}

// TestAnUnknownNamespaceIsNotOneWithoutRules verifies that a namespace absent a moment ago is
// looked up again, and that a missing namespace is an error, because it may have an allow-list.
func TestAnUnknownNamespaceIsNotOneWithoutRules(t *testing.T) {
	client, caches := filled(t)
	there := false
	client.PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !there {
			return false, nil, nil
		}
		return true, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new", Annotations: map[string]string{"rules": "some"}}}, nil
	})
	if namespace, err := caches.For(t.Context()).Namespace("new"); namespace != nil || !errors.Is(err, ErrUnknown) {
		t.Errorf("before: %v, %v", namespace, err)
	}
	there = true
	if namespace, err := caches.For(t.Context()).Namespace("new"); err != nil || namespace.Annotations["rules"] != "some" {
		t.Errorf("a moment later: %v, %v", namespace, err)
	}
}
