// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package agenda

import (
	"slices"
	"testing"
	"time"
)

func TestCallsAreMadeInOrder(t *testing.T) {
	var a Agenda
	var begin, now time.Time
	var made []string
	at := func(seconds int, name string) {
		a.Add(begin.Add(time.Duration(seconds)*time.Second), func() { made = append(made, name+"@"+now.Sub(begin).String()) })
	}
	at(3, "late")
	at(1, "first")
	at(1, "second")
	a.Add(begin.Add(time.Second), func() { at(1, "added meanwhile"); at(9, "never") })
	at(2, "then")

	a.RunUntil(begin.Add(3*time.Second), func(t time.Time) { now = t })
	want := []string{"first@1s", "second@1s", "added meanwhile@1s", "then@2s", "late@3s"}
	if !slices.Equal(made, want) {
		t.Errorf("made %v, want %v", made, want)
	}
	if next, ok := a.Next(); !ok || next.Sub(begin) != 9*time.Second || a.Len() != 1 {
		t.Errorf("next %v, %t; %d left", next, ok, a.Len())
	}
}
