// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/loglimit"
	"github.com/berth-k8s/berth/internal/kube/outcome"
	"github.com/berth-k8s/berth/internal/response"
)

const (
	// answerWithin bounds a write. It exceeds the API server's own limit for any request
	// (--request-timeout, a minute). The API server waits up to 30 s for an unreachable webhook. If
	// the request were canceled earlier, every retry would fail alike.
	answerWithin = 65 * time.Second
	// markWithin bounds the marking of all pods of a node, which may take hundreds of writes.
	markWithin = 2 * time.Minute
	// readWithin bounds a read. The core repeats a failed read after its next pass.
	readWithin   = 10 * time.Second
	fieldManager = "berth-node-health"
)

// requests carries out the reads and writes of a Core.
type requests struct {
	client kubernetes.Interface // without a rate limit
	events *eventlog.Log        // log for events about marked pods

	complaint loglimit.Line

	mu sync.Mutex // guards marks, which the loop's goroutine and the requests use
	// marks holds the cancel functions of markings in progress, by ticket.
	marks map[response.Ticket]context.CancelFunc
}

// newRequests returns requests that use the client.
func newRequests(client kubernetes.Interface, events *eventlog.Log) *requests {
	return &requests{client: client, events: events, marks: map[response.Ticket]context.CancelFunc{}}
}

// carryOut writes to a node. It writes the status with a strategic merge patch, which replaces only
// the given conditions, and taints and labels with a merge patch, which replaces the whole list of
// taints. Both patches fail if the node no longer has the expected version.
func (r *requests) carryOut(ctx context.Context, action nodehealth.Action) nodehealth.Answered {
	switch a := action.(type) {
	case nodehealth.WriteStatus:
		patch := map[string]any{
			"metadata": outcome.Preconditions(a.UID, a.ResourceVersion),
			"status":   map[string]any{"conditions": a.Conditions},
		}
		return r.patchNode(ctx, a.Ticket, a.Node, types.StrategicMergePatchType, patch, "status")
	case nodehealth.WriteNode:
		metadata := outcome.Preconditions(a.UID, a.ResourceVersion)
		patch := map[string]any{"metadata": metadata}
		if len(a.Labels) > 0 {
			metadata["labels"] = a.Labels
		}
		if a.SetTaints {
			patch["spec"] = map[string]any{"taints": a.Taints}
		}
		return r.patchNode(ctx, a.Ticket, a.Node, types.MergePatchType, patch)
	}

	return nodehealth.Answered{}
}

// readLease reads a node's Lease.
func (r *requests) readLease(ctx context.Context, a nodehealth.ReadLease) nodehealth.Answered {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	lease, err := r.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, a.Node, metav1.GetOptions{})
	answer := nodehealth.Answered{Ticket: a.Ticket, Outcome: outcome.Of(err)}
	switch {
	case err == nil:
		answer.Lease = leaseOf(lease)
	// Without permission, the Lease is reported as missing, so that the core judges the node only
	// by the watch.
	case apierrors.IsForbidden(err):
		answer.Outcome = response.Gone
		fallthrough
	case answer.Outcome != response.Gone && ctx.Err() == nil:
		if r.complaint.Due() {
			klog.FromContext(ctx).Info("The Lease of a node that seems silent cannot be read", "node", klog.KRef("", a.Node), "err", err)
		}
	}
	return answer
}

// leaseOf converts an API Lease. Renewed is zero if the Lease was never renewed.
func leaseOf(lease *coordinationv1.Lease) *nodehealth.LeaseSeen {
	seen := &nodehealth.LeaseSeen{Name: lease.Name, ResourceVersion: lease.ResourceVersion}
	if lease.Spec.RenewTime != nil {
		seen.Renewed = lease.Spec.RenewTime.Time
	}
	return seen
}

// marking returns the request that marks a node's pods. stopMarking cancels it, even before it
// begins.
func (r *requests) marking(ctx context.Context, a nodehealth.MarkPods) func(context.Context) nodehealth.Event {
	ctx, cancel := context.WithTimeout(ctx, markWithin)
	r.mu.Lock()
	defer r.mu.Unlock()
	// The cancel function is stored before the request begins, because the next action of the core
	// may be StopMarking.
	r.marks[a.Ticket] = cancel
	return func(context.Context) nodehealth.Event {
		err := r.markPods(ctx, a.Node)
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			klog.FromContext(ctx).Error(err, "Pods of a silent node not all marked NotReady, will try again", "node", klog.KRef("", a.Node))
		}
		r.stopMarking(a.Ticket)
		return nodehealth.Answered{Ticket: a.Ticket, Outcome: outcome.Of(err), RetryAfter: outcome.RetryAfter(err)}
	}
}

// stopMarking cancels a marking in progress. It is also called at the end of each marking, to
// release the context.
func (r *requests) stopMarking(ticket response.Ticket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cancel := r.marks[ticket]; cancel != nil {
		cancel()
		delete(r.marks, ticket)
	}
}

// patchNode sends a patch. If the node has changed, patchNode also reads it, so that the core can
// decide again without waiting for the watch.
func (r *requests) patchNode(ctx context.Context, ticket response.Ticket, name string, kind types.PatchType,
	patch any, subresource ...string) nodehealth.Answered {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	body, err := json.Marshal(patch)
	if err != nil {
		return nodehealth.Answered{Ticket: ticket, Outcome: response.Failed}
	}

	node, err := r.client.CoreV1().Nodes().Patch(ctx, name, kind, body, metav1.PatchOptions{FieldManager: fieldManager}, subresource...)
	answer := nodehealth.Answered{Ticket: ticket, Outcome: outcome.Of(err), RetryAfter: outcome.RetryAfter(err)}
	if answer.Outcome == response.Conflict {
		// The node is read live, because the watch may not have delivered the conflicting change
		// yet.
		node, err = r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	} else if err != nil && ctx.Err() == nil {
		log := klog.FromContext(ctx)
		if answer.Outcome == response.Gone || !r.complaint.Due() {
			log = log.V(2)
		}
		log.Info("Node not written, will try again", "node", klog.KRef("", name), "err", err)
	}

	if err == nil {
		answer.Node = new(nodehealth.NodeOf(node))
	}
	return answer
}

// markPods sets the Ready condition of the node's pods to False. The pods are listed, since this
// process has no cache of pods. A failed write does not stop the marking of the remaining pods; the
// core then repeats the whole marking.
func (r *requests) markPods(ctx context.Context, node string) error {
	pods, err := r.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return err
	}
	var failed []error
	for i := range pods.Items {
		if err := r.markPod(ctx, &pods.Items[i]); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// markPod writes the condition conditionally on the pod's version, so that it does not overwrite
// the status written by a recovered kubelet. A pod without the condition is not marked.
func (r *requests) markPod(ctx context.Context, pod *v1.Pod) error {
	for _, condition := range pod.Status.Conditions {
		if condition.Type != v1.PodReady || condition.Status == v1.ConditionFalse {
			continue
		}
		condition.Status = v1.ConditionFalse
		condition.LastTransitionTime = metav1.Now()
		patch, err := json.Marshal(map[string]any{
			"metadata": outcome.Preconditions(pod.UID, pod.ResourceVersion),
			"status":   map[string]any{"conditions": []v1.PodCondition{condition}},
		})
		if err != nil {
			return err
		}
		if _, err := r.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{FieldManager: fieldManager}, "status"); err != nil {
			return err
		}
		r.events.Add(v1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		}, v1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}

	return nil
}
