package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// Unmount removes everything that was created for the pod. Call it when nothing of the pod runs any
// more, and again if it fails.
//
// CSI drivers take back what they made. Then whatever is mounted below the pod's folder is
// unmounted, including what a container has mounted there. Nothing is removed before that is done,
// so that no other filesystem is emptied. Links are removed, not followed.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	if err := validName("pod UID", string(uid)); err != nil {
		return err
	}
	m.end(uid) // a refresh would have made again what is taken back already
	volumes, err := m.lock(ctx, uid)
	if err != nil {
		return fmt.Errorf("volumes of pod %s: %w", uid, err)
	}
	defer volumes.unlock()
	clear(volumes.done)
	if err := m.unpublish(ctx, uid); err != nil {
		return fmt.Errorf("volumes of pod %s: %w", uid, err)
	}
	if err := removeFolder(m.PodDir(uid)); err != nil {
		return fmt.Errorf("volumes of pod %s: %w", uid, err)
	}
	volumes.gone = true
	m.tokens.forget(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
	delete(m.changed, uid)
	return nil
}

// removeFolder unmounts everything below one of the agent's folders, then removes the folder and
// its content.
func removeFolder(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() { // if it were a link, everything below would be elsewhere
		return fmt.Errorf("%s is not a folder; it is left alone", dir)
	}
	points, err := mountinfo.Below(dir)
	if err != nil {
		return err
	}
	for i := len(points) - 1; i >= 0; i-- { // what was mounted last lies on top, or deeper
		if err := unix.Unmount(points[i], unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmounting %s: %w", points[i], err)
		}
	}
	if points, err = mountinfo.Below(dir); err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("still mounted: %v", points)
	}
	return removeTree(filepath.Clean(dir))
}
