package outside

import (
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// queued is a waiting pod as a plugin at QueueSort reads it.
type queued struct{ item *queue.Item }

var _ fwk.QueuedPodInfo = queued{}

// GetPodInfo and its siblings implement fwk.QueuedPodInfo.
func (q queued) GetPodInfo() fwk.PodInfo             { return newPodInfo(q.item.Pod) }
func (q queued) GetTimestamp() time.Time             { return q.item.Returned() }
func (q queued) GetAttempts() int                    { return q.item.Attempts }
func (q queued) GetBackoffExpiration() time.Time     { return q.item.Ready() }
func (q queued) GetUnschedulableCount() int          { return q.item.Rejections() }
func (q queued) GetConsecutiveErrorsCount() int      { return q.item.Errors() }
func (q queued) GetGatingPlugin() string             { return q.item.Gate }
func (q queued) GetPendingPlugins() sets.Set[string] { return sets.New(q.item.Pending...) }

// GetGatingPluginEvents is empty: gated pods are retried on the events that the plugin registered.
func (q queued) GetGatingPluginEvents() []fwk.ClusterEvent { return nil }

func (q queued) GetUnschedulablePlugins() sets.Set[string] { return sets.New(q.item.Rejectors...) }

// GetInitialAttemptTimestamp is when the pod first passed all gates; nil before that.
func (q queued) GetInitialAttemptTimestamp() *time.Time {
	if q.item.Admitted.IsZero() {
		return nil
	}
	first := q.item.Admitted
	return &first
}
