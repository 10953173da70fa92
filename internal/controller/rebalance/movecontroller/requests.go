// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/kube/outcome"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// The ConfigMap that stores the journal.
const (
	JournalNamespace = metav1.NamespaceSystem
	JournalName      = "berth-rebalance"
	journalKey       = "journal"
	writerKey        = "writer" // the last writer of the journal
)

// answerWithin bounds a request. It exceeds the API server's own limit (--request-timeout, a
// minute). An unreachable webhook takes up to 30 s of that, and a request canceled earlier never
// succeeds, however often it is retried.
const answerWithin = 65 * time.Second

// reserveWithin bounds the requests that reserve room. A move does not depend on them, and should
// not delay the eviction for long.
const reserveWithin = 5 * time.Second

// requests carries out a core's requests.
//
// It holds no lock, except the requester's: for the reservation and the journal, cores issue one
// request at a time. Apart from conflicts, a request is tried once; retries are the core's
// decision, because it observes changes in the meantime.
type requests struct {
	client  kubernetes.Interface
	process string // distinguishes the journal's writers
	// noReservation is called if the Lease with the reservation cannot be written.
	noReservation func(why string)
	requester     *requester            // nil means that EvictionRequests are not used
	left          atomic.Pointer[error] // the last failure to withdraw requests
}

// newRequests returns the requests of a new process, identified in the journal by a random UUID, so
// that a restarted process is a different one.
func newRequests(client kubernetes.Interface, noRoom func(why string)) *requests {
	return &requests{client: client, process: string(uuid.NewUUID()), noReservation: noRoom}
}

// carryOut carries out one request and returns its response, or a Tick for a request without one.
// It blocks for at most answerWithin, plus reserveWithin for a request that reserves room.
func (r *requests) carryOut(ctx context.Context, action execute.Action) execute.Event {
	switch a := action.(type) { // writing the reservation has a separate time limit
	case execute.Evict:
		r.writeReservations(ctx, a.Reservations.Text())
	case execute.Scale:
		r.writeReservations(ctx, a.Reservations.Text())
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	switch a := action.(type) {
	case execute.Recall:
		return r.recallJournal(ctx)
	case execute.Note:
		version, err := r.noteJournal(ctx, a)
		answer := answerOf(a.Ticket, err)
		answer.Version = version
		return answer
	case execute.SetTaint:
		return answerOf(a.Ticket, r.writeTaints(ctx, a))
	case execute.Cordon:
		return answerOf(a.Ticket, r.cordonNode(ctx, a.Node))
	case execute.SetNode:
		return answerOf(a.Ticket, r.setNode(ctx, a))

	case execute.BuyNode:
		return answerOf(a.Ticket, r.buyNode(ctx, a))
	case execute.SellNode:
		return answerOf(a.Ticket, r.sellNode(ctx, a.Claim, a.UID))
	case execute.SellUnused:
		return answerOf(a.Ticket, r.sellUnused(ctx, a))
	case execute.Scale:
		return answerOf(a.Ticket, r.scaleWorkload(ctx, a))
	case execute.Mark:
		return answerOf(a.Ticket, r.markPod(ctx, a))
	case execute.SetStatus:
		if err := r.setStatus(ctx, a); err != nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Info("Status of a held eviction not written, will try again", "pod", klog.KRef(a.Namespace, a.Name), "err", err)
		}
	case execute.ReleaseReservations:
		r.releaseReservations(context.WithoutCancel(ctx), a.Reservations.Text()) // even if the drain is over
	case execute.Withdraw:
		r.withdraw(context.WithoutCancel(ctx), a.Pods) // even if the drain is over
	case execute.Evict:
		return answerOf(a.Ticket, r.identifyConflict(ctx, a, r.evictPod(ctx, a)))
	}
	return execute.Tick{}
}

// answerOf returns the response to a request that ended with err; nil is OK.
func answerOf(ticket response.Ticket, err error) execute.Answered {
	answer := execute.Answered{Ticket: ticket, Outcome: outcomeOf(err), RetryAfter: outcome.RetryAfter(err)}
	if err != nil {
		answer.Message = err.Error()
	}
	return answer
}

// outcomeOf returns the outcome of a request that ended with err. Two errors are not from the API
// server: an askedError, and a notStoredError after a write without effect.
func outcomeOf(err error) response.Outcome {
	var asked askedError
	var notStored notStoredError
	switch {
	case errors.As(err, &notStored):
		return response.Refused
	case errors.As(err, &asked):
		return response.Asked
	}
	return outcome.Of(err)
}

// recallJournal reads the journal. A missing ConfigMap or key is an empty journal. Invalid JSON is
// an error, and is not replaced: it may contain a move.
func (r *requests) recallJournal(ctx context.Context) execute.Event {
	m, err := r.client.CoreV1().ConfigMaps(JournalNamespace).Get(ctx, JournalName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return execute.Recalled{}
	}
	recalled := execute.Recalled{Err: err}
	if err == nil {
		recalled.Version = m.ResourceVersion
		if text := m.Data[journalKey]; text != "" {
			if err := json.Unmarshal([]byte(text), &recalled.Journal); err != nil {
				recalled.Err = fmt.Errorf("ConfigMap %s/%s: %w", JournalNamespace, JournalName, err)
			}
		}
	}
	return recalled
}

