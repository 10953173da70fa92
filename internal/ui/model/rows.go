// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import "k8s.io/apimachinery/pkg/types"

// Node is a node in the map and the table of nodes. Amounts are pairs of the requested and the
// total amount, in Others as well.
type Node struct {
	Name     string   `json:"name"`
	Zone     string   `json:"zone"`
	Ready    string   `json:"ready"` // True, False or Unknown; empty: not reported
	Cordoned bool     `json:"cordoned"`
	Taints   []string `json:"taints"`  // taints in the form key=value:Effect
	Trouble  []string `json:"trouble"` // conditions, other than Ready, that show a problem
	CPU      [2]int64 `json:"cpu"`     // in millicores
	Memory   [2]int64 `json:"memory"`  // in bytes
	Pods     [2]int64 `json:"pods"`
	// Others holds the node's other resources with a non-zero amount, in whole units.
	Others  map[string][2]int64 `json:"others,omitempty"`
	Leaving int                 `json:"leaving"`         // number of pods that must leave or are leaving
	Roll    string              `json:"roll,omitempty"`  // progress of a roll, an execute.RollNote
	Waits   []Event             `json:"waits,omitempty"` // last events of pods that a drain waits for
	// Blocks holds the pods drawn in the node. It is set only in clusters with few enough nodes.
	Blocks []Block `json:"blocks,omitempty"`
}

// Block is a pod that takes room on its node. Zeros are omitted and keys are short, because
// thousands of blocks are sent.
type Block struct {
	Namespace string           `json:"ns"`
	Name      string           `json:"n"`
	Workload  string           `json:"w,omitempty"` // Kind/name
	Priority  int32            `json:"p,omitempty"`
	CPU       int64            `json:"c,omitempty"` // in millicores
	Memory    int64            `json:"m,omitempty"` // in bytes
	Others    map[string]int64 `json:"o,omitempty"` // in whole units
	Leaves    bool             `json:"l,omitempty"` // the pod must leave or is leaving
}

// Waiting is a pod without a node. It is comparable, so that an unchanged row is detected by ==.
type Waiting struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Priority  int32  `json:"priority"`
	Created   int64  `json:"created"`
	// Reason and Message come from the pod's condition PodScheduled. If no scheduler has tried the
	// pod yet, Message is the reason why no scheduler will try it, or empty if one will.
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Nominated string `json:"nominated"`
	Scheduler string `json:"scheduler"`
	// Workload is the Kind/name of the pod's creator; empty: unknown.
	Workload string `json:"workload"`
	// Group is the key of the pod's Group; empty: the pod has no group.
	Group  string `json:"group"`
	CPU    int64  `json:"cpu"`
	Memory int64  `json:"memory"`
}

// Group is a pod group that has pending pods, or that belongs to a tree with pending pods.
type Group struct {
	Key     string `json:"key"`    // namespace/name
	Parent  string `json:"parent"` // key of the parent Composite; empty: none
	Tree    string `json:"tree"`   // key of the tree's root
	Pods    int    `json:"pods"`   // number of pods of the group
	Placed  int    `json:"placed"` // number of its pods with a node
	Needed  int    `json:"needed"` // number of pods placed together; 0: pods are placed individually
	Message string `json:"message"`
}

// Composite is a composite pod group in a tree with pending pods.
type Composite struct {
	Key     string `json:"key"`
	Parent  string `json:"parent"` // key of the parent Composite; empty: this is the root
	Groups  int    `json:"groups"` // number of child groups, including composite groups
	Placed  int    `json:"placed"` // number of child groups with their required number of pods on nodes
	Needed  int    `json:"needed"` // number of groups placed together; 0: groups are placed individually
	Message string `json:"message"`
}

// Leaving is a pod that must leave its node, or is leaving. The page counts down to Due by itself.
type Leaving struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	Taint     string `json:"taint"` // taint with the earliest deadline; empty if Going
	Due       int64  `json:"due"`   // time at which the pod must leave; if Going, end of its grace period
	Held      string `json:"held"`  // status of the guard, which holds the pod's eviction until Due
	Going     bool   `json:"going"` // the pod is being deleted
	Workload  string `json:"workload"`
	Priority  int32  `json:"priority"`
	Cause     string `json:"cause"` // if Going, reason of the pod's condition DisruptionTarget
}

// Event is an event of the API, or a change of a node for which the API has no event.
type Event struct {
	UID       string `json:"uid"`
	At        int64  `json:"at"`
	Warning   bool   `json:"warning"`
	Reason    string `json:"reason"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Message   string `json:"message"`
	Count     int32  `json:"count"`
	By        string `json:"by,omitempty"` // component that reported the event
	// These fields describe the pod, if the event is about a known one.
	Node     string `json:"node,omitempty"`
	Workload string `json:"workload,omitempty"`
	Priority int32  `json:"priority,omitempty"`

	pod types.UID // UID of the pod
}

// Summary describes the cluster in a few numbers. CPU and Memory are the requested and allocatable
// amounts of the shown nodes.
type Summary struct {
	Nodes   int      `json:"nodes"`
	Ready   int      `json:"ready"`
	Pods    int      `json:"pods"`   // number of pods on nodes
	Astray  int      `json:"astray"` // number of pods bound to missing nodes
	Pending int      `json:"pending"`
	Leaving int      `json:"leaving"`
	CPU     [2]int64 `json:"cpu"`
	Memory  [2]int64 `json:"memory"`
	// Marked changes whenever a node is added or removed, or its labels or taints change:
	// selections by labels or taints must then be repeated.
	Marked int `json:"marked"`
}

// Delta holds the changes or, with Fresh, everything. Times are in milliseconds since 1970. A page
// that has applied a state and all later deltas shows what State would return.
type Delta struct {
	Now        int64           `json:"now"`
	Fresh      bool            `json:"fresh,omitempty"`
	Since      int64           `json:"since,omitempty"` // with Fresh: beginning of the known history
	Summary    Summary         `json:"summary"`
	Nodes      *Set[Node]      `json:"nodes,omitempty"`
	Queue      *Set[Waiting]   `json:"queue,omitempty"`
	Groups     *Set[Group]     `json:"groups,omitempty"`
	Composites *Set[Composite] `json:"composites,omitempty"`
	Evictions  *Set[Leaving]   `json:"evictions,omitempty"`
	Events     []Event         `json:"events,omitempty"`
	Departures []Departure     `json:"departures,omitempty"`
	History    []Moment        `json:"history,omitempty"`
}

// Set holds new or changed rows, and the keys of removed rows: nodes by name, groups and composites
// by key, pods by UID.
type Set[T any] struct {
	Rows []T      `json:"rows,omitempty"`
	Gone []string `json:"gone,omitempty"`
}

// orNil returns nil for a set without rows and keys, which omits the set from the JSON.
func (s *Set[T]) orNil() *Set[T] {
	if len(s.Rows) == 0 && len(s.Gone) == 0 {
		return nil
	}
	return s
}

// replaceRow replaces a shown row. A zero row is not shown.
func replaceRow[T comparable](set *Set[T], key string, shown *T, row T) {
	switch {
	case row == *shown:
	case row == *new(T):
		set.Gone = append(set.Gone, key)
	default:
		set.Rows = append(set.Rows, row)
	}
	*shown = row
}

// replaceIn replaces a row among the shown rows of pods.
func replaceIn[T comparable](set *Set[T], rows map[types.UID]T, uid types.UID, row T) {
	shown := rows[uid]
	replaceRow(set, string(uid), &shown, row)
	if rows[uid] = row; row == *new(T) {
		delete(rows, uid)
	}
}
