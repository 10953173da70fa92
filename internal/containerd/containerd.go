// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed containerd.sh
var script []byte

// Images of every instance.
const (
	// Busybox is a root file system with busybox and its applets; it runs sh. It is also tagged
	// docker.io/library/busybox:1 and :latest.
	Busybox = "berth.local/busybox:1"
	// Pause is the image of the sandboxes. As process 1 of a shared PID namespace it does not reap
	// orphans: zombies stay until their pod ends.
	Pause = "berth.local/pause:1"
)

// Handler is a non-default runtime handler, for RuntimeClasses; it also uses runc.
const Handler = "kata-fc"

// patience allows for a busy machine, on which merely starting containerd takes seconds.
const patience = 2 * time.Minute

// Containerd is a running instance.
type Containerd struct {
	// Dir holds all of its state. It is cleaned up with all mounts below it when the instance ends,
	// even if the process that started it is killed.
	Dir string
	// CgroupRoot is a cgroup for its pods (--cgroup-root of the kubelet). It is removed with the
	// instance, together with all processes in it.
	CgroupRoot string

	command *exec.Cmd
	owner   io.Closer // write end of the script's standard input; the script ends when it is closed
	stderr  lockedBuffer
	stop    sync.Once
	stopped error
}

// Install installs missing programs on this machine: containerd, runc, a static busybox and the CNI
// plugins.
func Install(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "sh", "-c", string(script), "containerd.sh", "install").CombinedOutput()
	if err != nil {
		return fmt.Errorf("install containerd: %w: %s", err, lastLine(string(out)))
	}
	return nil
}

// Impossible returns why this machine cannot run containers, or "".
func Impossible() string {
	if os.Geteuid() != 0 {
		return "must be root"
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory"} {
		if probe, err := os.MkdirTemp(root, "berth-probe-"); err == nil {
			os.Remove(probe)
			return ""
		}
	}
	return "cgroups at /sys/fs/cgroup cannot be written"
}

// Run starts an instance in dir, which must not be in use, and returns when it responds. The
// instance ends by Stop, or with this process.
func Run(ctx context.Context, dir string) (*Containerd, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "containerd.sh")
	if err := os.WriteFile(path, script, 0o755); err != nil {
		return nil, err
	}
	c := &Containerd{Dir: dir, command: exec.Command("sh", path, "run", dir, "--owned")}
	// Use a separate process group, so that Ctrl-C in the terminal reaches only this process, which
	// then stops the instance.
	c.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.command.Stderr = &c.stderr
	if c.owner, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	abort := context.AfterFunc(ctx, func() { c.owner.Close() })
	_, err = bufio.NewReader(stdout).ReadString('\n')
	if !abort() || err != nil {
		return nil, fmt.Errorf("start containerd: %w: %s", errors.Join(c.Stop(), ctx.Err()), lastLine(c.stderr.String()))
	}
	name, err := os.ReadFile(filepath.Join(dir, "name"))
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	c.CgroupRoot = "/" + strings.TrimSpace(string(name))
	return c, nil
}

// Socket returns the path of the CRI socket.
func (c *Containerd) Socket() string { return filepath.Join(c.Dir, "containerd.sock") }

// Endpoint returns the socket in the format of --container-runtime-endpoint.
func (c *Containerd) Endpoint() string { return "unix://" + c.Socket() }

// Import imports an image from a tar file.
func (c *Containerd) Import(ctx context.Context, file string) error {
	out, err := exec.CommandContext(ctx, "ctr", "--address", c.Socket(), "--namespace", "k8s.io", "images", "import", file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import %s: %w: %s", file, err, lastLine(string(out)))
	}
	return nil
}

// Bridge returns the name of the pods' network device.
func (c *Containerd) Bridge() string { return strings.TrimPrefix(c.CgroupRoot, "/") } // the bridge and the cgroup have the same name

// Gateway returns this machine's address in the network of the pods.
func (c *Containerd) Gateway() (net.IP, error) {
	bridge, err := net.InterfaceByName(c.Bridge())
	if err != nil {
		return nil, fmt.Errorf("network of the pods: %w", err)
	}
	addresses, err := bridge.Addrs()
	if err != nil {
		return nil, fmt.Errorf("network of the pods: %w", err)
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil {
			return network.IP, nil
		}
	}
	return nil, fmt.Errorf("network of the pods: %s has no address", bridge.Name)
}

// Stop ends the instance, and removes its state and its pods. It is idempotent.
func (c *Containerd) Stop() error {
	c.stop.Do(func() {
		c.owner.Close()
		if err := c.command.Wait(); err != nil {
			c.stopped = fmt.Errorf("stop containerd: %w: %s", err, lastLine(c.stderr.String()))
		}
	})
	return c.stopped
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
