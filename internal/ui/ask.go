// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/queryserver"
	"github.com/berth-k8s/berth/internal/ui/changefeed"
	"github.com/berth-k8s/berth/internal/ui/model"
)

const (
	// askWithin bounds a request: reading 50,000 pods takes seconds, and a long forecast for them
	// takes minutes.
	askWithin = 3 * time.Minute
	// mostAsked bounds the number of requests that are being served, waiting or being received.
	mostAsked = 16
)

// asker reads the cluster for questions, one at a time: each reads the whole cluster, and holds it
// in memory until the result is computed. Further requests wait for their turn, and are refused
// beyond mostAsked.
type asker struct {
	cluster clusterReader
	options *Options
	turn    chan struct{} // semaphore with one slot, held by the request being computed
	asked   chan struct{} // one element per request in progress
}

// newAsker returns an asker for a cluster. The options are the server's.
func newAsker(cluster clusterReader, o *Options) *asker {
	return &asker{cluster: cluster, options: o, turn: make(chan struct{}, 1), asked: make(chan struct{}, mostAsked)}
}

// clusterReader reads the cluster for a request, in its current state or at a time. The reader
// reads everything needed by package simulate, which is more than the page shows; reading a live
// cluster can be limited to some kinds. The state has no configuration.
type clusterReader interface {
	readState(ctx context.Context, at time.Time, kinds []snapshot.Kind) (*queryserver.State, error)
}

// following reads the current state of a live cluster. The time is ignored.
type following struct{ client *snapshot.Client }

func (f following) readState(ctx context.Context, _ time.Time, kinds []snapshot.Kind) (*queryserver.State, error) {
	s, err := f.client.ReadKinds(ctx, kinds, nil)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	return &queryserver.State{Set: s.Set, Source: s.Source, Missing: s.Missing}, nil
}

// recorded reads a recording. No time, or a time after the end, means the end.
type recorded struct{ *changefeed.Recording }

func (r recorded) readState(_ context.Context, at time.Time, _ []snapshot.Kind) (*queryserver.State, error) {
	if at.IsZero() || at.After(r.Until) {
		at = r.Until
	}
	index, err := record.ReadIndex(r.Dir)
	if err != nil {
		return nil, err
	}
	set, err := record.At(r.Dir, at)
	return &queryserver.State{Set: set, Source: simulate.Source{From: r.Dir, AsOf: metav1.NewTime(at)}, Missing: index.MissingAt(at)}, err
}

// limitRequests admits as many requests as can be served in a reasonable time, and rejects further
// requests before reading them. A rejected request costs nothing.
func (a *asker) limitRequests(then http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w = answered{w}
		select {
		case a.asked <- struct{}{}:
			defer func() { <-a.asked }()
		default:
			_ = connect.NewErrorWriter().Write(w, r, connect.NewError(connect.CodeUnavailable,
				errors.New("too many questions are being answered: try again in a moment")))
			return
		}
		// Read to the end: the server detects a disconnected browser only afterwards.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			_ = connect.NewErrorWriter().Write(w, r, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the request cannot be read: %w", err)))
			return
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the answer may take longer
		r.Body = io.NopCloser(bytes.NewReader(body))
		then.ServeHTTP(w, r)
	}
}

// answered bounds the time for the client to read a response.
type answered struct{ http.ResponseWriter }

func (a answered) Write(data []byte) (int, error) {
	takeWithin(a.ResponseWriter, writeWithin)
	return a.ResponseWriter.Write(data)
}

