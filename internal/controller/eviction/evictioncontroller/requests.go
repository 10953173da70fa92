// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"context"
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/kube/loglimit"
	"github.com/berth-k8s/berth/internal/kube/outcome"
	"github.com/berth-k8s/berth/internal/response"
)

const (
	// answerWithin bounds a request. After this time, a new attempt is as likely to succeed, and
	// other pods need the slot.
	answerWithin = 10 * time.Second
	// deletedWithin bounds a delete or eviction. It exceeds the API server's own limit for any
	// request (--request-timeout, a minute). The API server waits up to 30 s (by default, 10 s) for
	// an unreachable webhook before it ignores the webhook, if its failurePolicy permits that. If
	// the request were canceled earlier, every retry would fail alike. The unreachable webhook may
	// even run on the lost node, and thus depend on the eviction.
	deletedWithin = 65 * time.Second
)

// fieldManager owns only the note on nodes. The taints must remain owned by their writers in the
// managed fields.
const fieldManager = "berth-eviction"

// requests carries out a Core's requests. client-go's own retries are disabled: the Core decides
// whether and when to retry.
type requests struct {
	client  rest.Interface // for pods and nodes
	devices rest.Interface // for resource.k8s.io
	nodes   sharedReads[string, *eviction.Node]
	pools   sharedReads[eviction.PoolAt, []eviction.Slice]
	rules   sharedReads[string, *eviction.Rule]

	complaint loglimit.Line // limits the log lines about failed requests
}

// newRequests returns requests that use the two clients.
func newRequests(client, devices rest.Interface) *requests {
	r := &requests{client: client, devices: devices}
	r.nodes.get, r.pools.get, r.rules.get = r.readNode, r.readPool, r.readRule
	return r
}

// carryOut sends one request and returns the response for its ticket. It always returns a response,
// even when ctx ends, because the core relies on one response per ticket.
func (r *requests) carryOut(ctx context.Context, action eviction.Action) eviction.Answered {
	limit := answerWithin
	switch action.(type) {
	case eviction.Delete, eviction.Evict:
		limit = deletedWithin
	}

	// The limit applies to the whole action: a read of devices sends several requests.
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := eviction.Answered{Ticket: response.TicketOf(action)}, error(nil)
	switch a := action.(type) {
	case eviction.ReadNode:
		answer.Node, err = r.nodes.readShared(ctx, a.Node)
	case eviction.ReadPod:
		answer.Pod, err = podOf(r.client.Get().Namespace(a.Name.Namespace).Resource("pods").Name(a.Name.Name).MaxRetries(0).Do(ctx))
	case eviction.Mark:
		answer.Pod, err = r.markPod(ctx, a)
	case eviction.Delete:
		err = r.deletePod(ctx, a)
		countDelete(err, a.Due)
	case eviction.Evict:
		err = r.evictPod(ctx, a)
		countDelete(err, a.Due)
	case eviction.ReadDevices:
		answer.Devices, err = r.readDevices(ctx, a)
	case eviction.WriteStatus:
		err = r.writeStatus(ctx, a)
	case eviction.Annotate:
		err = r.annotateNode(ctx, a)
	}

	answer.Outcome, answer.Unserved = outcome.Of(err), utilnet.IsConnectionRefused(err) || utilnet.IsProbableEOF(err)
	answer.RetryAfter = outcome.RetryAfter(err)

	// Failures caused by the end of the process, or by the limit, are not logged.
	if err != nil && ctx.Err() == nil {
		log := klog.FromContext(ctx)
		// Gone and Conflict are normal responses, and thousands of pods may fail for the same
		// reason.
		if answer.Outcome == response.Gone || answer.Outcome == response.Conflict || !r.complaint.Due() {
			log = log.V(3)
		}
		log.Info("Request failed, will try again", "request", action, "outcome", answer.Outcome, "err", err)
	}
	return answer
}

// readNode reads the node from etcd, and not from a cache: a get without a resourceVersion is
// consistent. Pods are read likewise.
func (r *requests) readNode(ctx context.Context, name string) (*eviction.Node, error) {
	var node v1.Node
	if err := r.client.Get().Resource("nodes").Name(name).MaxRetries(0).Do(ctx).Into(&node); err != nil {
		return nil, err
	}
	return new(eviction.NodeOf(&node)), nil
}

// podOf returns the pod in a response.
func podOf(result rest.Result) (*eviction.Pod, error) {
	var pod v1.Pod
	if err := result.Into(&pod); err != nil {
		return nil, err
	}
	return new(eviction.PodOf(&pod)), nil
}

// markPod writes the DisruptionTarget condition with upstream's reason and message, and returns the
// resulting pod. A Job's podFailurePolicy evaluates that condition.
func (r *requests) markPod(ctx context.Context, a eviction.Mark) (*eviction.Pod, error) {
	condition := v1.PodCondition{
		Type:               v1.DisruptionTarget,
		Status:             v1.ConditionTrue,
		Reason:             eviction.Reason,
		Message:            eviction.Message,
		LastTransitionTime: metav1.Now(),
		ObservedGeneration: a.Observed,
	}

	if a.Device {
		condition.Reason, condition.Message = eviction.DeviceReason, eviction.DeviceMessage
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": outcome.Preconditions(a.UID, a.ResourceVersion),
		"status":   map[string]any{"conditions": []v1.PodCondition{condition}},
	})

	if err != nil {
		return nil, err
	}
	return podOf(r.client.Patch(types.StrategicMergePatchType).Namespace(a.Name.Namespace).Resource("pods").
		Name(a.Name.Name).SubResource("status").MaxRetries(0).Body(patch).Do(ctx))
}

// deletePod deletes the pod with that UID, with the grace period from its spec.
func (r *requests) deletePod(ctx context.Context, a eviction.Delete) error {
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.UID))}
	return r.client.Delete().Namespace(a.Name.Namespace).Resource("pods").Name(a.Name.Name).
		MaxRetries(0).Body(&options).Do(ctx).Error()
}

// evictPod deletes the pod through the Eviction API, which checks the budgets and marks the pod.
func (r *requests) evictPod(ctx context.Context, a eviction.Evict) error {
	return r.client.Post().Namespace(a.Name.Namespace).Resource("pods").Name(a.Name.Name).SubResource("eviction").
		MaxRetries(0).Body(&policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: a.Name.Namespace, Name: a.Name.Name,
			Annotations: map[string]string{evictionguard.ReplacedAnnotation: "true"}, // the guard must not hold it
		},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.UID))},
	}).Do(ctx).Error()
}

// annotateNode sets the note by server-side apply. For a node created without managed fields, the
// API server maintains none until the first apply, and without managed fields the last write of the
// taints is unknown. The note is removed by a merge patch, regardless of its owner.
func (r *requests) annotateNode(ctx context.Context, a eviction.Annotate) error {
	metadata := outcome.Preconditions("", a.ResourceVersion)
	metadata["name"] = a.Node
	kind, options := types.ApplyPatchType, metav1.PatchOptions{FieldManager: fieldManager}
	if a.Note != "" {
		options.Force = new(true)
		metadata["annotations"] = map[string]any{eviction.NoteAnnotation: a.Note}
	} else {
		kind = types.MergePatchType
		metadata["annotations"] = map[string]any{eviction.NoteAnnotation: nil}
	}

	patch, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": metadata})
	if err != nil {
		return err
	}

	return r.client.Patch(kind).Resource("nodes").Name(a.Node).
		VersionedParams(&options, metav1.ParameterCodec).MaxRetries(0).Body(patch).Do(ctx).Error()
}
