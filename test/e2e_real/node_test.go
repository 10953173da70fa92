// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-k8s/berth/internal/up/kubelet"
	"github.com/berth-k8s/berth/test/internal/process"
)

const (
	bridge  = "switch"
	gateway = "10.77.0.1" // the control plane and the registry
	network = "/24"
)

// node is a real node.
type node struct {
	name, address, dir string
	// holder is a process without any other purpose than to hold the node's namespaces.
	holder *process.Process
	// cable is the bridge's end of the node's network link.
	cable string
	// cgroup is the parent of the pods' cgroups. pods is the network of the pods.
	cgroup, pods string
	runtime      *process.Process
	kubelet      *process.Process
	proxy        *process.Process
	logind       *logind
}

// newNode creates the namespaces, the disk and the network link of a node.
func newNode(number int) (*node, error) {
	name := "node-" + strconv.Itoa(number)
	n := &node{name: name, address: fmt.Sprintf("10.77.0.%d", 10+number), dir: filepath.Join(work, name), cable: "cable-" + strconv.Itoa(number)}
	if err := n.mountDisk(); err != nil {
		return nil, err
	}
	var err error
	if n.holder, err = process.Start("unshare", n.log("holder"), "--net", "--mount", "--propagation", "private", "sleep", "infinity"); err != nil {
		return nil, err
	}
	if err := n.awaitHolder(); err != nil {
		return nil, err
	}
	holder := strconv.Itoa(n.holder.PID())
	steps := [][]string{
		{"ip", "link", "add", n.cable, "type", "veth", "peer", "name", "eth0", "netns", holder},
		{"ip", "link", "set", n.cable, "master", bridge, "up"},
	}
	for _, folder := range shared {
		steps = append(steps, n.enter("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder))
	}
	steps = append(steps,
		n.enter("ip", "link", "set", "lo", "up"),
		n.enter("ip", "addr", "add", n.address+network, "dev", "eth0"),
		n.enter("ip", "link", "set", "eth0", "up"),
		n.enter("ip", "route", "add", "default", "via", gateway),
		n.enter("sysctl", "-q", "-w", "net.ipv4.ip_forward=1"),
	)
	for _, step := range steps {
		if err := command(step[0], step[1:]...); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// diskSize is the size of a node's disk, of which only used blocks take space on the machine.
const diskSize = 6 << 30

// mountDisk gives the node a file system of its own.
func (n *node) mountDisk() error {
	disk := n.dir + ".disk"
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		return err
	}
	return errors.Join(os.Truncate(disk, diskSize), os.Mkdir(n.dir, 0o755),
		command("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1", disk), command("mount", "-o", "loop,discard", disk, n.dir))
}

// awaitHolder waits until the holder has left this process's namespaces.
func (n *node) awaitHolder() error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	return poll(func() error {
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", n.holder.PID()))
		if err == nil && its == own {
			err = errNotYet
		}
		return err
	})
}

// enter returns the command line that runs a command in the node's namespaces.
func (n *node) enter(args ...string) []string {
	return append([]string{"nsenter", "--target", strconv.Itoa(n.holder.PID()), "--net", "--mount"}, args...)
}

// start starts a program of the node, with its output in a log.
func (n *node) start(name string, args ...string) (*process.Process, error) {
	line := n.enter(args...)
	return process.Start(line[0], n.log(name), line[1:]...)
}

func (n *node) log(name string) string { return logPath(n.name + "-" + name) }

// startRuntime starts the node's containerd, and reads the names that it chose.
func (n *node) startRuntime() (err error) {
	script, err := filepath.Abs("../../internal/containerd/containerd.sh")
	if err != nil {
		return err
	}
	if n.runtime, err = n.start("containerd", "sh", script, "run", n.folder()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := n.runtime.WaitFor(ctx, n.folder()); err != nil {
		return err
	}
	name, err := os.ReadFile(filepath.Join(n.folder(), "name"))
	if err != nil {
		return err
	}
	n.cgroup = strings.TrimSpace(string(name))
	// The first process removes the cgroup by this file.
	if err := os.WriteFile(filepath.Join(work, "cgroup-"+n.cgroup), nil, 0o600); err != nil {
		return err
	}
	// By default, all pods together have the share of one process of this machine.
	raiseShare(filepath.Join("/sys/fs/cgroup/cpu", n.cgroup))
	raiseShare(filepath.Join("/sys/fs/cgroup", n.cgroup))
	list, err := os.ReadFile(filepath.Join(n.folder(), "net.d", "10-"+n.cgroup+".conflist"))
	if err != nil {
		return err
	}
	found := regexp.MustCompile(`"subnet": "([^"]+)"`).FindSubmatch(list)
	if found == nil {
		return fmt.Errorf("%s: the pods' network is missing in %s", n.name, list)
	}
	n.pods = string(found[1])
	mirror := filepath.Join(n.folder(), "certs.d", registry)
	return errors.Join(os.MkdirAll(mirror, 0o755),
		os.WriteFile(filepath.Join(mirror, "hosts.toml"), fmt.Appendf(nil, "[host.\"http://%s\"]\ncapabilities = [\"pull\", \"resolve\"]\n", registry), 0o644))
}

// folder is the folder of containerd. Its name allows other tests to run kubelets next to those of
// the nodes.
func (n *node) folder() string { return filepath.Join(n.dir, kubelet.OwnRuntime+"c") }

func (n *node) socket() string { return filepath.Join(n.folder(), "containerd.sock") }

// kubeletConfig leaves pods 1.5 GiB of the machine's memory, and reports a full disk early.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
systemReserved: {memory: "%d"}
evictionHard: {memory.available: 200Mi, nodefs.available: 20%%, imagefs.available: 20%%}
evictionPressureTransitionPeriod: 20s
shutdownGracePeriod: 20s
shutdownGracePeriodCriticalPods: 5s
podLogsDir: %s
`

const podsMemory = 1536 << 20

// startKubelet starts `berth agent`, which becomes the kubelet.
func (n *node) startKubelet(bootstrap string) (err error) {
	total, err := machineMemory()
	if err != nil {
		return err
	}
	root, config := filepath.Join(n.dir, "k"), filepath.Join(n.dir, "kubelet.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, kubeletConfig, total-podsMemory, n.log("pods")), 0o600); err != nil {
		return err
	}
	n.kubelet, err = n.start("kubelet", filepath.Join(bin, "berth"), "agent", "--bootstrap-kubeconfig", bootstrap, "--hostname-override", n.name,
		"--node-ip", n.address, "--config", config, "--container-runtime-endpoint", "unix://"+n.socket(), "--cgroup-root", "/"+n.cgroup,
		"--root-dir", root)
	return err
}

// startProxy starts kube-proxy. It must not change the machine's limits of connections.
func (n *node) startProxy(kubeconfig string) (err error) {
	n.proxy, err = n.start("kube-proxy", proxyLine(kubeconfig, n.name)...)
	return err
}

func proxyLine(kubeconfig, name string) []string {
	return []string{filepath.Join(bin, "kube-proxy"), "--kubeconfig", kubeconfig, "--hostname-override", name, "--proxy-mode", "iptables",
		"--conntrack-max-per-core", "0", "--conntrack-min", "0", "--conntrack-tcp-timeout-established", "0", "--conntrack-tcp-timeout-close-wait", "0"}
}

// frozen are the processes that stop with a frozen node: everything that speaks for it.
func (n *node) signal(s syscall.Signal) error {
	pid, err := n.containerdPID()
	if err != nil {
		return err
	}
	return errors.Join(n.kubelet.Signal(s), n.proxy.Signal(s), syscall.Kill(pid, s))
}

func (n *node) containerdPID() (int, error) {
	text, err := os.ReadFile(filepath.Join(n.folder(), "containerd.pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func machineMemory() (int64, error) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`MemTotal: +(\d+) kB`).FindSubmatch(info)
	if found == nil {
		return 0, errors.New("/proc/meminfo: MemTotal is missing")
	}
	total, err := strconv.ParseInt(string(found[1]), 10, 64)
	return total << 10, err
}
