// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/containerd"
)

var (
	enabled = flag.Bool("real", false, "start a cluster of real nodes; needs root, and the programs of `make real-nodes` in BERTH_BIN")
	slack   = flag.Duration("slack", 0, "by how much later than promised something may happen on a busy machine")
	times   = flag.Int("times", 1, "how often each scenario runs")
	churn   = flag.Duration("churn", 0, "how long short pods come and go at least, 200 of them in each round")
	pages   = flag.Bool("pages", true, "run the commands of the install pages; without them, only the scenarios")
	only    = flag.String("only", "", "regular expression of the scenarios to run")
	table   = flag.String("table", "", "file for the table of scenarios")
	logs    = flag.String("logs", "", "folder for the logs of all processes (default: a temporary one)")
)

const (
	binVariable  = "BERTH_BIN"
	workVariable = "BERTH_E2E_REAL" // set in the second process: the folder of the cluster's files
)

// bin is the folder of the programs; work is the folder of the cluster's files.
var bin, work string

func TestMain(m *testing.M) {
	flag.Parse()
	work, bin = os.Getenv(workVariable), os.Getenv(binVariable)
	switch {
	case !*enabled:
		os.Exit(m.Run())
	case work == "":
		if err := runInside(); err != nil {
			fmt.Fprintln(os.Stderr, "e2ereal:", err)
			os.Exit(1)
		}
	default:
		if err := isolate(); err != nil {
			fmt.Fprintln(os.Stderr, "e2ereal:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
}

// runInside runs this program again in new namespaces, and removes the remains of the cluster.
func runInside() error {
	if reason := containerd.Impossible(); reason != "" {
		return errors.New("no containers can be run here: " + reason)
	}
	if bin == "" {
		return errors.New(binVariable + " must name the folder of the programs: see make real-nodes")
	}
	if err := containerd.Install(context.Background()); err != nil {
		return err
	}
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		if output, err := exec.Command("apt-get", "install", "--yes", "--no-install-recommends", "dbus-daemon").CombinedOutput(); err != nil {
			return fmt.Errorf("graceful shutdown needs dbus-daemon, which could not be installed: %w: %s", err, output)
		}
	}
	folder, err := os.MkdirTemp("", "berth-real-")
	if err != nil {
		return err
	}
	// The kernel ends the second process when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	again := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.Env = append(os.Environ(), workVariable+"="+folder)
	again.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL, Setpgid: true,
	}
	err = again.Run()
	return errors.Join(err, removeCgroups(folder), os.RemoveAll(folder))
}

// removeCgroups removes the cgroups of the nodes' pods, which no longer contain processes.
func removeCgroups(folder string) error {
	names, _ := filepath.Glob(filepath.Join(folder, "cgroup-*"))
	var failed []error
	for _, name := range names {
		cgroup := strings.TrimPrefix(filepath.Base(name), "cgroup-")
		tops, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroup)
		tops = append(tops, "/sys/fs/cgroup/"+cgroup)
		for _, top := range tops {
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
				_ = exec.Command("find", top, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+").Run()
				if _, err := os.Stat(top); err != nil {
					break
				}
				if time.Now().After(end) {
					failed = append(failed, fmt.Errorf("cannot remove %s", top))
					break
				}
			}
		}
	}
	return errors.Join(failed...)
}

// isolate hides the machine's folders that container runtimes and kubelets share. It runs in the
// second process.
func isolate() error {
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := favor(); err != nil {
		return err
	}
	if err := hideShared(); err != nil {
		return err
	}
	os.Unsetenv("KUBECONFIG")
	os.Unsetenv("BERTH_DATA_DIR")
	return command("ip", "link", "set", "lo", "up")
}

// favor moves this process, and thereby the cluster, into a cgroup with a large share of the
// processors. Otherwise, the API server has the share of one process of this machine, and Leases
// expire when the machine runs many.
func favor() error {
	name := strings.ReplaceAll(filepath.Base(work), "berth-real-", "berthreal")
	// The first process removes the cgroup by this file.
	if err := os.WriteFile(filepath.Join(work, "cgroup-"+name), nil, 0o600); err != nil {
		return err
	}
	group := filepath.Join("/sys/fs/cgroup", name)
	if top := "/sys/fs/cgroup/cpu"; exists(top) {
		group = filepath.Join(top, name)
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		return err
	}
	raiseShare(group)
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0o644)
}

// raiseShare gives a cgroup a large share of the processors.
func raiseShare(group string) {
	for file, share := range map[string]string{"cpu.shares": "65536", "cpu.weight": "5000"} {
		// One of the two files exists, depending on the version of cgroups.
		if file = filepath.Join(group, file); exists(file) {
			_ = os.WriteFile(file, []byte(share), 0o644)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// shared lists the folders in which kubelets and container runtimes of one machine would meet.
var shared = []string{"/run", "/var/log", "/var/lib/kubelet", "/var/lib/cni"}

func hideShared() error {
	for _, folder := range shared {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", folder, err)
		}
	}
	return nil
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
