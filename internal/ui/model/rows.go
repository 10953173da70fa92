// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

// Node is a node in the map and the table of nodes. Amounts are the requested and the total ones.
// Others' amounts are in the same order.
type Node struct {
	Name     string   `json:"name"`
	Zone     string   `json:"zone"`
	Ready    string   `json:"ready"` // True, False, Unknown, or empty: not reported
	Cordoned bool     `json:"cordoned"`
	Taints   []string `json:"taints"`  // as key=value:Effect
	Trouble  []string `json:"trouble"` // conditions, other than Ready, that show a problem
	CPU      [2]int64 `json:"cpu"`     // in thousandths
	Memory   [2]int64 `json:"memory"`  // in bytes
	Pods     [2]int64 `json:"pods"`
	// Others has the node's remaining resources with an amount, in whole units.
	Others  map[string][2]int64 `json:"others,omitempty"`
	Leaving int                 `json:"leaving"` // pods that must leave, or are leaving
	// Blocks are the pods drawn in the node, in clusters with room for that.
	Blocks []Block `json:"blocks,omitempty"`
}

// Block is a pod that takes room on its node. Thousands of them are sent: zeros are omitted, and
// keys are short.
type Block struct {
	Namespace string           `json:"ns"`
	Name      string           `json:"n"`
	Workload  string           `json:"w,omitempty"` // Kind/name
	Priority  int32            `json:"p,omitempty"`
	CPU       int64            `json:"c,omitempty"` // in thousandths
	Memory    int64            `json:"m,omitempty"` // in bytes
	Others    map[string]int64 `json:"o,omitempty"` // in whole units
	Leaves    bool             `json:"l,omitempty"` // it must leave, or is leaving
}

// Waiting is a pod without a node. It is comparable, so that an unchanged row is detected by ==.
type Waiting struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Priority  int32  `json:"priority"`
	Created   int64  `json:"created"`
	// Reason and Message come from the pod's condition PodScheduled. If no scheduler has tried the
	// pod yet, Message explains why none will, and is empty if one will.
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Nominated string `json:"nominated"`
	Scheduler string `json:"scheduler"`
	// Workload is the Kind/name of the pod's creator; empty: unknown.
	Workload string `json:"workload"`
	// Group is the key of the pod's Group; empty: the pod is in none.
	Group  string `json:"group"`
	CPU    int64  `json:"cpu"`
	Memory int64  `json:"memory"`
}

// Group is a pod group with pending pods, or one of a tree with pending pods.
type Group struct {
	Key     string `json:"key"`    // namespace/name
	Parent  string `json:"parent"` // the key of the Composite that it is in; empty: in none
	Tree    string `json:"tree"`   // the key of the one at the top
	Pods    int    `json:"pods"`   // that it has
	Placed  int    `json:"placed"` // of them, with a node
	Needed  int    `json:"needed"` // pods that are placed immediately; 0: each alone
	Message string `json:"message"`
}

// Composite is a composite pod group in a tree with pending pods.
type Composite struct {
	Key     string `json:"key"`
	Parent  string `json:"parent"` // the key of its Composite; empty: it is the root
	Groups  int    `json:"groups"` // that are in it, composite ones included
	Placed  int    `json:"placed"` // of them, with as many pods on nodes as they ask for
	Needed  int    `json:"needed"` // groups that are placed immediately; 0: each alone
	Message string `json:"message"`
}

// Leaving is a pod that must leave its node, or is leaving. The page counts down to Due by itself.
type Leaving struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	Taint     string `json:"taint"` // the pod that requires it first; empty if Going
	Due       int64  `json:"due"`   // when it must leave; if Going, when its grace period ends
	Going     bool   `json:"going"` // it is being deleted
	Workload  string `json:"workload"`
	Priority  int32  `json:"priority"`
	Cause     string `json:"cause"` // if Going, the reason of its condition DisruptionTarget
}

// Event is an event of the API, or a change of a node, for which the API lacks events.
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
}

// Summary is the cluster in a few numbers. CPU and Memory are the requested and allocatable amounts
// on shown nodes.
type Summary struct {
	Nodes   int      `json:"nodes"`
	Ready   int      `json:"ready"`
	Pods    int      `json:"pods"`   // on nodes
	Astray  int      `json:"astray"` // pods bound to nodes that do not exist
	Pending int      `json:"pending"`
	Leaving int      `json:"leaving"`
	CPU     [2]int64 `json:"cpu"`
	Memory  [2]int64 `json:"memory"`
	// Marked changes whenever a node is added or removed, or its labels or taints change:
	// selections by these must be looked up again.
	Marked int `json:"marked"`
}

// Delta holds the changes or, with Fresh, everything. Times are in milliseconds since 1970. A page
// that has applied the state and all deltas since shows the same as State returns.
type Delta struct {
	Now        int64           `json:"now"`
	Fresh      bool            `json:"fresh,omitempty"`
	Since      int64           `json:"since,omitempty"` // with Fresh: of before, there is no History
	Summary    Summary         `json:"summary"`
	Nodes      *Set[Node]      `json:"nodes,omitempty"`
	Queue      *Set[Waiting]   `json:"queue,omitempty"`
	Groups     *Set[Group]     `json:"groups,omitempty"`
	Composites *Set[Composite] `json:"composites,omitempty"`
	Evictions  *Set[Leaving]   `json:"evictions,omitempty"`
	Events     []Event         `json:"events,omitempty"`
	History    []Moment        `json:"history,omitempty"`
}

// Set holds new or different rows, and the keys of removed ones: nodes by name, groups and
// composites by key, pods by UID.
type Set[T any] struct {
	Rows []T      `json:"rows,omitempty"`
	Gone []string `json:"gone,omitempty"`
}

// orNil is nil for a set without rows and keys, which is then left out of the JSON.
func (s *Set[T]) orNil() *Set[T] {
	if len(s.Rows) == 0 && len(s.Gone) == 0 {
		return nil
	}
	return s
}
