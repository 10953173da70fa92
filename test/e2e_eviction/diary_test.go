// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/kube/feed"
)

// diary records the times at which pods leave, from a watch that does not pass the proxy.
type diary struct {
	mu    sync.Mutex         // guards the fields below
	there map[types.UID]bool // pods that have not left; false if the current list has not shown the pod yet
	left  map[types.UID]time.Time
	news  chan struct{} // closed and replaced whenever a pod leaves
}

func newDiary(t testing.TB, client kubernetes.Interface) *diary {
	d := &diary{there: map[types.UID]bool{}, left: map[types.UID]time.Time{}, news: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() {
		feed.Run(ctx, feed.Of(client.CoreV1().RESTClient(), "default", "pods", func() runtime.Object { return &v1.PodList{} }), feed.Sink{
			Listing: d.listing,
			Listed:  d.listed,
			Seen: func(o runtime.Object) {
				pod := o.(*v1.Pod)
				d.seen(pod.UID, pod.DeletionTimestamp == nil)
			},
			Gone: func(o runtime.Object) { d.seen(o.(*v1.Pod).UID, false) },
		})
	})
	return d
}

func (d *diary) listing() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid := range d.there {
		d.there[uid] = false
	}
}

func (d *diary) listed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid, seen := range d.there {
		if !seen {
			d.note(uid)
		}
	}
}

func (d *diary) seen(uid types.UID, there bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if there {
		d.there[uid] = true
		return
	}
	d.note(uid)
}

// note records that a pod has left. The caller must hold mu.
func (d *diary) note(uid types.UID) {
	delete(d.there, uid)
	if d.left[uid].IsZero() {
		d.left[uid] = time.Now()
		close(d.news)
		d.news = make(chan struct{})
	}
}

// when returns the time at which the pod left, or zero. The channel is closed when the next pod
// leaves.
func (d *diary) when(uid types.UID) (time.Time, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.left[uid], d.news
}

// leavesBy waits until the pod leaves or the time has come, and reports whether the pod has left.
func (d *diary) leavesBy(uid types.UID, end time.Time) bool {
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	for {
		at, news := d.when(uid)
		if !at.IsZero() {
			return true
		}
		select {
		case <-news:
		case <-timer.C:
			return false
		}
	}
}
