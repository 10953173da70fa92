package memory

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// The kernel's folder is read as it is on machines with NUMA and without.
func TestRead(t *testing.T) {
	system := fstest.MapFS{
		"node/node0/meminfo": {Data: []byte("\nNode 0 MemTotal:        8192 kB\nNode 0 MemFree: 1 kB\n")},
		"node/node0/hugepages/hugepages-2048kB/nr_hugepages":    {Data: []byte("3\n")},
		"node/node0/hugepages/hugepages-1048576kB/nr_hugepages": {Data: []byte("0\n")},
		"node/node2/meminfo": {Data: []byte("Node 2 MemTotal: 4 kB\n")},
	}
	banks, err := Read(system, []int{0, 2}, 1)
	if got := fmt.Sprint(banks); err != nil || got != "map[0:{8388608 map[hugepages-1Gi:0 hugepages-2Mi:6291456]} 2:{4096 map[]}]" {
		t.Errorf("%s, %v", got, err)
	}
	if banks, err := Read(fstest.MapFS{"cpu/online": {}}, []int{0}, 77); err != nil || banks[0].Total != 77 {
		t.Errorf("without NUMA: %v, %v", banks, err)
	}
	if _, err := Read(system, []int{1}, 1); err == nil {
		t.Error("a node that is not there was read")
	}
}

func TestParseReserved(t *testing.T) {
	for text, want := range map[string]string{
		"": "map[]", "0:memory=1Gi": "0 memory 1Gi", "0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=5": "0 hugepages-2Mi 4Mi 0 memory 1Gi 1 memory 5",
		"x:memory=1": "must be NODE:RESOURCE=AMOUNT", "0-1:memory=1": "must be NODE", "0": "must be NODE", "0:cpu=1": `"cpu=1"`, "0:memory=0": `"memory=0"`, "0:memory=1,memory=2": "given twice", "-1:memory=1": "must be NODE",
	} {
		reserved, err := ParseReserved(text)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, not %q", text, err, want)
			}
			continue
		}
		var got []string
		for _, node := range []int{0, 1} {
			for _, name := range []v1.ResourceName{"hugepages-2Mi", v1.ResourceMemory} {
				if amount, there := reserved[node][name]; there {
					got = append(got, fmt.Sprint(node), string(name), amount.String())
				}
			}
		}
		if all := strings.Join(got, " "); all != want && want != "map[]" || want == "map[]" && len(reserved) > 0 {
			t.Errorf("%q: %s, not %s", text, all, want)
		}
	}
}

func policy(t *testing.T) *Policy {
	t.Helper()
	all := v1.ResourceList{v1.ResourceMemory: resource.MustParse("100")}
	p, err := New(map[int]Bank{0: {Total: 1100}, 1: {Total: 1000}}, Reserved{0: all}, all)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What is reserved has to add up, and to be of nodes that are there.
func TestReservations(t *testing.T) {
	banks, hundred := map[int]Bank{0: {Total: 1000}}, v1.ResourceList{v1.ResourceMemory: resource.MustParse("100")}
	for want, c := range map[string]struct {
		reserved Reserved
		all      v1.ResourceList
	}{
		`the total amount "0" of type "memory" is not equal to the value "100"`: {nil, hundred},
		"references a NUMA node 3 that does not exist":                          {Reserved{3: hundred}, hundred},
		"you should specify the system reserved memory":                         {nil, nil},
	} {
		if _, err := New(banks, c.reserved, c.all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

func guaranteed(name, memory string) *v1.Pod {
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse(memory)}
	pod := &v1.Pod{}
	pod.UID = types.UID(name)
	pod.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: list, Limits: list}}}
	return pod
}

// A pod gets memory of one node, of a group if it needs more, and gives it back; a checkpoint of
// another machine is not gone on with.
func TestPods(t *testing.T) {
	p := policy(t)
	s, err := p.Begin(State{})
	if err != nil {
		t.Fatal(err)
	}
	m := &topology.Machine{Nodes: []int{0, 1}}
	admit := func(name, memory, want string) {
		t.Helper()
		d := p.Draft(s)
		if refused := (topology.Alignment{}).Assign(m, guaranteed(name, memory), d); refused != nil {
			if !strings.Contains(refused.Message, want) {
				t.Errorf("%s: %s, not %s", name, refused.Message, want)
			}
			return
		}
		s = d.State()
		if got := fmt.Sprint(s.Nodes(types.UID(name), "c")); got != want {
			t.Errorf("%s has %s, not %s", name, got, want)
		}
	}
	admit("a", "600", "[0]")
	admit("b", "600", "[1]")
	admit("c", "1500", "no NUMA nodes with enough memory is available")
	s = s.Release("a").Release("b")
	admit("c", "1500", "[0 1]")
	admit("d", "100", "[0 1]") // a node of a group is not used alone
	admit("e", "600", "no NUMA nodes with enough memory is available")
	text, err := Encode(Static, s)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(Static, text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Begin(back); err != nil {
		t.Error(err)
	}
	if _, err := Decode(None, text); err == nil || !strings.Contains(err.Error(), `configured policy "None" differs from state checkpoint policy "Static"`) {
		t.Errorf("%v", err)
	}
	if _, err := Decode(Static, []byte(strings.Replace(string(text), "1500", "1400", -1))); err == nil {
		t.Error("a checkpoint that was changed is read")
	}
	back.Machine[0].MemoryMap[v1.ResourceMemory].TotalMemSize++
	if _, err := p.Begin(back); err == nil || !strings.Contains(err.Error(), "expected machine state is different from the real one") {
		t.Errorf("%v", err)
	}
	if s = s.Release("c").Release("d"); s.Machine[1].MemoryMap[v1.ResourceMemory].Free != 1000 || fmt.Sprint(s.Machine[1].Cells) != "[1]" {
		t.Errorf("after the last pod: %+v", s.Machine[1])
	}
}

// No file makes the agent panic.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"policyName":"Static","machineState":{"0":null},"checksum":0}`))
	f.Add([]byte(`{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":null},"cells":[9]}},"checksum":0}`))
	f.Add([]byte(`{"policyName":"Static","machineState":{"0":{"cells":[0]},"1":{"cells":[9]}},"entries":{"p":{"c":[{"numaAffinity":[0,7],"type":"memory","size":1}]}},"checksum":0}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Decode(Static, text)
		if err != nil {
			return
		}
		p := policy(t)
		if s, err = p.Begin(s); err != nil {
			return
		}
		for pod := range s.Given {
			s = s.Release(pod)
		}
		_ = p.Draft(s).Hints(guaranteed("p", "1"), &guaranteed("p", "1").Spec.Containers[0])
	})
}
