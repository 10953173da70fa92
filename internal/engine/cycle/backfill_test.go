// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"compress/gzip"
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var backfillRuns = flag.Int("backfill-runs", 1, "runs of TestBackfill; 5 for the table in the documentation")

const device = "example.com/device"

// TestBackfill verifies that no gang starts later than at any time expected, that several gangs
// start earlier with several reservations than with one at a time, and that backfill uses the
// reserved devices meanwhile. It prints a table of the utilization and the waiting times. In each
// run, tasks of the openb trace arrive at 32 nodes with 8 devices each for three hours, somewhat
// faster than they end. After half an hour, three gangs arrive, each for 64 devices.
func TestBackfill(t *testing.T) {
	tasks := openbTasks(t)
	several := plugins.Reservations{After: 10 * time.Minute, For: 90 * time.Minute, Share: 1}
	one := several
	one.Share = 0.3 // a gang requests a quarter of the CPUs
	var all []backfilled
	for _, row := range []struct {
		name      string
		bounds    plugins.Reservations
		deadlines bool
	}{{"none", plugins.Reservations{}, false}, {"one at a time", one, false}, {"several", several, false}, {"several, backfill", several, true}} {
		var sum backfilled
		for seed := range *backfillRuns {
			sum.add(playTasks(t, uint64(seed+1), tasks, row.bounds, row.deadlines, 1))
		}
		all = append(all, sum)
		t.Logf("| %s | %.1f %% | %d of %d | %s | %s | %s | %d |", row.name, 100*sum.used/sum.offered, len(sum.gangs), 3**backfillRuns,
			mean(sum.gangs), slices.Max(append(sum.gangs, 0)), mean(sum.waits), sum.promises)
	}
	if all[3].promises == 0 || mean(all[2].gangs) >= mean(all[1].gangs) || all[3].used <= all[2].used {
		t.Error("several reservations or backfill do not help")
	}
}

// TestBackfillForTrees verifies that no tree of two gangs starts later than at any time expected.
func TestBackfillForTrees(t *testing.T) {
	bounds := plugins.Reservations{After: 10 * time.Minute, For: 90 * time.Minute, Share: 1}
	for seed := range *backfillRuns {
		r := playTasks(t, uint64(seed+1), openbTasks(t), bounds, true, 2)
		t.Logf("%.1f %%, waits of the trees: %v, %d with an expected start", 100*r.used/r.offered, r.gangs, r.promises)
		if r.promises == 0 {
			t.Error("no tree had an expected start")
		}
	}
}

// backfilled is the result of runs.
type backfilled struct {
	used, offered float64         // seconds of devices in the two hours after the arrival of the gangs
	gangs, waits  []time.Duration // waits of the gangs that started, and of the tasks
	promises      int             // number of gangs with an expected start
}

func (b *backfilled) add(o backfilled) {
	b.used, b.offered, b.promises = b.used+o.used, b.offered+o.offered, b.promises+o.promises
	b.gangs, b.waits = append(b.gangs, o.gangs...), append(b.waits, o.waits...)
}

func mean(list []time.Duration) (sum time.Duration) {
	for _, d := range list {
		sum += d
	}
	return (sum / time.Duration(max(1, len(list)))).Round(time.Second)
}

// openbTasks returns the tasks of the openb trace that request whole devices.
func openbTasks(t *testing.T) (tasks []v1.ResourceList) {
	f, err := os.Open("../../../test/bench/places/openb/pods-default.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows[1:] { // name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec
		if row[3] != "0" && row[4] == "1000" {
			tasks = append(tasks, v1.ResourceList{v1.ResourceCPU: resource.MustParse(row[1] + "m"),
				v1.ResourceMemory: resource.MustParse(row[2] + "Mi"), device: resource.MustParse(row[3])})
		}
	}
	return tasks
}

