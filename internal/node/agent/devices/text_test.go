package devices

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

var epoch = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// node is a ledger with the pods of a case.
type node struct {
	ledger *Ledger
	pods   map[string]*v1.Pod
}

func TestCases(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		n := &node{New(), map[string]*v1.Pod{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := n.do(t, d)
			if out == "" {
				return "ok\n"
			}
			return strings.TrimRight(out, "\n") + "\n"
		})
	})
}

func (n *node) do(t *testing.T, d *datadriven.TestData) string {
	switch first := func() string { return d.CmdArgs[0].Key }; d.Cmd {
	case "plugin":
		n.ledger.Connected(first(), Options{PreStart: d.HasArg("prestart"), Preferred: d.HasArg("preferred")})
		return ""
	case "list":
		return fmt.Sprintf("changed: %t", n.ledger.Listed(first(), parseDevices(t, d.Input)))
	case "lost":
		n.ledger.Lost(first(), at(t, d))
		return ""
	case "counts":
		n.ledger.Expire(at(t, d))
		counts := n.ledger.Counts()
		var out strings.Builder
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(&out, "%s: %d of %d healthy\n", name, counts[name].Healthy, counts[name].All)
		}
		return out.String()
	case "pod":
		n.pods[first()] = parsePod(t, first(), d.Input)
		return ""
	case "admit":
		return n.admit(t, d)
	case "hints":
		machine := []int{0, 1, 2, 3}
		if pod, one := n.pods[first()]; one {
			return describeHints(n.ledger.PodHints(pod, machine))
		}
		pod, container := n.split(first())
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if list[i].Name == container {
					return describeHints(n.ledger.Hints(pod, &list[i], machine))
				}
			}
		}
	case "reserve":
		pod, container := n.split(first())
		got, err := n.ledger.Reserve(pod, container, parseWant(t, d.CmdArgs[1]), 0, nil)
		return fmt.Sprint(got, orError(err))
	case "refuse":
		pod, container := n.split(first())
		n.ledger.Refused(pod.UID, container, d.CmdArgs[1].Key)
		return ""
	case "grant":
		pod, container := n.split(first())
		return fmt.Sprintf("holds them: %t", n.ledger.Granted(pod.UID, container, d.CmdArgs[1].Key, parseGrant(t, d.Input)))
	case "given":
		pod, container := n.split(first())
		return describe(n.ledger.Given(pod.UID, container))
	case "health":
		pod, container := n.split(first())
		var out strings.Builder
		for _, status := range n.ledger.Health(pod.UID, container) {
			for _, r := range status.Resources {
				fmt.Fprintf(&out, "%s %s: %s\n", status.Name, r.ResourceID, r.Health)
			}
		}
		return out.String()
	case "prestart":
		pod, container := n.split(first())
		got, err := n.ledger.PreStart(pod.UID, container, d.CmdArgs[1].Key)
		return fmt.Sprint(got, orError(err))
	case "free":
		return fmt.Sprintf("had some: %t", n.ledger.Free(types.UID(first())))
	case "holders":
		name := ""
		if len(d.CmdArgs) > 0 {
			name = first()
		}
		return fmt.Sprint(n.ledger.Holders(name))
	case "cover":
		list := v1.ResourceList{}
		for _, arg := range d.CmdArgs {
			list[v1.ResourceName(arg.Key)] = quantity(int64(number(t, arg.Vals[0])))
		}
		n.ledger.Cover(list)
		var out strings.Builder
		for _, name := range slices.Sorted(maps.Keys(list)) {
			amount := list[name]
			fmt.Fprintf(&out, "%s=%d\n", name, amount.Value())
		}
		return out.String()
	case "restart":
		text := n.ledger.Checkpoint()
		var err error
		if n.ledger, err = Restore(text, at(t, d)); err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), `},{"pod"`, "},\n{\"pod\"")
	case "restore":
		_, err := Restore([]byte(d.Input), epoch)
		return strings.TrimSpace(orError(err))
	}
	t.Fatalf("unknown command %s", d.Cmd)
	return ""
}

// admit gives all of a pod's containers their devices, as package plugins does.
func (n *node) admit(t *testing.T, d *datadriven.TestData) string {
	pod := n.pods[d.CmdArgs[0].Key]
	var preferred []string
	var near topology.Nodes
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "prefer":
			preferred = arg.Vals
		case "near":
			near = parseNodes(t, arg.Vals)
		}
	}
	var out strings.Builder
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			for _, want := range n.ledger.Wants(c) {
				has, err := n.ledger.Has(pod.UID, c.Name, want)
				if err == nil && !has {
					var plan Plan
					if plan, err = n.ledger.Plan(pod, c.Name, want, near); err == nil {
						var got []string
						if got, err = n.ledger.Reserve(pod, c.Name, want, near, preferred); err == nil {
							n.ledger.Granted(pod.UID, c.Name, want.Resource, Grant{})
							fmt.Fprintf(&out, "%s %s: %s", c.Name, want.Resource, strings.Join(got, " "))
							if plan.Ask {
								fmt.Fprintf(&out, " (asked: %d of %s, with %s)", plan.Missing, plan.Free, plan.Fixed)
							}
							fmt.Fprintln(&out)
						}
					}
				} else if has {
					fmt.Fprintf(&out, "%s %s: as before\n", c.Name, want.Resource)
				}
				if err != nil {
					n.ledger.Free(pod.UID)
					return out.String() + err.Error()
				}
			}
		}
	}
	return out.String()
}

