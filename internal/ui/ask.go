// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/question"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/ui/changefeed"
	"github.com/berth-k8s/berth/internal/ui/model"
)

const (
	// askWithin bounds a request: reading 50,000 pods takes seconds, and a long forecast for them
	// takes minutes.
	askWithin = 3 * time.Minute
	// mostAsked bounds the number of requests that are being served, waiting or being received.
	mostAsked = 16
	// mostScored bounds the nodes in the table of scores.
	mostScored = 100
)

// asker serves explanations and forecasts, one at a time: each reads the whole cluster, and holds
// it in memory until the result is computed. Further requests wait for their turn, and are refused
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

// clusterReader reads the cluster for a request, in its current state or at a time. missing lists
// the unreadable kinds. The reader reads everything needed by package simulate, which is more than
// the page shows; reading a live cluster can be limited to some kinds.
type clusterReader interface {
	readState(ctx context.Context, at time.Time, kinds []snapshot.Kind) (set *manifest.Set, source simulate.Source, missing []string, err error)
}

// following reads the current state of a live cluster. The time is ignored.
type following struct{ client *snapshot.Client }

func (f following) readState(ctx context.Context, _ time.Time, kinds []snapshot.Kind) (*manifest.Set, simulate.Source, []string, error) {
	s, err := f.client.ReadKinds(ctx, kinds, nil)
	if err != nil {
		return nil, simulate.Source{}, nil, err
	}
	return s.Set, s.Source, s.Missing, nil
}

// recorded reads a recording. A time after the end means the end.
type recorded struct{ *changefeed.Recording }

func (r recorded) readState(_ context.Context, at time.Time, _ []snapshot.Kind) (*manifest.Set, simulate.Source, []string, error) {
	if at.After(r.Until) {
		at = r.Until
	}
	source := simulate.Source{From: r.Dir, AsOf: metav1.NewTime(at)}
	index, err := record.ReadIndex(r.Dir)
	if err != nil {
		return nil, source, nil, err
	}
	set, err := record.At(r.Dir, at)
	return set, source, index.MissingAt(at), err
}

// limitRequests admits as many requests as can be served in a reasonable time, and rejects further
// requests before reading them. A rejected request costs nothing.
func (a *asker) limitRequests(then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case a.asked <- struct{}{}:
			defer func() { <-a.asked }()
			then(w, r)
		default:
			writeError(w, http.StatusServiceUnavailable, "too many questions are being answered: try again in a moment")
		}
	}
}

// askCluster reads the cluster and calls answer. When the context ends, so does the work. at is the
// time in a recording. read reads the files of "apply -f"; it is nil without such files. missing
// lists the kinds that are unreadable, for example for lack of permissions; the result may then be
// incomplete.
func (a *asker) askCluster(ctx context.Context, at time.Time, read func([]string, *manifest.Set) (*manifest.Set, error),
	answer func(w *simulate.World, source simulate.Source) (any, error)) (any, []string, error) {
	// The limit includes the wait for the turn.
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	set, source, missing, err := a.cluster.readState(ctx, at, snapshot.Kinds())
	if err != nil {
		return nil, nil, err
	}
	running, err := a.runningConfig(ctx, set, source.AsOf.Time)
	if err != nil {
		return nil, nil, err
	}
	// The response lists the parts of the configuration that were only assumed.
	source.Assumed = running.Assumed
	// A recording holds only the last renewals of Leases.
	if a.options.Recording == "" {
		source.Stopped = running.Stopped
	}
	w, err := question.Open(ctx, set, running, source, read)
	if err != nil {
		return nil, nil, err
	}
	said, err := answer(w, source)
	return said, missing, err
}

// runningConfig reads the configuration for every request, because the scheduler may have reloaded
// its file. Without Options.Running it returns the default configuration.
func (a *asker) runningConfig(ctx context.Context, set *manifest.Set, at time.Time) (*config.Running, error) {
	if a.options.Running == nil {
		return &config.Running{}, nil
	}
	return a.options.Running(ctx, set.Leases, at)
}

// serveExplain serves GET /api/explain?namespace=&name=&node=&kind=; kind is podgroup or empty. If
// the live scheduler does not respond, the engine's own explanation is still returned.
func (a *asker) serveExplain(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	o := explain.Options{Namespace: cmp.Or(query.Get("namespace"), metav1.NamespaceDefault), Name: query.Get("name"),
		Node: query.Get("node"), Scored: mostScored}
	unasked := ""
	said, missing, err := a.askCluster(r.Context(), momentOf(r), nil, func(w *simulate.World, source simulate.Source) (any, error) {
		o.Source = source
		if query.Get("kind") == "podgroup" {
			return explain.OfGroup(w, o)
		}
		if a.options.Decided != nil && a.options.Recording == "" {
			var err error
			if o.Decided, err = a.options.Decided(r.Context(), o.Namespace, o.Name); err != nil {
				unasked = "the scheduler: " + err.Error() // the engine's explanation needs no scheduler
			}
		}
		return explain.Of(w, o)
	})
	if unasked != "" {
		missing = append(missing, unasked)
	}
	a.writeReply(w, said, missing, err)
}