// noteJournal writes the journal conditionally on the version that was read, and returns the new
// version.
func (r *requests) noteJournal(ctx context.Context, a execute.Note) (version string, err error) {
	text, err := json.Marshal(a.Journal)
	if err != nil {
		return "", err
	}
	m := &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: JournalNamespace, Name: JournalName, ResourceVersion: a.Version},
		Data:       map[string]string{journalKey: string(text), writerKey: r.process},
	}
	if version, err = r.writeJournal(ctx, m); outcomeOf(err) == response.Conflict {
		return r.resolveConflict(ctx, m, err)
	}
	return version, err
}

// writeJournal creates the ConfigMap, or replaces the version it names. A Conflict, or
// AlreadyExists, means that another write was faster.
func (r *requests) writeJournal(ctx context.Context, m *v1.ConfigMap) (version string, err error) {
	maps := r.client.CoreV1().ConfigMaps(JournalNamespace)
	if m.ResourceVersion == "" {
		m, err = maps.Create(ctx, m, metav1.CreateOptions{})
	} else {
		m, err = maps.Update(ctx, m, metav1.UpdateOptions{})
	}
	if err != nil {
		return "", err
	}
	return m.ResourceVersion, nil
}

// resolveConflict handles a conflict. If this process wrote the existing journal, the response to
// that write was lost: the journal is already up to date, or is replaced. Otherwise the conflict is
// final.
//
//	written by another process                   the conflict holds: that process carries out moves
//	by this one, with the same contents          this write was carried out, and its response was lost
//	by this one, with other contents             an earlier write was carried out; this write replaces it
func (r *requests) resolveConflict(ctx context.Context, m *v1.ConfigMap, conflict error) (version string, err error) {
	there, err := r.client.CoreV1().ConfigMaps(JournalNamespace).Get(ctx, JournalName, metav1.GetOptions{})
	switch {
	case err != nil:
		return "", err
	case there.Data[writerKey] != r.process:
		return "", conflict
	case there.Data[journalKey] == m.Data[journalKey]:
		return there.ResourceVersion, nil
	}
	m.ResourceVersion = there.ResourceVersion
	return r.writeJournal(ctx, m)
}

// writeTaints writes a node's taints conditionally on the version that was read, so that other
// clients' taints stay. An empty a.Value removes the taint.
func (r *requests) writeTaints(ctx context.Context, a execute.SetTaint) error {
	nodes := r.client.CoreV1().Nodes()
	return changeObject(ctx, a.Node, metav1.PatchOptions{}, nodes.Get, nodes.Patch, func(n *v1.Node) (map[string]any, error) {
		taints := slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t v1.Taint) bool { return t.Key == rebalance.EmptyingTaint })
		if a.Value != "" {
			taints = append(taints, v1.Taint{Key: rebalance.EmptyingTaint, Value: a.Value, Effect: v1.TaintEffectNoSchedule})
		}
		if slices.EqualFunc(taints, n.Spec.Taints, func(a, b v1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }) {
			return nil, nil
		}
		return map[string]any{"spec": map[string]any{"taints": taints}}, nil
	})
}

// changeObject reads an object and writes a change to it conditionally on the version that was
// read. change receives the object, must not modify it, and returns a merge patch, or nil to leave
// the object unchanged.
//
// After a Conflict it reads again, up to four times, because another write was faster. If the
// version is unchanged, a webhook or a quota has reported the Conflict for its own reasons, and
// changeObject returns it.
//
// If the object in the response still needs the change, a policy or webhook has dropped it.
// changeObject then returns an error, because repeating the request would not help. With the option
// DryRun, it writes the change only if a dry run keeps it.
func changeObject[T metav1.Object](
	ctx context.Context, name string, options metav1.PatchOptions, get func(context.Context, string, metav1.GetOptions) (T, error),
	patch func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error),
	change func(T) (map[string]any, error),
) error {
	version, conflict := "", error(nil)
	for range 4 {
		object, err := get(ctx, name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case object.GetResourceVersion() == version:
			return conflict
		}
		changes, err := change(object)
		if err != nil || changes == nil {
			return err
		}
		meta, _ := changes["metadata"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
		}

		meta["resourceVersion"], changes["metadata"] = object.GetResourceVersion(), meta
		text, err := json.Marshal(changes)
		if err != nil {
			return err
		}
		now, err := patch(ctx, name, types.MergePatchType, text, options)
		if err == nil && options.DryRun != nil {
			if checkStored(name, now, change) != nil {
				return notStoredError{name, true}
			}
			now, err = patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{})
		}
		if err == nil {
			return checkStored(name, now, change)
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		version, conflict = object.GetResourceVersion(), err
	}
	return conflict
}

// checkStored returns a notStoredError if an object still needs a change that was just written.
func checkStored[T metav1.Object](name string, now T, change func(T) (map[string]any, error)) error {
	if more, err := change(now); err != nil || more != nil {
		return notStoredError{name, false}
	}
	return nil
}

