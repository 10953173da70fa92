// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/robfig/cron/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Reasons for the removal of a node, as named by disruption budgets of Karpenter.
const (
	Empty         = "Empty"
	Underutilized = "Underutilized"
)

// NodePoolLabel has the name of a node's NodePool.
const NodePoolLabel = "karpenter.sh/nodepool"

// ConsolidateAfter is the annotation of a NodePool that replaces its consolidateAfter for Berth, so
// that Berth may consolidate a pool that Karpenter leaves alone.
const ConsolidateAfter = "berth.dev/consolidate-after"

// NodePool is the part of a NodePool of Karpenter that limits the removal of its nodes.
type NodePool struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Disruption Consolidation `json:"disruption"`
		// Replicas is set for a pool of a fixed size, which Karpenter does not consolidate.
		Replicas *int64 `json:"replicas"`
	} `json:"spec"`
}

// Consolidation holds the rules for the removal of nodes.
type Consolidation struct {
	// After is Never, or the time without new pods before a node is removed.
	After   string         `json:"consolidateAfter"`
	Policy  string         `json:"consolidationPolicy"`
	Budgets []NodesAtATime `json:"budgets"`
}

// UnmarshalJSON accepts the fields of newer versions, also where unknown fields are errors.
func (c *Consolidation) UnmarshalJSON(text []byte) error {
	type plain Consolidation
	return json.Unmarshal(text, (*plain)(c))
}

// NodesAtATime is a disruption budget of a NodePool. It limits the number of nodes removed at the
// same time, always or for Duration from each time of Schedule, which is in UTC.
type NodesAtATime struct {
	Reasons  []string         `json:"reasons"` // none: all
	Nodes    string           `json:"nodes"`   // a number or a percentage
	Schedule *string          `json:"schedule"`
	Duration *metav1.Duration `json:"duration"`
}

// limit returns the number of nodes that may be removed at the same time, as computed by Karpenter:
// percentages are rounded up, and an invalid budget allows none.
func (b *NodesAtATime) limit(nodes int, now time.Time) int {
	if b.Schedule != nil || b.Duration != nil {
		if b.Schedule == nil || b.Duration == nil {
			return 0
		}
		schedule, err := cron.ParseStandard("TZ=UTC " + *b.Schedule)
		if err != nil {
			return 0
		}
		if schedule.Next(now.UTC().Add(-b.Duration.Duration)).After(now) {
			return math.MaxInt // not active
		}
	}

	value := intstr.FromString(b.Nodes)
	if n, err := strconv.Atoi(b.Nodes); err == nil {
		value = intstr.FromInt(n)
	}
	limit, err := intstr.GetScaledValueFromIntOrPercent(&value, nodes, true)
	if err != nil {
		return 0
	}
	return limit
}

// Allowed returns how many more nodes may be removed now. nodes are all nodes; those of the pool
// that are not ready or being deleted count as removed. Like in the API, the budgets are by default
// one of 10 %.
func (p *NodePool) Allowed(nodes []*v1.Node, reason string, now time.Time) int {
	count, removed := 0, 0
	for _, n := range nodes {
		if n.Labels[NodePoolLabel] == p.Name {
			count++
			if ready := ReadinessOf(n); n.DeletionTimestamp != nil || ready != "" && ready != v1.ConditionTrue {
				removed++
			}
		}
	}

	budgets, allowed := p.Spec.Disruption.Budgets, math.MaxInt
	if budgets == nil {
		budgets = []NodesAtATime{{Nodes: "10%"}}
	}
	for i := range budgets {
		if b := &budgets[i]; len(b.Reasons) == 0 || slices.Contains(b.Reasons, reason) {
			allowed = min(allowed, b.limit(count, now))
		}
	}
	return max(allowed-removed, 0)
}

// WhyStays returns why Karpenter's consolidation would not remove a node of the pool, apart from
// budgets, or "". used is the time of the last pod's arrival, or of the node's creation.
func (p *NodePool) WhyStays(reason string, used, now time.Time) string {
	c, field := &p.Spec.Disruption, "consolidateAfter"
	text, own := p.Annotations[ConsolidateAfter]
	if own {
		field = ConsolidateAfter
	} else {
		text = c.After
	}

	after, err := time.ParseDuration(text)
	switch {
	case p.Spec.Replicas != nil:
		return fmt.Sprintf("NodePool %s has a fixed number of nodes", p.Name)
	case text == "Never" || own && err != nil:
		return fmt.Sprintf("NodePool %s has %s: %s", p.Name, field, text)
	case c.Policy == "WhenEmpty" && reason != Empty:
		return fmt.Sprintf("NodePool %s has consolidationPolicy: WhenEmpty, and the node has pods", p.Name)
	case now.Sub(used) < after:
		return fmt.Sprintf("NodePool %s has %s: %s, and a pod arrived later", p.Name, field, text)
	}
	return ""
}
