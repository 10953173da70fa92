package metrics

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/agent/volumes/sizes"
)

// slowDisk has pods that take their time to be walked through, each walk longer by one byte than
// the last.
type slowDisk struct {
	takes map[types.UID]time.Duration
	walks map[types.UID]int
}

func (d *slowDisk) walk(ctx context.Context, pod *v1.Pod) podDisk {
	d.walks[pod.UID]++
	found := podDisk{volumes: []sizes.Usage{{Used: int64(d.walks[pod.UID])}}}
	select {
	case <-time.After(d.takes[pod.UID]):
	case <-ctx.Done():
		found.volumes[0].Used = -1 // what was seen until then
	}
	return found
}

func podsNamed(uids ...types.UID) (pods []*v1.Pod) {
	for _, uid := range uids {
		pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
	}
	return pods
}

// ask for the sizes of pods, and say how long that took.
func ask(t *testing.T, m *meter, uids ...types.UID) (map[types.UID]int64, time.Duration) {
	t.Helper()
	began := time.Now()
	sizes := map[types.UID]int64{}
	for uid, disk := range m.of(t.Context(), podsNamed(uids...)) {
		sizes[uid] = disk.volumes[0].Used
	}
	return sizes, time.Since(began)
}

func TestSizesAreRememberedAndWalksAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{takes: map[types.UID]time.Duration{"large": 20 * time.Second}, walks: map[types.UID]int{}}
		m := newMeter(t.Context(), disk.walk)
		if sizes, took := ask(t, m, "large", "small"); took != 20*time.Second || sizes["large"] != 1 || sizes["small"] != 1 {
			t.Errorf("first %v after %s, want both pods once the large one was walked through", sizes, took)
		}
		if sizes, took := ask(t, m, "large", "small"); took != 0 || sizes["large"] != 1 {
			t.Errorf("at once again %v after %s, want what is known, at once", sizes, took)
		}
		time.Sleep(10 * time.Second)
		if sizes, _ := ask(t, m, "large", "small"); sizes["large"] != 1 || sizes["small"] != 3 {
			t.Errorf("10s later %v, want the small pod measured for the third time, and not the large one", sizes)
		}
		time.Sleep(3 * time.Minute)
		if sizes, took := ask(t, m, "large", "small"); took != soon || sizes["large"] != 1 || disk.walks["large"] != 2 {
			t.Errorf("3m later %v after %s, want the large pod's old size after %s, and a walk under way", sizes, took, soon)
		}
		time.Sleep(20 * time.Second)
		if sizes, took := ask(t, m, "large"); took != 0 || sizes["large"] != 2 {
			t.Errorf("after that walk %v after %s", sizes, took)
		}
		if len(m.known) != 1 {
			t.Errorf("%d pods are remembered, want the one that is still there", len(m.known))
		}
	})
}

// A walk that does not end is ended, and what it has seen is the size.
func TestWalksHaveALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{takes: map[types.UID]time.Duration{"endless": time.Hour}, walks: map[types.UID]int{}}
		if sizes, took := ask(t, newMeter(t.Context(), disk.walk), "endless"); took != walkLimit || sizes["endless"] != -1 {
			t.Errorf("%v after %s, want what was seen in %s", sizes, took, walkLimit)
		}
	})
}
