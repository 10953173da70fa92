// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestTableHoldsWhatAMapHolds verifies that a table has the same objects as a plain map, in order,
// by namespace and overall.
func TestTableHoldsWhatAMapHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table Table[*v1.Service]
		want := map[Name]*v1.Service{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := Name{rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "namespace"), rapid.SampledFrom([]string{"x", "xy", "y", "z"}).Draw(t, "name")}
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				table.Delete(name.Namespace, name.Name)
				delete(want, name)
			case 1:
				var all []*v1.Service
				for name, s := range want {
					if name.Namespace == "a" {
						all = append(all, s)
					}
				}
				slices.SortFunc(all, func(x, y *v1.Service) int { return cmp.Compare(x.Name, y.Name) })
				if got := table.InNamespace("a"); !slices.Equal(got, all) {
					t.Fatalf("in a: %v, want %v", names(got), names(all))
				}
			default:
				s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
				table.Set(s)
				want[name] = s
			}
			var all []*v1.Service
			for name, s := range want {
				if got, ok := table.Get(name.Namespace, name.Name); !ok || got != s {
					t.Fatalf("%v is lost", name)
				}
				all = append(all, s)
			}
			slices.SortFunc(all, func(x, y *v1.Service) int {
				return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
			})
			if got := table.All(); !slices.Equal(got, all) || table.Len() != len(all) {
				t.Fatalf("all %d: %v, want %v", table.Len(), names(got), names(all))
			}
			if got := slices.Collect(table.Each); len(got) != len(all) {
				t.Fatalf("each: %v, want %v", names(got), names(all))
			}
		}
	})
}

// TestTableRemembersFewChanges verifies that the number of remembered changes is bounded and grows
// with the number of objects, and that a reader not far behind misses no change.
func TestTableRemembersFewChanges(t *testing.T) {
	var table Table[*v1.Service]
	service := func(name string, i int) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name, "-", i)}}
	}
	change := func(many int) {
		for i := range many {
			table.Set(service("comes", i))
			table.Delete("", fmt.Sprint("comes-", i))
		}
	}
	remembered := func(least, most int) {
		t.Helper()
		if names, known := table.Since(table.Version - uint64(least)); !known || len(names) != least {
			t.Errorf("of the last %d changes, %d are known", least, len(names))
		}
		if _, known := table.Since(table.Version - uint64(most) - 1); known {
			t.Errorf("more than %d changes are known", most)
		}
		for _, name := range table.changed[len(table.changed):cap(table.changed)] {
			if name != (Name{}) {
				t.Fatalf("%v is kept, though it was forgotten", name)
			}
		}
	}
	table.Since(0)
	change(3 * mostChanges)
	remembered(leastChanges/2, leastChanges)
	for i := range mostChanges {
		table.Set(service("stays", i))
	}
	change(3 * mostChanges)
	remembered(mostChanges/2, mostChanges)
	for i := range mostChanges {
		table.Delete("", fmt.Sprint("stays-", i))
	}
	remembered(leastChanges/2, leastChanges)
	if most := 2 * leastChanges; cap(table.changed) > most {
		t.Errorf("there is space for %d changes, want %d at most", cap(table.changed), most)
	}
}

func names(list []*v1.Service) (names []string) {
	for _, s := range list {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return names
}

// TestBudgetsOfAClass verifies that the budgets of a class are the budgets with matching selectors
// after any changes since the last query, and that a status update does not parse the budget again.
func TestBudgetsOfAClass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New()
		selectors := map[string]*metav1.LabelSelector{
			"a": {MatchLabels: map[string]string{"app": "a"}}, "b": {MatchLabels: map[string]string{"app": "b"}},
			"any": {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}},
			"all": {}, "none": nil,
			"odd": {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Odd"}}},
		}
		selects := func(selector, app string) bool {
			return selector == app || selector == "any" && app != "" || selector == "all"
		}
		pods := map[[2]string]*Pod{}
		for _, namespace := range []string{"n", "m"} {
			for _, app := range []string{"a", "b", ""} {
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app, UID: types.UID(namespace + app)}}
				if app != "" {
					pod.Labels = map[string]string{"app": app}
				}
				pods[[2]string{namespace, app}] = c.Pending(pod)
			}
		}
		want := map[Name]string{}
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := Name{rapid.SampledFrom([]string{"n", "m"}).Draw(t, "namespace"), rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "name")}
			selector := rapid.SampledFrom([]string{"a", "b", "any", "all", "none", "odd", "gone", "status"}).Draw(t, "selector")
			if selector == "gone" {
				c.Budgets.Delete(name.Namespace, name.Name)
				delete(want, name)
			} else {
				if selector == "status" {
					if selector = want[name]; selector == "" {
						continue
					}
				}
				c.Budgets.Set(&policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
					Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selectors[selector].DeepCopy()},
					Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(step)},
				})
				want[name] = selector
			}
			if rapid.Bool().Draw(t, "not asked now") {
				continue
			}
			for of, p := range pods {
				var expected, got []string
				for name, selector := range want {
					if name.Namespace == of[0] && selects(selector, of[1]) {
						object, _ := c.Budgets.Get(name.Namespace, name.Name)
						expected = append(expected, fmt.Sprint(name.Name, " allows ", object.Status.DisruptionsAllowed))
					}
				}
				slices.Sort(expected)
				for _, b := range c.BudgetsOf(p.Class) {
					got = append(got, fmt.Sprint(b.Name, " allows ", b.Status.DisruptionsAllowed))
				}
				if !slices.Equal(got, expected) {
					t.Fatalf("%v: %v, want %v", of, got, expected)
				}
			}
		}
	})

	c := New()
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
	}
	c.Budgets.Set(budget)
	p := c.Pending(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "p", Labels: map[string]string{"app": "a"}}})
	before := c.BudgetsOf(p.Class)[0]
	budget = budget.DeepCopy()
	budget.Status.DisruptionsAllowed = 7
	c.Budgets.Set(budget)
	if after := c.BudgetsOf(p.Class)[0]; after != before || after.Status.DisruptionsAllowed != 7 {
		t.Errorf("read again: %t, allows %d", after != before, after.Status.DisruptionsAllowed)
	}
}
