package csi

import (
	"context"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-k8s/berth/internal/node/agent/volumes/sizes"
)

// measureMost bounds how long a driver may take to measure a volume: others are measured after it.
const measureMost = 10 * time.Second

// Measure asks the driver for the filesystem of a volume that it made; nil if it cannot tell.
func (p *Publisher) Measure(ctx context.Context, v Volume, target string) (*sizes.Filesystem, error) {
	ctx, cancel := context.WithTimeout(ctx, measureMost)
	defer cancel()
	ctx, driver, err := p.options.Drivers.open(ctx, v.Driver)
	if err != nil {
		return nil, err
	}
	defer driver.close()
	if !driver.can[spec.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		return nil, nil
	}
	answer, err := driver.NodeGetVolumeStats(ctx, &spec.NodeGetVolumeStatsRequest{VolumeId: v.Handle, VolumePath: target})
	if err != nil {
		return nil, err
	}
	out := &sizes.Filesystem{}
	for _, usage := range answer.GetUsage() {
		room := sizes.Room{Total: usage.GetTotal(), Used: usage.GetUsed(), Available: usage.GetAvailable()}
		switch usage.GetUnit() {
		case spec.VolumeUsage_BYTES:
			out.Bytes = room
		case spec.VolumeUsage_INODES:
			out.Inodes = room
		}
	}
	return out, nil
}