// playTasks plays one run. A task runs for 5 to 60 minutes. A third of the tasks run until their
// deadlines; the deadlines of the others are up to twice as long as they run. A gang is a tree if
// it consists of several groups.
func playTasks(t *testing.T, seed uint64, tasks []v1.ResourceList, bounds plugins.Reservations, deadlines bool, count int) (r backfilled) {
	w := reservingWorld(seed, bounds)
	for i := range 32 {
		n := aNode(fmt.Sprint("n", i), "96")
		n.Status.Allocatable[device], n.Status.Allocatable[v1.ResourceMemory] = resource.MustParse("8"), resource.MustParse("768Gi")
		w.putNode(n)
	}

	rng := w.rng
	runs, came, ends, promised := map[string]time.Duration{}, map[string]time.Time{}, map[string]time.Time{}, map[string]time.Time{}
	create := func(name, group string, requests v1.ResourceList, runsFor time.Duration, deadline float64) {
		p := aPod(name, "1")
		p.CreationTimestamp.Time, p.Spec.Containers[0].Resources.Requests = w.now, requests
		runs[name], came[name] = runsFor, w.now
		if group != "" {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
		}
		if deadlines {
			p.Spec.ActiveDeadlineSeconds = new(int64(deadline * runsFor.Seconds()))
		}
		w.put(p)
	}
	for second, offered := 0, 0.0; second < 3*3600; second += 30 {
		w.now = begin.Add(time.Duration(second) * time.Second)
		for offered < 256*1.1*float64(second+1800) { // requested seconds of devices
			task, runsFor := tasks[rng.IntN(len(tasks))], time.Duration(300+rng.IntN(3300))*time.Second
			deadline := max(1, 2./3+rng.Float64()*4/3)
			devices := task[device]
			offered += devices.AsApproximateFloat64() * runsFor.Seconds()
			create(fmt.Sprintf("task-%d", len(came)), "", task, runsFor, deadline)
		}
		for gang := range 3 {
			if name := fmt.Sprint("gang", gang); second == 1800 {
				names := w.putGangs(name, count, 8)
				for i := range 8 {
					create(fmt.Sprintf("%s-%d", name, i), names[i%count], v1.ResourceList{
						v1.ResourceCPU: resource.MustParse("90"), device: resource.MustParse("8")}, time.Hour, 1)
				}
			}
		}
		for _, uid := range sorted(w.pods) {
			if p := w.pods[uid]; !ends[p.Name].IsZero() && !w.now.Before(ends[p.Name]) {
				w.remove(p)
			}
		}
		w.drain()

		view := w.core.View()
		for _, held := range view.Reserved {
			name, _, _ := strings.Cut(view.Groups.ByUnitUID(held.Group).Name.Name, "-")
			if by, ok := promised[name]; !held.Expected.IsZero() && (!ok || held.Expected.Before(by)) {
				promised[name] = held.Expected
			}
		}
		for _, uid := range sorted(w.pods) {
			p := w.pods[uid]
			if p.Spec.NodeName == "" {
				continue
			}
			if second >= 1800 && second < 9000 {
				devices := p.Spec.Containers[0].Resources.Requests[device]
				r.used += 30 * devices.AsApproximateFloat64()
			}
			if !ends[p.Name].IsZero() {
				continue
			}
			ends[p.Name] = w.now.Add(runs[p.Name])
			w.change(p, func(p *v1.Pod) { p.Status.StartTime = &metav1.Time{Time: w.now} })
			switch group, _, _ := strings.Cut(groups.NameOf(p), "-"); {
			case group == "":
				r.waits = append(r.waits, w.now.Sub(came[p.Name]))
			case p.Name == group+"-0":
				r.gangs = append(r.gangs, w.now.Sub(came[p.Name]))
				if by, ok := promised[group]; ok {
					r.promises++
					if w.now.After(by) {
						t.Errorf("%s starts %s later than expected", group, w.now.Sub(by))
					}
				}
			}
		}
		w.journal = nil
	}
	r.offered = 256 * 2 * 3600
	for _, broken := range w.broken {
		t.Error(broken)
	}
	return r
}
