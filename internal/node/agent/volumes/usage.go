package volumes

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/agent/volumes/sizes"
)

// Usage measures the pod's volumes that the agent created, and asks CSI drivers for theirs. It
// walks through them until ctx ends at the latest; what was counted by then is returned as a lower
// bound.
func (m *Manager) Usage(ctx context.Context, pod *v1.Pod) ([]sizes.Usage, error) {
	var all []sizes.Usage
	used := usedVolumes(pod)
	for _, volume := range pod.Spec.Volumes {
		kind := kindOf(volume)
		if kind == inline || kind == claimed {
			all = append(all, m.usageElsewhere(ctx, pod, volume)...)
			continue
		}
		if !used[volume.Name] || kind == hostPath || kind == unsupported || validName("volume name", volume.Name) != nil {
			continue
		}
		usage := sizes.Usage{Volume: volume.Name, InMemory: kind != emptyDir && kind != configMap}
		if volume.EmptyDir != nil {
			usage.Limit = volume.EmptyDir.SizeLimit
			usage.InMemory = volume.EmptyDir.Medium == v1.StorageMediumMemory
		}
		var err error
		if usage.Used, usage.Inodes, err = sizes.Measure(ctx, m.volumeDir(pod.UID, volume)); err != nil {
			return nil, fmt.Errorf("measuring volume %s: %w", volume.Name, err)
		}
		all = append(all, usage)
	}
	return all, nil
}

// usageElsewhere asks a CSI driver for a volume. One that it cannot tell is left out.
func (m *Manager) usageElsewhere(ctx context.Context, pod *v1.Pod, volume v1.Volume) []sizes.Usage {
	at := m.placeOf(pod.UID, volume.Name)
	if at.csi == nil || at.path == "" {
		return nil
	}
	own, err := m.options.CSI.Measure(ctx, *at.csi, at.path)
	if err != nil || own == nil {
		return nil
	}
	return []sizes.Usage{{Volume: volume.Name, Used: own.Bytes.Used, Inodes: own.Inodes.Used, Own: own, Claim: at.claim}}
}
