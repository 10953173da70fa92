// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// store holds the cluster as compact records, from which objects are encoded for each response. A
// node has about 50 bytes, and a pod 40 bytes.
type store struct {
	mu      sync.Mutex
	version int64 // the last resource version; one sequence for all objects, as in etcd
	nodes   []nodeRecord
	pods    []podRecord
	batches []*batch
	logs    map[string]*changeLog // by resource
	counts  counts
	waits   []int32 // milliseconds between creation and binding of each bound pod
}

// nodeRecord is a node with its Lease.
type nodeRecord struct {
	version int64
	renewed int64 // version of the Lease
	// renewedAt is the time of the last renewal, in Unix milliseconds.
	renewedAt int64
	beatAt    int64 // time of the last heartbeat
	cpu       int32 // millicores requested by the bound pods
	pods      int32
	silent    bool  // the Lease is no longer renewed
	marks     uint8 // states written by a controller; see markUnknown
}

// podRecord is a pod. Its state at an earlier version is known, so that all pages of a list have
// the same version.
type podRecord struct {
	created, bound, status int64 // versions; 0: not bound, no condition
	at                     int64 // time of the creation, in Unix milliseconds
	node                   int32
	batch                  int32
}

// batch is a number of pods created by one request.
type batch struct {
	Name    string  `json:"name"`
	Pods    int     `json:"pods"`
	Rate    float64 `json:"rate"` // pods per second
	Spread  bool    `json:"spread"`
	Created int     `json:"created"`
	Bound   int     `json:"bound"`
	// Seconds from the first creation until the last creation and the last binding.
	CreatedIn float64 `json:"createdIn"`
	BoundIn   float64 `json:"boundIn"`

	began time.Time
}

// counts are the numbers of the report that the store maintains.
type counts struct {
	Bound      int `json:"bound"`      // completed bindings
	Rebound    int `json:"rebound"`    // bindings of bound pods, which were refused
	Overfull   int `json:"overfull"`   // bindings beyond the size of a node
	Events     int `json:"events"`     // Kubernetes events
	Statuses   int `json:"statuses"`   // patches of pod statuses
	Heartbeats int `json:"heartbeats"` // status updates of nodes
	Renewals   int `json:"renewals"`   // renewals of Leases

	Silent    int   `json:"silent"`    // nodes that have become silent
	Found     int   `json:"found"`     // silent nodes with the condition Unknown
	Wrong     int   `json:"wrong"`     // other nodes with this condition
	Conflicts int   `json:"conflicts"` // patches of nodes for another version
	First     int64 `json:"first"`     // milliseconds from the last sign of life of a silent node to its condition: the shortest
	Last      int64 `json:"last"`      // the longest
}

// change is a change of a record for watches.
type change struct {
	version int64
	index   int32
	node    int32 // node of a pod after the change; -1: none
	added   bool
}

// changeLog holds the latest changes of a resource. Watches from a version below floor are refused.
type changeLog struct {
	floor   int64
	changes []change
}

// mostChanges is the number of changes kept at least.
const mostChanges = 2_000_000

func (l *changeLog) add(c change) {
	if len(l.changes) >= 2*mostChanges {
		l.floor = l.changes[len(l.changes)-mostChanges-1].version
		l.changes = append(make([]change, 0, 2*mostChanges), l.changes[len(l.changes)-mostChanges:]...)
	}
	l.changes = append(l.changes, c)
}

// after appends at most n changes after the version to into. It returns false if they are not kept.
func (l *changeLog) after(version int64, n int, into []change) ([]change, bool) {
	if version < l.floor {
		return into, false
	}
	from, _ := slices.BinarySearchFunc(l.changes, version+1, func(c change, v int64) int { return int(c.version - v) })
	return append(into, l.changes[from:min(from+n, len(l.changes))]...), true
}

func newStore(nodes int) *store {
	s := &store{nodes: make([]nodeRecord, nodes), logs: map[string]*changeLog{"nodes": {}, "pods": {}, "leases": {}}}
	now := time.Now().UnixMilli()
	for i := range s.nodes {
		s.version++
		s.nodes[i] = nodeRecord{version: s.version, renewed: s.version, renewedAt: now, beatAt: now}
	}
	for _, log := range s.logs {
		log.floor = s.version
	}
	return s
}

// createPods adds n pods to a batch.
func (s *store) createPods(number int32, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, now := s.batches[number], time.Now()
	if b.Created == 0 {
		b.began = now
	}
	for range n {
		s.version++
		s.logs["pods"].add(change{version: s.version, index: int32(len(s.pods)), node: -1, added: true})
		s.pods = append(s.pods, podRecord{created: s.version, at: now.UnixMilli(), node: -1, batch: number})
	}
	b.Created += n
	b.CreatedIn = now.Sub(b.began).Seconds()
}

// bind binds a pod. It returns false if the pod has a node.
func (s *store) bind(index, node int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, n := &s.pods[index], &s.nodes[node]
	if p.node >= 0 {
		s.counts.Rebound++
		return false
	}
	s.version++
	p.bound, p.node = s.version, node
	s.logs["pods"].add(change{version: s.version, index: index, node: node})
	n.pods++
	n.cpu += podMilliCPU
	if n.cpu > nodeMilliCPU(node) || n.pods > podsPerNode {
		s.counts.Overfull++
	}
	b, now := s.batches[p.batch], time.Now()
	b.Bound++
	b.BoundIn = now.Sub(b.began).Seconds()
	s.counts.Bound++
	s.waits = append(s.waits, int32(now.UnixMilli()-p.at))
	return true
}

// setStatus records that a condition was written for a pod.
func (s *store) setStatus(index int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	p := &s.pods[index]
	p.status = s.version
	s.counts.Statuses++
	s.logs["pods"].add(change{version: s.version, index: index, node: p.node})
}

// beat updates the status of n nodes without an actual change, beginning at a node.
func (s *store) beat(from, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UnixMilli()
	for i := from; i < from+n; i++ {
		index := i % len(s.nodes)
		if s.nodes[index].silent {
			continue
		}
		s.version++
		s.nodes[index].version, s.nodes[index].beatAt = s.version, now
		s.logs["nodes"].add(change{version: s.version, index: int32(index), node: -1})
	}
	s.counts.Heartbeats += n
}

// renew renews the Leases of n nodes, beginning at a node.
func (s *store) renew(from, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UnixMilli()
	for i := from; i < from+n; i++ {
		index := i % len(s.nodes)
		if s.nodes[index].silent {
			continue
		}
		s.version++
		s.nodes[index].renewed, s.nodes[index].renewedAt = s.version, now
		s.logs["leases"].add(change{version: s.version, index: int32(index), node: -1})
		s.counts.Renewals++
	}
}

// podIndex returns the index in the name of an existing pod.
func (s *store) podIndex(name string) (int32, bool) {
	index, ok := indexIn(name, "pod-")
	s.mu.Lock()
	defer s.mu.Unlock()
	return index, ok && int(index) < len(s.pods)
}

// nodeIndex returns the index in the name of an existing node.
func (s *store) nodeIndex(name string) (int32, bool) {
	index, ok := indexIn(name, "node-")
	return index, ok && int(index) < len(s.nodes)
}

func podName(index int32) string  { return fmt.Sprintf("pod-%08d", index) }
func nodeName(index int32) string { return fmt.Sprintf("node-%07d", index) }

// indexIn returns the number in the name of an object.
func indexIn(name, prefix string) (int32, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseInt(digits, 10, 32)
	return int32(n), ok && err == nil && n >= 0
}
