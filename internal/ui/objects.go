// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"net/http"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/ui/model"
)

// mostChosen bounds the listed pods of a workload.
const mostChosen = 2000

// servePods serves GET /api/pods?namespace=&workload=&priority=.
func (s *Server) servePods(w http.ResponseWriter, r *http.Request) {
	var chosen model.Chosen
	q := r.URL.Query()
	if s.lookAtCluster(w, r, func(c *model.Cluster) {
		chosen = c.Choose(q.Get("namespace"), q.Get("workload"), q.Get("priority"), mostChosen)
	}) {
		writeJSON(w, http.StatusOK, chosen)
	}
}

// serveLabels serves GET /api/labels?key=KEY.
func (s *Server) serveLabels(w http.ResponseWriter, r *http.Request) {
	var keys []string
	var values map[string]string
	if s.lookAtCluster(w, r, func(c *model.Cluster) { keys, values = c.Labels(r.URL.Query().Get("key")) }) {
		writeJSON(w, http.StatusOK, map[string]any{"keys": keys, "values": values})
	}
}

// serveObjects serves GET /api/objects?namespace=&workload=Kind/name&node=&pod=. It returns objects
// that are not part of the stream: all budgets, the workload, the ResourceSlices of the node with
// the claims that use their pools, the requests of the pod with the claims of its namespace, the
// workloads that surge, and the room reserved for a replacement.
func (a *asker) serveObjects(w http.ResponseWriter, r *http.Request) {
	select { // one request holds the objects of the cluster at a time
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-r.Context().Done():
		return
	}
	set, source, missing, err := a.cluster.readState(r.Context(), momentOf(r))
	if err != nil {
		a.writeReply(w, nil, missing, err)
		return
	}
	namespace, workload, node := r.URL.Query().Get("namespace"), r.URL.Query().Get("workload"), r.URL.Query().Get("node")
	objects := map[string]any{"asOf": source.AsOf, "budgets": set.PodDisruptionBudgets, "surges": slices.DeleteFunc(
		slices.Concat(set.OfKind("Deployment"), set.OfKind("ReplicaSet")),
		func(o metav1.Object) bool { return o.GetLabels()[rebalance.SurgeLabel] == "" })}
	for _, l := range set.Leases {
		if l.Namespace == cycle.MoveLeaseNamespace && l.Name == cycle.MoveLeaseName {
			objects["room"] = l.Annotations[cycle.MoveReservationAnnotation]
		}
	}
	kind, name, _ := strings.Cut(workload, "/")
	if slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"}, kind) {
		for _, o := range set.OfKind(kind) {
			if o.GetNamespace() == namespace && o.GetName() == name {
				objects["workload"] = o
			}
		}
	}
	for _, p := range set.Pods {
		if p.Namespace == namespace && p.Name == r.URL.Query().Get("pod") {
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
