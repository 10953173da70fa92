package volumes

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
	"github.com/berth-k8s/berth/internal/node/agent/volumes/sizes"
)

func TestEmptyDirKeepsWhatContainersWrote(t *testing.T) {
	w := newWorld(t)
	p := pod(t, `[{name: work, emptyDir: {}}, {name: unsaid}]`)
	w.mustMount(p)
	for _, name := range []string{"work", "unsaid"} {
		if got := mode(t, w.dir(p, name)); got != os.ModeDir|0o777 {
			t.Errorf("%s has mode %v, want one that all may write to", name, got)
		}
	}
	write(t, filepath.Join(w.dir(p, "work"), "result"), "42")
	if err := os.Chmod(w.dir(p, "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.restarted().Mount(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	if got := w.read(p, "work", "result"); got != "42" {
		t.Errorf("got %q", got)
	}
	if got := mode(t, w.dir(p, "work")); got != os.ModeDir|0o700 {
		t.Errorf("a container's own mode was changed to %v", got)
	}
}

func TestEmptyDirOfAKilledAgentIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	p := pod(t, `[{name: work, emptyDir: {}}]`)
	write(t, filepath.Join(filepath.Dir(w.dir(p, "work")), ".new-work", "half"), "")
	w.mustMount(p)
	if got := names(t, w.dir(p, "work")); len(got) > 0 {
		t.Errorf("it has %v in it", got)
	}
}

func TestFsGroupOwnsVolumes(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setConfigMap("settings", map[string]string{"a": "A"})
	p := pod(t, `[{name: work, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory}}, {name: settings, configMap: {name: settings, defaultMode: 0400}}]`)
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr[int64](2002)}
	w.mustMount(p)
	for name, want := range map[string]os.FileMode{"work": 0o777 | os.ModeSetgid, "memory": 0o777 | os.ModeSetgid | os.ModeSticky} {
		if _, gid := owner(t, w.dir(p, name)); gid != 2002 || mode(t, w.dir(p, name)) != os.ModeDir|want {
			t.Errorf("%s: group %d, mode %v", name, gid, mode(t, w.dir(p, name)))
		}
	}
	for _, content := range []string{"A", "B"} { // the second time there are links, which lead to the files
		w.setConfigMap("settings", map[string]string{"a": content})
		w.mustMount(p)
		a, err := filepath.EvalSymlinks(filepath.Join(w.dir(p, "settings"), "a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, gid := owner(t, a); gid != 2002 || mode(t, a) != 0o440 {
			t.Errorf("settings: group %d, mode %v", gid, mode(t, a))
		}
	}
}

