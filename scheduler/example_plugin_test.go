// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/scheduler/plugintest"
)

// crowding is a plugin that limits the number of pods per namespace on a node. Its fields are its
// arguments in a configuration file.
type crowding struct {
	MaxPerNode int `json:"maxPerNode"`
}

// newCrowding is the plugin's factory.
func newCrowding(_ context.Context, args runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
	c := &crowding{MaxPerNode: 1}
	if unknown, ok := args.(*runtime.Unknown); ok {
		if err := json.Unmarshal(unknown.Raw, c); err != nil {
			return nil, fmt.Errorf("read the arguments of Crowding: %w", err)
		}
	}
	return c, nil
}

func (*crowding) Name() string { return "Crowding" }

func (c *crowding) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	there := 0
	for _, other := range node.GetPods() {
		if other.GetPod().Namespace == pod.Namespace {
			there++
		}
	}
	if there >= c.MaxPerNode {
		return fwk.NewStatus(fwk.Unschedulable, "node(s) had too many pods of the namespace")
	}
	return nil
}

// Plugins can be tested without a cluster: the factory creates a plugin from the arguments of a
// configuration file, and package plugintest provides nodes with pods.
func Example_plugin() {
	made, err := newCrowding(context.Background(), &runtime.Unknown{Raw: []byte(`{"maxPerNode": 2}`)}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	plugin := made.(fwk.FilterPlugin)

	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	cart := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}}
	search := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "search"}}
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "monitoring", Name: "agent"}}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "checkout"}}

	for _, there := range [][]*v1.Pod{{cart, agent}, {cart, search}} {
		status := plugin.Filter(context.Background(), plugintest.CycleState(), pod, plugintest.NodeInfo(node, there...))
		if status.IsSuccess() {
			fmt.Println("fits")
		} else {
			fmt.Println(status.Message())
		}
	}
	// Output:
	// fits
	// node(s) had too many pods of the namespace
}
