package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/env"
)

// Mount is something of the host that a container sees at its own path.
type Mount struct {
	Name                        string // the volume's; HostsFile or TerminationLog for these
	HostPath, ContainerPath     string
	ReadOnly, RecursiveReadOnly bool
	Propagation                 v1.MountPropagationMode
}

// Names of the mounts that are not volumes.
const (
	HostsFile      = "k8s-managed-etc-hosts"
	TerminationLog = "termination-log"
)

// View is what is known of a pod when one of its containers is about to be created.
type View struct {
	Env          []env.Variable // the container's, for subPathExpr
	PodIPs       []string
	Host, Domain string // as env.Hostname returns them
	// RecursiveReadOnly: the runtime can make a mount read-only with all that is mounted below it.
	RecursiveReadOnly bool
}

const hostsPath = "/etc/hosts"

// Mounts returns what the container mounts: its volumeMounts, /etc/hosts, and the file for its
// termination message. The pod's volumes must be mounted. The error goes into the container's
// status unchanged, and does not reveal what is on the host.
func (m *Manager) Mounts(pod *v1.Pod, c *v1.Container, view View) ([]Mount, error) {
	var mounts []Mount
	hosts := len(view.PodIPs) > 0 || pod.Spec.HostNetwork
	for i, wanted := range c.VolumeMounts {
		mount, err := m.volumeMount(pod, c, i, view)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, mount)
		hosts = hosts && wanted.MountPath != hostsPath
	}
	if hosts {
		path := filepath.Join(m.PodDir(pod.UID), "etc-hosts")
		if err := writeHosts(path, pod, view); err != nil {
			return nil, err
		}
		mounts = append(mounts, Mount{Name: HostsFile, HostPath: path, ContainerPath: hostsPath})
	}
	if c.TerminationMessagePath != "" {
		path, err := m.terminationLog(pod.UID, c.Name)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, Mount{Name: TerminationLog, HostPath: path, ContainerPath: absolute(c.TerminationMessagePath)})
	}
	return mounts, nil
}

func absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return "/" + path
}

// volumeMount returns the mount for the container's i-th volumeMount.
func (m *Manager) volumeMount(pod *v1.Pod, c *v1.Container, i int, view View) (Mount, error) {
	wanted := c.VolumeMounts[i]
	volume, ok := volumeNamed(pod, wanted.Name)
	if !ok || kindOf(volume) == unsupported {
		return Mount{}, fmt.Errorf("cannot find volume %q to mount into container %q", wanted.Name, c.Name)
	}
	path, err := env.SubPath(wanted, view.Env)
	if err != nil {
		return Mount{}, err
	}
	if err := validSubPath(path); err != nil {
		return Mount{}, err
	}
	recursive, err := recursiveReadOnly(wanted, view.RecursiveReadOnly)
	if err != nil {
		return Mount{}, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	dir := m.volumeDir(pod.UID, volume)
	if dir == "" || m.placeOf(pod.UID, wanted.Name).block {
		return Mount{}, fmt.Errorf("cannot find volume %q to mount into container %q", wanted.Name, c.Name)
	}
	if path != "" {
		if dir, err = m.subPathOf(pod, volume, c.Name, i, path); err != nil {
			return Mount{}, err
		}
	}
	mount := Mount{
		Name: wanted.Name, HostPath: dir, ContainerPath: absolute(wanted.MountPath),
		ReadOnly: wanted.ReadOnly, RecursiveReadOnly: recursive, Propagation: v1.MountPropagationNone,
	}
	switch kindOf(volume) {
	case hostPath, emptyDir:
	case inline, claimed:
		mount.ReadOnly = mount.ReadOnly || m.placeOf(pod.UID, wanted.Name).readOnly
	default: // the agent writes it, nobody else
		mount.ReadOnly = true
	}
	if wanted.MountPropagation != nil {
		mount.Propagation = *wanted.MountPropagation
	}
	return mount, nil
}

func (m *Manager) subPathOf(pod *v1.Pod, volume v1.Volume, container string, i int, path string) (string, error) {
	if err := errors.Join(validName("container name", container), validName("volume name", volume.Name)); err != nil {
		return "", err
	}
	target := filepath.Join(m.PodDir(pod.UID), "volume-subpaths", volume.Name, container, strconv.Itoa(i))
	if err := subPath(m.volumeDir(pod.UID, volume), path, target); err != nil {
		// The user's error does not say why: that could reveal what is on the host.
		klog.ErrorS(err, "A subPath could not be prepared", "pod", klog.KObj(pod), "container", container, "volume", volume.Name)
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", volume.Name, container)
	}
	return target, nil
}

func recursiveReadOnly(mount v1.VolumeMount, possible bool) (bool, error) {
	if mount.RecursiveReadOnly == nil || *mount.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !mount.ReadOnly {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", mount.Name)
	}
	if mount.MountPropagation != nil && *mount.MountPropagation != v1.MountPropagationNone {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q", mount.Name, *mount.MountPropagation)
	}
	if *mount.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled && !possible {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", mount.Name)
	}
	return possible, nil
}

// writeHosts writes the pod's /etc/hosts in place, since running containers may have the file
// mounted.
func writeHosts(path string, pod *v1.Pod, view View) error {
	var node []byte
	if pod.Spec.HostNetwork {
		var err error
		if node, err = os.ReadFile(hostsPath); err != nil {
			return err
		}
	}
	content := env.Hosts(pod, view.PodIPs, view.Host, view.Domain, node)
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, content) {
		return nil
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	return os.Chmod(path, 0o644) // whatever the umask is
}

// keptLogs is how many termination message files are kept: that of the running container, and those
// of previous ones, whose messages may still be needed.
const keptLogs = 3

// terminationLog creates an empty termination message file for a container that is about to be
// created.
func (m *Manager) terminationLog(uid types.UID, container string) (string, error) {
	if err := validName("container name", container); err != nil {
		return "", err
	}
	dir := filepath.Join(m.PodDir(uid), "containers", container)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	if err := prune(dir, keptLogs-1); err != nil {
		return "", err
	}
	file, err := os.CreateTemp(dir, "")
	if err != nil {
		return "", err
	}
	// Every user that the container may run as must be able to write it.
	return file.Name(), errors.Join(file.Chmod(0o666), file.Close())
}

// prune removes all but the newest files of a folder.
func prune(dir string, keep int) error {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) <= keep {
		return err
	}
	age := map[string]int64{}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			age[entry.Name()] = info.ModTime().UnixNano()
		}
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int {
		return int(min(max(age[b.Name()]-age[a.Name()], -1), 1))
	})
	for _, entry := range entries[keep:] {
		err = errors.Join(err, os.Remove(filepath.Join(dir, entry.Name())))
	}
	return err
}

// File reads a file of one of the pod's volumes. A link that leads out of it is an error, and so is
// anything that is not a file.
func (m *Manager) File(pod *v1.Pod, volume, path string) ([]byte, error) {
	const longest = 1 << 20
	found, ok := volumeNamed(pod, volume)
	if !ok {
		return nil, fmt.Errorf("cannot find the volume %q", volume)
	}
	dir := m.volumeDir(pod.UID, found)
	if dir == "" {
		return nil, fmt.Errorf("cannot find the volume %q", volume)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be a pipe that nobody writes to
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	return io.ReadAll(io.LimitReader(file, longest))
}
