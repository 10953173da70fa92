// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestManyTolerationsMatchWhatEachOfThemDoes verifies that a Tolerance with an index matches the
// same taints as its tolerations checked one by one, for random long lists.
func TestManyTolerationsMatchWhatEachOfThemDoes(t *testing.T) {
	pick := func(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }
	matched := 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		keys := []string{"", "a", "b", "c", "d", "e", "f", "g"}[:1+r.IntN(8)]
		effects := []string{"", "NoSchedule", "NoExecute", "PreferNoSchedule"}[:1+r.IntN(4)]
		list := make([]v1.Toleration, fewTolerations+1+r.IntN(20))
		for i := range list {
			list[i] = v1.Toleration{
				Key: pick(r, keys...), Operator: v1.TolerationOperator(pick(r, "", "Equal", "Equal", "Exists", "Gt", "Lt")),
				Value: pick(r, "", "1", "2", "3", "x"), Effect: v1.TaintEffect(pick(r, effects...)),
			}
			if list[i].Operator == v1.TolerationOpExists && r.IntN(4) > 0 {
				list[i].Key = fmt.Sprint("z", i) // otherwise nearly every taint is tolerated
			}
		}
		tolerance := NewTolerance(list)
		for range 10 {
			taint := v1.Taint{Key: pick(r, "a", "b", "c", "d", "e", "f", "g", "z3"), Value: pick(r, "", "1", "2", "3", "x", "y"), Effect: v1.TaintEffect(pick(r, "NoSchedule", "NoExecute", "PreferNoSchedule"))}
			want := TolerationOf(&taint, list) != nil
			if got := tolerance.matches(&taint); got != want {
				t.Fatalf("seed %d: %v is tolerated: %v, want %v, by %v", seed, taint, got, want, list)
			}
			if want {
				matched++
			}
		}
	}
	t.Logf("%d of 200,000 taints are tolerated", matched)
}
