// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/scheduler/plugintest"
)

// lonely is a plugin that gives every pod an exclusive node.
type lonely struct{}

func (lonely) Name() string { return "Lonely" }

func (lonely) Filter(_ context.Context, _ fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if len(node.GetPods()) > 0 {
		return fwk.NewStatus(fwk.Unschedulable, "node(s) were not empty")
	}
	return nil
}

func Example() {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	taken := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "taken"}, Spec: v1.PodSpec{NodeName: "n"}}
	for _, info := range []fwk.NodeInfo{plugintest.NodeInfo(node), plugintest.NodeInfo(node, taken)} {
		fmt.Println(lonely{}.Filter(context.Background(), plugintest.CycleState(), &v1.Pod{}, info).IsSuccess())
	}
	// Output:
	// true
	// false
}
