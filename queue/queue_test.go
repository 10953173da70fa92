package queue

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var epoch = time.Unix(1_700_000_000, 0)

func pod(name string, priority int32) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: &priority}}
}

func pop(t *testing.T, q *Queue, now time.Time, want string) *Item {
	t.Helper()
	item := q.Pop(now)
	got := "nothing"
	if item != nil {
		got = item.Pod.Name
	}
	if got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	return item
}

func TestPriorityThenAge(t *testing.T) {
	q := New()
	q.Set(pod("young", 0), false, epoch.Add(time.Second))
	q.Set(pod("old", 0), false, epoch)
	q.Set(pod("important", 5), false, epoch.Add(2*time.Second))
	for _, want := range []string{"important", "old", "young", "nothing"} {
		pop(t, q, epoch.Add(3*time.Second), want)
	}
}

func TestRejectedPodWaitsForWhatCanHelp(t *testing.T) {
	q := New()
	q.Set(pod("p", 0), false, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"TaintToleration"}, epoch)
	later := epoch.Add(time.Minute)
	q.Happened(PodRemoved, later)
	pop(t, q, later, "nothing")
	q.Happened(NodeChanged, later)
	pop(t, q, later, "p")
}

func TestBackoffGrowsToTenSeconds(t *testing.T) {
	q, now := New(), epoch
	q.Set(pod("p", 0), false, now)
	for _, seconds := range []int{1, 2, 4, 8, 10, 10} {
		item := pop(t, q, now, "p")
		q.Rejected(item, []string{"NodeResourcesFit"}, now)
		q.Happened(PodRemoved, now)
		pop(t, q, now.Add(time.Duration(seconds)*time.Second-time.Millisecond), "nothing")
		now = now.Add(time.Duration(seconds) * time.Second)
	}
	pop(t, q, now, "p")
}

func TestNobodyWaitsLongerThanFiveMinutes(t *testing.T) {
	q := New()
	q.Set(pod("p", 0), false, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"NodeAffinity"}, epoch)
	q.Flush(epoch.Add(MaxWait - time.Second))
	pop(t, q, epoch.Add(MaxWait-time.Second), "nothing")
	q.Flush(epoch.Add(MaxWait))
	pop(t, q, epoch.Add(MaxWait), "p")
}

func TestPodRemovedWhileItIsDecidedDoesNotComeBack(t *testing.T) {
	q := New()
	q.Set(pod("p", 0), false, epoch)
	item := pop(t, q, epoch, "p")
	q.Remove("p")
	q.Failed(item, epoch)
	pop(t, q, epoch.Add(time.Hour), "nothing")
}

// TestNoPodIsForgotten: whatever happens in whatever order, every pod is in exactly one place, and all come up in the end.
func TestNoPodIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, now, out := New(), epoch, map[types.UID]*Item{}
		known := map[types.UID]bool{}
		name := func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "pod")) }
		some := func(t *rapid.T) *Item {
			for _, item := range out {
				delete(out, item.Pod.UID)
				return item
			}
			t.Skip("none is taken")
			return nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				p := pod(name(t), int32(rapid.IntRange(0, 2).Draw(t, "priority")))
				q.Set(p, rapid.Bool().Draw(t, "changed"), now)
				known[p.UID] = true
			},
			"remove": func(t *rapid.T) {
				uid := types.UID(name(t))
				q.Remove(uid)
				delete(known, uid)
				delete(out, uid)
			},
			"pop": func(t *rapid.T) {
				if item := q.Pop(now); item != nil {
					out[item.Pod.UID] = item
				}
			},
			"reject": func(t *rapid.T) {
				q.Rejected(some(t), []string{rapid.SampledFrom([]string{"NodeAffinity", "NodeResourcesFit", "other"}).Draw(t, "by")}, now)
			},
			"fail":   func(t *rapid.T) { q.Failed(some(t), now) },
			"happen": func(t *rapid.T) { q.Happened(Event(rapid.IntRange(0, 6).Draw(t, "event")), now) },
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				if err := q.Check(); err != nil {
					t.Fatal(err)
				}
			},
		})
		now = now.Add(2 * MaxWait)
		q.Flush(now)
		for item := q.Pop(now); item != nil; item = q.Pop(now) {
			out[item.Pod.UID] = item
		}
		for uid := range known {
			if out[uid] == nil {
				t.Fatalf("pod %s was forgotten: %+v", uid, q.Get(uid))
			}
		}
	})
}
