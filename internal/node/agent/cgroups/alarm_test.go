package cgroups

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// raised waits for the alarm, longer than a machine under load needs.
func raised(t *testing.T, a *Alarm, after string) {
	t.Helper()
	select {
	case <-a.C():
	case <-time.After(30 * time.Second):
		t.Errorf("no alarm after %s", after)
	}
}

// On the machine's own cgroups of version 1: memory that passes the margin raises the alarm.
func TestAlarmOfThresholds(t *testing.T) {
	root := realRoot(t)
	tree, err := Open(Options{Root: root, Proc: t.TempDir()}) // no PSI: only the threshold speaks
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := tree.files.(hierarchies); !ok {
		t.Skip("this machine has cgroup v2, which has no thresholds")
	}
	a := tree.Alarm(t.Context())
	a.Arm(2<<20, 0)
	if len(a.set) != 1 {
		t.Fatalf("%d thresholds are set, want that of the machine", len(a.set))
	}
	select {
	case <-a.C():
		t.Fatal("an alarm before anything was used")
	default:
	}
	if err := tree.files.make(filepath.Join(root, "user")); err != nil {
		t.Fatal(err)
	}
	folder, _ := tree.files.(hierarchies).in("memory", filepath.Join(root, "user"))
	fill(t, folder)
	raised(t, a, "8 MiB were used with a margin of 2")
}

// fill uses memory that is charged to the group at this folder.
func fill(t *testing.T, folder string) {
	t.Helper()
	shell := exec.Command("sh", "-c", "echo $$ > "+folder+"/cgroup.procs; exec dd if=/dev/zero of=/dev/null bs=8M count=1")
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// PSI raises the alarm: tried with that of the CPU, which is easily short.
func TestAlarmOfPressure(t *testing.T) {
	const file = "/proc/pressure/cpu"
	if _, err := os.Stat(file); err != nil {
		t.Skipf("this kernel has no PSI, and the agent then works without this alarm: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := &Alarm{ctx: ctx, c: make(chan struct{}, 1)}
	if err := a.listen(file, "some 1000 500000"); err != nil {
		t.Skipf("this kernel reports PSI but takes no triggers, and the agent then works without this alarm: %v", err)
	}
	for range 8 {
		go func() {
			for ctx.Err() == nil {
			}
		}()
	}
	raised(t, a, "eight loops on fewer CPUs")
}
