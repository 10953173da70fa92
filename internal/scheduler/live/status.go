package live

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// statusWrite is what is to be written about a pod, and the tickets that the first answer belongs
// to.
type statusWrite struct {
	cycle.WriteStatus
	tickets []cycle.Ticket
}

// newStatusWrite keeps of the pod what writing takes: it may wait for long, and pods are large.
func newStatusWrite(a cycle.WriteStatus) *statusWrite {
	one := &statusWrite{WriteStatus: a}
	one.Pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: a.Pod.UID,
		ResourceVersion: a.Pod.ResourceVersion}}
	if a.Ticket != 0 {
		one.tickets = append(one.tickets, a.Ticket)
	}
	return one
}

// mergeAfter merges two writes into one with the same effect.
func (a *statusWrite) mergeAfter(older *statusWrite) *statusWrite {
	both := &statusWrite{a.WriteStatus, append(older.tickets, a.tickets...)}
	if both.Condition == nil {
		both.Condition = older.Condition
	}
	if both.Nominate == nil {
		both.Nominate = older.Nominate
	}
	return both
}

// writeFirst writes, and answers the tickets with the outcome. If it is tried again, there are none
// left.
func (s *Scheduler) writeFirst(ctx context.Context, a *statusWrite) error {
	err := s.writeStatus(ctx, a.WriteStatus)
	s.answerTickets(a, outcomeOf(err))
	return err
}

func (s *Scheduler) answerTickets(a *statusWrite, o cycle.Outcome) {
	for _, ticket := range a.tickets {
		s.loop.See(cycle.Answered{Ticket: ticket, Outcome: o})
	}
	a.tickets = nil
}

// writeStatus patches the state of the pod that was decided: a condition, its nominated node, or
// both. If the pod has changed, the newest state is patched as long as it still waits: the patch
// must never undo what a binding wrote.
func (s *Scheduler) writeStatus(ctx context.Context, a cycle.WriteStatus) error {
	pod := a.Pod
	ctx, cancel := context.WithTimeout(ctx, writtenWithin)
	defer cancel()
	pods := s.client.CoreV1().Pods(pod.Namespace)
	status := map[string]any{}
	if a.Condition != nil {
		status["conditions"] = []v1.PodCondition{*a.Condition}
	}
	if a.Nominate != nil {
		status["nominatedNodeName"] = *a.Nominate
	}
	version := pod.ResourceVersion
	for {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "resourceVersion": version}, "status": status})
		if err != nil {
			return err
		}
		_, err = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if !apierrors.IsConflict(err) {
			return err
		}
		newest, readErr := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case readErr != nil || newest.UID != pod.UID || newest.Spec.NodeName != "" || newest.DeletionTimestamp != nil:
			return readErr
		case newest.ResourceVersion == version: // a webhook says conflict
			return err
		}
		version = newest.ResourceVersion
	}
}
