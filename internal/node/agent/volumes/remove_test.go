package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// What is mounted, whether or not the list of mounts shows it, keeps its content; the rest goes.
func TestRemoveTreeStaysOnItsFilesystem(t *testing.T) {
	needsRoot(t)
	outside, dir := t.TempDir(), filepath.Join(t.TempDir(), "dir")
	write(t, filepath.Join(outside, "precious"), "precious")
	write(t, filepath.Join(dir, "deep/deeper/file"), "")
	if err := os.Symlink(outside, filepath.Join(dir, "deep/link")); err != nil {
		t.Fatal(err)
	}
	for i := range 1200 {
		write(t, filepath.Join(dir, "many", fmt.Sprint(i)), "")
	}
	bound, file := filepath.Join(dir, "deep/bound"), filepath.Join(dir, "deep/device")
	if err := os.Mkdir(bound, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, file, "")
	for from, to := range map[string]string{outside: bound, filepath.Join(outside, "precious"): file} {
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Unmount(to, unix.MNT_DETACH) }()
	}
	if err := removeTree(dir); err == nil {
		t.Error("removed, though something is mounted in it")
	}
	if content, err := os.ReadFile(filepath.Join(outside, "precious")); err != nil || string(content) != "precious" {
		t.Errorf("what was mounted: %q (%v)", content, err)
	}
	left := append(names(t, dir), names(t, filepath.Join(dir, "deep"))...)
	if slices.Sort(left); !slices.Equal(left, []string{"bound", "deep", "device"}) {
		t.Errorf("left: %q", left)
	}
	for _, point := range []string{bound, file} {
		if err := unix.Unmount(point, 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := removeTree(dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}
