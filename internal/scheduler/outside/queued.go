package outside

import (
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// queued is a pending pod as a plugin at QueueSort reads it. Members of pod groups, too, are queued
// one by one.
type queued struct{ item *queue.Item }

var _ fwk.QueuedEntityInfo = queued{}

// GetPodInfo is, as upstream, not part of the interface: plugins that compare more than priorities
// and times find it by a type assertion. It is made anew for each call, which is cheap: nothing is
// computed until it is asked for.
func (q queued) GetPodInfo() fwk.PodInfo { return newPodInfo(q.item.Pod) }

// Type and its siblings implement fwk.QueuedEntityInfo.
func (q queued) Type() fwk.EntityKeyType             { return fwk.PodKeyType }
func (q queued) GetPriority() int32                  { return corev1.PodPriority(q.item.Pod) }
func (q queued) GetTimestamp() time.Time             { return q.item.Returned() }
func (q queued) GetAttempts() int                    { return q.item.Attempts }
func (q queued) GetBackoffExpiration() time.Time     { return q.item.Ready() }
func (q queued) GetUnschedulableCount() int          { return q.item.Rejections() }
func (q queued) GetConsecutiveErrorsCount() int      { return q.item.Errors() }
func (q queued) GetGatingPlugin() string             { return q.item.Gate }
func (q queued) GetPendingPlugins() sets.Set[string] { return sets.New(q.item.Pending...) }

// GetGatingPluginEvents is empty: gated pods are retried on the events that the plugin registered.
func (q queued) GetGatingPluginEvents() []fwk.ClusterEvent { return nil }

// GetUnschedulablePlugins are those that rejected the pod in its last attempt.
func (q queued) GetUnschedulablePlugins() sets.Set[string] { return sets.New(q.item.Rejectors...) }

// GetInitialAttemptTimestamp is when the pod first passed all gates; nil before that. It is a copy.
func (q queued) GetInitialAttemptTimestamp() *time.Time {
	if q.item.Admitted.IsZero() {
		return nil
	}
	first := q.item.Admitted
	return &first
}
