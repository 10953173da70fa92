package csi

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// Files that say nothing do not keep a node from starting, nor a pod from ending.
func FuzzVolumeData(f *testing.F) {
	f.Add([]byte(`{"driverName":"d","volumeHandle":"h","volumeLifecycleMode":"Persistent"}`))
	f.Add([]byte(`{"driverName":"../d","volumeHandle":7}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		folder := filepath.Join(dir, "pods", "uid", "volumes", escaped, "v")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, dataFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := NewPublisher(Options{Dir: dir, Drivers: NewDrivers(nil, nil), Claimed: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		d, err := readData(folder)
		if !p.Has(folder) {
			t.Errorf("%q: %v, and nothing is claimed", text, err)
		}
		if err != nil {
			if err := p.Unpublish(t.Context(), folder); err != nil || p.Has(folder) {
				t.Errorf("%q: %v, claimed %t", text, err, p.Has(folder))
			}
		} else {
			if again := d.write(folder); again != nil {
				t.Fatal(again)
			}
			if back, err := readData(folder); err != nil || back != d {
				t.Errorf("%+v became %+v, %v", d, back, err)
			}
		}
	})
}

// The agent's folder may have any name: what earlier agents had made is found below it.
func TestFolderWithThePatternOfAName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node[1]*")
	claimed, staged := filepath.Join(dir, "pods", "uid", "volumes", escaped, "v"), filepath.Join(dir, "plugins", Name, "d", "handle")
	for _, folder := range []string{claimed, staged} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		tear(t, folder)
	}
	p, err := NewPublisher(Options{Dir: dir, Drivers: NewDrivers(nil, nil), Claimed: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	if !p.Has(claimed) {
		t.Error("the volume of a pod is not known")
	}
	if err := p.Unpublish(t.Context(), claimed); err != nil {
		t.Fatal(err)
	}
	p.Sweep(t.Context())
	if _, err := os.Lstat(staged); !os.IsNotExist(err) {
		t.Errorf("a staged volume that nobody knows is left: %v", err)
	}
}

// After a restart, a volume of which the file cannot be read is not taken from the pod that runs
// with it: it is not unstaged, it stays in use, and no other pod is given it. Made again, it is
// known again.
func TestUnreadableFileOfARunningPod(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	v, other := persistent("handle-1", v1.ReadWriteOncePod), persistent("handle-2", v1.ReadWriteOnce)
	a, b := podOn("a"), podOn("b")
	for pod, v := range map[*v1.Pod]Volume{a: v, b: other} {
		if _, err := n.Publish(t.Context(), pod, v, n.folder(pod, v)); err != nil {
			t.Fatal(err)
		}
	}
	n.world.mu.Lock()
	n.world.node = n.world.node.DeepCopy()
	n.world.node.Status.VolumesInUse = n.InUse()
	n.world.mu.Unlock()
	tear(t, n.folder(a, v))
	n.restart(t)
	if !n.Has(n.folder(a, v)) || len(n.InUse()) != 2 {
		t.Errorf("claimed %t, in use %v", n.Has(n.folder(a, v)), n.InUse())
	}
	if err := n.Unpublish(t.Context(), n.folder(b, other)); err != nil {
		t.Fatal(err)
	}
	n.Sweep(t.Context())
	if n.counts() != "stage 2 publish 2 unpublish 1 unstage 0" {
		t.Errorf("unstaged: %s", n.counts())
	}
	if _, err := n.Publish(t.Context(), b, v, n.folder(b, v)); err == nil {
		t.Error("two pods have a volume that is for one")
	}
	if _, err := n.Publish(t.Context(), a, v, n.folder(a, v)); err != nil {
		t.Fatal(err)
	}
	n.Sweep(t.Context())
	if used := n.InUse(); n.counts() != "stage 3 publish 3 unpublish 1 unstage 1" || len(used) != 1 {
		t.Errorf("%s, in use %v", n.counts(), used)
	}
	if err := n.Unpublish(t.Context(), n.folder(a, v)); err != nil || len(n.mounts(t)) > 0 || len(n.InUse()) > 0 {
		t.Errorf("%v, mounted %v, in use %v", err, n.mounts(t), n.InUse())
	}
}

// A pod ends that has a volume of which the file cannot be read: the volume is unmounted, with its
// content, and unstaged.
func TestUnreadableFileOfAPodThatEnds(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	pod, v := podOn("p"), persistent("handle-1", v1.ReadWriteOnce)
	dir := n.folder(pod, v)
	if _, err := n.Publish(t.Context(), pod, v, dir); err != nil {
		t.Fatal(err)
	}
	check := n.content(t, Target(dir), "handle-1")
	tear(t, dir)
	n.restart(t)
	told := n.claimed.Load()
	if err := n.Unpublish(t.Context(), dir); err != nil || n.Has(dir) || n.claimed.Load() == told {
		t.Errorf("%v, claimed %t", err, n.Has(dir))
	}
	if mounted, err := mountinfo.On(Target(dir)); err != nil || mounted {
		t.Errorf("mounted %t, %v", mounted, err)
	}
	n.Sweep(t.Context())
	if n.counts() != "stage 1 publish 1 unpublish 0 unstage 1" || len(n.mounts(t)) > 0 {
		t.Errorf("%s, mounted %v", n.counts(), n.mounts(t))
	}
	check()
}

// A staged volume of which the file cannot be read is unmounted, with its content, when no pod has
// it.
func TestUnreadableFileOfAStagedVolume(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	pod, v := podOn("p"), persistent("handle-1", v1.ReadWriteOnce)
	if _, err := n.Publish(t.Context(), pod, v, n.folder(pod, v)); err != nil {
		t.Fatal(err)
	}
	check := n.content(t, Target(n.folder(pod, v)), "handle-1")
	staged := n.stagingPath(driverName, "handle-1")
	tear(t, filepath.Dir(staged))
	n.restart(t)
	n.Sweep(t.Context())
	if mounted, err := mountinfo.On(staged); err != nil || !mounted {
		t.Fatalf("a pod has it; mounted %t, %v", mounted, err)
	}
	if err := n.driver.Obey("NodeUnstageVolume", codes.Internal, false); err != nil {
		t.Fatal(err)
	}
	if err := n.Unpublish(t.Context(), n.folder(pod, v)); err != nil {
		t.Fatal(err)
	}
	n.Sweep(t.Context())
	if points := n.mounts(t); len(points) > 0 {
		t.Errorf("mounted %v", points)
	}
	if _, err := os.Lstat(filepath.Dir(staged)); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
	check()
}

// A driver that does not know a volume any more does not keep the pod from ending; what it has left
// mounted is unmounted, with its content.
func TestVolumeThatItsDriverDoesNotKnow(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	for _, name := range []string{"NodeUnpublishVolume", "NodeUnstageVolume"} {
		if err := n.driver.Obey(name, codes.NotFound, false); err != nil {
			t.Fatal(err)
		}
	}
	pod, v := podOn("p"), persistent("handle-1", v1.ReadWriteOnce)
	dir := n.folder(pod, v)
	if _, err := n.Publish(t.Context(), pod, v, dir); err != nil {
		t.Fatal(err)
	}
	check := n.content(t, Target(dir), "handle-1")
	if err := n.Unpublish(t.Context(), dir); err != nil || n.Has(dir) || n.counts() != "stage 1 publish 1 unpublish 1 unstage 1" {
		t.Errorf("%v, claimed %t, %s", err, n.Has(dir), n.counts())
	}
	for _, path := range []string{dir, filepath.Dir(n.stagingPath(driverName, "handle-1"))} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("left: %v", err)
		}
	}
	if points := n.mounts(t); len(points) > 0 {
		t.Errorf("mounted %v", points)
	}
	check()
}

// What a kill has left of a write of a volume's file is no obstacle to its end.
func TestVolumeWithAHalfWrittenFile(t *testing.T) {
	n := newNode(t)
	pod := podOn("p")
	v := inline(pod)
	dir := n.folder(pod, v)
	if _, err := n.Publish(t.Context(), pod, v, dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".new-"+dataFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Unpublish(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}

// A driver that fails to unstage a volume may have done it: the volume is staged again for the next
// pod, which would else write into the folder.
func TestVolumeIsStagedAgainAfterAFailure(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	a, b, v := podOn("a"), podOn("b"), persistent("handle-1", v1.ReadWriteOnce)
	if _, err := n.Publish(t.Context(), a, v, n.folder(a, v)); err != nil {
		t.Fatal(err)
	}
	if err := n.driver.Obey("NodeUnstageVolume", codes.DeadlineExceeded, false); err != nil {
		t.Fatal(err)
	}
	if err := n.Unpublish(t.Context(), n.folder(a, v)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(n.stagingPath(driverName, "handle-1"), 0); err != nil { // by the driver, later
		t.Fatal(err)
	}
	if _, err := n.Publish(t.Context(), b, v, n.folder(b, v)); err != nil || n.counts() != "stage 2 publish 2 unpublish 1 unstage 1" {
		t.Errorf("%s, %v", n.counts(), err)
	}
	n.content(t, Target(n.folder(b, v)), "handle-1")()
}
