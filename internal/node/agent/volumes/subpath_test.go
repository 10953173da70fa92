package volumes

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/agent/env"
	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// subPathPod has one emptyDir, of which its container mounts a path.
func subPathPod(t *testing.T, path string) *v1.Pod {
	p := pod(t, `[{name: work, emptyDir: {}}]`)
	p.Spec.Containers[0].VolumeMounts[0].SubPath = path
	return p
}

// mounted is what the container finds at its only volume mount.
func (w *world) mounted(p *v1.Pod) (string, error) {
	mounts, err := w.Mounts(p, &p.Spec.Containers[0], View{Env: view.Env})
	if err != nil {
		return "", err
	}
	return mounts[0].HostPath, nil
}

func TestSubPathShowsOnlyThatPart(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	p := subPathPod(t, "a/b")
	w.mustMount(p)
	write(t, filepath.Join(w.dir(p, "work"), "a/b/file"), "content")
	for _, path := range []string{"a/b", "link/b", "a/./b/"} {
		if path == "link/b" {
			if err := os.Symlink("a", filepath.Join(w.dir(p, "work"), "link")); err != nil {
				t.Fatal(err)
			}
		}
		p.Spec.Containers[0].VolumeMounts[0].SubPath = path
		at, err := w.mounted(p)
		if err != nil {
			t.Fatal(err)
		}
		if content, err := os.ReadFile(filepath.Join(at, "file")); err != nil || string(content) != "content" {
			t.Errorf("%s: %q (%v)", path, content, err)
		}
	}
	points, err := mountinfo.Below(w.PodDir(p.UID))
	if err != nil || len(points) != 1 {
		t.Errorf("one mount is enough for the same place, but there are %v (%v)", points, err)
	}

	p.Spec.Containers[0].VolumeMounts[0].SubPath = "a/b/file"
	at, err := w.mounted(p)
	if err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(at); err != nil || string(content) != "content" {
		t.Errorf("a single file: %q (%v)", content, err)
	}
	if err := w.Unmount(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
}

func TestSubPathThatIsMissingIsMadeLikeItsVolume(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	p := subPathPod(t, "")
	p.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "deep/$(POD)"
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr[int64](2002)}
	w.mustMount(p)
	at, err := w.mounted(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{at, filepath.Join(w.dir(p, "work"), "deep"), filepath.Join(w.dir(p, "work"), "deep/web-0")} {
		if _, gid := owner(t, path); gid != 2002 || mode(t, path) != os.ModeDir|os.ModeSetgid|0o777 {
			t.Errorf("%s: group %d, mode %v", path, gid, mode(t, path))
		}
	}
	p.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "$(NONE)"
	_, err = w.mounted(p)
	wantError(t, err, "missing value for NONE")
}

func TestSubPathOutOfItsVolumeIsRefused(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	p := subPathPod(t, "")
	w.mustMount(p)
	work := w.dir(p, "work")
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), "secret")
	for link, to := range map[string]string{
		"absolute": outside, "file": filepath.Join(outside, "secret"), "up": "../../../..", "dangling": filepath.Join(outside, "new"), "loop": "loop",
	} {
		if err := os.Symlink(to, filepath.Join(work, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"absolute", "absolute/new", "file", "up", "up/pods", "dangling", "dangling/deeper", "loop"} {
		p.Spec.Containers[0].VolumeMounts[0].SubPath = path
		_, err := w.mounted(p)
		// It says nothing of what is there.
		wantError(t, err, `failed to prepare subPath for volumeMount "work" of container "main"`)
	}
	if got := names(t, outside); len(got) != 1 {
		t.Errorf("outside there is %v now", got)
	}
	p.Spec.Containers[0].VolumeMounts[0].SubPath = "/etc"
	_, err := w.mounted(p)
	wantError(t, err, "error SubPath `/etc` must not be an absolute path")
	p.Spec.Containers[0].VolumeMounts[0].SubPath = "a/../../b"
	_, err = w.mounted(p)
	wantError(t, err, "unable to provision SubPath `a/../../b`: must not contain '..'")
	p.Spec.Containers[0].VolumeMounts[0] = v1.VolumeMount{Name: "work", MountPath: "/x", SubPathExpr: "$(POD)"}
	_, err = w.Mounts(p, &p.Spec.Containers[0], View{Env: []env.Variable{{Name: "POD", Value: "../.."}}})
	wantError(t, err, "unable to provision SubPath `../..`: must not contain '..'")
}

// A container changes a folder on the way into a link to the outside, and back, as fast as it can.
// Whatever is mounted is never outside.
func TestSubPathCannotBeSwappedOnTheWay(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	p := subPathPod(t, "a/b")
	w.mustMount(p)
	work := w.dir(p, "work")
	outside := t.TempDir()
	write(t, filepath.Join(outside, "b/secret"), "secret")
	write(t, filepath.Join(work, "real/b/own"), "own")
	if err := os.Symlink(outside, filepath.Join(work, "evil")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(work, "real"), filepath.Join(work, "a")); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var container sync.WaitGroup
	container.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(work, "a"), unix.AT_FDCWD, filepath.Join(work, "evil"), unix.RENAME_EXCHANGE)
			}
		}
	})
	bound := 0
	for range 500 {
		at := filepath.Join(w.PodDir(p.UID), "bound")
		if err := subPath(work, "a/b", at); err != nil {
			continue
		}
		bound++
		if _, err := os.Lstat(filepath.Join(at, "secret")); err == nil {
			t.Error("the outside was mounted")
		}
	}
	close(done)
	container.Wait()
	if bound == 0 {
		t.Error("nothing was ever mounted: this shows nothing")
	}
}

// A configMap's file by subPath stays as it was while the container runs, and is the new one for
// the next container.
func TestSubPathOfAFileThatIsReplaced(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setConfigMap("settings", map[string]string{"a": "old"})
	p := pod(t, `[{name: settings, configMap: {name: settings}}]`)
	p.Spec.Containers[0].VolumeMounts[0].SubPath = "a"
	w.mustMount(p)
	read := func() string {
		t.Helper()
		at, err := w.mounted(p)
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(at)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	if got := read(); got != "old" {
		t.Errorf("got %q", got)
	}
	w.setConfigMap("settings", map[string]string{"a": "new"})
	w.mustMount(p)
	if got := read(); got != "new" {
		t.Errorf("got %q", got)
	}
	if err := w.Unmount(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
}

func TestHostPathThatIsALinkHasSubPaths(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	real, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	write(t, filepath.Join(real, "part/file"), "content")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	p := pod(t, `[{name: host, hostPath: {path: `+link+`}}]`)
	p.Spec.Containers[0].VolumeMounts[0].SubPath = "part"
	w.mustMount(p)
	at, err := w.mounted(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(at, "file")); err != nil {
		t.Error(err)
	}
	if err := w.Unmount(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(real, "part/file")); err != nil {
		t.Errorf("unmounting took the host's own: %v", err)
	}
	if _, err := os.Stat(w.PodDir(p.UID)); err == nil || !os.IsNotExist(err) {
		t.Errorf("the pod's folder: %v", err)
	}
}
