// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionguard

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAnnotationsChooseWithinTheOperatorsBounds(t *testing.T) {
	bounds := Options{Deadline: 8 * time.Minute, Fallback: Allow, Choices: []string{Surge, Place, Allow}}
	denying := Options{Deadline: 8 * time.Minute, Fallback: Allow, Choices: []string{Deny}}
	all := func(policy, deadline, after string) map[string]string {
		return map[string]string{PolicyAnnotation: policy, DeadlineAnnotation: deadline, AfterDeadlineAnnotation: after}
	}
	for name, c := range map[string]struct {
		options             Options
		workload, namespace map[string]string
		want                Rule
	}{
		"none":                       {bounds, nil, nil, Rule{Surge, 8 * time.Minute, false}},
		"of the namespace":           {bounds, nil, all(Allow, "2m", ""), Rule{Allow, 2 * time.Minute, false}},
		"of the workload first":      {bounds, all(Place, "3m", ""), all(Allow, "2m", ""), Rule{Place, 3 * time.Minute, false}},
		"not allowed by the flag":    {bounds, all(Finish, "", Deny), all(Allow, "", ""), Rule{Allow, 8 * time.Minute, false}},
		"deny is not a policy":       {denying, all(Deny, "", ""), nil, Rule{Surge, 8 * time.Minute, false}},
		"denied after the deadline":  {denying, nil, all("", "", Deny), Rule{Surge, 8 * time.Minute, true}},
		"admitted by the workload":   {denying, all("", "", "admit"), all("", "", Deny), Rule{Surge, 8 * time.Minute, false}},
		"an absurdly long deadline":  {bounds, all("", "87600h", ""), nil, Rule{Surge, 8 * time.Minute, false}},
		"an absurdly short deadline": {bounds, all("", "-1ns", ""), nil, Rule{Surge, time.Minute, false}},
		"unreadable values":          {bounds, all("SURGE", "soon", "never"), nil, Rule{Surge, 8 * time.Minute, false}},
	} {
		if got := c.options.RuleOf(c.workload, c.namespace); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestATenantCannotDenyEvictions covers a status written by a tenant.
func TestATenantCannotDenyEvictions(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		RequestedAnnotation: now.Add(-10 * time.Minute).Format(time.RFC3339), StatusAnnotation: Denied + "mine"}}}
	options := DefaultOptions()
	if got := options.Judge(pod, now, now, time.Time{}); !got.Admit {
		t.Errorf("after the deadline: %+v", got)
	}
	options.Choices = append(options.Choices, Deny)
	if got := options.Judge(pod, now, now.Add(-10*time.Minute), time.Time{}); got.Admit || !got.Deny || got.Message != "mine" {
		t.Errorf("if the operator allows it: %+v", got)
	}
}

func TestOtherPodsAreHeldOnlyIfTheOperatorAllowsIt(t *testing.T) {
	stateful := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", Controller: new(true)}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}
	options := DefaultOptions()
	if options.Holds(stateful) {
		t.Error("by default, evictions of a StatefulSet's pods are held")
	}
	options.Choices = append(options.Choices, Place)
	if !options.Holds(stateful) {
		t.Error("a StatefulSet cannot choose the policy place")
	}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	if got := options.Judge(stateful, now, now, now); !got.First || got.Message != "checking whether a replacement fits; retry" {
		t.Errorf("a pod that cannot surge: %+v", got)
	}
	stateful.OwnerReferences[0].Kind = "DaemonSet"
	if options.Holds(stateful) {
		t.Error("evictions of a DaemonSet's pods are held")
	}
}

func TestOptionsOutOfBoundsAreRefused(t *testing.T) {
	for flag, options := range map[string]Options{
		"--guard-deadline": {Deadline: time.Second, Fallback: Allow},
		"--guard-fallback": {Deadline: time.Minute, Fallback: Surge},
		"--guard-choices":  {Deadline: time.Minute, Fallback: Allow, Choices: []string{"all"}},
	} {
		if err := options.Validate(); err == nil || err.Error()[:len(flag)] != flag {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
