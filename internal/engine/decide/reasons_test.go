// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestMoreReasonsThanABucketHasRoomFor verifies that the message contains every reason if each node
// lacks a different subset of seven resources. It also verifies that a node that gains all
// resources is found.
func TestMoreReasonsThanABucketHasRoomFor(t *testing.T) {
	const resources = 7
	name := func(i int) v1.ResourceName { return v1.ResourceName(fmt.Sprint("example.com/r", i)) }
	all := v1.ResourceList{}
	for i := range resources {
		all[name(i)] = resource.MustParse("1")
	}
	asking := func(name string, requests v1.ResourceList) *v1.Pod {
		pod := benchPod(0, "plain")
		pod.Name, pod.UID = name, types.UID(name)
		pod.Spec.Containers[0].Resources.Requests = requests
		return pod
	}
	c := cluster.New()
	last := ""
	for i := 1; i < 1<<resources; i++ {
		last = fmt.Sprint("node-", i)
		c.SetNode(strangeNode(func(n *v1.Node) {
			n.Name, n.Labels = last, nil
			for k := range resources {
				n.Status.Allocatable[name(k)] = resource.MustParse("1")
			}
		}))
		taken := v1.ResourceList{}
		for k := range resources {
			if i>>k&1 == 1 {
				taken[name(k)] = all[name(k)]
			}
		}
		pod := asking("pod-"+last, taken)
		pod.Spec.NodeName = last
		c.SetPod(pod)
	}
	d := New(c, plugins.Default(), 1)
	d.limits.Reasons = 1<<resources - 10
	p := c.Pending(asking("all", all))
	if decision := d.Decide(p); decision.Node != nil {
		t.Fatalf("%s is found, where something lacks", decision.Node.Name)
	}
	if r, _ := d.cache.rankingFor(p); !r.reasons.merged || len(r.reasons.list) != d.limits.Reasons+1 {
		t.Errorf("%d reasons, merged: %t", len(r.reasons.list), r.reasons.merged)
	}
	if fast, plain := d.Diagnose(p).Message(""), NewPlain(c, d.profile).Evaluate(p).Message(""); fast != plain {
		t.Errorf("the fast way says\n%s\nthe plain way\n%s", fast, plain)
	}
	c.RemovePod(types.UID("pod-" + last))
	if decision := d.Decide(p); decision.Node == nil || decision.Node.Name != last {
		t.Errorf("%+v is found, not %s", decision.Node, last)
	}
}