// Foreseen is a forecast with the resulting changes of nodes, which the page shows on its map.
type Foreseen struct {
	*whatif.Forecast
	// Then holds the changed nodes in their future state.
	Then []NodeThen `json:"then"`
	// Removed names the removed nodes.
	Removed []string `json:"removed"`
}

// NodeThen is the future state of a node. Amounts are as in model.Node: requested, and allocatable.
type NodeThen struct {
	Name     string   `json:"name"`
	Zone     string   `json:"zone"`
	New      bool     `json:"new,omitempty"`
	Cordoned bool     `json:"cordoned"`
	Taints   []string `json:"taints"`
	CPU      [2]int64 `json:"cpu"`
	Memory   [2]int64 `json:"memory"`
	Pods     [2]int64 `json:"pods"`
}

// whatIf serves POST /api/what-if. It reports errors in the request before it reads the cluster.
func (a *asker) whatIf(w http.ResponseWriter, r *http.Request) {
	var q question.WhatIf
	// Read to the end: the server detects a disconnected browser only afterwards.
	text, err := io.ReadAll(r.Body)
	if err == nil {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the answer may take longer
		decoder := json.NewDecoder(bytes.NewReader(text))
		// A misspelt field would otherwise be ignored silently.
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&q)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("the request cannot be read: %v", err))
		return
	}
	steps, err := q.Steps(a.options.Parse)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	said, missing, err := a.askCluster(r.Context(), momentOf(r), q.ReadApplied, func(w *simulate.World, source simulate.Source) (any, error) {
		// Save the nodes now, because the forecast changes the world.
		before := nodesOf(w)
		forecast, err := whatif.Run(w, steps, whatif.Options{Source: source})
		if err != nil {
			return nil, err
		}
		return toForeseen(forecast, before, nodesOf(w)), nil
	})
	a.writeReply(w, said, missing, err)
}

// writeReply writes the response, or an error in one line. Invalid requests get status 422, so that
// the page shows the message unchanged.
func (a *asker) writeReply(w http.ResponseWriter, said any, missing []string, err error) {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		writeError(w, http.StatusGatewayTimeout, fmt.Sprintf("not answered within %s: ask for less at a time", askWithin))
	case errors.Is(err, explain.ErrNoPod):
		writeError(w, http.StatusNotFound, err.Error())
	case err != nil:
		writeError(w, http.StatusUnprocessableEntity, err.Error())
	default:
		writeJSON(w, http.StatusOK, map[string]any{"answer": said, "missing": missing})
	}
}

// nodesOf returns the nodes of a world, by name.
func nodesOf(w *simulate.World) map[string]NodeThen {
	nodes := make(map[string]NodeThen, w.Cluster().Len())
	for _, n := range w.Cluster().SortedNodes() {
		object := w.Node(n.Name)
		then := NodeThen{
			Name: n.Name, Zone: object.Labels["topology.kubernetes.io/zone"], Cordoned: object.Spec.Unschedulable, Taints: []string{},
			CPU:    [2]int64{n.Requested.MilliCPU, n.Size.MilliCPU},
			Memory: [2]int64{n.Requested.Memory, n.Size.Memory},
			Pods:   [2]int64{int64(len(n.Pods)), object.Status.Allocatable.Pods().Value()},
		}
		for i := range object.Spec.Taints {
			then.Taints = append(then.Taints, object.Spec.Taints[i].ToString())
		}
		nodes[n.Name] = then
	}
	return nodes
}

// toForeseen compares the nodes before and after a forecast. Rows are sorted by name.
func toForeseen(forecast *whatif.Forecast, before, after map[string]NodeThen) *Foreseen {
	f := &Foreseen{Forecast: forecast, Then: []NodeThen{}, Removed: []string{}}
	for name, then := range after {
		was, known := before[name]
		then.New = !known
		if !known || was.Cordoned != then.Cordoned || was.CPU != then.CPU || was.Memory != then.Memory ||
			was.Pods != then.Pods || !slices.Equal(was.Taints, then.Taints) {
			f.Then = append(f.Then, then)
		}
	}

	for name := range before {
		if _, still := after[name]; !still {
			f.Removed = append(f.Removed, name)
		}
	}

	slices.Sort(f.Removed)
	slices.SortFunc(f.Then, func(a, b NodeThen) int { return cmp.Compare(a.Name, b.Name) })
	return f
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
	set, source, missing, err := a.cluster.readState(r.Context(), momentOf(r), kinds)
	if err != nil {
		a.writeReply(w, nil, missing, err)
		return
	}
	objects := map[string]any{"asOf": source.AsOf, "budgets": set.PodDisruptionBudgets, "surges": slices.DeleteFunc(
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
	a.writeReply(w, objects, missing, nil)
}
