package metrics

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/agent/volumes"
)

const (
	// walkLimit ends a walk through a pod's files; what it has counted until then is the pod's
	// size.
	walkLimit = time.Minute
	// fresh sizes are not measured again.
	fresh = 5 * time.Second
	// share of the time that walks through one pod may take: after one of six seconds the next
	// begins a minute later.
	share = 10
	// walkers are how many pods are walked through at once. More would only keep the disk from
	// others.
	walkers = 2
	// soon is how long a pod that was measured before is waited for; then its old size is taken.
	soon = time.Second
)

// podDisk is what a pod has on disk, but for what is written into its containers' root filesystems,
// which the runtime knows.
type podDisk struct {
	logs    map[string]size // by container
	volumes []volumes.Usage
}

// meter measures pods' files aside, and remembers what it found: a walk through hundreds of
// thousands of files takes longer than those who ask can wait.
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
	// ended is when the last walk did; zero: there was none. The next may begin at next.
	ended, next time.Time
	// walking is closed when the walk that is under way ends; nil: none is.
	walking chan struct{}
}

// newMeter walks until ctx ends.
func newMeter(ctx context.Context, walk func(context.Context, *v1.Pod) podDisk) *meter {
	return &meter{ctx: ctx, walk: walk, walkers: make(chan struct{}, walkers), known: map[types.UID]*measurement{}}
}

// of these pods, the sizes, and no others are remembered. A pod that was never measured is waited
// for until ctx ends, and left out then.
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

// begin the walks that are due, and return those under way. Pods that are not in the list are
// forgotten.
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
