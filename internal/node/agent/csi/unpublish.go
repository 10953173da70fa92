package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// Unpublish has the driver take back what it made in a pod's folder, and the staged volume with the
// last pod that has it.
func (p *Publisher) Unpublish(ctx context.Context, dir string) error {
	claim, there := p.claim(dir)
	if !there {
		return nil // no driver was asked for anything
	}
	leave, err := p.locks.enter(ctx, claim.Driver+"^"+claim.Handle)
	if err != nil {
		return err
	}
	defer leave()
	called, driver, err := p.options.Drivers.open(ctx, claim.Driver)
	if err != nil {
		return fmt.Errorf("%s: Unmounter.TearDownAt failed to get CSI client: %w", Name, err)
	}
	defer driver.close()
	if _, err := driver.NodeUnpublishVolume(called, &spec.NodeUnpublishVolumeRequest{VolumeId: claim.Handle, TargetPath: Target(dir)}); err != nil {
		return fmt.Errorf("%s: Unmounter.TearDownAt failed: %w", Name, err)
	}
	if err := p.drop(dir); err != nil {
		return err
	}
	if claim.Mode == storagev1.VolumeLifecycleEphemeral {
		return nil
	}
	// The pod itself has nothing of the volume any more; what fails here is tried again by Sweep.
	if err := p.unstage(called, driver, claim.Driver, claim.Handle); err != nil {
		klog.ErrorS(err, "Cannot unstage a CSI volume; it is tried again", "driver", claim.Driver, "volume", claim.Handle)
	}
	return nil
}

// drop removes what the driver left of a pod's volume, unless it is still mounted.
func (p *Publisher) drop(dir string) error {
	if err := removeTarget(Target(dir)); err != nil {
		return err
	}
	p.setClaim(dir, nil)
	return nil
}

// removeTarget removes where a driver made a volume, with the file beside it. A driver should have
// removed the first itself. What is still mounted is left alone.
func removeTarget(target string) error {
	mounted, err := mountinfo.On(target)
	if err == nil && mounted {
		err = fmt.Errorf("%s is still mounted", target)
	}
	if err != nil {
		return err
	}
	dir := filepath.Dir(target)
	for _, path := range []string{target, filepath.Join(dir, dataFile), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
