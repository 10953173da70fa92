package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-k8s/berth/internal/node/agent/csi"
	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// place is where a volume is that is not the agent's: a CSI driver's, or a persistent one.
type place struct {
	path     string
	readOnly bool
	block    bool // a device
	// csi is the driver's volume; nil: it is none.
	csi   *csi.Volume
	claim string // the name of the claim; empty: there is none
	// again: the driver is asked again from time to time; asked is when it was last.
	again bool
	asked time.Time
}

// republishEvery is how often drivers that want it are asked again, about as often as the kubelet
// does.
const republishEvery = time.Minute

func (m *Manager) placeOf(uid types.UID, volume string) place {
	m.mu.Lock()
	defer m.mu.Unlock()
	if volumes := m.pods[uid]; volumes != nil {
		return volumes.places[volume]
	}
	return place{}
}

// dueElsewhere reports whether a volume that is not the agent's is to be set up, or again. A
// refresh sets up only what drivers made already, as after a restart of the agent.
func (m *Manager) dueElsewhere(volumes *podVolumes, uid types.UID, volume v1.Volume, refresh bool) bool {
	switch at := m.placeOf(uid, volume.Name); {
	case !refresh:
		return !volumes.done[volume.Name]
	case volumes.done[volume.Name]:
		return at.again && time.Since(at.asked) >= republishEvery
	case kindOf(volume) == inline:
		return m.options.CSI.Has(csi.Folder(m.volumesDir(uid), csi.Volume{Name: volume.Name}))
	default: // only the API knows which of the folders is the claim's
		dirs, err := csi.Folders(m.volumesDir(uid))
		for _, dir := range dirs {
			if m.options.CSI.Has(dir) {
				return true
			}
		}
		return err != nil
	}
}

func (m *Manager) volumesDir(uid types.UID) string { return filepath.Join(m.PodDir(uid), "volumes") }

