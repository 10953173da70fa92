// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/ui/model"
)

// blocksOf returns the blocks of a node, for a page that reads all pending changes.
func blocksOf(c *model.Cluster, of string) (list []model.Block, shown bool) {
	for d := c.Changes(noon); d != nil; d = c.Changes(noon) {
		if d.Nodes == nil {
			continue
		}
		for _, n := range d.Nodes.Rows {
			if n.Name == of {
				list, shown = n.Blocks, true
			}
		}
	}
	return list, shown
}

func TestANodeShowsItsPods(t *testing.T) {
	c := model.New()
	trainer := pod("trainer", "node-1")
	priority := int32(1000)
	trainer.Spec.Priority = &priority
	trainer.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("2")
	ended := pod("ended", "node-1")
	ended.Status.Phase = v1.PodSucceeded
	see(c, noon, node("node-1", "z1", noExecute(noon)), trainer, ended, tolerating(pod("patient", "node-1"), 600))
	got, _ := blocksOf(c, "node-1")
	want := []model.Block{
		{Namespace: "default", Name: "patient", CPU: 1750, Memory: 1 << 30, Leaves: true},
		{Namespace: "default", Name: "trainer", Priority: 1000, CPU: 1750, Memory: 1 << 30, Others: map[string]int64{"nvidia.com/gpu": 2}, Leaves: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	see(c, noon, node("node-1", "z1"))
	if got, shown := blocksOf(c, "node-1"); !shown || got[0].Leaves || got[1].Leaves {
		t.Errorf("without the taint: %t %+v", shown, got)
	}
}

// TestPodsAreSentWhereNodesHaveRoomForThem verifies that pods are sent only if the number of nodes
// is low enough to draw them.
func TestPodsAreSentWhereNodesHaveRoomForThem(t *testing.T) {
	c := model.New()
	see(c, noon, pod("a", "node-0"))
	for i := range 1001 {
		see(c, noon, node(fmt.Sprint("node-", i), "z1"))
	}
	if got, shown := blocksOf(c, "node-0"); !shown || got != nil {
		t.Errorf("1,001 nodes: %t %+v", shown, got)
	}
	c.NodeGone(noon, "node-1000")
	if got, shown := blocksOf(c, "node-0"); !shown || len(got) != 1 {
		t.Errorf("1,000 nodes: %t %+v", shown, got)
	}
	see(c, noon, node("node-1000", "z1"))
	if got, shown := blocksOf(c, "node-0"); !shown || got != nil {
		t.Errorf("1,001 nodes again: %t %+v", shown, got)
	}
}
