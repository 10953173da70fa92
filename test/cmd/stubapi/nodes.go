// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The states written by a controller, as bits of nodeRecord.marks.
const (
	markUnknown    = 1 << iota // the conditions are Unknown
	markNoSchedule             // the taint unreachable:NoSchedule
	markNoExecute              // the taint unreachable:NoExecute
)

// silence makes every n-th node silent: its Lease and its status are no longer renewed.
func (s *store) silence(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 0; i < len(s.nodes); i += n {
		s.nodes[i].silent = true
		s.counts.Silent++
	}
}

// lastBeat and lastRenewal return the times of a node's last signs of life.
func (n *nodeRecord) lastBeat() time.Time    { return time.UnixMilli(n.beatAt) }
func (n *nodeRecord) lastRenewal() time.Time { return time.UnixMilli(n.renewedAt) }

// mark changes the state of a node unless its version is another one. It returns false then.
func (s *store) mark(index int32, version string, change func(uint8) uint8) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.nodes[index]
	if version != "" && version != strconv.FormatInt(n.version, 10) {
		s.counts.Conflicts++
		return false
	}
	before := n.marks
	s.version++
	n.version, n.marks = s.version, change(before)
	s.logs["nodes"].add(entry(s.version, index))
	if n.marks&markUnknown > before&markUnknown {
		if !n.silent {
			s.counts.Wrong++
			return true
		}
		took := time.Since(time.UnixMilli(max(n.beatAt, n.renewedAt))).Milliseconds()
		if s.counts.Found == 0 {
			s.counts.First = took
		}
		s.counts.Found++
		s.counts.First, s.counts.Last = min(s.counts.First, took), max(s.counts.Last, took)
	}
	return true
}

// entry returns the entry of a node in the log.
func entry(version int64, index int32) change {
	return change{version: version, index: index, node: -1}
}

// serveNode serves a node, and the patches of the node controller.
func (s *server) serveNode(w http.ResponseWriter, r *http.Request, t target) {
	index, ok := s.store.nodeIndex(t.name)
	if !ok {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such node")
		return
	}
	if r.Method == http.MethodPatch {
		var patch struct {
			Metadata struct{ ResourceVersion string }
			Spec     struct{ Taints []v1.Taint }
			Status   struct{ Conditions []v1.NodeCondition }
		}
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
			return
		}
		written := s.store.mark(index, patch.Metadata.ResourceVersion, func(marks uint8) uint8 {
			if t.sub == "" {
				marks &= markUnknown
				for _, taint := range patch.Spec.Taints {
					if taint.Key == v1.TaintNodeUnreachable && taint.Effect == v1.TaintEffectNoSchedule {
						marks |= markNoSchedule
					}
					if taint.Key == v1.TaintNodeUnreachable && taint.Effect == v1.TaintEffectNoExecute {
						marks |= markNoExecute
					}
				}
				return marks
			}
			for _, c := range patch.Status.Conditions {
				if c.Type == v1.NodeReady && c.Status == v1.ConditionUnknown {
					marks |= markUnknown
				}
			}
			return marks
		})
		if !written {
			fail(w, http.StatusConflict, metav1.StatusReasonConflict, "the node has changed")
			return
		}
	}
	s.store.mu.Lock()
	n := s.store.nodes[index]
	s.store.mu.Unlock()
	e := s.encoders.Get().(*encoder)
	defer s.encoders.Put(e)
	writeObject(w, http.StatusOK, "v1", "Node", e.nodeAt(index, n.version, n.marks, n.lastBeat()))
}

// serveNodeLease serves the Lease of a node.
func (s *server) serveNodeLease(w http.ResponseWriter, t target) {
	index, ok := s.store.nodeIndex(t.name)
	if !ok {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such lease")
		return
	}
	s.store.mu.Lock()
	n := s.store.nodes[index]
	s.store.mu.Unlock()
	e := s.encoders.Get().(*encoder)
	defer s.encoders.Put(e)
	writeObject(w, http.StatusOK, t.version, "Lease", e.leaseAt(index, n.renewed, n.lastRenewal()))
}
