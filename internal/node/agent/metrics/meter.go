package metrics

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/agent/volumes/sizes"
)

const (
	// walkLimit bounds a walk through a pod's files. What it has counted by then is the pod's size.
	walkLimit = time.Minute
	// fresh sizes are not measured again.
	fresh = 5 * time.Second
	// share is the part of the time that walks through one pod may take: after a walk of six
	// seconds the next begins a minute later.
	share = 10
	// walkers is how many pods are walked through at once. More would only compete for the disk.
	walkers = 2
	// soon is how long to wait for a new size of a pod that was measured before; after that the old
	// one is used.
	soon = time.Second
)

// podDisk is what a pod has on disk, except for what is written into its containers' root
// filesystems, which the runtime knows.
type podDisk struct {
	logs    map[string]size // by container
	volumes []sizes.Usage
}

// meter measures pods' files in the background, and keeps the results: a walk through hundreds of
// thousands of files takes longer than callers can wait.
type meter struct {
	ctx     context.Context
	walk    func(context.Context, *v1.Pod) podDisk
	walkers chan struct{}

	mu    sync.Mutex
	known map[types.UID]*measurement
}

// measurement of a pod.
type measurement struct {
	found podDisk
	// ended is when the last walk ended; zero: there was none. The next may begin at next.
	ended, next time.Time
	// walking is closed when the current walk ends; nil: there is none.
	walking chan struct{}
}

// newMeter walks until ctx ends.
func newMeter(ctx context.Context, walk func(context.Context, *v1.Pod) podDisk) *meter {
	return &meter{ctx: ctx, walk: walk, walkers: make(chan struct{}, walkers), known: map[types.UID]*measurement{}}
}

// of returns the sizes of these pods, and forgets others. A pod that was never measured is waited
// for until ctx ends, and then left out.
func (m *meter) of(ctx context.Context, pods []*v1.Pod) map[types.UID]podDisk {
	under := m.begin(pods)
	patience, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for uid, walking := range under {
		until := ctx
		if m.measured(uid) {
			until = patience
		}
		select {
		case <-walking:
		case <-until.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	sizes := map[types.UID]podDisk{}
	for _, pod := range pods {
		if one := m.known[pod.UID]; one != nil && !one.ended.IsZero() {
			sizes[pod.UID] = one.found
		}
	}
	return sizes
}

func (m *meter) measured(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.known[uid]
	return one != nil && !one.ended.IsZero()
}

// begin starts the walks that are due, and returns those in progress. Pods that are not in the list
// are forgotten.
func (m *meter) begin(pods []*v1.Pod) map[types.UID]<-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	listed, under := map[types.UID]bool{}, map[types.UID]<-chan struct{}{}
	for _, pod := range pods {
		listed[pod.UID] = true
		one := m.known[pod.UID]
		if one == nil {
			one = &measurement{}
			m.known[pod.UID] = one
		}
		if one.walking == nil && !now.Before(one.next) {
			one.walking = make(chan struct{})
			go m.measure(pod, one)
		}
		if one.walking != nil {
			under[pod.UID] = one.walking
		}
	}
	for uid, one := range m.known {
		if !listed[uid] && one.walking == nil {
			delete(m.known, uid)
		}
	}
	return under
}

func (m *meter) measure(pod *v1.Pod, one *measurement) {
	m.walkers <- struct{}{}
	began := time.Now()
	ctx, cancel := context.WithTimeout(m.ctx, walkLimit)
	found := m.walk(ctx, pod)
	cancel()
	<-m.walkers
	m.mu.Lock()
	defer m.mu.Unlock()
	one.found, one.ended = found, time.Now()
	one.next = one.ended.Add(max(fresh, (share-1)*one.ended.Sub(began)))
	close(one.walking)
	one.walking = nil
}