func (n *node) split(name string) (*v1.Pod, string) {
	pod, container, _ := strings.Cut(name, "/")
	return n.pods[pod], container
}

func orError(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

func at(t *testing.T, d *datadriven.TestData) time.Time {
	for _, arg := range d.CmdArgs {
		if arg.Key == "at" {
			after, err := time.ParseDuration(arg.Vals[0])
			if err != nil {
				t.Fatal(err)
			}
			return epoch.Add(after)
		}
	}
	t.Fatalf("%s: at= is missing", d.Pos)
	return epoch
}

func number(t *testing.T, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// parseDevices reads IDs; one with ! is not healthy, one with @0 is near a node of memory, one with
// @0,1 near two.
func parseDevices(t *testing.T, text string) (out []Device) {
	for word := range strings.FieldsSeq(text) {
		id, numa, near := strings.Cut(word, "@")
		d := Device{ID: strings.TrimSuffix(id, "!"), Healthy: !strings.HasSuffix(id, "!")}
		if near {
			for node := range strings.SplitSeq(numa, ",") {
				d.NUMA = append(d.NUMA, int64(number(t, node)))
			}
		}
		out = append(out, d)
	}
	return out
}

func parseNodes(t *testing.T, words []string) (out topology.Nodes) {
	for _, word := range words {
		out |= topology.NodesOf(number(t, word))
	}
	return out
}

// describeHints has a line a resource; preferred ones have a star.
func describeHints(hints topology.Hints) string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(hints)) {
		fmt.Fprintf(&out, "%s:", name)
		switch {
		case hints[name] == nil:
			fmt.Fprint(&out, " anywhere")
		case len(hints[name]) == 0:
			fmt.Fprint(&out, " nowhere")
		}
		for _, h := range hints[name] {
			fmt.Fprintf(&out, " %v", h.Nodes.List())
			if h.Preferred {
				fmt.Fprint(&out, "*")
			}
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}

// parsePod reads a container a line: init, sidecar or main, its name, and what it requests.
func parsePod(t *testing.T, name, text string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		c := v1.Container{Name: words[1], Resources: v1.ResourceRequirements{Limits: v1.ResourceList{}}}
		for _, word := range words[2:] {
			resource, count, _ := strings.Cut(word, "=")
			c.Resources.Limits[v1.ResourceName(resource)] = quantity(int64(number(t, count)))
		}
		switch words[0] {
		case "sidecar":
			always := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
			fallthrough
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case "main":
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		default:
			t.Fatalf("unknown kind of container %s", words[0])
		}
	}
	return pod
}

func parseWant(t *testing.T, arg datadriven.CmdArg) Want {
	return Want{arg.Key, number(t, arg.Vals[0])}
}

// parseGrant reads a thing a line: what it is, where it is in the container, what it is.
func parseGrant(t *testing.T, text string) Grant {
	g := Grant{Env: map[string]string{}, Annotations: map[string]string{}}
	for line := range strings.Lines(text) {
		words := append(strings.Fields(line), "")
		switch words[0] {
		case "env":
			g.Env[words[1]] = words[2]
		case "annotation":
			g.Annotations[words[1]] = words[2]
		case "mount":
			g.Mounts = append(g.Mounts, Mount{words[1], words[2], words[3] == "ro"})
		case "node":
			g.Nodes = append(g.Nodes, Node{words[1], words[2], words[3]})
		case "cdi":
			g.CDI = append(g.CDI, words[1])
		default:
			t.Fatalf("unknown kind of grant %s", words[0])
		}
	}
	return g
}

func describe(g Grant, conflicts []string) string {
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(g.Env)) {
		fmt.Fprintf(&out, "env %s %s\n", key, g.Env[key])
	}
	for _, key := range slices.Sorted(maps.Keys(g.Annotations)) {
		fmt.Fprintf(&out, "annotation %s %s\n", key, g.Annotations[key])
	}
	for _, m := range g.Mounts {
		fmt.Fprintf(&out, "mount %s %s %t\n", m.Container, m.Host, m.ReadOnly)
	}
	for _, n := range g.Nodes {
		fmt.Fprintf(&out, "node %s %s %s\n", n.Container, n.Host, n.Permissions)
	}
	for _, name := range g.CDI {
		fmt.Fprintf(&out, "cdi %s\n", name)
	}
	for _, conflict := range conflicts {
		fmt.Fprintf(&out, "conflict: %s\n", conflict)
	}
	return out.String()
}

// Whatever is on disk, it is a ledger or an error.
func FuzzRestore(f *testing.F) {
	f.Add([]byte(`{"version":1,"resources":["x/y"],"holdings":[{"pod":"p","container":"c","resource":"x/y","devices":[{"id":"a"}],"grant":{}}]}`))
	f.Add([]byte(`{"version":1,"holdings":[{"pod":"p"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := Restore(text, epoch)
		if err != nil {
			return
		}
		again, err := Restore(l.Checkpoint(), epoch)
		if err != nil || string(again.Checkpoint()) != string(l.Checkpoint()) {
			t.Errorf("%s becomes %s (%v)", text, l.Checkpoint(), err)
		}
	})
}
