package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// A container leaves links to the host, mounts the host into its volume, and a filesystem into
// that; and a link in place of a folder.
func TestUnmountTakesNothingOfTheHost(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setSecret("password", map[string][]byte{"p": []byte("geheim")})
	p := pod(t, `[{name: work, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory}}, {name: s, secret: {secretName: password}}]`)
	p.Spec.Containers[0].VolumeMounts[0].SubPath = "part"
	w.mustMount(p)
	if _, err := w.mounted(p); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	outside = filepath.Join(outside, "of\u00a0the host") // the kernel escapes only one of the spaces
	write(t, filepath.Join(outside, "deep/precious"), "precious")
	work := w.dir(p, "work")
	if err := os.Symlink(outside, filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bound", "with space", "with\u3000wide space"} {
		if err := os.Mkdir(filepath.Join(work, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(outside, filepath.Join(work, name), "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(outside, "deep/inner"), unix.MNT_DETACH) })
	inner := filepath.Join(work, "bound", "deep", "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", inner, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := w.Unmount(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(outside, "deep/precious")); err != nil || string(content) != "precious" {
		t.Errorf("the host's own: %q (%v)", content, err)
	}
	if left, err := w.OnDisk(); err != nil || len(left) > 0 {
		t.Errorf("left: %v (%v)", left, err)
	}
	if points, err := mountinfo.Below(w.root); err != nil || len(points) > 0 {
		t.Errorf("still mounted: %v (%v)", points, err)
	}
	if err := w.Unmount(t.Context(), p.UID); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestPodFolderThatIsALinkIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	outside := t.TempDir()
	write(t, filepath.Join(outside, "precious"), "precious")
	if err := os.Symlink(outside, w.PodDir("evil")); err != nil {
		t.Fatal(err)
	}
	if err := w.Unmount(t.Context(), "evil"); err == nil {
		t.Error("it was followed")
	}
	if got := names(t, outside); !slices.Equal(got, []string{"precious"}) {
		t.Errorf("outside there is %v", got)
	}
}

func TestWhatIsInUseIsTriedAgain(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	p := pod(t, `[{name: memory, emptyDir: {medium: Memory}}, {name: work, emptyDir: {}}]`)
	w.mustMount(p)
	write(t, filepath.Join(w.dir(p, "work"), "a"), "A")
	inUse, err := os.Create(filepath.Join(w.dir(p, "memory"), "open"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Unmount(t.Context(), p.UID); !errors.Is(err, unix.EBUSY) {
		t.Errorf("while a file is open: %v", err)
	}
	if got := w.read(p, "work", "a"); got != "A" {
		t.Errorf("it began to remove: %q", got)
	}
	inUse.Close()
	if err := w.Unmount(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
}

// The agent was killed; the one that comes after it finds the pods on disk, takes some up and
// removes the others.
func TestTakeUpAfterAKill(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	stays, goes := pod(t, `[{name: memory, emptyDir: {medium: Memory}}]`), pod(t, `[{name: memory, emptyDir: {medium: Memory}}]`)
	stays.UID, goes.UID = "stays", "goes"
	w.mustMount(stays)
	w.mustMount(goes)
	write(t, filepath.Join(w.dir(stays, "memory"), "a"), "A")

	next := w.restarted()
	found, err := next.OnDisk()
	if err != nil || !slices.Equal(found, []types.UID{"goes", "stays"}) {
		t.Errorf("found %v (%v)", found, err)
	}
	if err := next.Mount(context.Background(), stays); err != nil {
		t.Fatal(err)
	}
	if err := next.Unmount(t.Context(), "goes"); err != nil {
		t.Fatal(err)
	}
	if got := w.read(stays, "memory", "a"); got != "A" {
		t.Errorf("got %q", got)
	}
	if left, err := next.OnDisk(); err != nil || !slices.Equal(left, []types.UID{"stays"}) {
		t.Errorf("left: %v (%v)", left, err)
	}
	if err := next.Unmount(t.Context(), "stays"); err != nil {
		t.Fatal(err)
	}
}

func TestMountAndUnmountMayRace(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	p := pod(t, `[{name: memory, emptyDir: {medium: Memory}}]`)
	done := make(chan error)
	for range 4 {
		go func() {
			var err error
			for range 25 {
				err = errors.Join(err, w.Mount(context.Background(), p), w.Unmount(context.Background(), p.UID))
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if left, err := w.OnDisk(); err != nil || len(left) > 0 {
		t.Errorf("left: %v (%v)", left, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pods) > 0 {
		t.Errorf("remembered: %v", w.pods)
	}
}
