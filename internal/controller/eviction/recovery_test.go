package eviction_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/controller/eviction/faultapi"
)

// TestAnEvictionFollowsRecoveryWithinSixSeconds is what is promised however long deletes were
// refused: back-off must not grow with the trouble, for one pod or for thousands.
func TestAnEvictionFollowsRecoveryWithinSixSeconds(t *testing.T) {
	const promised = 6 * time.Second
	for _, pods := range []int{1, 1_000} {
		for _, trouble := range []time.Duration{30 * time.Second, 40 * time.Second, 137 * time.Second, 5 * time.Minute} {
			t.Run(fmt.Sprintf("%d pods after %v", pods, trouble), func(t *testing.T) {
				t.Parallel()
				w := faultapi.New(1)
				w.AddNode("node")
				for i := range pods {
					w.AddPod(fmt.Sprintf("pod-%d", i), "node", nil)
					w.RefuseDeletes(fmt.Sprintf("pod-%d", i), 1<<30)
				}
				w.Faults.Until = w.Now.Add(trouble)
				w.Start()
				w.Taint("node", "a", "v", true)

				w.Run(trouble)
				retries := w.Core().Stats().Retries
				if w.Deleted > 0 || retries < 10*pods {
					t.Fatalf("%d deleted after %d retries while nothing may be deleted", w.Deleted, retries)
				}
				// At most one every four seconds, once the first seven have failed.
				if most := pods * (8 + int(trouble/(4*time.Second))); retries > most {
					t.Errorf("%d retries within %v, more than %d", retries, trouble, most)
				}

				w.Run(promised)
				if w.Deleted != pods {
					t.Errorf("%d of %d pods evicted within %v of the recovery", w.Deleted, pods, promised)
				}
			})
		}
	}
}
