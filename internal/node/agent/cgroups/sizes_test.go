package cgroups

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

const machineMemory = 8 << 30

func TestSizeCases(t *testing.T) {
	datadriven.RunTest(t, "testdata/sizes.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "pod":
			var pod v1.Pod
			if err := yaml.UnmarshalStrict([]byte(d.Input), &pod); err != nil {
				t.Fatal(err)
			}
			requestWhatIsLimited(&pod)
			return describe(t, d, &pod)
		case "share":
			var list []*v1.Pod
			if err := yaml.UnmarshalStrict([]byte(d.Input), &list); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			for _, version := range []string{"v1", "v2"} {
				tree := fake(t, version, Options{})
				for _, pod := range list {
					requestWhatIsLimited(pod)
				}
				if err := tree.Share(list); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&out, "%s: burstable %s besteffort %s\n", version,
					settings(t, tree, "/kubepods/burstable"), settings(t, tree, "/kubepods/besteffort"))
			}
			return out.String()
		}
		return "unknown command " + d.Cmd
	})
}

func describe(t *testing.T, d *datadriven.TestData, pod *v1.Pod) string {
	var pids int64
	var root string
	d.MaybeScanArgs(t, "pids", &pids)
	d.MaybeScanArgs(t, "root", &root)
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", rules.QOS(pod))
	for _, driver := range []string{Cgroupfs, Systemd} {
		parent, err := fake(t, "v2", Options{Driver: driver, Root: root}).EnsurePod(pod)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%-9s %s\n", driver+":", parent)
	}
	for _, version := range []string{"v1", "v2"} {
		tree := fake(t, version, Options{PodPIDs: pids, Root: root})
		parent, err := tree.EnsurePod(pod)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s: %s\n", version, settings(t, tree, parent))
	}
	containers, overhead := ForSandbox(pod)
	fmt.Fprintf(&out, "sandbox: %s", text(containers))
	if overhead != (Sizes{}) {
		fmt.Fprintf(&out, "; overhead: %s", text(overhead))
	}
	out.WriteString("\n")
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		fmt.Fprintf(&out, "%s: %s oom=%d\n", container.Name, text(ForContainer(pod, &container)), OOMScoreAdj(pod, &container, machineMemory))
	}
	return out.String()
}

func text(s Sizes) string {
	return fmt.Sprintf("shares=%d quota=%d memory=%d", s.Shares, s.Quota, s.Memory)
}

// requestWhatIsLimited is what the API server does to pods.
func requestWhatIsLimited(pod *v1.Pod) {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			resources := &list[i].Resources
			for name, limit := range resources.Limits {
				if _, there := resources.Requests[name]; there {
					continue
				}
				if resources.Requests == nil {
					resources.Requests = v1.ResourceList{}
				}
				resources.Requests[name] = limit
			}
		}
	}
}

// fake is a tree of plain files where the kernel would have its own.
func fake(t *testing.T, version string, options Options) *Tree {
	t.Helper()
	options.Mount = t.TempDir()
	put := func(path, value string) {
		path = filepath.Join(options.Mount, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if version == "v2" {
		put("cgroup.controllers", "cpuset cpu io memory pids\n")
		put("cgroup.subtree_control", "")
	} else {
		for _, mount := range []string{"cpu,cpuacct", "cpuset", "memory", "pids", "freezer", "systemd"} {
			put(mount+"/cgroup.procs", "")
		}
		put("cpuset/cpuset.cpus", "0-3\n")
		put("cpuset/cpuset.mems", "0\n")
	}
	tree, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	tree.rmdir = os.RemoveAll
	return tree
}

// settings are the files that were written in a group, apart from those that every group has.
func settings(t *testing.T, tree *Tree, path string) string {
	t.Helper()
	var all []string
	for _, folder := range tree.files.folders(path) {
		err := filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return nil
			}
			if strings.HasPrefix(entry.Name(), "cpuset.") || strings.HasPrefix(entry.Name(), "cgroup.") {
				return nil
			}
			value, err := os.ReadFile(file)
			all = append(all, entry.Name()+"="+string(value))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func itoa(n int) string { return fmt.Sprint(n) }
