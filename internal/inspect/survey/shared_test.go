// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
)

// TestATenantDoesNotUseAllRehearsals verifies that a namespace with many different pending pods
// leaves rehearsals to the next namespace, and that the report states where the search ended.
func TestATenantDoesNotUseAllRehearsals(t *testing.T) {
	objects := []metav1.Object{&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("4"), v1.ResourcePods: resource.MustParse("110")}}}}
	for i := range 501 {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a-tenant", Name: fmt.Sprint("p-", i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1"}}
		if i == 500 {
			p.Namespace = "shop"
		}
		p.Spec = v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(fmt.Sprint(5 + i))}}}}}
		objects = append(objects, p)
	}
	w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := survey.PendingOf(w, survey.Scope{}, simulate.Source{})
	if err != nil {
		t.Fatal(err)
	}
	helped := map[string]int{}
	for _, one := range p.Workloads {
		if one.Help != "" {
			helped[one.Namespace]++
		}
	}
	if helped["shop"] != 1 || helped["a-tenant"] == 0 || helped["a-tenant"] > 10 || len(p.Notes) != 1 || !strings.HasPrefix(p.Notes[0], "a-tenant: ") {
		t.Errorf("helped %v, notes %q", helped, p.Notes)
	}
}