// A volume in memory takes as much as the node gives to pods, or the pod's limit, or its own: the
// smallest.
func TestMemoryVolumeIsBounded(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	limit := func(memory string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}}
	}
	for name, c := range map[string]struct {
		volume string
		change func(*v1.Pod)
		want   uint64
	}{
		"node":      {`[{name: m, emptyDir: {medium: Memory}}]`, func(*v1.Pod) {}, 1 << 30},
		"volume":    {`[{name: m, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]`, func(*v1.Pod) {}, 1 << 20},
		"too large": {`[{name: m, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]`, func(*v1.Pod) {}, 1 << 30},
		"pod": {`[{name: m, emptyDir: {medium: Memory, sizeLimit: 1Gi}}]`, func(p *v1.Pod) {
			p.Spec.Containers[0].Resources = limit("64Mi")
			p.Spec.Overhead = v1.ResourceList{v1.ResourceMemory: resource.MustParse("16Mi")}
		}, 80 << 20},
		"half limited": {`[{name: m, emptyDir: {medium: Memory}}]`, func(p *v1.Pod) {
			p.Spec.Containers[0].Resources = limit("64Mi")
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "other"})
		}, 1 << 30},
	} {
		p := pod(t, c.volume)
		c.change(p)
		w.mustMount(p)
		w.mustMount(p) // mounts nothing a second time
		var stat unix.Statfs_t
		if err := unix.Statfs(w.dir(p, "m"), &stat); err != nil {
			t.Fatal(err)
		}
		if got := stat.Blocks * uint64(stat.Bsize); stat.Type != unix.TMPFS_MAGIC || got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
		if points, err := mountinfo.Below(w.PodDir(p.UID)); err != nil || len(points) != 1 {
			t.Errorf("%s: mounted are %v (%v)", name, points, err)
		}
		if err := w.Unmount(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHostPathIsOfTheTypeThatThePodExpects(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("file"), "")
	if err := os.Mkdir(at("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, c := range []struct {
		kind v1.HostPathType
		path string
		text string // of the error; empty: none
	}{
		{v1.HostPathUnset, at("nothing"), ""},
		{v1.HostPathDirectory, at("dir"), ""},
		{v1.HostPathDirectory, at("file"), "hostPath type check failed: " + at("file") + " is not a directory"},
		{v1.HostPathDirectory, at("nothing"), "hostPath type check failed: " + at("nothing") + " is not a directory"},
		{v1.HostPathFile, at("file"), ""},
		{v1.HostPathFile, at("dir"), "hostPath type check failed: " + at("dir") + " is not a file"},
		{v1.HostPathSocket, at("socket"), ""},
		{v1.HostPathSocket, at("file"), "hostPath type check failed: " + at("file") + " is not a socket file"},
		{v1.HostPathCharDev, "/dev/null", ""},
		{v1.HostPathCharDev, at("file"), "hostPath type check failed: " + at("file") + " is not a character device"},
		{v1.HostPathBlockDev, "/dev/null", "hostPath type check failed: /dev/null is not a block device"},
		{v1.HostPathDirectoryOrCreate, at("made/deep"), ""},
		{v1.HostPathDirectoryOrCreate, at("dir"), ""},
		{v1.HostPathDirectoryOrCreate, at("file"), "hostPath type check failed: " + at("file") + " is not a directory"},
		{v1.HostPathFileOrCreate, at("made/file"), ""},
		{v1.HostPathFileOrCreate, at("dir"), "hostPath type check failed: " + at("dir") + " is not a file"},
		{"Tree", at("dir"), "Tree is an invalid volume type"},
		{v1.HostPathUnset, dir + "/../x", "invalid HostPath `" + dir + "/../x`: must not contain '..'"},
	} {
		err := checkHostPath(&v1.HostPathVolumeSource{Path: c.path, Type: &c.kind})
		if c.text != "" {
			wantError(t, err, c.text)
		} else if err != nil {
			t.Errorf("%s as %s: %v", c.path, c.kind, err)
		}
	}
	if info, err := os.Stat(at("made/deep")); err != nil || !info.IsDir() {
		t.Errorf("the folder was not made: %v", err)
	}
	if info, err := os.Stat(at("made/file")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the file was not made: %v", err)
	}
}

func TestUsage(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	p := pod(t, `[{name: work, emptyDir: {sizeLimit: 1Mi}}, {name: memory, emptyDir: {medium: Memory}}]`)
	w.mustMount(p)
	usages := func() map[string]sizes.Usage {
		all, err := w.Usage(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]sizes.Usage{}
		for _, usage := range all {
			byName[usage.Volume] = usage
		}
		return byName
	}
	before := usages()
	file := filepath.Join(w.dir(p, "work"), "big")
	write(t, file, string(make([]byte, 2<<20)))
	if err := os.Link(file, file+"-too"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(w.dir(p, "work"), "everything")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(w.dir(p, "memory"), "m"), "m")
	after := usages()
	if grown := after["work"].Used - before["work"].Used; grown < 2<<20 || grown > 3<<20 {
		t.Errorf("2Mi with two names and a link to / were counted as %d bytes", grown)
	}
	if grown := after["work"].Inodes - before["work"].Inodes; grown != 2 {
		t.Errorf("a file with two names and a link are %d inodes", grown)
	}
	if !after["memory"].InMemory || after["work"].InMemory || after["memory"].Used == 0 {
		t.Errorf("memory: %+v", after["memory"])
	}
	if limit := after["work"].Limit; limit == nil || limit.String() != "1Mi" || after["memory"].Limit != nil {
		t.Errorf("limits: %+v", after)
	}
}
