// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestRestoredPodsWaitAsTheyDid verifies that restored pods wait in the same places, and are taken
// in the same order.
func TestRestoredPodsWaitAsTheyDid(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	class := &cluster.PodClass{}
	pod := func(name string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	}
	fresh := func() *Queue {
		q := New()
		q.Admit = func(item *Item) string {
			if item.Pod.Name == "gated" {
				return "Gate"
			}
			return ""
		}
		return q
	}
	one := fresh()
	names := []string{"erring", "backing", "waiting", "gated", "overdue", "second", "first"}
	for i, name := range names {
		one.Add(pod(name), class, now.Add(time.Duration(i)*time.Millisecond))
	}
	at := now.Add(time.Second)
	for range 3 {
		item := one.Pop(at)
		switch item.Pod.Name {
		case "erring":
			one.Failed(item, at)
		case "backing":
			one.Rejected(item, []string{"A"}, nil, at)
			one.Wake("backing", ForceActivate, at)
		default:
			item.Message, item.MessageAt = "no room", at
			item.Nominating = &Nominating{Node: "n", At: at}
			one.Rejected(item, []string{"A", "B"}, []string{"B"}, at)
		}
	}
	one.items["gated"].Flushed = at
	saved := one.Save()
	text, err := json.Marshal(saved)
	if err != nil {
		t.Fatal(err)
	}
	var read []Saved
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(saved, read) {
		t.Errorf("saved %+v\nread %+v", saved, read)
	}

	other := fresh()
	other.Add(pod("new"), class, now)
	for i := range names {
		if name := names[len(names)-1-i]; name != "overdue" { // the pod was deleted
			other.Add(pod(name), class, at)
		}
	}
	other.Restore(read)
	if err := other.Check(); err != nil {
		t.Error(err)
	}
	one.Remove("overdue")
	other.Remove("new")
	if again := other.Save(); !reflect.DeepEqual(one.Save(), again) {
		t.Errorf("before %+v\nafter %+v", one.Save(), again)
	}
	for at := at; one.Len(Active)+one.Len(Backoff) > 0; at = at.Add(time.Second) {
		a, b := one.Pop(at), other.Pop(at)
		if (a == nil) != (b == nil) || a != nil && a.Pod.Name != b.Pod.Name {
			t.Fatalf("at %v one takes %v and the other %v", at, a, b)
		}
	}
}

// TestManyPodsAreRestoredWithoutSorting verifies that restoring pods that wait compares none of
// them with others, and that retiring a queue reports sums: another core takes over between two
// decisions.
func TestManyPodsAreRestoredWithoutSorting(t *testing.T) {
	const pods = 1000
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	compared, reports, sum := 0, 0, 0
	fresh := func() *Queue {
		q := New()
		q.Counted = func(_, _ string, delta int) {
			reports++
			sum += delta
		}
		q.OrderBy(func(a, b *Item) bool {
			compared++
			return moreUrgent(a, b)
		})
		for i := range pods {
			q.Add(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}}, nil, now)
		}
		return q
	}
	one, other := fresh(), fresh()
	for range pods {
		one.Rejected(one.Pop(now), []string{"A", "B"}, nil, now)
	}
	saved := one.Save()

	compared, reports = 0, 0
	other.Restore(saved)
	if compared > 0 {
		t.Errorf("Restore compared pods %d times", compared)
	}
	if err := other.Check(); err != nil {
		t.Error(err)
	}
	reports = 0
	if one.Retire(); reports != 2 || sum != 2*pods {
		t.Errorf("Retire reported %d counts, and %d are left of %d", reports, sum, 2*pods)
	}
}

// TestEveryFieldOfAnItemIsSaved verifies that every field is saved or is a known exception, so that
// new fields are not forgotten.
func TestEveryFieldOfAnItemIsSaved(t *testing.T) {
	left := map[string]bool{
		"Pod": true, "Class": true, // from the API
		"Patient": true, "Together": true, "Continued": true, // see Saved
		"group": true, "entity": true, "index": true, // specific to the queue
		"order": true, // given by the order of the list
		"seen":  true, // only used during an attempt
	}
	saved := reflect.TypeFor[Saved]()
	for field := range reflect.TypeFor[Item]().Fields() {
		name := strings.ToUpper(field.Name[:1]) + field.Name[1:]
		if _, has := saved.FieldByName(name); has == left[field.Name] {
			t.Errorf("%s is saved: %t", field.Name, has)
		}
	}
}
