// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/ui/model"
)

// owned returns a pod of the given controller. With a hash, the controller is a ReplicaSet of a
// Deployment.
func owned(p *v1.Pod, kind, name, hash string) *v1.Pod {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, Controller: &yes}}
	p.Labels = map[string]string{}
	if hash != "" {
		p.Labels["pod-template-hash"] = hash
	}
	return p
}

func crowd() *model.Cluster {
	c := model.New()
	fast := node("node-1", "z1", v1.Taint{Key: "dedicated", Value: "ml", Effect: v1.TaintEffectNoSchedule})
	fast.Labels["disk"], fast.Labels[v1.LabelHostname] = "fast", "node-1"
	slow := node("node-2", "z2", v1.Taint{Key: "dedicated", Value: "db", Effect: v1.TaintEffectNoExecute})
	slow.Labels["disk"] = "slow"
	see(c, noon, fast, slow, node("node-3", "z1"),
		owned(pod("web-5d4f-a", "node-1"), "ReplicaSet", "web-5d4f", "5d4f"), owned(pending("web-5d4f-b", "no room"), "ReplicaSet", "web-5d4f", "5d4f"),
		owned(pod("web-0", "node-2"), "StatefulSet", "web", ""), owned(pod("own-rs", "node-2"), "ReplicaSet", "own", "5d4f"))
	return c
}

func TestSearchFindsWhatNodesAndPodsAreMarkedWith(t *testing.T) {
	c := crowd()
	texts := func(list []model.Tally) (out []string) {
		for _, x := range list {
			out = append(out, fmt.Sprintf("%s %d", x.Text, x.Count))
		}
		return out
	}
	for _, x := range []struct {
		text string
		of   func(model.Found) []model.Tally
		want []string
	}{
		{"disk", func(f model.Found) []model.Tally { return f.Labels }, []string{"disk=fast 1", "disk=slow 1"}},
		{"zone=Z1", func(f model.Found) []model.Tally { return f.Labels }, []string{"topology.kubernetes.io/zone=z1 2"}},
		{"node-1", func(f model.Found) []model.Tally { return f.Labels }, nil},
		{"dedicated", func(f model.Found) []model.Tally { return f.Taints }, []string{"dedicated=db:NoExecute 1", "dedicated=ml:NoSchedule 1"}},
		{"efau", func(f model.Found) []model.Tally { return f.Namespaces }, []string{"default 4"}},
		{"web", func(f model.Found) []model.Tally { return f.Workloads }, []string{"default/Deployment/web 2", "default/StatefulSet/web 1"}},
		{"deployment/w", func(f model.Found) []model.Tally { return f.Workloads }, []string{"default/Deployment/web 2"}},
		{"own", func(f model.Found) []model.Tally { return f.Workloads }, []string{"default/ReplicaSet/own 1"}},
	} {
		if got := texts(x.of(c.Find(x.text, 5))); !slices.Equal(got, x.want) {
			t.Errorf("%q: %q, want %q", x.text, got, x.want)
		}
	}
}

func TestNodesAreSelectedByLabelAndTaint(t *testing.T) {
	c := crowd()
	for _, x := range []struct {
		labels, taint string
		want          []string
	}{
		{"", "", []string{"node-1", "node-2", "node-3"}}, {"disk=fast", "", []string{"node-1"}}, {"disk", "", []string{"node-1", "node-2"}}, {"!disk", "", []string{"node-3"}},
		{"disk in (fast,slow),topology.kubernetes.io/zone=z2", "", []string{"node-2"}}, {"", "dedicated", []string{"node-1", "node-2"}}, {"", "dedicated=ml", []string{"node-1"}},
		{"", "dedicated:NoExecute", []string{"node-2"}}, {"", "dedicated=ml:NoExecute", []string{}}, {"disk=slow", "dedicated", []string{"node-2"}},
	} {
		if got, err := c.Select(x.labels, x.taint); err != nil || !slices.Equal(got, x.want) {
			t.Errorf("%q, %q: %q, %v", x.labels, x.taint, got, err)
		}
	}
	if _, err := c.Select("a in (", ""); err == nil {
		t.Error("a selector that is none is taken")
	}
}

func TestWhatWasSelectedIsKnownToBeOutdated(t *testing.T) {
	c := crowd()
	before := c.Changes(noon).Summary.Marked
	see(c, noon, node("node-3", "z1"), pod("another", "node-3"))
	if d := c.Changes(noon); d.Summary.Marked != before {
		t.Error("nothing that is selected by has changed")
	}
	labelled := node("node-3", "z1")
	labelled.Labels["disk"] = "fast"
	see(c, noon, labelled)
	if d := c.Changes(noon); d == nil || d.Summary.Marked == before {
		t.Error("a label that changed is not told")
	}
}

func TestAWaitingPodNamesItsWorkload(t *testing.T) {
	if d := crowd().Changes(noon); len(d.Queue.Rows) != 1 || d.Queue.Rows[0].Workload != "Deployment/web" {
		t.Errorf("%+v", d.Queue.Rows)
	}
}

func TestANodeShowsTheOtherResourcesThatItHas(t *testing.T) {
	c := model.New()
	n := node("node-1", "z1")
	n.Status.Allocatable["nvidia.com/gpu"], n.Status.Allocatable["hugepages-2Mi"] = resource.MustParse("8"), resource.MustParse("0")
	p := pod("trainer", "node-1")
	p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("3")
	see(c, noon, n, p)
	row := c.Changes(noon).Nodes.Rows[0]
	if want := map[string][2]int64{"nvidia.com/gpu": {3, 8}}; !maps.Equal(row.Others, want) {
		t.Errorf("%v", row.Others)
	}
	p = p.DeepCopy()
	p.Status.Phase = v1.PodSucceeded
	see(c, noon, p)
	if row := c.Changes(noon).Nodes.Rows[0]; row.Others["nvidia.com/gpu"] != [2]int64{0, 8} {
		t.Errorf("once it has ended: %v", row.Others)
	}
}
