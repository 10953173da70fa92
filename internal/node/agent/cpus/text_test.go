package cpus

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// machine made up: so many sockets, NUMA nodes in each, last-level caches in each of those, cores
// in each of those, and CPUs on each core. CPUs are numbered as by Linux: all cores, then their
// second threads.
func machine(sockets, nodes, caches, cores, threads int) *topology.Machine {
	m := &topology.Machine{CPUs: map[int]topology.CPU{}, Distances: map[int][]uint64{}}
	all := sockets * nodes * caches * cores
	for core := range all {
		for thread := range threads {
			m.CPUs[core+thread*all] = topology.CPU{
				Core: core, Cache: core / cores, Node: core / (cores * caches), Socket: core / (cores * caches * nodes),
			}
		}
	}
	for node := range sockets * nodes {
		m.Nodes = append(m.Nodes, node)
	}
	return m
}

// pod is read from lines such as "init a 2", "sidecar b 500m", and "c 1" for a main container. A
// line "burstable" or "whole 4" (of pod-level resources) is about the pod.
func pod(name, text string) *v1.Pod {
	pod := &v1.Pod{}
	pod.Name, pod.UID = name, types.UID(name)
	always, lax := v1.ContainerRestartPolicyAlways, false
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch words[0] {
		case "burstable":
			lax = true
			continue
		case "whole":
			pod.Spec.Resources = &v1.ResourceRequirements{Requests: amounts(words[1]), Limits: amounts(words[1])}
			continue
		}
		c := v1.Container{Name: words[len(words)-2]}
		c.Resources = v1.ResourceRequirements{Requests: amounts(words[len(words)-1]), Limits: amounts(words[len(words)-1])}
		if lax {
			c.Resources.Limits = nil
		}
		switch words[0] {
		case "sidecar":
			c.RestartPolicy = &always
			fallthrough
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	return pod
}

func amounts(cpu string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("1Gi")}
}

// stateText is who has what.
func stateText(s State) string {
	var lines []string
	for uid, containers := range s.Given {
		for name, cpus := range containers {
			lines = append(lines, fmt.Sprintf("%s/%s %s\n", uid, name, cpus))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "") + "pool " + s.Pool.String() + "\n"
}

// TestCases gives CPUs of made-up machines to pods. The commands: "machine", then "policy" with
// what is reserved, as a number or as CPUs, options, and the alignment; "pod", "release" and
// "restart", which goes on from the checkpoint, maybe on another machine or with another policy.
func TestCases(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var (
			m     *topology.Machine
			p     *Policy
			s     State
			align topology.Alignment
		)
		begin := func(d *datadriven.TestData) string {
			var o Options
			count, reserved := 0, cpuset.New()
			align = topology.Alignment{}
			for _, a := range d.CmdArgs {
				switch a.Key {
				case "reserve":
					if _, err := fmt.Sscan(a.Vals[0], &count); err != nil {
						d.Fatalf(t, "%v", err)
					}
				case "cpus":
					reserved, _ = cpuset.Parse(strings.Join(a.Vals, ","))
					count = reserved.Size()
				case "align":
					align.Policy = a.Vals[0]
				case "scope":
					align.Scope = a.Vals[0]
				default:
					var err error
					if o, err = ParseOptions(map[string]string{a.Key: "true"}); err != nil {
						return err.Error() + "\n"
					}
				}
			}
			var err error
			if p, err = New(m, count, reserved, o); err == nil {
				s, err = p.Begin(s)
			}
			if err != nil {
				return err.Error() + "\n"
			}
			return "reserved " + p.Reserved().String() + "\n" + stateText(s)
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "machine":
				sockets, nodes, caches, cores, threads := 1, 1, 1, 1, 1
				for key, into := range map[string]*int{"sockets": &sockets, "nodes": &nodes, "caches": &caches, "cores": &cores, "threads": &threads} {
					d.MaybeScanArgs(t, key, into)
				}
				m = machine(sockets, nodes, caches, cores, threads)
				return fmt.Sprintf("cpus %s\n", m.All())
			case "policy":
				s = State{}
				return begin(d)
			case "restart":
				text, err := Encode(Static, s)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				if s, err = Decode(Static, text); err != nil {
					return err.Error() + "\n"
				}
				return begin(d)
			case "pod":
				draft := p.Draft(s)
				before := stateText(s)
				refused := align.Assign(m, pod(d.CmdArgs[0].Key, d.Input), draft)
				if now := stateText(s); now != before {
					t.Errorf("the state that the draft began with was changed to\n%s", now)
				}
				if refused != nil {
					return refused.Reason + ": " + refused.Message + "\n"
				}
				s = draft.State()
				return stateText(s)
			case "release":
				s = s.Release(types.UID(d.CmdArgs[0].Key))
				return stateText(s)
			}
			return "unknown command\n"
		})
	})
}

// The messages of the checkpoint are the kubelet's, and so is its checksum: this file is one of the
// kubelet's.
func TestCheckpoint(t *testing.T) {
	const kubelets = `{"policyName":"static","defaultCpuSet":"0,2-3","entries":{"pod":{"c":"1"}},"checksum":3544895625}`
	s := State{Pool: cpuset.New(0, 2, 3), Given: map[types.UID]map[string]cpuset.CPUSet{"pod": {"c": cpuset.New(1)}}}
	text, err := Encode(Static, s)
	if err != nil || string(text) != kubelets {
		t.Errorf("written %s, %v\nwant    %s", text, err, kubelets)
	}
	if back, err := Decode(Static, text); err != nil || stateText(back) != stateText(s) {
		t.Errorf("read %v, %v", back, err)
	}
	for _, c := range []struct{ policy, text, want string }{
		{None, kubelets, `configured policy "none" differs from state checkpoint policy "static"`},
		{Static, strings.Replace(kubelets, "2-3", "2", 1), "checkpoint is corrupted"},
		{Static, `{"policyName":"static","defaultCpuSet":"x"}`, `could not parse default cpu set "x"`},
		{Static, `{"policyName":"static","defaultCpuSet":"0","entries":{"p":{"c":"y"}}}`, `could not parse cpuset "y" for container "c" in pod "p"`},
		{Static, `{"policyName"`, "unexpected end of JSON input"},
	} {
		if _, err := Decode(c.policy, []byte(c.text)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
}

func TestOptions(t *testing.T) {
	for option, want := range map[string]string{
		"full-pcpus-only=maybe":             `bad value for option "full-pcpus-only"`,
		"align-by-socket=true":              `CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided`,
		"warp=true":                         `unknown CPU Manager Policy option: "warp"`,
		"full-pcpus-only=true":              "<nil>",
		"distribute-cpus-across-numa=false": "<nil>",
	} {
		name, value, _ := strings.Cut(option, "=")
		if _, err := ParseOptions(map[string]string{name: value}); !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("%s: %v, want %s", option, err, want)
		}
	}
}
