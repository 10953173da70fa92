package csi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-k8s/berth/internal/durable"
)

// Volume is one that a driver is to make for a pod.
type Volume struct {
	// Name is the persistent volume's or, of one that the pod describes itself, the pod's.
	Name           string
	Driver, Handle string
	// Mode is persistent or ephemeral: of a pod alone.
	Mode          storagev1.VolumeLifecycleMode
	ReadOnly      bool
	FSType        string
	Attributes    map[string]string
	MountOptions  []string
	AccessModes   []v1.PersistentVolumeAccessMode
	StageSecret   *v1.SecretReference
	PublishSecret *v1.SecretReference
	// Block: a device, not a filesystem.
	Block bool
}

// Inline is a volume that a pod describes itself.
func Inline(pod *v1.Pod, volume *v1.Volume) Volume {
	source := volume.CSI
	v := Volume{
		Name: volume.Name, Driver: source.Driver, Handle: fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(pod.UID)+volume.Name))),
		Mode: storagev1.VolumeLifecycleEphemeral, Attributes: source.VolumeAttributes, ReadOnly: source.ReadOnly != nil && *source.ReadOnly,
	}
	if source.FSType != nil {
		v.FSType = *source.FSType
	}
	if source.NodePublishSecretRef != nil {
		v.PublishSecret = &v1.SecretReference{Namespace: pod.Namespace, Name: source.NodePublishSecretRef.Name}
	}
	return v
}

// Persistent is a volume of the cluster. readOnly is what the pod asks for.
func Persistent(volume *v1.PersistentVolume, readOnly bool) Volume {
	source := volume.Spec.CSI
	return Volume{
		Name: volume.Name, Driver: source.Driver, Handle: source.VolumeHandle, Mode: storagev1.VolumeLifecyclePersistent,
		ReadOnly: readOnly, FSType: source.FSType, Attributes: source.VolumeAttributes, MountOptions: volume.Spec.MountOptions,
		AccessModes: volume.Spec.AccessModes, StageSecret: source.NodeStageSecretRef, PublishSecret: source.NodePublishSecretRef,
		Block: volume.Spec.VolumeMode != nil && *volume.Spec.VolumeMode == v1.PersistentVolumeBlock,
	}
}

// attachment is the name of the VolumeAttachment that attaches a volume to a node.
func attachment(v Volume, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(v.Handle+v.Driver+node)))
}

// uniqueName is what the node's status and the attach-detach controller call a volume.
func uniqueName(driver, handle string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(Name + "/" + driver + "^" + handle)
}

// capability is how a volume is used. group is to own it, if the driver is to see to that.
func (v Volume) capability(s *session, group *int64) *spec.VolumeCapability {
	out := &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{Mode: v.accessMode(s.can[spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER])}}
	if v.Block {
		out.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
		return out
	}
	mount := &spec.VolumeCapability_MountVolume{FsType: v.FSType, MountFlags: v.MountOptions}
	if group != nil {
		mount.VolumeMountGroup = strconv.FormatInt(*group, 10)
	}
	out.AccessType = &spec.VolumeCapability_Mount{Mount: mount}
	return out
}

// accessMode is the first of the volume's. Drivers that know that several pods of a node may write
// are told whether they may.
func (v Volume) accessMode(several bool) spec.VolumeCapability_AccessMode_Mode {
	mode := v1.ReadWriteOnce
	if len(v.AccessModes) > 0 {
		mode = v.AccessModes[0]
	}
	switch {
	case mode == v1.ReadWriteOnce && several:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case mode == v1.ReadWriteOncePod && several:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case mode == v1.ReadWriteOnce, mode == v1.ReadWriteOncePod:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case mode == v1.ReadOnlyMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == v1.ReadWriteMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	return spec.VolumeCapability_AccessMode_UNKNOWN
}

// singlePod reports whether only one pod may have a volume, whatever the scheduler knew: as with
// the kubelet, if its access modes say nothing else.
func (v Volume) singlePod() bool {
	return len(v.AccessModes) == 1 && v.AccessModes[0] == v1.ReadWriteOncePod
}

// ownedByNode reports whether the node gives a volume to the pod's group, by the driver's policy.
func (v Volume) ownedByNode(policy storagev1.FSGroupPolicy) bool {
	switch {
	case v.ReadOnly || v.Block || policy == storagev1.NoneFSGroupPolicy:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	case v.FSType == "":
		return false
	}
	return v.Mode == storagev1.VolumeLifecycleEphemeral || slices.Contains(v.AccessModes, v1.ReadWriteOnce) || slices.Contains(v.AccessModes, v1.ReadWriteOncePod)
}

// podInfo are the attributes about the pod, for drivers that want them.
func podInfo(pod *v1.Pod, mode storagev1.VolumeLifecycleMode) map[string]string {
	return map[string]string{
		"csi.storage.k8s.io/pod.name":            pod.Name,
		"csi.storage.k8s.io/pod.namespace":       pod.Namespace,
		"csi.storage.k8s.io/pod.uid":             string(pod.UID),
		"csi.storage.k8s.io/serviceAccount.name": pod.Spec.ServiceAccountName,
		"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(mode == storagev1.VolumeLifecycleEphemeral),
	}
}

// dataFile is the file that names driver and volume, by the kubelet's keys. It stands beside what
// the driver makes.
const dataFile = "vol_data.json"

// data is what a file says. Without a driver it is one that cannot be read: a volume may be there,
// and nobody knows whose.
type data struct {
	Volume     string                        `json:"specVolID,omitempty"`
	Handle     string                        `json:"volumeHandle"`
	Driver     string                        `json:"driverName"`
	Node       string                        `json:"nodeName,omitempty"`
	Mode       storagev1.VolumeLifecycleMode `json:"volumeLifecycleMode,omitempty"`
	Attachment string                        `json:"attachmentID,omitempty"`
}

func (d data) unknown() bool { return d.Driver == "" }

// write replaces the file of a folder, which it creates. After a crash it is the old or the new
// one.
func (d data) write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(dir, dataFile), append(text, '\n'), 0o600)
}

// readData reads the file of a folder.
func readData(dir string) (data, error) {
	var d data
	text, err := os.ReadFile(filepath.Join(dir, dataFile))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%s: %w", filepath.Join(dir, dataFile), err)
	}
	if d.Driver == "" || d.Handle == "" {
		return d, fmt.Errorf("%s: names no driver and volume", filepath.Join(dir, dataFile))
	}
	return d, nil
}

// validName rejects names that lead out of the folder in which they name an entry.
func validName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("invalid name of a CSI driver or volume %q", name)
	}
	return nil
}

// merged is both, the second one first.
func merged(one, other map[string]string) map[string]string {
	if len(other) == 0 {
		return one
	}
	out := maps.Clone(one)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, other)
	return out
}
