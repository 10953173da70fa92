// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/ui/model"
)

func gang(name string, needed int32, message string) *model.GroupInfo {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: needed}
	if message != "" {
		g.Status.Conditions = []metav1.Condition{{Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: metav1.ConditionFalse, Message: message}}
	}
	return model.GroupOf(g)
}

func member(p *v1.Pod, group string) *v1.Pod {
	p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	return p
}

// groupsSay returns the groups of a page after it has applied the changes.
func groupsSay(shown map[string]model.Group, d *model.Delta) string {
	if d != nil && d.Groups != nil {
		for _, row := range d.Groups.Rows {
			shown[row.Key] = row
		}
		for _, key := range d.Groups.Gone {
			delete(shown, key)
		}
	}
	text := ""
	for _, g := range shown {
		text += fmt.Sprintf("%s %d of %d: %s\n", g.Key, g.Placed, g.Pods, g.Message)
	}
	return text
}

// TestAGroupThatWaits verifies that a group with pending pods shows the numbers of placed and
// needed pods and the reason for waiting.
func TestAGroupThatWaits(t *testing.T) {
	c := model.New()
	shown := map[string]model.Group{}
	check := func(step, want string) {
		t.Helper()
		if got := groupsSay(shown, c.Changes(noon)); got != want {
			t.Errorf("%s: %q, want %q", step, got, want)
		}
		fresh := groupsSay(map[string]model.Group{}, c.State(noon))
		if fresh != want {
			t.Errorf("%s: the state says %q, want %q", step, fresh, want)
		}
	}
	see(c, noon, member(pending("a", ""), "train"), pending("alone", ""))
	check("before PodGroups are listed", "")
	if row := c.State(noon).Queue.Rows[0]; row.Group != "" {
		t.Errorf("a pod is in group %q, though the API has none", row.Group)
	}
	c.GroupsListing()
	c.GroupsListed()
	check("no PodGroup", "default/train 0 of 1: PodGroup train does not exist\n")
	for _, row := range c.State(noon).Queue.Rows {
		if want := map[string]string{"a": "default/train"}[row.Name]; row.Group != want {
			t.Errorf("pod %s is in group %q, want %q", row.Name, row.Group, want)
		}
	}
	c.GroupSeen(gang("train", 3, ""))
	check("too few", "default/train 0 of 1: 3 pods are needed at once; it has 1\n")
	see(c, noon, member(pending("b", ""), "train"), member(pending("c", ""), "train"))
	check("not tried", "default/train 0 of 3: \n")
	c.GroupSeen(gang("train", 3, "2 of 3 pods fit"))
	check("tried", "default/train 0 of 3: 2 of 3 pods fit\n")
	see(c, noon, member(pod("a", "node-1"), "train"))
	check("one placed", "default/train 1 of 3: 2 of 3 pods fit\n")
	ended := member(pod("a", "node-1"), "train")
	ended.Status.Phase = v1.PodSucceeded
	see(c, noon, ended)
	check("one ended", "default/train 0 of 2: 3 pods are needed at once; it has 2\n")
	see(c, noon, member(pod("a", "node-1"), "train"), member(pod("b", "node-1"), "train"), member(pod("c", "node-1"), "train"))
	check("all placed", "")
	see(c, noon, member(pending("d", ""), "train"))
	check("one more", "default/train 3 of 4: 2 of 3 pods fit\n")
	c.PodGone(noon, types.UID("uid-d"))
	check("deleted", "")
	c.GroupGone(types.NamespacedName{Namespace: "default", Name: "train"})
	check("placed, and without its PodGroup", "")
	see(c, noon.Add(time.Second), member(pending("d", ""), "train"))
	check("one more without it", "default/train 3 of 4: PodGroup train does not exist\n")
	c.GroupsListing()
	c.GroupSeen(gang("train", 3, "again"))
	c.GroupsListed()
	check("listed again", "default/train 3 of 4: again\n")
	c.GroupsListing()
	c.GroupsListed()
	check("listed without", "default/train 3 of 4: PodGroup train does not exist\n")
}

// TestAGangThatRunsIsNotShortOfPods verifies that a scheduled gang no longer requires its number of
// pods while any pod remains, because some may have ended.
func TestAGangThatRunsIsNotShortOfPods(t *testing.T) {
	c := model.New()
	c.GroupsListing()
	c.GroupsListed()
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train"}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: 3}
	g.Status.Conditions = []metav1.Condition{{Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: metav1.ConditionTrue}}
	c.GroupSeen(model.GroupOf(g))
	see(c, noon, member(pod("a", "node-1"), "train"), member(pending("b", ""), "train"))
	shown := map[string]model.Group{}
	if got, want := groupsSay(shown, c.Changes(noon)), "default/train 1 of 2: \n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	c.PodGone(noon, types.UID("uid-a"))
	if got, want := groupsSay(shown, c.Changes(noon)), "default/train 0 of 1: 3 pods are needed at once; it has 1\n"; got != want {
		t.Errorf("without the one that ran: %q, want %q", got, want)
	}
}
