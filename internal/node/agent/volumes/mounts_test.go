package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/agent/env"
)

var view = View{PodIPs: []string{"10.1.0.5"}, Host: "web", Env: []env.Variable{{Name: "POD", Value: "web-0"}}}

func TestContainerMountsItsVolumesHostsAndLastWords(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setConfigMap("settings", map[string]string{"a": "A"})
	p := pod(t, `[{name: work, emptyDir: {}}, {name: settings, configMap: {name: settings}}, {name: host, hostPath: {path: /srv}}]`)
	c := &p.Spec.Containers[0]
	c.TerminationMessagePath = "/dev/termination-log"
	c.VolumeMounts[0].ReadOnly = true
	c.VolumeMounts[2].MountPropagation = ptr(v1.MountPropagationBidirectional)
	c.VolumeMounts[2].MountPath = "relative"
	w.mustMount(p)
	mounts, err := w.Mounts(p, c, view)
	if err != nil {
		t.Fatal(err)
	}
	words := mounts[len(mounts)-1].HostPath
	want := []Mount{
		{Name: "work", HostPath: w.dir(p, "work"), ContainerPath: "/v/work", ReadOnly: true, Propagation: v1.MountPropagationNone},
		{Name: "settings", HostPath: w.dir(p, "settings"), ContainerPath: "/v/settings", ReadOnly: true, Propagation: v1.MountPropagationNone},
		{Name: "host", HostPath: "/srv", ContainerPath: "/relative", Propagation: v1.MountPropagationBidirectional},
		{Name: HostsFile, HostPath: filepath.Join(w.PodDir(p.UID), "etc-hosts"), ContainerPath: "/etc/hosts"},
		{Name: TerminationLog, HostPath: words, ContainerPath: "/dev/termination-log"},
	}
	if diff := cmp.Diff(want, mounts); diff != "" {
		t.Error(diff)
	}
	if hosts, err := os.ReadFile(mounts[3].HostPath); err != nil || !strings.Contains(string(hosts), "10.1.0.5\tweb\n") {
		t.Errorf("hosts: %q (%v)", hosts, err)
	}
	if got := mode(t, words); got != 0o666 {
		t.Errorf("mode %v: not every user could write its last words", got)
	}
}

func TestLastWordsOfFormerContainersDoNotPileUp(t *testing.T) {
	w := newWorld(t)
	p := pod(t, `[]`)
	p.Spec.Containers[0].TerminationMessagePath = "/words"
	w.mustMount(p)
	var last []Mount
	for range 10 {
		before := last
		var err error
		if last, err = w.Mounts(p, &p.Spec.Containers[0], View{}); err != nil {
			t.Fatal(err)
		}
		if before != nil {
			if _, err := os.Stat(before[0].HostPath); err != nil {
				t.Errorf("those of the container before are gone: %v", err)
			}
		}
	}
	if got := names(t, filepath.Dir(last[0].HostPath)); len(got) > keptLogs {
		t.Errorf("%d files", len(got))
	}
}

func TestContainerWithItsOwnHostsKeepsThem(t *testing.T) {
	w := newWorld(t)
	p := pod(t, `[{name: work, emptyDir: {}}]`)
	p.Spec.Containers[0].VolumeMounts[0].MountPath = "/etc/hosts"
	w.mustMount(p)
	mounts, err := w.Mounts(p, &p.Spec.Containers[0], view)
	if err != nil || len(mounts) != 1 {
		t.Errorf("mounts %v (%v)", mounts, err)
	}
}

func TestRecursiveReadOnly(t *testing.T) {
	w := newWorld(t)
	p := pod(t, `[{name: work, emptyDir: {}}]`)
	w.mustMount(p)
	mount := &p.Spec.Containers[0].VolumeMounts[0]
	mount.RecursiveReadOnly = ptr(v1.RecursiveReadOnlyEnabled)
	_, err := w.Mounts(p, &p.Spec.Containers[0], View{RecursiveReadOnly: true})
	wantError(t, err, `failed to resolve recursive read-only mode: volume "work" requested recursive read-only mode, but it is not read-only`)
	mount.ReadOnly = true
	_, err = w.Mounts(p, &p.Spec.Containers[0], View{})
	wantError(t, err, `failed to resolve recursive read-only mode: volume "work" requested recursive read-only mode, but it is not supported by the runtime`)
	if mounts, err := w.Mounts(p, &p.Spec.Containers[0], View{RecursiveReadOnly: true}); err != nil || !mounts[0].RecursiveReadOnly {
		t.Errorf("mounts %v (%v)", mounts, err)
	}
	mount.RecursiveReadOnly = ptr(v1.RecursiveReadOnlyIfPossible)
	if mounts, err := w.Mounts(p, &p.Spec.Containers[0], View{}); err != nil || mounts[0].RecursiveReadOnly {
		t.Errorf("mounts %v (%v)", mounts, err)
	}
}

func TestUnknownVolumeIsNamed(t *testing.T) {
	w := newWorld(t)
	p := pod(t, `[{name: work, emptyDir: {}}]`)
	p.Spec.Volumes = nil
	_, err := w.Mounts(p, &p.Spec.Containers[0], view)
	wantError(t, err, `cannot find volume "work" to mount into container "main"`)
}

func TestFileDoesNotLeaveItsVolume(t *testing.T) {
	w := newWorld(t)
	p := pod(t, `[{name: work, emptyDir: {}}]`)
	w.mustMount(p)
	dir := w.dir(p, "work")
	write(t, filepath.Join(dir, "settings"), "A='1'")
	for link, to := range map[string]string{"in": "settings", "out": "/etc/passwd", "up": "../../../../etc-hosts"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"settings", "in"} {
		if content, err := w.File(p, "work", path); err != nil || string(content) != "A='1'" {
			t.Errorf("%s: %q (%v)", path, content, err)
		}
	}
	for _, path := range []string{"out", "up", "../../../etc-hosts", "/etc/passwd", "pipe", ".", "nothing"} {
		if content, err := w.File(p, "work", path); err == nil {
			t.Errorf("%s was read: %q", path, content)
		}
	}
}
