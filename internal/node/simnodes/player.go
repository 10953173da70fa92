// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simnodes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/kube/loglimit"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

// AnnotationPlayer, on the first node, identifies the process simulating the nodes of its prefix.
// Two processes simulating the same nodes would fight over every Lease and delete each other's
// nodes, and it is easy to run `berth nodes` next to `berth up` by mistake. The annotation is a
// hint, not a lock: two processes started simultaneously are not detected.
const AnnotationPlayer = "berth.dev/played-by"

// playerID identifies this process by host, process ID and start time, so that another process on
// this machine can detect whether it still runs. The start time is included because process IDs are
// reused.
func playerID() string { return playerOf(os.Getpid()) }

// playerOf identifies a running process of this machine.
func playerOf(pid int) string {
	// If the host name is unknown, two machines could be mistaken for one; the start time makes
	// that unlikely.
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d/%s", host, pid, startOf(pid))
}

// startOf returns the start time of a process in clock ticks since boot; "" if it does not run or
// the system lacks /proc. It stays the same for as long as the process runs. A zombie counts as
// ended.
func startOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name in parentheses may contain any characters; the start time is the 20th field after
	// it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

// checkPlayer returns an error if another process on this machine simulates one of the nodes.
// Processes on other machines, and on systems without /proc, cannot be detected.
func checkPlayer(nodes []*v1.Node, shape *simkubelet.Shape) error {
	for _, node := range nodes {
		name := node.Annotations[AnnotationPlayer]
		if !shape.Names(node.Name) || name == "" || name == playerID() {
			continue
		}
		parts := strings.Split(name, "/")
		// The value was not written by playerID, or was written on a system without /proc.
		if len(parts) != 3 || parts[2] == "" {
			continue
		}
		if pid, err := strconv.Atoi(parts[1]); err == nil && name == playerOf(pid) {
			return fmt.Errorf("nodes %s... are already simulated by process %d: choose other names with --name-prefix, "+
				"or restart that one with more nodes",
				shape.Prefix, pid)
		}
	}
	return nil
}

// signAsPlayer records on the first node that this process simulates it. The annotation of one node
// is enough, because a process simulates all nodes of its prefix or none.
func signAsPlayer(ctx context.Context, client kubernetes.Interface, shape *simkubelet.Shape) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{AnnotationPlayer: playerID()}}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, shape.Name(1), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

const (
	// requestTimeout bounds a request. It exceeds the API server's own limit (--request-timeout,
	// one minute). An unreachable webhook delays a request by up to 30 s, and a request abandoned
	// earlier never succeeds, however often it is retried.
	requestTimeout = 65 * time.Second
	// heartbeatTimeout is the kubelet's timeout for Leases and node statuses. It also bounds
	// events, which are too unimportant for a longer timeout.
	heartbeatTimeout = 10 * time.Second
)

// sender carries out actions. Its workers share it.
type sender struct {
	client kubernetes.Interface
	log    *slog.Logger

	failing loglimit.Line // log line about retried requests

	mu sync.Mutex
	// leases holds the known Leases by node. A renewal of a known Lease is a single request.
	leases map[string]*knownLease
}

// knownLease is a node's Lease as last written; nil object: unknown. The fleet renews each Lease
// one request at a time, so only the map needs the lock. An object is the API server's response to
// the last write.
type knownLease struct{ object *coordinationv1.Lease }

// sendAction carries out an action, and returns its outcome with the object of the API server's
// response, or nil.
func (s *sender) sendAction(ctx context.Context, a simkubelet.Action) (simkubelet.Outcome, any) {
	if ctx.Err() != nil {
		return simkubelet.Failed, nil
	}
	// Give up slow heartbeats early, because the next heartbeat replaces them, and slow events,
	// because they are unimportant.
	limit := requestTimeout
	switch a.Kind {
	case simkubelet.Renew, simkubelet.PatchNode, simkubelet.Report:
		limit = heartbeatTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	object, err := s.carryOut(ctx, a)
	outcome := outcomeOf(err)
	if outcome == simkubelet.Failed || outcome == simkubelet.Refused {
		s.logFailure(a, outcome, err)
	}
	return outcome, object
}

// logFailure logs a failed request, at debug level if it is retried and another failed recently:
// without an API server, the requests of thousands of nodes fail. A permanent refusal by the API
// server is always logged as a warning.
func (s *sender) logFailure(a simkubelet.Action, outcome simkubelet.Outcome, err error) {
	// The process is ending, which is not a failure.
	if errors.Is(err, context.Canceled) {
		return
	}
	level := slog.LevelWarn
	if outcome == simkubelet.Failed && !s.failing.Due() {
		level = slog.LevelDebug
	}
	attributes := []any{"action", a.Kind.String(), "node", a.Node}
	if a.Pod.Name != "" {
		attributes = append(attributes, "pod", a.Pod.String())
	}
	s.log.Log(context.Background(), level, "request failed", append(attributes, "err", err)...)
}

// outcomeOf classifies errors as temporary or permanent: the API server will always reject an
// invalid request. A conflict, a timeout or a missing webhook is temporary.
func outcomeOf(err error) simkubelet.Outcome {
	switch {
	case err == nil:
		return simkubelet.OK
	case apierrors.IsNotFound(err):
		return simkubelet.Gone
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err),
		errors.Is(err, errNotSimulated):
		return simkubelet.Refused
	}
	return simkubelet.Failed
}

