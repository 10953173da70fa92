package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

func about(pod string) v1.ObjectReference {
	return v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: pod, UID: "u-1"}
}

// TestNoEventIsDroppedForBeingOneOfMany adds as many as a zone has pods, faster
// than they can be written; client-go's broadcaster would keep a thousand.
func TestNoEventIsDroppedForBeingOneOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 5000
		var written atomic.Int64
		client := &fake.Clientset{}
		client.AddReactor("create", "events", func(a ktesting.Action) (bool, runtime.Object, error) {
			written.Add(1)
			return true, a.(ktesting.CreateAction).GetObject(), nil
		})
		log := New(client, "taint-eviction-controller")
		for i := range many {
			log.Add(about(fmt.Sprintf("p-%d", i)), v1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		began := time.Now()
		go func() { defer close(ended); log.Run(ctx) }()
		for written.Load() < many {
			if time.Since(began) > time.Hour {
				t.Fatalf("%d of %d written", written.Load(), many)
			}
			time.Sleep(5 * time.Second)
		}
		if took := time.Since(began); took < (many-2*perSecond)/perSecond*time.Second {
			t.Errorf("written in %v, faster than %d a second", took, perSecond)
		}
		cancel()
		<-ended
	})
}

// TestEventIsWrittenInSpiteOfAFailure, and names the object by UID, so that
// kubectl describe finds it.
func TestEventIsWrittenInSpiteOfAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		fails := 2
		client.PrependReactor("create", "events", func(ktesting.Action) (bool, runtime.Object, error) {
			fails--
			return fails >= 0, nil, errors.New("not now")
		})
		log := New(client, "node-controller")
		log.Add(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: "n", UID: "u"}, v1.EventTypeNormal, "NodeNotReady", "Node n status is now: NodeNotReady")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); log.Run(ctx) }()
		time.Sleep(time.Minute)
		list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("%v, %d events, want 1", err, len(list.Items))
		}
		if e := list.Items[0]; e.InvolvedObject.UID != "u" || e.Source.Component != "node-controller" || e.Count != 1 {
			t.Errorf("event %+v", e)
		}
		cancel()
		<-ended
	})
}

// TestRepeatedEventIsCounted, not written again.
func TestRepeatedEventIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		log := New(client, "taint-eviction-controller")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); log.Run(ctx) }()
		for range 3 {
			log.Add(about("p"), v1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod default/p")
			time.Sleep(time.Second)
		}
		list, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].Count != 3 {
			t.Errorf("%v, %+v, want one event that counts 3", err, list.Items)
		}
		cancel()
		<-ended
	})
}
