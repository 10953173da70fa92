// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestManyOwnTermsDoNotHoldUpOthers verifies that a pod is refused immediately if it has many
// affinity terms that may select too many classes of pods. A pod with few terms, or with terms that
// may select only few classes, is decided.
func TestManyOwnTermsDoNotHoldUpOthers(t *testing.T) {
	c := cluster.New()
	for i := range 100 {
		name := fmt.Sprint("node-", i)
		c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyZone: "z"}}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("64"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}}})
	}
	const apps = 3000
	for i := range apps {
		pod := benchPod(i, "plain")
		pod.Labels = map[string]string{"app": fmt.Sprint("app-", i)}
		pod.UID, pod.Spec.NodeName = types.UID(pod.Name), fmt.Sprint("node-", i%100)
		c.SetPod(pod)
	}
	d := New(c, plugins.Default(), 1)
	many := func(name string, n int, change func(i int) func(*v1.Pod)) *cluster.Pod {
		var all []func(*v1.Pod)
		for i := range n {
			all = append(all, change(i))
		}
		pod := towards(name, all...)
		pod.Spec.NodeName = ""
		return c.Pending(pod)
	}
	notApp := func(i int) func(*v1.Pod) { return preferring(v1.LabelTopologyZone, notOf(fmt.Sprint("app-", i))) }
	ofApp := func(i int) func(*v1.Pod) {
		return preferring(v1.LabelTopologyZone, &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", i)}})
	}
	for _, one := range []struct {
		name    string
		pod     *cluster.Pod
		refused bool
	}{
		{"twenty thousand terms that select nearly all", many("a", 20_000, notApp), true},
		{"two thousand terms, each for one of as many apps", many("b", 2000, ofApp), true},
		{"a hundred terms that select nearly all", many("c", 100, notApp), false},
		{"ten thousand terms for the same ten apps", many("d", 10_000, func(i int) func(*v1.Pod) { return ofApp(i % 10) }), false},
	} {
		began := time.Now()
		decision := d.Decide(one.pod)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s: took %v", one.name, took)
		}
		if errors.Is(decision.Err, errTermsTooLong) != one.refused || (decision.Node == nil) != one.refused {
			t.Errorf("%s: %v, %v", one.name, decision.Node, decision.Err)
		}
	}
}
