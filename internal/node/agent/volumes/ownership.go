package volumes

import (
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

// groupOf is the fsGroup of the pod, if it has one.
func groupOf(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// userOf is the user that all containers of the pod run as, if they all say so.
func userOf(pod *v1.Pod) *int64 {
	var user *int64
	for _, c := range containersOf(pod) {
		var own *int64
		switch {
		case c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil:
			own = c.SecurityContext.RunAsUser
		case pod.Spec.SecurityContext != nil:
			own = pod.Spec.SecurityContext.RunAsUser
		}
		if own == nil || user != nil && *user != *own {
			return nil
		}
		user = own
	}
	return user
}

// giveToGroup makes everything in the folder readable by the group, and writable unless it is
// read-only. New entries will belong to it, too. Links are changed themselves, not followed.
func giveToGroup(dir string, group *int64, readOnly bool) error {
	if group == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := os.Lchown(path, -1, int(*group)); err != nil {
			return err
		}
		if entry.Type() == fs.ModeSymlink {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode() | 0o660
		if readOnly {
			mode = info.Mode() | 0o440
		}
		if entry.IsDir() {
			mode |= fs.ModeSetgid | 0o110
		}
		return os.Chmod(path, mode)
	})
}
