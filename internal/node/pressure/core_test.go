// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/node/admit"
)

// TestPressureProperties verifies for any input that a resource is starved only if it is short,
// that a condition lasts exactly for the transition period, and that the victim is the first
// evictable pod.
func TestPressureProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := Config{
			Hard:           map[string]string{"memory.available": "100", "nodefs.available": "10%", "pid.available": "10"},
			Soft:           map[string]string{"memory.available": "200", "imagefs.available": "20%"},
			SoftGrace:      map[string]string{"memory.available": "30s", "imagefs.available": "1m"},
			MinimumReclaim: map[string]string{"memory.available": "50"},
			Transition:     time.Duration(rapid.IntRange(0, 120).Draw(t, "transition")) * time.Second,
		}
		core, err := NewCore(config)
		if err != nil {
			t.Fatal(err)
		}
		now := epoch
		// armed holds the signals that fell below their threshold and have not yet risen above the
		// threshold plus the reclaim.
		armed := map[Signal]bool{}
		surely, possibly := map[v1.NodeConditionType]time.Time{}, map[v1.NodeConditionType]time.Time{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "pause")) * time.Second)
			levels := drawLevels(t)
			verdict := core.Step(levels, now)

			for signal, limit := range limits {
				level, observed := levels.Signals[signal]
				if observed && level.Available < limit {
					armed[signal] = true
					surely[meanings[signal].condition] = now
				} else if !observed || level.Available >= limit+beyondLimit(signal) {
					armed[signal] = false
				}
				if armed[signal] {
					possibly[meanings[signal].condition] = now
				}
			}
			if s := verdict.Starved; s != nil && !armed[s.Signal] {
				t.Fatalf("%v: %s is freed, but not short", levels, s.Signal)
			}
			for _, condition := range verdict.Conditions {
				if last, ever := possibly[condition]; !ever || !last.Equal(now) && now.Sub(last) >= config.Transition {
					t.Fatalf("%s still reported %s after it was last true; transition period %s", condition, now.Sub(last), config.Transition)
				}
			}
			for condition, last := range surely {
				if (last.Equal(now) || now.Sub(last) < config.Transition) && !slices.Contains(verdict.Conditions, condition) {
					t.Fatalf("%s gone %s after it was last true; transition period %s", condition, now.Sub(last), config.Transition)
				}
			}
			if verdict.Starved != nil {
				checkVictim(t, verdict.Starved, drawCandidates(t))
			}
		}
	})
}

func drawLevels(t *rapid.T) Levels {
	levels := Levels{Signals: map[Signal]Level{}, ImagesApart: rapid.Bool().Draw(t, "apart")}
	for _, signal := range []Signal{Memory, AllocatableMemory, NodeFs, ImageFs, PIDs} {
		if rapid.IntRange(0, 5).Draw(t, "seen") > 0 {
			levels.Signals[signal] = Level{int64(rapid.IntRange(0, 400).Draw(t, string(signal))), 1000}
		}
	}
	return levels
}

// limits holds the highest threshold of each signal; beyondLimit is the reclaim beyond it.
var limits = map[Signal]int64{Memory: 200, AllocatableMemory: 100, NodeFs: 100, ImageFs: 200, PIDs: 10}

func beyondLimit(signal Signal) int64 {
	if signal.isMemory() {
		return 50
	}
	return 0
}

func drawCandidates(t *rapid.T) (candidates []Candidate) {
	for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
		amount := func(what string) *resource.Quantity {
			return resource.NewQuantity(int64(rapid.IntRange(0, 4).Draw(t, what)), resource.BinarySI)
		}
		u := used{Name: fmt.Sprint(i), Priority: int32(rapid.SampledFrom([]int{0, 0, 5, 2_000_000_000}).Draw(t, "priority")), Static: rapid.IntRange(0, 5).Draw(t, "static") == 0}
		if rapid.IntRange(0, 7).Draw(t, "measured") > 0 {
			u.Memory, u.PIDs, u.Rootfs, u.Logs = amount("memory"), amount("pids"), amount("rootfs"), amount("logs")
		}
		u.Requests = v1.ResourceList{v1.ResourceMemory: *amount("request"), v1.ResourceEphemeralStorage: *amount("disk request")}
		u.Overhead = v1.ResourceList{v1.ResourceMemory: *amount("overhead")}
		candidates = append(candidates, u.candidate())
	}
	return candidates
}

