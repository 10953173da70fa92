package logfile

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// Containers is what a Rotator needs of the container runtime. The RuntimeService of k8s.io/cri-api
// has it.
type Containers interface {
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	ReopenContainerLog(ctx context.Context, id string) error
}

// Rotator renames logs that have grown too large, compresses the older ones, and removes the
// oldest.
type Rotator struct {
	Runtime Containers
	// Dir is the folder of all pods' logs; nothing outside is touched.
	Dir string
	// MaxSize of a log in bytes; 0 or less: logs are not rotated.
	MaxSize int64
	// MaxFiles is how many files a container has, including the one being written; at least 2.
	MaxFiles int

	now func() time.Time
}

const (
	// rotateEvery is the kubelet's.
	rotateEvery = 10 * time.Second
	// rotatedFormat is the end of a rotated log's name, as in the kubelet.
	rotatedFormat     = "20060102-150405"
	compressed, unfit = ".gz", ".tmp"
)

// Run looks at the logs of running containers until the context ends.
func (r *Rotator) Run(ctx context.Context) {
	if r.MaxSize <= 0 {
		return
	}
	ticker := time.NewTicker(rotateEvery)
	defer ticker.Stop()
	for {
		if err := r.Rotate(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Some container logs were not rotated, they are tried again")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Rotate rotates the logs that are too large now.
func (r *Rotator) Rotate(ctx context.Context) error {
	running := &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}
	containers, err := r.Runtime.ListContainers(ctx, running)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var failed []error
	for _, container := range containers {
		if err := r.container(ctx, container.Id); err != nil {
			failed = append(failed, fmt.Errorf("container %s: %w", container.Id, err))
		}
	}
	return errors.Join(failed...)
}

func (r *Rotator) container(ctx context.Context, id string) error {
	response, err := r.Runtime.ContainerStatus(ctx, id, false)
	if err != nil {
		return err
	}
	path := response.GetStatus().GetLogPath()
	if below, err := filepath.Rel(r.Dir, path); err != nil || !filepath.IsLocal(below) {
		return nil // somebody else's container
	}
	folder, name, err := open(r.Dir, path)
	if err != nil {
		return err
	}
	defer folder.Close()
	info, err := folder.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Someone removed it, or the last rotation was cut short: until it is opened again nobody
		// sees what is written.
		return r.Runtime.ReopenContainerLog(ctx, id)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("log %q: %w", path, ErrRefused)
	case info.Size() < r.MaxSize:
		return nil
	}
	return r.rotate(ctx, folder, name, id)
}

// rotate frees space first, so that it works on a full disk.
func (r *Rotator) rotate(ctx context.Context, folder *os.Root, name, id string) error {
	old, err := rotated(folder, name)
	if err != nil {
		return err
	}
	// Beside these there will be the one renamed now and the one written to.
	for excess := len(old) - max(0, r.MaxFiles-2); excess > 0; excess-- {
		if err := folder.Remove(old[0]); err != nil {
			return err
		}
		old = old[1:]
	}
	for _, file := range old {
		if !strings.HasSuffix(file, compressed) {
			if err := compress(folder, file); err != nil {
				return err
			}
		}
	}
	now := time.Now
	if r.now != nil {
		now = r.now
	}
	// The newest stays readable: its reader and the runtime may not be done with it.
	renamed := name + "." + now().Format(rotatedFormat)
	if _, err := folder.Lstat(renamed); err == nil {
		return nil // rotated within this second; renaming would overwrite that
	}
	if err := folder.Rename(name, renamed); err != nil {
		return err
	}
	if err := r.Runtime.ReopenContainerLog(ctx, id); err != nil {
		// The runtime still writes to the renamed file: under its old name it is found, and rotated
		// later.
		return errors.Join(fmt.Errorf("reopen the log: %w", err), folder.Rename(renamed, name))
	}
	return nil
}

// rotated are a log's files from earlier rotations, oldest first. What an interrupted rotation left
// is removed.
func rotated(folder *os.Root, name string) ([]string, error) {
	entries, err := fs.ReadDir(folder.FS(), ".")
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		file := entry.Name()
		switch {
		case !strings.HasPrefix(file, name+"."):
		case strings.HasSuffix(file, unfit):
			if err := folder.Remove(file); err != nil {
				return nil, err
			}
		default:
			files = append(files, file)
		}
	}
	slices.Sort(files)
	all := slices.Clone(files)
	return slices.DeleteFunc(files, func(file string) bool {
		// It was compressed, but then not removed.
		return slices.Contains(all, file+compressed) && folder.Remove(file) == nil
	}), nil
}

// compress replaces a file by a compressed one, with at least one of them present at all times.
func compress(folder *os.Root, name string) (err error) {
	if info, err := folder.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, folder.Remove(name))
	}
	from, err := folder.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	temporary := name + unfit
	to, err := folder.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = folder.Remove(temporary)
		}
	}()
	zip := gzip.NewWriter(to)
	_, err = io.Copy(zip, from)
	if err := errors.Join(err, zip.Close(), to.Close()); err != nil {
		return err
	}
	if err := folder.Rename(temporary, name+compressed); err != nil {
		return err
	}
	return folder.Remove(name)
}

// Remove removes a container's log and its rotated files. It is no error if there are none.
func Remove(root, path string) error {
	folder, name, err := open(root, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer folder.Close()
	files, err := rotated(folder, name)
	if err != nil {
		return err
	}
	for _, file := range append(files, name) {
		if removed := folder.Remove(file); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}
	return err
}

// open opens the folder of a log, which must be beneath root without a link in between, as for
// reading.
func open(root, path string) (*os.Root, string, error) {
	place, err := locate(root, path)
	if err != nil {
		return nil, "", err
	}
	defer place.close()
	folder, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", place.folder.Fd()))
	return folder, place.name, err
}
