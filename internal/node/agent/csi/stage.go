package csi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// StageError is why a volume could not be staged.
type StageError struct {
	Volume string
	Err    error
}

func (e *StageError) Error() string { return e.Err.Error() }
func (e *StageError) Unwrap() error { return e.Err }

// stagingPath is where a volume is staged, once for all pods of the node.
func (p *Publisher) stagingPath(driver, handle string) string {
	return filepath.Join(p.staging, driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))), "globalmount")
}

// stage has the driver stage a volume, unless it has. The caller holds the volume's lock.
func (p *Publisher) stage(ctx context.Context, driver *session, v Volume, attached map[string]string, group *int64) error {
	path := p.stagingPath(v.Driver, v.Handle)
	p.mu.Lock()
	done := p.staged[path]
	p.mu.Unlock()
	if done {
		return nil
	}
	secrets, err := p.secret(ctx, "NodeStageSecretRef", v.StageSecret)
	if err != nil {
		return err
	}
	if err := (data{Handle: v.Handle, Driver: v.Driver}).write(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if _, err := driver.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{
		VolumeId: v.Handle, PublishContext: attached, StagingTargetPath: path, VolumeCapability: v.capability(driver, group), Secrets: secrets, VolumeContext: v.Attributes,
	}); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.staged[path] = true
	return nil
}

// unstage has the driver take back a staged volume that no pod has. The caller holds its lock.
func (p *Publisher) unstage(ctx context.Context, driver *session, name, handle string) error {
	path := p.stagingPath(name, handle)
	if _, err := os.Lstat(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) || p.isClaimed(path) {
		return nil
	}
	p.mu.Lock()
	delete(p.staged, path) // also if the driver fails: it may do it all the same
	p.mu.Unlock()
	if driver.can[spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		_, err := driver.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: handle, StagingTargetPath: path})
		if err = orUnmount(err, path); err != nil {
			return fmt.Errorf("%s: attacher.UnmountDevice failed: %w", Name, err)
		}
	}
	return removeTarget(path)
}

// Sweep has staged volumes taken back that no pod has: an agent was killed in between, or a driver
// could not.
func (p *Publisher) Sweep(ctx context.Context) {
	hangs := map[string]bool{} // drivers that took too long, and would for each of their volumes
	for _, file := range below(p.staging, "*/*/"+dataFile) {
		path := filepath.Join(filepath.Dir(file), "globalmount")
		if p.isClaimed(path) {
			continue
		}
		staged, err := readData(filepath.Dir(file))
		if err != nil {
			if err := p.sweepUnknown(ctx, path); err != nil {
				klog.ErrorS(err, "Cannot remove a staged CSI volume that nobody knows; it is tried again")
			}
			continue
		}
		if hangs[staged.Driver] || p.stagingPath(staged.Driver, staged.Handle) != path {
			continue
		}
		if err := p.sweep(ctx, staged); err != nil {
			hangs[staged.Driver] = status.Code(err) == codes.DeadlineExceeded
			klog.V(2).InfoS("Cannot unstage a CSI volume; it is tried again", "driver", staged.Driver, "volume", staged.Handle, "err", err)
		}
	}
}

func (p *Publisher) sweep(ctx context.Context, staged data) error {
	leave, err := p.locks.enter(ctx, p.stagingPath(staged.Driver, staged.Handle))
	if err != nil {
		return err
	}
	defer leave()
	ctx, driver, err := p.options.Drivers.open(ctx, staged.Driver)
	if err != nil {
		return err
	}
	defer driver.close()
	return p.unstage(ctx, driver, staged.Driver, staged.Handle)
}

// sweepUnknown removes a staged volume of which the file cannot be read, so that no driver can be
// told. What it shows is flushed and unmounted before it can be detached.
func (p *Publisher) sweepUnknown(ctx context.Context, path string) error {
	leave, err := p.locks.enter(ctx, path)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := readData(filepath.Dir(path)); err == nil || p.isClaimed(path) {
		return nil // a pod has been given it meanwhile
	}
	klog.InfoS("Unmounting a staged CSI volume that its driver does not hear of: "+dataFile+" cannot be read", "path", path)
	if err := unmount(path); err != nil {
		return err
	}
	return removeTarget(path)
}