// notStoredError means that the API server accepted a write and stored a different object.
type notStoredError struct {
	name string
	dry  bool // in a dry run: nothing was stored
}

func (e notStoredError) Error() string {
	return fmt.Sprintf("%s: the API server accepted the change, but a policy or webhook dropped it", e.name)
}

// cordonNode makes a node unschedulable. It needs no version, because it sets one field to a fixed
// value.
func (r *requests) cordonNode(ctx context.Context, node string) error {
	_, err := r.client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType,
		[]byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	return err
}

// setNode cordons or uncordons a node and sets or removes its RollAnnotation. A single request does
// both, so that a killed process never leaves a cordoned node without a note.
func (r *requests) setNode(ctx context.Context, a execute.SetNode) error {
	nodes := r.client.CoreV1().Nodes()
	return changeObject(ctx, a.Node, metav1.PatchOptions{}, nodes.Get, nodes.Patch, func(n *v1.Node) (map[string]any, error) {
		if a.IsMet(n) {
			return nil, nil
		}
		unschedulable, note := any(nil), any(nil)
		if a.Note != "" {
			note = a.Note
		}

		if a.Cordoned {
			unschedulable = true
		}
		annotations, labels := map[string]any{execute.RollAnnotation: note}, map[string]any{}
		if a.Release {
			annotations[disruption.KarpenterAnnotation], labels[execute.BoughtLabel] = nil, nil
		}
		return map[string]any{
			"metadata": map[string]any{"annotations": annotations, "labels": labels},
			"spec":     map[string]any{"unschedulable": unschedulable},
		}, nil
	})
}

// setStatus writes the status of a held eviction, unless another pod has the name by now.
func (r *requests) setStatus(ctx context.Context, a execute.SetStatus) error {
	metadata := outcome.Preconditions(a.UID, "")
	metadata["annotations"] = map[string]string{evictionguard.StatusAnnotation: a.Status}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Pods(a.Namespace).Patch(ctx, a.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// evictPod evicts a pod, or requests its eviction. An EvictionRequest has no grace period, and
// respects budgets.
//
// The UID is a precondition, which protects a newer pod of the same name.
func (r *requests) evictPod(ctx context.Context, a execute.Evict) error {
	if !a.Direct && !a.Delete && a.Grace == nil && r.requester != nil && r.requester.isServed() && !r.requester.isRefused(a.Namespace) {
		if direct, err := r.requester.ask(ctx, a); !direct || err != nil {
			return err
		}
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.UID)), GracePeriodSeconds: a.Grace}
	return Evict(ctx, r.client, a.Namespace, a.Name, &options, a.Delete, a.Direct)
}

// withdraw withdraws requests. Any remaining ones are withdrawn by the next run, or deleted with
// their pods. The caller does not wait for a response; an error is kept in left.
func (r *requests) withdraw(ctx context.Context, pods map[types.UID]bool) {
	if r.requester == nil || !r.requester.isServed() {
		return
	}
	err := r.requester.withdraw(ctx, func(_ string, of *lifecyclev1alpha1.EvictionRequestPodReference) bool { return pods[of.UID] })
	if err != nil {
		r.left.Store(&err)
		klog.FromContext(ctx).Info("EvictionRequests are left", "err", err)
	}
}

// Evict evicts a pod, or deletes it, bypassing disruption budgets. It returns a temporary refusal
// immediately: client-go would repeat the request for minutes, honoring each pause requested by the
// API server. replaced states that a replacement is ready, so that the eviction guard does not hold
// the eviction.
func Evict(ctx context.Context, client kubernetes.Interface, namespace, name string, options *metav1.DeleteOptions, past, replaced bool) error {
	pods := client.CoreV1().RESTClient()
	if past {
		return pods.Delete().Namespace(namespace).Resource("pods").Name(name).MaxRetries(0).Body(options).Do(ctx).Error()
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, DeleteOptions: options}
	if replaced {
		eviction.Annotations = map[string]string{evictionguard.ReplacedAnnotation: "true"}
	}
	return pods.Post().Namespace(namespace).Resource("pods").Name(name).SubResource("eviction").MaxRetries(0).Body(eviction).Do(ctx).Error()
}

// identifyConflict interprets a Conflict of an eviction. If another pod has the pod's name, the pod
// no longer exists. Otherwise another client wrote the pod or its disruption budget at the same
// moment, or a webhook reported a conflict, and the eviction was not made.
func (r *requests) identifyConflict(ctx context.Context, a execute.Evict, err error) error {
	if outcomeOf(err) != response.Conflict {
		return err
	}
	now, readErr := r.client.CoreV1().Pods(a.Namespace).Get(ctx, a.Name, metav1.GetOptions{})
	switch {
	case readErr != nil:
		return readErr
	case now.UID != a.UID:
		return apierrors.NewNotFound(v1.Resource("pods"), a.Name)
	}
	return apierrors.NewTooManyRequests(err.Error(), 0)
}
