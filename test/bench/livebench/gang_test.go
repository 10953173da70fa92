// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// TestGangFitsInRacksOfThreeKinds verifies that a gang fits in the racks of three kinds, of which
// tightRack is the fullest. It must not fit in a rack of another kind, even if the total resources
// of the rack suffice.
func TestGangFitsInRacksOfThreeKinds(t *testing.T) {
	for _, o := range []racks{{5000, 1000}, {200, 100}, {47, 21}, {5, 10}} {
		type room struct{ members, cpu, memory int64 }
		racks := make([]room, o.countAll())
		for i := range o.nodes {
			cpu, memory := o.usedOn(i)
			cpu, memory = driver.NodeAmounts.Cpu().MilliValue()-cpu, driver.NodeAmounts.Memory().Value()>>20-memory
			r := &racks[o.rackOf(i)]
			r.members += min(cpu/memberCPU, memory/memberMemory)
			r.cpu, r.memory = r.cpu+cpu, r.memory+memory
		}
		if len(racks) < rackKinds {
			t.Fatalf("%+v: %d racks", o, len(racks))
		}
		for i, r := range racks {
			kind := i % rackKinds
			if fits := r.members >= int64(o.gang); fits != (kind >= tightRack) {
				t.Errorf("%+v: rack %d of kind %d has room for %d", o, i, kind, r.members)
			}
			if kind == tightRack && o.nodes%o.countAll() == 0 && (r.cpu >= racks[3].cpu || r.cpu >= racks[4].cpu || r.memory >= racks[3].memory) {
				t.Errorf("%+v: rack %d is not the fullest: %+v", o, i, r)
			}
			if kind == 1 && o.gang >= 20 && (r.cpu < int64(o.gang)*memberCPU || r.memory < int64(o.gang)*memberMemory) {
				t.Errorf("%+v: rack %d has too little in sum: %+v", o, i, r)
			}
		}
	}
}

// TestLowerPodsLeaveNoRackForAGang verifies that no rack has room for a gang while the
// lower-priority pods run.
func TestLowerPodsLeaveNoRackForAGang(t *testing.T) {
	b := racks{500, 100}
	free, racks := make([]int64, b.nodes), make([]int64, b.countAll())
	for i := range free {
		used, _ := b.usedOn(i)
		free[i] = driver.NodeAmounts.Cpu().MilliValue() - used
	}
	for _, pod := range b.lowerPods() {
		var node int
		if _, err := fmt.Sscanf(pod.Spec.NodeName, "node-%d", &node); err != nil {
			t.Fatal(err)
		}
		free[node] -= pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		if pod.Spec.PriorityClassName != "" || free[node] < 0 {
			t.Fatalf("%s has class %q, and node %d has %d left", pod.Name, pod.Spec.PriorityClassName, node, free[node])
		}
	}
	for i, cpu := range free {
		racks[b.rackOf(i)] += cpu / memberCPU
	}
	for rack, members := range racks {
		if members >= int64(b.gang) {
			t.Errorf("rack %d has room for %d", rack, members)
		}
	}
}

func TestReportOfGangs(t *testing.T) {
	fine := func(decided time.Duration) GangRound {
		return GangRound{Bound: 1000, First: 2 * decided, All: time.Second, Attempts: 1, Decided: decided, Attempted: decided + time.Millisecond, Racks: 1, Tight: true, Victims: 200}
	}
	r := &Report{Nodes: 5000, Gangs: []Gang{
		{Scheduler: "kube-scheduler", Pods: 1000, Rounds: []GangRound{fine(2 * time.Second), {Bound: 900, Attempts: 3, Racks: 2}}, Usage: process.Usage{CPU: 19 * time.Second, Peak: 300 << 20}},
		{Scheduler: "Berth", Pods: 1000, Rounds: []GangRound{fine(50 * time.Millisecond), fine(20 * time.Millisecond), fine(10 * time.Millisecond)}},
		{Scheduler: "none", Pods: 1000, Rounds: []GangRound{{}}, Usage: process.Usage{CPU: time.Second, Peak: 1 << 20}},
		{Scheduler: "Berth, by preemption", Pods: 1000, preempts: true, Rounds: []GangRound{fine(60 * time.Millisecond)}},
	}}
	var out strings.Builder
	r.Write(&out)
	rows := map[string][]string{}
	for line := range strings.Lines(out.String()) {
		cells := strings.Split(line, "|")
		if len(cells) > 1 {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows[cells[1]] = cells[2:]
		}
	}
	for scheduler, want := range map[string]string{
		"kube-scheduler":       "2|1,900 (given up)|2 s|2 s ✗|50 ms|2 s|2 s|4|4 s|4 s|1 s|1 s|1 ✗|1|200|10 ms|300 MiB|",
		"Berth":                "3|3,000|20 ms|50 ms ✓|50 ms|21 ms|51 ms|3|40 ms|100 ms|1 s|1 s|3 ✓|3|600|0 µs|0 MiB|",
		"none":                 "1|0 (given up)||✗|50 ms|||0|||||0 ✗|0|0||1 MiB|",
		"Berth, by preemption": "1|1,000|60 ms|60 ms||61 ms|61 ms|1|120 ms|120 ms|1 s|1 s|1 ✓|1|200|0 µs|0 MiB|",
	} {
		if got := strings.Join(rows[scheduler], "|"); got != want {
			t.Errorf("%s:\n%s, want\n%s", scheduler, got, want)
		}
	}
}
