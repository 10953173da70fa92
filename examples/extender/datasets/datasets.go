// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package datasets is an HTTP extender as for kube-scheduler: it restricts pods to nodes that can
// reach their dataset, and prefers nodes with more of it in their local cache.
//
// A pod names its dataset in the annotation example.com/dataset. An [Inventory] holds the share of
// each dataset in each node's cache. In a real cluster, an agent on the nodes would maintain it.
package datasets

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

const annotation = "example.com/dataset"

// Inventory holds the share of a dataset in a node's cache, 0 to 10, by dataset and node. A node
// that is not listed cannot reach the dataset at all.
type Inventory map[string]map[string]int64

// mostAsked bounds the size of a request, which has one pod and the names of nodes.
const mostAsked = 16 << 20

// Serve serves requests on the listener. Its timeouts are short, because schedulers send requests
// and read responses quickly, and other clients must not hold connections.
func (in Inventory) Serve(l net.Listener) error {
	server := &http.Server{
		Handler:     http.MaxBytesHandler(in.Handler(), mostAsked),
		ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	return server.Serve(l)
}

// Handler serves the verbs "filter" and "prioritize". It receives only the names of nodes
// (nodeCacheCapable).
func (in Inventory) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /filter", func(w http.ResponseWriter, r *http.Request) { serve(w, r, in.filter) })
	mux.HandleFunc("POST /prioritize", func(w http.ResponseWriter, r *http.Request) { serve(w, r, in.prioritize) })
	return mux
}

// serve decodes a request, and writes the response.
func serve[R any](w http.ResponseWriter, r *http.Request, answer func(pod *v1.Pod, nodes []string) R) {
	var args extenderv1.ExtenderArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if args.Pod == nil || args.NodeNames == nil {
		http.Error(w, "want a pod and the names of nodes: configure the extender with nodeCacheCapable", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer(args.Pod, *args.NodeNames)); err != nil {
		slog.Error("Answer not written", "pod", args.Pod.Name, "err", err)
	}
}

// filter passes the nodes that can reach the pod's dataset. Removing pods would not help the other
// nodes, so they are reported as unresolvable.
func (in Inventory) filter(pod *v1.Pod, nodes []string) extenderv1.ExtenderFilterResult {
	wanted, ok := pod.Annotations[annotation]
	if !ok {
		return extenderv1.ExtenderFilterResult{NodeNames: &nodes}
	}
	passed, failed := []string{}, extenderv1.FailedNodesMap{}
	for _, node := range nodes {
		if _, reaches := in[wanted][node]; reaches {
			passed = append(passed, node)
		} else {
			failed[node] = "node(s) cannot reach dataset " + wanted
		}
	}
	return extenderv1.ExtenderFilterResult{NodeNames: &passed, FailedAndUnresolvableNodes: failed}
}

// prioritize scores a node by its share of the dataset.
func (in Inventory) prioritize(pod *v1.Pod, nodes []string) extenderv1.HostPriorityList {
	list := extenderv1.HostPriorityList{}
	for _, node := range nodes {
		list = append(list, extenderv1.HostPriority{Host: node, Score: in[pod.Annotations[annotation]][node]})
	}
	return list
}
