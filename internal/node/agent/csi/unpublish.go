package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// Unpublish has the driver take back what it made in a pod's folder, and the staged volume with the
// last pod that has it.
func (p *Publisher) Unpublish(ctx context.Context, dir string) error {
	claim, there := p.claim(dir)
	switch {
	case !there:
		return nil // no driver was asked for anything
	case claim.unknown():
		return p.abandon(dir)
	}
	leave, err := p.locks.enter(ctx, p.stagingPath(claim.Driver, claim.Handle))
	if err != nil {
		return err
	}
	defer leave()
	called, driver, err := p.options.Drivers.open(ctx, claim.Driver)
	if err != nil {
		return fmt.Errorf("%s: Unmounter.TearDownAt failed to get CSI client: %w", Name, err)
	}
	defer driver.close()
	_, err = driver.NodeUnpublishVolume(called, &spec.NodeUnpublishVolumeRequest{VolumeId: claim.Handle, TargetPath: Target(dir)})
	if err = orUnmount(err, Target(dir)); err != nil {
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

// abandon ends a pod's volume that nobody knows, so that no driver can be told: the pod's end does
// not wait for ever. A volume that is staged is taken back by Sweep.
func (p *Publisher) abandon(dir string) error {
	klog.InfoS("Unmounting a CSI volume of a pod that its driver does not hear of: "+dataFile+" cannot be read", "path", dir)
	if err := unmount(Target(dir)); err != nil {
		return err
	}
	if err := durable.Remove(filepath.Join(dir, dataFile)); err != nil {
		return err
	}
	p.setClaim(dir, nil)
	return nil
}

// orUnmount makes up for a driver that no longer knows a volume that it is to take back: what it
// has left mounted is unmounted. The kubelet asks it again for ever, and the pod never ends
// (kubernetes #90752). Other errors are returned.
func orUnmount(err error, target string) error {
	if status.Code(err) != codes.NotFound {
		return err
	}
	klog.InfoS("A CSI driver does not know a volume that it is to take back; it is unmounted", "path", target, "err", err)
	return unmount(target)
}

// unmount unmounts what is on a target and below it, what is on top first. No content is removed.
func unmount(target string) error {
	points, err := mountinfo.Below(target)
	if err != nil {
		return err
	}
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "unmount", Path: point, Err: err}
		}
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
	for _, remove := range []func() error{
		func() error { return os.Remove(target) }, func() error { return durable.Remove(filepath.Join(dir, dataFile)) }, func() error { return os.Remove(dir) },
	} {
		if err := remove(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
