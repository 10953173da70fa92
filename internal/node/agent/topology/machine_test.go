package topology

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
)

// kernel is a folder /sys/devices/system with these files.
func kernel(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return out
}

// A machine with hyper-threading, one CPU of which is offline, and a node with memory only.
func TestRead(t *testing.T) {
	files := map[string]string{
		"cpu/online": "0-2,4-7", "node/node0/cpulist": "0-1,4-5", "node/node1/cpulist": "2-3,6-7", "node/node2/cpulist": "",
		"node/node0/distance": "10 21 17", "node/node1/distance": "21 10 28", "node/node2/distance": "17 28 10", "node/has_cpu": "0-1", "node/possible": "0-2",
	}
	for cpu := range 8 {
		topology := fmt.Sprintf("cpu/cpu%d/topology/", cpu)
		files[topology+"thread_siblings_list"] = fmt.Sprintf("%d,%d", cpu%4, cpu%4+4)
		files[topology+"physical_package_id"] = fmt.Sprint(cpu % 4 / 2)
		files[topology+"core_id"] = fmt.Sprint(cpu % 2) // not unique
		cache := fmt.Sprintf("cpu/cpu%d/cache/", cpu)
		files[cache+"index0/level"], files[cache+"index0/id"] = "1", fmt.Sprint(cpu)
		files[cache+"index3/level"], files[cache+"index3/id"] = "3", fmt.Sprint(cpu%4/2+8)
	}
	m, err := Read(kernel(files))
	if err != nil {
		t.Fatal(err)
	}
	for cpu, want := range map[int]CPU{
		0: {0, 0, 0, 8}, 1: {1, 0, 0, 8}, 2: {2, 1, 1, 9}, 4: {0, 0, 0, 8}, 5: {1, 0, 0, 8}, 6: {2, 1, 1, 9}, 7: {7, 1, 1, 9},
	} {
		if got := m.CPUs[cpu]; got != want {
			t.Errorf("CPU %d: %+v, want %+v", cpu, got, want)
		}
	}
	if len(m.CPUs) != 7 || m.Threads() != 2 || fmt.Sprint(m.Nodes) != "[0 1 2]" || fmt.Sprint(m.Distances[1]) != "[21 10 28]" {
		t.Errorf("%+v", m)
	}
}

// A virtual machine may show little: one socket, one node, a core for each CPU.
func TestReadOfLittle(t *testing.T) {
	m, err := Read(kernel(map[string]string{"cpu/online": "0-1", "cpu/cpu1/topology/physical_package_id": "-1"}))
	if err != nil || fmt.Sprint(m.CPUs, m.Nodes) != "map[0:{0 0 0 0} 1:{1 0 0 0}] [0]" {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestReadOfNonsense(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"read which CPUs are online":          {},
		"read which CPUs are online: none is": {"cpu/online": ""},
		"NUMA node 64":                        {"cpu/online": "0", "node/node64/cpulist": "0"},
		"read the CPUs of NUMA node 0":        {"cpu/online": "0", "node/node0/cpulist": "x"},
	} {
		if _, err := Read(kernel(files)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