// carryOut sends the request of an action. Deletions have the UID as a precondition, so that a
// later object of the same name is not deleted.
func (s *sender) carryOut(ctx context.Context, a simkubelet.Action) (any, error) {
	switch core := s.client.CoreV1(); a.Kind {
	case simkubelet.Register:
		return s.registerNode(ctx, a)
	case simkubelet.Renew:
		return nil, s.renewLease(ctx, a)
	case simkubelet.PatchNode:
		var subresource []string
		if a.Status {
			subresource = []string{"status"}
		}
		return core.Nodes().Patch(ctx, a.Node, types.StrategicMergePatchType, a.Patch, metav1.PatchOptions{}, subresource...)
	case simkubelet.PatchPod:
		pod, err := core.Pods(a.Pod.Namespace).Patch(ctx, a.Pod.Name, types.StrategicMergePatchType, a.Patch,
			metav1.PatchOptions{}, "status")
		if err != nil {
			return nil, err
		}
		// The response replaces the fleet's object, and must be as small.
		return simkubelet.Slim(pod), nil
	// Delete without a grace period, as a kubelet does once the processes have ended.
	case simkubelet.DeletePod:
		err := core.Pods(a.Pod.Namespace).Delete(ctx, a.Pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0),
			Preconditions:      &metav1.Preconditions{UID: &a.UID},
		})
		return nil, conflictToNotFound(ctx, err, a.UID, a.Pod.Name, core.Pods(a.Pod.Namespace).Get)
	case simkubelet.DeleteNode:
		err := core.Nodes().Delete(ctx, a.Node, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID}})
		return nil, conflictToNotFound(ctx, err, a.UID, a.Node, core.Nodes().Get)
	case simkubelet.Report:
		return nil, s.reportEvent(ctx, a)
	}

	return nil, fmt.Errorf("unknown action %v", a.Kind)
}

// conflictToNotFound turns the conflict of a deletion into NotFound if no object has this UID any
// longer: with a new object of the same name, every retry would be a conflict. get reads the
// present object of that name; any other error of get leaves the conflict unchanged.
func conflictToNotFound[T metav1.Object](ctx context.Context, err error, uid types.UID, name string,
	get func(context.Context, string, metav1.GetOptions) (T, error)) error {
	if !apierrors.IsConflict(err) {
		return err
	}
	now, getErr := get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(getErr):
		return getErr
	case getErr == nil && now.GetUID() != uid:
		return apierrors.NewNotFound(schema.GroupResource{}, name)
	}
	return err
}

// errNotSimulated is a permanent failure: the node of that name is a machine.
var errNotSimulated = errors.New("a node of this name exists and is not simulated")

// registerNode creates the node. It takes over an existing node unchanged, for example after a lost
// response.
func (s *sender) registerNode(ctx context.Context, a simkubelet.Action) (*v1.Node, error) {
	nodes := s.client.CoreV1().Nodes()
	node, err := nodes.Create(ctx, a.Object, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return node, err
	}
	if node, err = nodes.Get(ctx, a.Node, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	if _, simulated := node.Labels[simkubelet.LabelSimulated]; !simulated {
		return nil, errNotSimulated
	}
	return node, nil
}

// renewLease writes the node's Lease. An unknown Lease is created. A Lease left by an earlier run
// or by an interrupted create is read first.
func (s *sender) renewLease(ctx context.Context, a simkubelet.Action) error {
	leases := s.client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	// A node has only one renewal in flight, so only one worker uses known at a time.
	known := s.knownLeaseOf(a.Node)
	fresh := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: a.Node, Namespace: v1.NamespaceNodeLease}}
	// Update the last response, so that a write by another client causes a conflict.
	want := cmp.Or(known.object, fresh)
	// The Lease is deleted with its node, like a kubelet's.
	want.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: a.Node, UID: a.UID}}
	want.Spec.HolderIdentity = &a.Node
	want.Spec.LeaseDurationSeconds = ptr.To(int32(simkubelet.LeaseDuration / time.Second))
	want.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	var err error
	var wrote *coordinationv1.Lease
	if known.object == nil {
		wrote, err = leases.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			if wrote, err = leases.Get(ctx, a.Node, metav1.GetOptions{}); err == nil {
				want.ResourceVersion, want.UID = wrote.ResourceVersion, wrote.UID
				wrote, err = leases.Update(ctx, want, metav1.UpdateOptions{})
			}
		}
	} else {
		wrote, err = leases.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		// Another client wrote or removed the Lease, or the outcome of the write is unknown: the
		// next renewal creates or reads the Lease.
		known.object = nil
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("lease %s: %w, will be created", a.Node, errors.New("not found"))
		}
		return err
	}
	if len(wrote.ManagedFields) > 0 {
		// One empty entry makes the API server stop tracking field managers, which takes a tenth of
		// the cost of a renewal.
		wrote.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	}
	known.object = wrote
	return nil
}

// knownLeaseOf returns the entry of a node, creating it if needed.
func (s *sender) knownLeaseOf(node string) *knownLease {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.leases[node]
	if known == nil {
		known = &knownLease{}
		s.leases[node] = known
	}
	return known
}

// reportEvent creates an event about a pod. Each event has a unique name; equal events are not
// counted in one object, unlike with a kubelet's recorder.
func (s *sender) reportEvent(ctx context.Context, a simkubelet.Action) error {
	// The time makes the name unique.
	now := time.Now()
	_, err := s.client.EventsV1().Events(a.Pod.Namespace).Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: a.Pod.Namespace,
			Name:      fmt.Sprintf("%s.%x", a.Pod.Name, now.UnixNano()),
		},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: "berth.dev/nodes",
		ReportingInstance:   a.Node,
		Action:              "Simulate",
		Reason:              a.Event.Reason,
		Note:                a.Event.Message,
		Type:                a.Event.Type,
		Regarding:           v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: a.UID},
	}, metav1.CreateOptions{})
	return err
}
