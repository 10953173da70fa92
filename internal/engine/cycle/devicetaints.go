// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// applyTaintRule applies a DeviceTaintRule; rule is nil if it was deleted. The ResourceSlices with
// changed taints are reported as events to waiting pods.
func (c *Core) applyTaintRule(name string, rule *resourcev1.DeviceTaintRule) {
	for _, was := range c.cluster.Retaint(name, rule) {
		is, _ := c.cluster.ResourceSlices.Get("", was.Name)
		c.events.objects = true
		c.events.addEvent(queue.Event{
			Resource: queue.ResourceSlice, Action: queue.Update, Label: string(queue.ResourceSlice) + "Update", Old: was, New: is,
		})
	}
}

// ruleGone removes the taints of a deleted DeviceTaintRule.
func (c *Core) ruleGone(name cluster.Name, _ types.UID, _ *resourcev1.DeviceTaintRule) {
	c.applyTaintRule(name.Name, nil)
}
