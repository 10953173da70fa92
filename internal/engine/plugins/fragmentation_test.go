// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// tasksOf reads the argument tasks=CPU/AMOUNT*WEIGHT;….
func tasksOf(t *testing.T, d *datadriven.TestData) (tasks []FragmentationTask) {
	t.Helper()
	text := ""
	d.MaybeScanArgs(t, "tasks", &text)
	for _, task := range strings.FieldsFunc(text, func(r rune) bool { return r == ';' }) {
		var cpu, amount, weight int64
		if _, err := fmt.Sscanf(task, "%d/%d*%d", &cpu, &amount, &weight); err != nil {
			d.Fatalf(t, "%s: %v", task, err)
		}
		tasks = append(tasks, FragmentationTask{Weight: weight, Requests: v1.ResourceList{
			v1.ResourceCPU: *resource.NewQuantity(cpu, resource.DecimalSI), "example.com/gpu": *resource.NewQuantity(amount, resource.DecimalSI),
		}})
	}
	return tasks
}

// TestFragmentationCases adds two commands: place reserves devices for the given pod and places it
// on the best node, and devices prints the free amount of each device.
func TestFragmentationCases(t *testing.T) {
	var plugin *Fragmentation
	moreCommands["place"] = func(t *testing.T, d *datadriven.TestData, c *cluster.Cluster, _ any) string {
		return placeBest(t, plugin, c, waiting(t, c, d.Input))
	}
	moreCommands["devices"] = func(_ *testing.T, _ *datadriven.TestData, c *cluster.Cluster, _ any) string {
		var b strings.Builder
		for _, n := range c.SortedNodes() {
			fmt.Fprintf(&b, "%s: %s\n", n.Name, plugin.Detail(nil, nil)(n))
		}
		return b.String()
	}
	runCases(t, "testdata/fragmentation.txt", func(t *testing.T, d *datadriven.TestData) any {
		if tasks := tasksOf(t, d); plugin == nil || len(tasks) > 0 || d.HasArg("anew") {
			var err error
			if plugin, err = NewFragmentation(&FragmentationArgs{Resource: "example.com/gpu", Unit: 1000, Tasks: tasks}); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
		return plugin
	})
}

func placeBest(t *testing.T, f *Fragmentation, c *cluster.Cluster, p *cluster.Pod) string {
	t.Helper()
	judge, exact := f.Filter(c, p).Node, f.Score(c, p, nil).Exact
	var best *cluster.Node
	var most int64
	for _, n := range c.SortedNodes() {
		if judge != nil && judge(n) != nil {
			continue
		}
		if _, fine := exact(n); best == nil || fine > most {
			best, most = n, fine
		}
	}
	if best == nil {
		return "fits nowhere\n"
	}
	if _, err := f.Reserve(c, p, best); err != nil {
		return fmt.Sprintf("%v\n", err)
	}
	c.Place(p, best)
	if p.Devices == nil {
		return fmt.Sprintf("%s\n", best.Name)
	}
	return fmt.Sprintf("%s %v\n", best.Name, *p.Devices)
}

// TestFragmentationKeepsDevicesOnceGiven verifies that watch events about a placed pod do not move
// it to another device, and that a departing pod releases its devices.
func TestFragmentationKeepsDevicesOnceGiven(t *testing.T) {
	c := cluster.New()
	load(t, c, "kind: Node\nmetadata: {name: node}\nstatus: {allocatable: {cpu: \"10\", memory: 1Gi, pods: \"9\", example.com/gpu: \"2000\"}}")
	f, err := NewFragmentation(&FragmentationArgs{Resource: "example.com/gpu", Unit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	pod := parse(t, "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {requests: {example.com/gpu: \"400\"}}}]}")[0].(*v1.Pod)
	p, n := c.Pending(pod), c.Node("node")
	p.SetDevices(&cluster.DeviceShares{{Device: 1, Amount: 400}})
	c.Place(p, n)
	seen := pod.DeepCopy()
	seen.Spec.NodeName, seen.Labels = "node", map[string]string{"another": "class"}
	c.SetPod(seen)
	var free []int64
	if f.readDevices(n, &free); fmt.Sprint(free) != "[1000 600]" {
		t.Errorf("free by device: %v, want [1000 600]", free)
	}
	c.RemovePod(p.UID())
	if f.readDevices(n, &free); fmt.Sprint(free) != "[1000 1000]" {
		t.Errorf("free by device, once the pod has left: %v, want [1000 1000]", free)
	}
}

// TestFragmentationLearnsWithinBounds requires at most maxTasks kinds of pods to be kept.
func TestFragmentationLearnsWithinBounds(t *testing.T) {
	c := cluster.New()
	f, err := NewFragmentation(&FragmentationArgs{HalfLife: 800})
	if err != nil {
		t.Fatal(err)
	}
	before := f.Version(c)
	for i := range 5000 {
		pod := fmt.Sprintf("kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {requests: {cpu: %dm}}}]}", 1+i)
		f.Learn(c, c.Pending(parse(t, pod)[0].(*v1.Pod)))
	}
	if n := len(f.coming.shapes); n == 0 || n > maxTasks {
		t.Errorf("%d kinds of pods are known, want 1 to %d", n, maxTasks)
	}
	if f.Version(c) == before {
		t.Error("nothing that was learnt is put to use")
	}
}

// TestExplainSaysWhatComes verifies the description of the expected workload, before and after
// learning from pods of which three quarters request a share and one quarter two devices.
func TestExplainSaysWhatComes(t *testing.T) {
	f, err := NewFragmentation(&FragmentationArgs{Resource: "example.com/gpu", Unit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.New()
	if got, want := f.coming.currentFuture(f, c).describe(false), "; expected pods (learnt): none with devices"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for i := range 16 { // the first lessons take effect
		amount := []string{"470", "470", "2000", "470"}[i%4]
		f.Learn(c, waiting(t, c, fmt.Sprintf("kind: Pod\nmetadata: {name: p%d}\n"+
			"spec: {containers: [{name: c, resources: {requests: {example.com/gpu: %q}}}]}", i, amount)))
	}
	want := "; expected pods (learnt): of those with devices, 75 % want 0.47, 25 % want 2"
	if got := f.coming.currentFuture(f, c).describe(f.IsGiven()); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFragmentationArgsAreValidated(t *testing.T) {
	for _, c := range []struct {
		args FragmentationArgs
		want string
	}{
		{FragmentationArgs{}, ""},
		{FragmentationArgs{Unit: -1}, "args.unit: Invalid value: -1: must be at least 1"},
		{FragmentationArgs{NearPercent: 101}, "args.nearPercent: Invalid value: 101: not in valid range [1, 100]"},
		{FragmentationArgs{HalfLife: 7}, "args.halfLife: Invalid value: 7: must be at least 8"},
		{FragmentationArgs{Resource: "a b"}, "args.resource: Invalid value: \"a b\": name part must consist of"},
		{FragmentationArgs{Tasks: []FragmentationTask{{}}}, "args.tasks[0].requests: Required value: must name what a pod requests"},
		{FragmentationArgs{Tasks: []FragmentationTask{{Weight: -2, Requests: v1.ResourceList{"cpu": resource.MustParse("-1")}}}}, "args.tasks[0].weight: Invalid value: -2"},
		{FragmentationArgs{Tasks: []FragmentationTask{{Requests: v1.ResourceList{"cpu": resource.MustParse("-1")}}}}, "args.tasks[0].requests[cpu]: Invalid value: \"-1\": must not be negative"},
	} {
		SetArgsDefaults(&c.args)
		err := ValidateArgs(field.NewPath("args"), &c.args)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestReservationsTeachNothing verifies that reservations, which may fail or be undone, do not
// count, and that a placed pod counts exactly once, even if the cluster is read later.
func TestReservationsTeachNothing(t *testing.T) {
	c := cluster.New()
	load(t, c, "kind: Node\nmetadata: {name: node}\nstatus: {allocatable: {cpu: \"100\", memory: 1Gi, pods: \"90\", example.com/gpu: \"1000\"}}")
	load(t, c, "kind: Pod\nmetadata: {name: there}\nspec: {nodeName: node, containers: [{name: c, resources: {requests: {cpu: \"1\"}}}]}")
	f, err := NewFragmentation(&FragmentationArgs{Resource: "example.com/gpu", Unit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name, amount string) *cluster.Pod {
		return waiting(t, c, fmt.Sprintf("kind: Pod\nmetadata: {name: %s}\n"+
			"spec: {containers: [{name: c, resources: {requests: {cpu: \"1\", example.com/gpu: %q}}}]}", name, amount))
	}
	check := func(when string, seen int64, want map[int64]int64) {
		t.Helper()
		weights := map[int64]int64{} // weights by amount, in pods
		for key, s := range f.coming.shapes {
			weights[key.amount] += s.task.Weight / onePod
		}
		if f.coming.seen != seen || !maps.Equal(weights, want) {
			t.Errorf("%s: %d pods have come, known by amount are %v, want %d and %v", when, f.coming.seen, weights, seen, want)
		}
	}

	n, placed := c.Node("node"), pod("placed", "0")
	if _, err := f.Reserve(c, placed, n); err != nil {
		t.Fatal(err)
	}
	c.Place(placed, n)
	f.Learn(c, placed)
	f.Version(c)
	check("one runs and one was placed", 1, map[int64]int64{0: 2})

	again := pod("again", "1000")
	for range 20 {
		undo, err := f.Reserve(c, again, n)
		if err != nil {
			t.Fatal(err)
		}
		undo()
		if _, err := f.Reserve(c, pod("large", "2000"), n); err == nil {
			t.Fatal("two devices of one are reserved")
		}
	}
	check("reservations failed or were taken back", 1, map[int64]int64{0: 2})

	if _, err := f.Reserve(c, again, n); err != nil {
		t.Fatal(err)
	}
	c.Place(again, n)
	f.Learn(c, again)
	check("it was placed at last", 2, map[int64]int64{0: 2, f.devices.Whole(): 1})
}
