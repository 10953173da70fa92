// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const someNodes = "sn,cpu_milli,memory_mib,gpu,model\na,8000,1024,2,T4\nb,16000,2048,1,P100\n"

// trace writes a trace with one mix to a temporary folder.
func trace(t *testing.T, nodes, pods string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"nodes.csv": nodes, "pods-mix.csv": pods} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestBadTracesAreRefusedWithTheirPlace(t *testing.T) {
	const header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
	for _, c := range []struct{ nodes, pods, want string }{
		{someNodes, header + "p,1,1,1,500,\n", ""},
		{someNodes, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,500\n", ""},
		{"sn,cpu_milli,memory_mib,gpu\na,1,1,1\n", header, "nodes.csv:2: model: there is no such column"},
		{someNodes + "c,x,1,1,T4\n", header, `nodes.csv:4: cpu_milli: "x" is not a whole number of at least 1`},
		{someNodes + "c,1,1\n", header, "nodes.csv: record on line 4: wrong number of fields"},
		{"", header, "nodes.csv: is empty"},
		{someNodes, header + "p,1,1,1,500,\nq,1,1,2,500,\n", "pods-mix.csv:3: gpu_milli: 500 of each of 2 GPUs: only one GPU can be shared"},
		{someNodes, header + "p,1,1,1,1500,\n", "pods-mix.csv:2: gpu_milli: 1500 is not in 1 to 1000"},
		{someNodes, header + "p,1,-1,1,500,\n", `pods-mix.csv:2: memory_mib: "-1" is not a whole number of at least 0`},
		{someNodes, header + "p,1,1,0,0,\n", "pods-mix.csv: no task wants a GPU"},
	} {
		_, err := ReadTrace(trace(t, c.nodes, c.pods))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestAllPoliciesKeepToTheCapacity verifies that no policy exceeds the capacity, which is checked
// by Play, and that WriteCSV writes a line per decision.
func TestAllPoliciesKeepToTheCapacity(t *testing.T) {
	dir := trace(t, someNodes, "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1000,100,1,600,\nq,1000,100,1,400,T4|P100\nr,1000,100,0,0,\nw,1000,100,2,1000,\n")
	tr, err := ReadTrace(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range Policies {
		r, err := tr.Play(policy, &tr.Mixes[0], 42)
		if err != nil {
			t.Fatal(err)
		}
		if r.Allocated < 60 || r.Allocated > 100 {
			t.Errorf("%s: %.2f %% are allocated", policy, r.Allocated)
		}
		if policy != "Fragmentation" {
			continue
		}
		if err := r.WriteCSV(dir); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "mix-42.csv"))
		if lines := strings.Split(string(text), "\n"); err != nil || lines[0] != "arrival,pod,node,gpus" || len(lines) != r.Decisions+2 {
			t.Errorf("%v, %q", err, text)
		}
	}
}

// TestMovesMakeRoom verifies that a share on the only node with two GPUs moves to the other node
// when a task for two whole GPUs arrives, and that this uses up the allowed moves.
func TestMovesMakeRoom(t *testing.T) {
	tr, err := ReadTrace(trace(t, someNodes, "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1000,100,1,400,\nw,1000,100,2,1000,\n"))
	if err != nil {
		t.Fatal(err)
	}
	profile, err := profileOf(&tr.Mixes[0])
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEngine(tr, profile, 1)
	if err != nil {
		t.Fatal(err)
	}
	m := newMover(e)
	m.arrived = 34 // permits one move
	share, whole := &tr.Mixes[0].Tasks[0], &tr.Mixes[0].Tasks[1]
	object := m.podOf(share)
	m.objects[object.UID] = object
	if err := m.placeOn(m.cluster.Pending(object), m.cluster.Node("a")); err != nil {
		t.Fatal(err)
	}
	if node, gpus, err := m.placeTask(whole); node != "a" || len(gpus) != 2 || err != nil {
		t.Fatalf("%s %v %v, want both GPUs of a", node, gpus, err)
	}
	if len(m.moves) != 1 || m.moves[0].Node != "b" || m.mayMove() {
		t.Errorf("%+v, want one move to b, and no more", m.moves)
	}
}

// TestGPUsGivenTwiceAreFound verifies that checkRun takes moves into account, and finds a GPU that
// is allocated twice.
func TestGPUsGivenTwiceAreFound(t *testing.T) {
	tr, err := ReadTrace(trace(t, someNodes, "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1000,100,1,600,\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := tr.Mixes[0].Tasks[0]
	on := func(node string, gpu int) Placement { return Placement{p.Name, node, []share{{gpu, 600}}} }
	r := &Run{Placements: []Placement{on("a", 0), on("a", 0)}, Moves: []Moved{{1, 0, on("b", 0)}}}
	if err := tr.checkRun(r, []Task{p, p}); err != nil {
		t.Error(err)
	}
	r.Moves[0].Placement = on("a", 0)
	if err := tr.checkRun(r, []Task{p, p}); err == nil {
		t.Error("a GPU that is given twice is not found")
	}
}

// BenchmarkPlaces measures the time per decision for the default mix of the trace.
func BenchmarkPlaces(b *testing.B) {
	tr, err := ReadTrace("openb")
	if err != nil {
		b.Fatal(err)
	}
	for i := range tr.Mixes {
		if m := &tr.Mixes[i]; m.Name == "default" {
			for b.Loop() {
				r, err := tr.Play("Fragmentation", m, 42)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(r.Allocated, "%")
				b.ReportMetric(float64(r.Took.Microseconds())/float64(r.Decisions), "µs/decision")
			}
		}
	}
}

// TestClaimsGiveTheSame verifies that GPUs in ResourceSlices with claims reach the same allocation
// as an extended resource, up to half a percentage point.
func TestClaimsGiveTheSame(t *testing.T) {
	tr, err := ReadTrace("openb")
	if err != nil {
		t.Fatal(err)
	}
	tr.Reduce(200)
	m := &tr.Mixes[slices.IndexFunc(tr.Mixes, func(m Mix) bool { return m.Name == "default" })]
	allocated := map[string]float64{}
	for _, policy := range []string{"Fragmentation", "claims"} {
		for seed := range uint64(2) {
			r, err := tr.Play(policy, m, 42+seed)
			if err != nil {
				t.Fatal(err)
			}
			allocated[policy] += r.Allocated / 2
		}
	}
	if difference := allocated["claims"] - allocated["Fragmentation"]; math.Abs(difference) > 0.5 {
		t.Errorf("%v: they differ by %.2f", allocated, difference)
	}
}

// TestExampleProfilesArePlayed verifies that the example profiles for GPUs fill the GPUs of both
// nodes, and that the example profile for CPU packing leaves a node empty.
func TestExampleProfilesArePlayed(t *testing.T) {
	const nodes = "sn,cpu_milli,memory_mib,gpu,model\na,8000,1024,4,T4\nb,8000,1024,4,T4\n"
	const header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
	for _, test := range []struct{ kind, profile, pods string }{
		{WholeTasks, "batch-gpus.yaml", "p,1000,100,2,1000,\nq,1000,100,1,1000,\nw,1000,100,1,400,\n"},
		{AllTasks, "serving-gpus.yaml", "p,1000,100,1,400,\nq,1000,100,1,600,\n"},
		{CPUTasks, "cpu-packing.yaml", "p,4000,200,0,0,\nq,1000,100,1,600,\n"},
	} {
		tr, err := ReadTrace(trace(t, nodes, header+test.pods))
		if err == nil {
			err = tr.Keep(test.kind)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := tr.Play("../../../examples/profiles/"+test.profile, &tr.Mixes[0], 42)
		if err != nil {
			t.Fatal(err)
		}
		if test.kind == CPUTasks {
			if r.Empty != 50 {
				t.Errorf("%s leaves %.0f %% of the nodes empty, want 50", test.profile, r.Empty)
			}
		} else if r.Allocated < 99 {
			t.Errorf("%s: %.2f %% of the GPUs are allocated", test.profile, r.Allocated)
		}
	}
}