// Unwrap lets http.ResponseController set deadlines.
func (a answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// handler returns the path and the handler of the questions of the query service. The middleware
// compress compresses the answers.
func (a *asker) handler() (string, http.Handler) {
	return queryserver.Handler(&queryserver.Answers{
		Parse: a.options.Parse, Read: a.read, Recording: a.options.Recording != "", Decided: a.options.Decided,
	}, askWithin, connect.WithCompression("gzip", nil, nil))
}

// read reads the cluster and its configuration, and calls use.
func (a *asker) read(ctx context.Context, q queryserver.Question, use func(*queryserver.State) error) error {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	state, err := a.cluster.readState(ctx, q.AsOf, snapshot.Kinds())
	if err != nil {
		return err
	}
	// The scheduler may have reloaded its configuration since the last request.
	if state.Running, err = a.options.Running(ctx, state.Set.Leases, state.Source.AsOf.Time); err != nil {
		return err
	}
	// The response lists the parts of the configuration that were only assumed.
	state.Source.Assumed = state.Running.Assumed
	// A recording holds only the last renewals of Leases.
	if a.options.Recording == "" {
		state.Source.Stopped = state.Running.Stopped
	}
	return use(state)
}

// choosePods serves GET /api/pods?namespace=&workload=&priority=.
func choosePods(c *model.Cluster, r *http.Request) (int, any) {
	q := r.URL.Query()
	return http.StatusOK, c.Choose(q.Get("namespace"), q.Get("workload"), q.Get("priority"), mostChosen)
}

// labelsOf serves GET /api/labels?key=KEY.
func labelsOf(c *model.Cluster, r *http.Request) (int, any) {
	keys, values := c.Labels(r.URL.Query().Get("key"))
	return http.StatusOK, map[string]any{"keys": keys, "values": values}
}

// serveObjects serves GET /api/objects?namespace=&workload=Kind/name&node=&pod=. It returns objects
// that are not part of the stream: all budgets, the workload, the ResourceSlices of the node with
// the claims that use their pools, the requests of the pod with the claims of its namespace, the
// workloads that surge, and the room reserved for a replacement.
func (a *asker) serveObjects(w http.ResponseWriter, r *http.Request) {
	if a.options.Recording != "" { // which is read whole, by one request at a time
		select {
		case a.turn <- struct{}{}:
			defer func() { <-a.turn }()
		case <-r.Context().Done():
			return
		}
	}
	q := r.URL.Query()
	namespace, node, pod := q.Get("namespace"), q.Get("node"), q.Get("pod")
	kind, name, _ := strings.Cut(q.Get("workload"), "/")
	wanted := []string{"PodDisruptionBudget", "Deployment", "ReplicaSet", "Lease", "ResourceSlice", "ResourceClaim"}
	if slices.Contains([]string{"StatefulSet", "DaemonSet", "Job"}, kind) {
		wanted = append(wanted, kind)
	}
	kinds := slices.DeleteFunc(snapshot.Kinds(), func(k snapshot.Kind) bool { return !slices.Contains(wanted, k.Kind) })
	if pod != "" {
		kinds = append(kinds, snapshot.Kind{Resource: "pods", GroupVersion: v1.SchemeGroupVersion, Kind: "Pod",
			Fields: "metadata.namespace=" + namespace + ",metadata.name=" + pod})
	}
	state, err := a.cluster.readState(r.Context(), momentOf(r), kinds)
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	set := state.Set
	objects := map[string]any{"asOf": state.Source.AsOf, "budgets": set.PodDisruptionBudgets, "surges": slices.DeleteFunc(
		slices.Concat(set.OfKind("Deployment"), set.OfKind("ReplicaSet")),
		func(o metav1.Object) bool { return o.GetLabels()[rebalance.SurgeLabel] == "" })}

	for _, l := range set.Leases {
		if l.Namespace == cycle.MoveLeaseNamespace && l.Name == cycle.MoveLeaseName {
			objects["room"] = l.Annotations[cycle.MoveReservationAnnotation]
		}
	}
	if slices.Contains(wanted, kind) {
		for _, o := range set.OfKind(kind) {
			if o.GetNamespace() == namespace && o.GetName() == name {
				objects["workload"] = o
			}
		}
	}
	for _, p := range set.Pods {
		if p.Namespace == namespace && p.Name == pod {
			objects["pod"], objects["named"], objects["requests"] = p.Spec.ResourceClaims, p.Status.ResourceClaimStatuses, rules.Requests(p)
			objects["claims"] = slices.DeleteFunc(slices.Clone(set.ResourceClaims),
				func(c *resourcev1.ResourceClaim) bool { return c.Namespace != namespace })
		}
	}
	if node != "" {
		pools := map[string]bool{}
		objects["slices"] = slices.DeleteFunc(slices.Clone(set.ResourceSlices), func(s *resourcev1.ResourceSlice) bool {
			own := ptr.Deref(s.Spec.NodeName, "") == node
			if own {
				pools[s.Spec.Driver+"/"+s.Spec.Pool.Name] = true
			}
			return !own
		})
		objects["claims"] = slices.DeleteFunc(slices.Clone(set.ResourceClaims), func(c *resourcev1.ResourceClaim) bool {
			return c.Status.Allocation == nil || !slices.ContainsFunc(c.Status.Allocation.Devices.Results,
				func(d resourcev1.DeviceRequestAllocationResult) bool { return pools[d.Driver+"/"+d.Pool] })
		})
	}
	writeJSON(w, http.StatusOK, map[string]any{"answer": objects, "missing": state.Missing})
}
