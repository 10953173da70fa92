// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Known holds facts from a whole journal that a course needs in advance: the choices among equal
// nodes, and the delays of other components. Times count from the scheduler's request to delete a
// pod or, without a request, from the time the journal shows the deletion. The zero value is empty.
type Known struct {
	nodes map[types.UID]string // last bound or nominated node of each pod
	// leaving holds the termination times of placed pods: for each pod its own time, and for each
	// controller the longest.
	leaving map[types.UID]time.Duration
	// renewing holds the median time in which each controller replaces a victim.
	renewing  map[types.UID]time.Duration
	preempted int // number of pods that the scheduler requested to delete
}

// Recall reads a journal to its end, and returns the facts that a course needs in advance. The
// reader is consumed; the course needs another reader.
func Recall(r *journal.Reader) (Known, error) {
	m := memory{
		Known:   Known{nodes: map[types.UID]string{}, leaving: map[types.UID]time.Duration{}, renewing: map[types.UID]time.Duration{}},
		owners:  map[types.UID]types.UID{},
		deleted: map[types.UID]time.Time{}, victims: map[types.UID][]time.Time{}, took: map[types.UID][]time.Duration{},
	}

	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			for owner, took := range m.took {
				slices.Sort(took)
				m.renewing[owner] = took[len(took)/2]
			}
			return m.Known, nil
		}
		if err != nil {
			return m.Known, err
		}
		m.noteRecord(&record)
	}
}

// memory accumulates the records read so far. All its maps are by UID.
type memory struct {
	Known
	owners  map[types.UID]types.UID       // owners of the existing pods
	deleted map[types.UID]time.Time       // start of the deletion, by existing placed pod
	victims map[types.UID][]time.Time     // by controller: when its victims without a replacement were deleted
	took    map[types.UID][]time.Duration // by controller: times taken to replace other victims
}

// noteRecord takes in one record: objects shown by the API, and deletions requested by the
// scheduler.
func (m *memory) noteRecord(record *journal.Record) {
	switch e := record.Event.(type) {
	case cycle.Seen:
		if pod, ok := e.Object.(*v1.Pod); ok {
			m.seePod(pod, record.At)
		}
	case cycle.Gone:
		if pod, ok := e.Object.(*v1.Pod); ok {
			m.losePod(pod, record.At)
		}
	}

	for action := range strings.SplitSeq(record.Actions, "\n") {
		uid, ok := victimOf(action)
		if !ok {
			continue
		}
		if _, again := m.deleted[uid]; again { // a second request for the same pod
			continue
		}
		m.preempted++
		m.deleted[uid] = record.At
		if owner := m.owners[uid]; owner != "" {
			m.victims[owner] = append(m.victims[owner], record.At)
		}
	}
}

// seePod records a pod: its node, the start of its deletion, and whether it is the expected
// replacement of a victim. Replacements are matched with victims in the order of their appearance.
func (m *memory) seePod(pod *v1.Pod, at time.Time) {
	owner := rules.OwnerOf(pod).UID
	if _, before := m.owners[pod.UID]; !before && len(m.victims[owner]) > 0 {
		m.took[owner] = append(m.took[owner], at.Sub(m.victims[owner][0]))
		m.victims[owner] = m.victims[owner][1:]
	}
	m.owners[pod.UID] = owner
	if node := cmp.Or(pod.Spec.NodeName, pod.Status.NominatedNodeName); node != "" {
		m.nodes[pod.UID] = node
	}
	if _, before := m.deleted[pod.UID]; !before && pod.DeletionTimestamp != nil && pod.Spec.NodeName != "" {
		m.deleted[pod.UID] = at
	}
}

// losePod records a pod's termination time.
func (m *memory) losePod(pod *v1.Pod, at time.Time) {
	if since, ok := m.deleted[pod.UID]; ok {
		took := at.Sub(since)
		m.leaving[pod.UID] = took
		if owner := rules.OwnerOf(pod).UID; owner != "" {
			m.leaving[owner] = max(m.leaving[owner], took)
		}
		delete(m.deleted, pod.UID)
	}
	delete(m.owners, pod.UID)
}

// victimOf returns the UID of the victim in the text of an action, if it is a [cycle.Remove]:
// "remove NAMESPACE/NAME (UID) ...".
func victimOf(action string) (types.UID, bool) {
	rest, ok := strings.CutPrefix(action, "remove ")
	if !ok {
		return "", false
	}
	_, rest, _ = strings.Cut(rest, " (")
	uid, _, ok := strings.Cut(rest, ")")
	return types.UID(uid), ok
}
