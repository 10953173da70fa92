// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"pgregory.net/rapid"
)

// TestSelectorsAgreeWithTheLibrary verifies that selectors of any length select the same objects as
// the API machinery's selectors, with the same errors.
func TestSelectorsAgreeWithTheLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SampledFrom([]string{"a", "b", "c", "d.e/f", "x--y.z/k", "-", ""})
		values := rapid.Custom(func(t *rapid.T) string {
			return rapid.SampledFrom([]string{"", "-", "v", "v0", "v1", "v7", "v11", "v12"}).Draw(t, "value")
		})
		if rapid.Bool().Draw(t, "valid") {
			keys, values = rapid.SampledFrom([]string{"a", "b", "c", "d.e/f"}), rapid.SampledFrom([]string{"", "v", "v0", "v1", "v7", "v11"})
		}
		written := &metav1.LabelSelector{MatchLabels: rapid.MapOfN(keys, values, 0, 2).Draw(t, "matchLabels")}
		for range rapid.SampledFrom([]int{0, 1, 2, 9, 12}).Draw(t, "requirements") {
			operator := rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "In", "NotIn", "Near"}).Draw(t, "operator")
			r := metav1.LabelSelectorRequirement{Key: keys.Draw(t, "key"), Operator: operator}
			if operator == "In" || operator == "NotIn" || rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
				r.Values = rapid.SliceOfN(values, 0, 20).Draw(t, "values")
			}
			written.MatchExpressions = append(written.MatchExpressions, r)
		}

		ours, err := ReadSelector(written)
		theirs, want := metav1.LabelSelectorAsSelector(written)
		if (err == nil) != (want == nil) || err != nil && len(written.MatchLabels) == 0 && err.Error() != want.Error() {
			t.Fatalf("the error is %v, want %v", err, want)
		}
		if err != nil {
			return
		}

		if ours.Empty() != theirs.Empty() {
			t.Errorf("it is empty: %t, want %t", ours.Empty(), theirs.Empty())
		}
		set := labels.Set(rapid.MapOfN(keys, values, 0, 5).Draw(t, "labels"))
		if got, want := ours.Matches(set), theirs.Matches(set); got != want {
			t.Errorf("%v matches %v: %t, want %t", written, set, got, want)
		}
		if same := SelectorOf(set); !same.Matches(set) {
			t.Errorf("the selector of %v does not match it", set)
		}
		if other := ours.With(SelectorOf(labels.Set{"a": "v"})); other.Matches(set) != (theirs.Matches(set) && set["a"] == "v") {
			t.Errorf("%v with another requirement matches %v: %t", written, set, other.Matches(set))
		}
		twice := written.DeepCopy()
		for i := range twice.MatchExpressions {
			r := &twice.MatchExpressions[i]
			r.Values = rapid.Permutation(append(r.Values, r.Values...)).Draw(t, "again")
		}
		if again, _ := ReadSelector(twice); again.Digest() != ours.Digest() {
			t.Errorf("%v is another selector when its values are written twice", written)
		}
		again, _ := ReadSelector(written.DeepCopy())
		if again.Digest() != ours.Digest() || !SameSelector(written, written.DeepCopy()) {
			t.Errorf("%v differs from itself", written)
		}
	})
}

func TestNothingIsSelectedByNoSelector(t *testing.T) {
	none, err := ReadSelector(nil)
	if err != nil || none.Matches(labels.Set{}) || none.Empty() || none.With(Everything()).Matches(labels.Set{}) {
		t.Errorf("no selector selects, or is an error: %v", err)
	}
	if none.Digest() == Everything().Digest() {
		t.Error("nothing and everything have the same digest")
	}
}

// BenchmarkSelector measures reading and matching long selectors. The cost of matching must not
// depend on the number of listed values, nor on the number of requirements on missing labels.
func BenchmarkSelector(b *testing.B) {
	long, wide := &metav1.LabelSelector{}, &metav1.LabelSelector{}
	long.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "NotIn"}}
	for i := range 150_000 {
		long.MatchExpressions[0].Values = append(long.MatchExpressions[0].Values, fmt.Sprint("v", i))
		if i < 40_000 {
			wide.MatchExpressions = append(wide.MatchExpressions, metav1.LabelSelectorRequirement{Key: fmt.Sprint("k", i), Operator: "DoesNotExist"})
		}
	}
	for name, written := range map[string]*metav1.LabelSelector{"values": long, "requirements": wide} {
		b.Run(name+"/read", func(b *testing.B) {
			for b.Loop() {
				_, _ = ReadSelector(written)
			}
		})
		s, _ := ReadSelector(written)
		b.Run(name+"/match", func(b *testing.B) {
			for b.Loop() {
				s.Matches(labels.Set{"app": "other"})
			}
		})
	}
}

// TestASelectorIsWrittenAsKubectlDoes verifies the text of short and long selectors.
func TestASelectorIsWrittenAsKubectlDoes(t *testing.T) {
	many := []string{"h", "b", "c", "d", "e", "f", "g", "a", "i", "j"}
	for _, c := range []struct {
		selector *metav1.LabelSelector
		text     string
	}{
		{nil, "<none>"},
		{&metav1.LabelSelector{}, "<all>"},
		{&metav1.LabelSelector{MatchLabels: map[string]string{"b": "1", "a": "2"}}, "a=2,b=1"},
		{&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "x", Operator: metav1.LabelSelectorOpExists},
			{Key: "y", Operator: metav1.LabelSelectorOpDoesNotExist},
			{Key: "z", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"2", "1"}},
		}}, "x,!y,z notin (1,2)"},
		{&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: many}}},
			"k in (a,b,c,d,e,f,g,h,2 more)"},
	} {
		s, err := ReadSelector(c.selector)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.String(); got != c.text {
			t.Errorf("%v is written %q, want %q", c.selector, got, c.text)
		}
	}
}

// TestBriefKeepsFewErrors verifies that Brief shortens long aggregates, and nothing else.
func TestBriefKeepsFewErrors(t *testing.T) {
	for count, want := range map[int]int{1: 1, 16: 16, 17: 16, 5000: 16} {
		all := Brief(utilerrors.NewAggregate(slices.Repeat([]error{errors.New("invalid")}, count))).(utilerrors.Aggregate).Errors()
		if len(all) != want {
			t.Errorf("%d of %d errors are left, want %d", len(all), count, want)
		}
	}
	if err := errors.New("one"); !errors.Is(Brief(err), err) || Brief(nil) != nil {
		t.Error("Brief changes other errors")
	}
}
