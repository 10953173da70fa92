package volumes

import (
	"cmp"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// validName rejects names that lead out of the folder in which they name an entry. The API server
// accepts none, but a pod may also come from a file.
func validName(what, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("invalid %s %q: it is to name a folder", what, name)
	}
	return nil
}

// kind is how a volume is made.
type kind string

const (
	emptyDir    kind = "empty-dir"
	hostPath    kind = "host-path"
	configMap   kind = "configmap"
	secret      kind = "secret"
	downwardAPI kind = "downward-api"
	projected   kind = "projected"
	inline      kind = "csi"   // made by a CSI driver for this pod
	claimed     kind = "claim" // a persistent volume
	unsupported kind = ""
)

func kindOf(volume v1.Volume) kind {
	switch source := volume.VolumeSource; {
	case source.EmptyDir != nil, source == v1.VolumeSource{}:
		return emptyDir
	case source.HostPath != nil:
		return hostPath
	case source.ConfigMap != nil:
		return configMap
	case source.Secret != nil:
		return secret
	case source.DownwardAPI != nil:
		return downwardAPI
	case source.Projected != nil:
		return projected
	case source.CSI != nil:
		return inline
	case source.PersistentVolumeClaim != nil, source.Ephemeral != nil:
		return claimed
	}
	return unsupported
}

// volumeDir is the volume's folder on the host, the same as a kubelet's. That of a persistent
// volume is known when it has been set up, and empty before.
func (m *Manager) volumeDir(uid types.UID, volume v1.Volume) string {
	k := kindOf(volume)
	switch k {
	case hostPath:
		return volume.HostPath.Path
	case inline, claimed:
		return m.placeOf(uid, volume.Name).path
	}
	return filepath.Join(m.PodDir(uid), "volumes", "kubernetes.io~"+string(cmp.Or(k, "unsupported")), volume.Name)
}

// volumeNamed finds a volume of the pod.
func volumeNamed(pod *v1.Pod, name string) (v1.Volume, bool) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == name {
			return volume, true
		}
	}
	return v1.Volume{}, false
}

// typeName is the type of a volume as the API names it.
func typeName(volume v1.Volume) string {
	source := reflect.ValueOf(volume.VolumeSource)
	for i := range source.NumField() {
		if !source.Field(i).IsNil() {
			name, _, _ := strings.Cut(source.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return "none"
}

// usedVolumes returns those that a container mounts or takes its environment from. Others are not
// set up.
func usedVolumes(pod *v1.Pod) map[string]bool {
	used := map[string]bool{}
	for _, c := range containersOf(pod) {
		for _, mount := range c.VolumeMounts {
			used[mount.Name] = true
		}
		for _, device := range c.VolumeDevices {
			used[device.Name] = true
		}
		for _, variable := range c.Env {
			if variable.ValueFrom != nil && variable.ValueFrom.FileKeyRef != nil {
				used[variable.ValueFrom.FileKeyRef.VolumeName] = true
			}
		}
	}
	return used
}

// containersOf are all of a pod: init, main and ephemeral ones.
func containersOf(pod *v1.Pod) []v1.Container {
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, c := range pod.Spec.EphemeralContainers {
		all = append(all, v1.Container(c.EphemeralContainerCommon))
	}
	return all
}