// setUpElsewhere sets up a volume of a CSI driver, or a persistent one.
func (m *Manager) setUpElsewhere(ctx context.Context, pod *v1.Pod, volume v1.Volume) error {
	at, err := m.find(ctx, pod, volume)
	if err != nil {
		return err
	}
	if at.csi != nil {
		dir := csi.Folder(m.volumesDir(pod.UID), *at.csi)
		published, err := m.options.CSI.Publish(ctx, pod, *at.csi, dir)
		if err != nil {
			return err
		}
		at.path, at.again, at.asked = csi.Target(dir), published.Again, time.Now()
		if published.Group {
			if err := giveOnce(at.path, pod); err != nil {
				return fmt.Errorf("applyFSGroup failed for vol %s: %w", at.csi.Handle, err)
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entry(pod.UID).places[volume.Name] = at
	return nil
}

// giveOnce gives a volume to the pod's group, unless the pod does without that if its topmost
// folder belongs to the group already.
func giveOnce(dir string, pod *v1.Pod) error {
	group := groupOf(pod)
	if group == nil {
		return nil
	}
	policy := pod.Spec.SecurityContext.FSGroupChangePolicy
	if policy != nil && *policy == v1.FSGroupChangeOnRootMismatch {
		var stat unix.Stat_t
		if err := unix.Lstat(dir, &stat); err == nil && int64(stat.Gid) == *group && stat.Mode&0o770 == 0o770 && stat.Mode&unix.S_ISGID != 0 {
			return nil
		}
	}
	return giveToGroup(dir, group, false)
}

// find finds out where a volume is.
func (m *Manager) find(ctx context.Context, pod *v1.Pod, volume v1.Volume) (place, error) {
	if volume.CSI != nil {
		return ofDriver(csi.Inline(pod, &volume), ""), nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	claim, readOnly, err := m.claim(ctx, pod, volume)
	if err != nil {
		return place{}, err
	}
	found, err := m.options.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return place{}, fmt.Errorf("failed to fetch PV %s from API server: %w", claim.Spec.VolumeName, err)
	}
	if ref := found.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		return place{}, fmt.Errorf("PV %s is not bound to PVC %s/%s", found.Name, claim.Namespace, claim.Name)
	}
	block := found.Spec.VolumeMode != nil && *found.Spec.VolumeMode == v1.PersistentVolumeBlock
	switch source := found.Spec.PersistentVolumeSource; {
	case block && !asDevice(pod, volume.Name):
		return place{}, fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", volume.Name)
	case !block && asDevice(pod, volume.Name):
		return place{}, fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", volume.Name)
	case source.CSI != nil:
		return ofDriver(csi.Persistent(found, readOnly), claim.Name), nil
	case source.HostPath != nil && !block:
		return place{path: source.HostPath.Path, readOnly: readOnly, claim: claim.Name}, checkHostPath(source.HostPath)
	}
	return place{}, fmt.Errorf("this node's agent has no persistent volumes of the type of PV %s", found.Name)
}

func ofDriver(v csi.Volume, claim string) place {
	return place{csi: &v, readOnly: v.ReadOnly, block: v.Block, claim: claim}
}

// asDevice reports whether containers use a volume as a device.
func asDevice(pod *v1.Pod, volume string) bool {
	for _, c := range containersOf(pod) {
		for _, device := range c.VolumeDevices {
			if device.Name == volume {
				return true
			}
		}
	}
	return false
}

// claim reads the claim that a volume is by, which has to be bound, and whether it is to be
// read-only.
func (m *Manager) claim(ctx context.Context, pod *v1.Pod, volume v1.Volume) (*v1.PersistentVolumeClaim, bool, error) {
	name, readOnly := "", false
	if source := volume.PersistentVolumeClaim; source != nil {
		name, readOnly = source.ClaimName, source.ReadOnly
	} else {
		name = ephemeral.VolumeClaimName(pod, &volume)
	}
	claim, err := m.options.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("error processing PVC %s/%s: failed to fetch PVC from API server: %w", pod.Namespace, name, err)
	case claim.DeletionTimestamp != nil && !m.options.CSI.Has(csi.Folder(m.volumesDir(pod.UID), csi.Volume{Name: claim.Spec.VolumeName})):
		return nil, false, fmt.Errorf("error processing PVC %s/%s: PVC is being deleted", pod.Namespace, name)
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, false, fmt.Errorf("error processing PVC %s/%s: PVC is not bound", pod.Namespace, name)
	case validName("name of a volume", claim.Spec.VolumeName) != nil:
		return nil, false, fmt.Errorf("error processing PVC %s/%s: PVC has non-empty but invalid volume name", pod.Namespace, name)
	case volume.Ephemeral != nil:
		return claim, false, ephemeral.VolumeIsForPod(pod, claim)
	}
	return claim, readOnly, nil
}

// Device is one of the host that a container sees at its own path.
type Device struct {
	HostPath, ContainerPath string
	ReadOnly                bool
}

// Devices returns the volumes that a container uses as devices. The pod's volumes must be mounted.
func (m *Manager) Devices(pod *v1.Pod, c *v1.Container) ([]Device, error) {
	var out []Device
	for _, wanted := range c.VolumeDevices {
		at := m.placeOf(pod.UID, wanted.Name)
		if !at.block {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", wanted.Name, c.Name)
		}
		path, err := filepath.EvalSymlinks(at.path)
		if err != nil {
			return nil, fmt.Errorf("volume %q of container %q: %w", wanted.Name, c.Name, err)
		}
		out = append(out, Device{HostPath: path, ContainerPath: wanted.DevicePath, ReadOnly: at.readOnly})
	}
	return out, nil
}

// unpublish has drivers take back the volumes that they made for a pod. Parts of them that
// containers have mounted are unmounted before.
func (m *Manager) unpublish(ctx context.Context, uid types.UID) error {
	dirs, err := csi.Folders(m.volumesDir(uid))
	if err != nil || len(dirs) == 0 {
		return err
	}
	parts, err := mountinfo.Below(filepath.Join(m.PodDir(uid), "volume-subpaths"))
	if err != nil {
		return err
	}
	for i := len(parts) - 1; i >= 0; i-- {
		if err := unix.Unmount(parts[i], unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return &os.PathError{Op: "unmount", Path: parts[i], Err: err}
		}
	}
	for _, dir := range dirs {
		if failed := m.options.CSI.Unpublish(ctx, dir); failed != nil {
			err = errors.Join(err, failed)
		}
	}
	return err
}