func checkVictim(t *rapid.T, s *Starved, candidates []Candidate) {
	ranked := Rank(s, candidates)
	if len(ranked) != len(candidates) {
		t.Fatalf("%d pods ranked of %d", len(ranked), len(candidates))
	}
	victim := Victim(s, ranked)
	for _, c := range ranked {
		if admit.Critical(c.Pod) {
			continue
		}
		if victim == nil || victim.Pod != c.Pod {
			t.Fatalf("victim %v, but %s is the first that may go", victim, c.Pod.Name)
		}
		return
	}
	if victim != nil {
		t.Fatalf("%s goes, but must not", victim.Pod.Name)
	}
}

// TestRankIsAnOrder verifies that the rank does not depend on the order of the input, except
// between equal pods.
func TestRankIsAnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		candidates := drawCandidates(t)
		signal := rapid.SampledFrom([]Signal{Memory, NodeFs, NodeFsInodes, ImageFs, PIDs}).Draw(t, "signal")
		s := &Starved{Signal: signal, Resource: meanings[signal].resource, imagesApart: rapid.Bool().Draw(t, "apart")}
		ranked := Rank(s, candidates)
		again := Rank(s, rapid.Permutation(candidates).Draw(t, "listed"))
		for i := range ranked {
			if orderFor(s)(ranked[i], again[i]) != 0 {
				t.Fatalf("place %d: %s or %s", i, ranked[i].Pod.Name, again[i].Pod.Name)
			}
		}
	})
}

// FuzzThresholds verifies that the flags handle any text: errors fit on one line, accepted amounts
// are not negative, and a percentage threshold is not met while the whole capacity is available.
func FuzzThresholds(f *testing.F) {
	f.Add("memory.available", "100Mi", "nodefs.available", "10%", "1m30s", "5%")
	f.Add("pid.available", "1e3", "imagefs.inodesFree", "100%", "0s", "1Gi")
	f.Add("memory.available", "NaN%", "", "-1", "1", "0x1p-2%")
	f.Add("containerfs.available", "1.5Gi", "memory.available", "99.9%", "24h", "Inf%")
	f.Fuzz(func(t *testing.T, hardSignal, hard, softSignal, soft, grace, reclaim string) {
		config := Config{
			Hard: map[string]string{hardSignal: hard}, Soft: map[string]string{softSignal: soft},
			SoftGrace: map[string]string{softSignal: grace}, MinimumReclaim: map[string]string{hardSignal: reclaim},
		}
		core, err := NewCore(config)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n") && !strings.ContainsAny(hardSignal+hard+softSignal+soft+grace+reclaim, "\n") {
				t.Fatalf("an error of several lines: %q", err)
			}
			return
		}
		for _, threshold := range core.thresholds {
			amount := threshold.amount.quantityOf(1 << 30)
			if amount.Sign() < 0 {
				t.Fatalf("%s of 1Gi is %s", threshold, &amount)
			}
			full := Levels{Signals: map[Signal]Level{threshold.Signal: {1 << 62, 1 << 62}}}
			if threshold.amount.quantity == nil && core.Step(full, epoch).Starved != nil {
				t.Fatalf("%s is met while everything is available", threshold)
			}
		}
	})
}

func TestDefaultsAreTheKubelets(t *testing.T) {
	config := DefaultConfig()
	thresholds, err := config.Thresholds()
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, threshold := range thresholds {
		texts = append(texts, threshold.String())
	}
	want := []string{"memory.available<100Mi", "allocatableMemory.available<100Mi",
		"imagefs.available<15%", "imagefs.inodesFree<5%", "nodefs.available<10%", "nodefs.inodesFree<5%"}
	if !slices.Equal(texts, want) || config.Transition != 5*time.Minute {
		t.Errorf("%q, want %q; transition %s", texts, want, config.Transition)
	}
}
