package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Drivers, by their names in --cgroup-driver.
const (
	Cgroupfs = "cgroupfs"
	Systemd  = "systemd"
)

// Options are those of a tree.
type Options struct {
	// Mount is where the kernel shows the groups; empty: /sys/fs/cgroup.
	Mount string
	// Proc is where the proc file system is mounted; empty: /proc.
	Proc string
	// Root is the group below which all others are made, created if necessary; empty: the topmost.
	Root string
	// Driver is cgroupfs or systemd; empty: cgroupfs. The runtime must have the same.
	Driver string
	// PodPIDs limits the tasks of each pod; not positive: no limit.
	PodPIDs int64
	// NoQuota reports whether a pod's CPU is not limited by time, because it is by which CPUs the
	// pod's containers have; nil: all pods are limited.
	NoQuota func(*v1.Pod) bool
}

// Tree is the part of the machine's groups that contains pods. Its methods may be called
// concurrently for different pods.
type Tree struct {
	Options // with defaults in place of empty fields
	// root is the group of Options.Root, empty if that is the topmost; kubepods is below it.
	root, kubepods name
	files          files
	// rmdir removes a group's folder; the kernel's files in it go with it.
	rmdir func(string) error

	mu sync.Mutex
	// enforced is what all pods together are limited to.
	enforced Sizes
}

// files is one version of cgroups: where a group's folders are, and what its files are called.
type files interface {
	// folders returns a group's folders, one per hierarchy; removal has to look at all of them.
	folders(path string) []string
	// make creates the group and those above it, able to contain others.
	make(path string) error
	set(path string, sizes Sizes) error
	usage(path string) (Usage, error)
	// sizes returns the group's memory limit and CPU quota.
	sizes(path string) (Sizes, error)
	// limits returns the group's limits on memory and tasks; 0: none.
	limits(path string) (memory, pids int64, err error)
}

var qosClasses = []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort}

// Open detects the machine's version of cgroups, and creates the upper part of the tree.
func Open(options Options) (*Tree, error) {
	if options.Mount == "" {
		options.Mount = "/sys/fs/cgroup"
	}
	if options.Proc == "" {
		options.Proc = "/proc"
	}
	if options.Driver == "" {
		options.Driver = Cgroupfs
	}
	if options.Driver != Cgroupfs && options.Driver != Systemd {
		return nil, fmt.Errorf("cgroup driver %q: must be %s or %s", options.Driver, Cgroupfs, Systemd)
	}
	t := &Tree{Options: options, rmdir: os.Remove}
	for part := range strings.SplitSeq(options.Root, "/") {
		if strings.Contains(part, "_") || part == ".." {
			return nil, fmt.Errorf("cgroup root %q: a part must not be .. or contain an underscore, which systemd's names need", options.Root)
		}
		if part != "" && part != "." {
			t.root = append(t.root, part)
		}
	}
	t.kubepods = t.root.below("kubepods")
	var err error
	if t.files, err = find(options.Mount); err != nil {
		return nil, err
	}
	fresh := !t.exists(class(t.kubepods, v1.PodQOSBurstable))
	for _, qos := range qosClasses {
		if err := t.files.make(t.path(class(t.kubepods, qos))); err != nil {
			return nil, fmt.Errorf("make the cgroup of %s pods: %w", qos, err)
		}
	}
	if err := t.files.set(t.path(class(t.kubepods, v1.PodQOSBestEffort)), Sizes{Shares: minShares}); err != nil {
		return nil, err
	}
	if !fresh {
		return t, nil // pods may be running: their shares stay as they are until the pods are known
	}
	return t, t.Share(nil)
}

// Unified reports whether the machine has version 2 of cgroups.
func (t *Tree) Unified() bool {
	_, unified := t.files.(v2)
	return unified
}

// exists reports whether at least one hierarchy has the group.
func (t *Tree) exists(group name) bool {
	return slices.ContainsFunc(t.files.folders(t.path(group)), func(folder string) bool {
		_, err := os.Stat(folder)
		return err == nil
	})
}

// find distinguishes the versions by what is at the mount point: one hierarchy with all
// controllers, or a folder for each.
func find(mount string) (files, error) {
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
		return v2{mount}, nil
	}
	found := v1Hierarchies(mount)
	for _, needed := range []string{"cpu", "memory"} {
		if found[needed] == "" {
			return nil, fmt.Errorf("no cgroups at %s: neither version 2 nor the %s controller of version 1", mount, needed)
		}
	}
	return found, nil
}

func (t *Tree) path(n name) string { return n.path(t.Driver) }

// EnsurePod creates the pod's group, or updates its sizes, and returns what CRI takes as the parent
// of its containers. A limit below the memory in use is left to the resize that was granted: here
// the kernel would kill a container for it.
func (t *Tree) EnsurePod(p *v1.Pod) (parent string, err error) {
	group := pod(t.kubepods, rules.QOS(p), p.UID)
	if err := t.files.make(t.path(group)); err != nil {
		return "", fmt.Errorf("make the cgroup of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	sizes := t.SizesOf(p)
	sizes.PIDs = max(t.PodPIDs, 0)
	if usage, err := t.files.usage(t.path(group)); err == nil && usage.WorkingSet >= sizes.Memory {
		sizes.Memory = 0
	}
	if err := t.files.set(t.path(group), sizes); err != nil {
		return "", fmt.Errorf("size the cgroup of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return group.parent(t.Driver), nil
}

// SizesOf is ForPod on this node.
func (t *Tree) SizesOf(p *v1.Pod) Sizes {
	sizes := ForPod(p)
	if t.NoQuota != nil && t.NoQuota(p) {
		sizes.Quota, sizes.Period = 0, 0
	}
	return sizes
}

// Pods lists the pods that have a group in any hierarchy.
func (t *Tree) Pods() ([]types.UID, error) {
	found := map[types.UID]bool{}
	for _, qos := range qosClasses {
		for _, folder := range t.files.folders(t.path(class(t.kubepods, qos))) {
			entries, err := os.ReadDir(folder)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			for _, entry := range entries {
				if uid := podOf(entry.Name(), t.Driver); entry.IsDir() && uid != "" {
					found[uid] = true
				}
			}
		}
	}
	uids := make([]types.UID, 0, len(found))
	for uid := range found {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids, nil
}

// Enforce limits all pods together to what the node offers them: its capacity without the
// reservations for the system. Eviction thresholds are not subtracted: pods are to be evicted
// before the kernel stops them.
func (t *Tree) Enforce(allocatable v1.ResourceList) error {
	sizes := Sizes{Memory: allocatable.Memory().Value(), Shares: shares(allocatable.Cpu().MilliValue())}
	if pids, limited := allocatable["pid"]; limited {
		sizes.PIDs = pids.Value()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enforced = sizes
	if err := t.files.set(t.path(t.kubepods), sizes); err != nil {
		return fmt.Errorf("limit all pods to what is allocatable: %w", err)
	}
	return nil
}

// Share gives all Burstable pods together the CPU shares that the active ones request, and restores
// what else the groups above pods have: systemd gives a slice that it did not make its own defaults
// once the runtime's first scope is in it.
func (t *Tree) Share(active []*v1.Pod) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := errors.Join(
		t.files.set(t.path(t.kubepods), t.enforced),
		t.files.set(t.path(class(t.kubepods, v1.PodQOSBurstable)), burstable(active)),
		t.files.set(t.path(class(t.kubepods, v1.PodQOSBestEffort)), Sizes{Shares: minShares}),
	)
	if err != nil {
		return fmt.Errorf("size the cgroups of all pods: %w", err)
	}
	return nil
}
