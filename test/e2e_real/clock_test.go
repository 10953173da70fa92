// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clockCode is the machine code of clock_gettime for amd64: the system call, plus the seconds that
// follow the code if the clock is CLOCK_REALTIME. In the vDSO of a process, it replaces the
// kernel's function, so that a Go program has a clock of its own.
var clockCode = []byte{
	0xb8, 228, 0, 0, 0, // mov eax, SYS_clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi
	0x75, 0x0a, // jnz end
	0x48, 0x8b, 0x0d, 6, 0, 0, 0, // mov rcx, [rip+6]
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, 0, 0, // end: ret
}

// setClock moves the clock of a process by a number of seconds from the machine's clock.
func setClock(pid int, seconds int64) error {
	begin, size, err := vdso(pid)
	if err != nil {
		return err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	image := make([]byte, size)
	if _, err := memory.ReadAt(image, begin); err != nil {
		return err
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return err
	}
	code := binary.LittleEndian.AppendUint64(bytes.Clone(clockCode), uint64(seconds))
	for _, symbol := range symbols {
		if symbol.Name != "__vdso_clock_gettime" || symbol.Size < uint64(len(code)) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		_, err := memory.WriteAt(code, begin+int64(symbol.Value))
		return errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
	}
	return errors.New("the vDSO has no clock_gettime")
}

// vdso returns the address and the size of a process's vDSO.
func vdso(pid int) (begin, size int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[vdso]") {
			var end int64
			_, err = fmt.Sscanf(line, "%x-%x", &begin, &end)
			return begin, end - begin, err
		}
	}
	return 0, 0, fmt.Errorf("process %d has no vDSO", pid)
}

// setClock moves the clock of the node: of its kubelet, containerd and kube-proxy, and of its pods.
func (n *node) setClock(seconds int64) error {
	containerd, err := n.containerdPID()
	if err != nil {
		return err
	}
	pids := []int{n.kubelet.PID(), n.proxy.PID(), containerd}
	top := filepath.Join("/sys/fs/cgroup/cpu", n.cgroup)
	if !exists(top) {
		top = filepath.Join("/sys/fs/cgroup", n.cgroup)
	}
	err = filepath.WalkDir(top, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return nil // the pod has ended
		}
		text, _ := os.ReadFile(path)
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			pids = append(pids, pid)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := setClock(pid, seconds); err != nil && exists(fmt.Sprintf("/proc/%d/maps", pid)) {
			return err
		}
	}
	return nil
}

// step is the change of a clock.
const step = 10 * time.Minute

// steps are the clock's successive positions. Each lasts longer than a node may be silent.
var steps = []time.Duration{step, 0, -step, 0}

const stepLasts = 50 * time.Second

func (c *cluster) clockStep() string      { return c.stepClock(c.nodes[3]) }
func (c *cluster) berthClockStep() string { return c.stepClock(c.nodes[0]) }

// stepClock moves a node's clock forward and back, twice. No node may appear to fail. A pod that
// tolerates a taint for some seconds stays as long, unless the clock is Berth's: the time at which
// the taint was added is by the API server's clock.
func (c *cluster) stepClock(n *node) string {
	c.Helper()
	if runtime.GOARCH != "amd64" {
		return "not on " + runtime.GOARCH
	}
	c.apply(workload)
	c.awaitRunning("failing", 3)
	leaders := c.berthLeaders()
	defer func() { c.must(n.setClock(0)) }()
	var ahead, evicted []string
	for _, position := range steps {
		c.must(n.setClock(int64(position.Seconds())))
		// Nothing may happen while the step lasts, so there is no condition to wait for.
		for end := time.Now().Add(stepLasts); time.Now().Before(end); time.Sleep(time.Second) {
			c.untouched()
		}
		if position == 0 {
			continue
		}
		lease, err := c.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(c.Context(), n.name, metav1.GetOptions{})
		c.must(err)
		skew := time.Until(lease.Spec.RenewTime.Time)
		if (skew - position).Abs() > time.Minute {
			c.Errorf("%s renewed its Lease at %s from now, want %s", n.name, skew, position)
		}
		ahead = append(ahead, fmt.Sprintf("%.0f", skew.Seconds()))
		seconds := c.tolerateFive()
		if n != c.nodes[0] {
			c.between("eviction with tolerationSeconds", seconds, 5, 10)
		}
		evicted = append(evicted, fmt.Sprintf("%.1f", seconds))
	}
	if now := c.berthLeaders(); now != leaders {
		c.Errorf("Berth's leaders were %s, and are %s", leaders, now)
	}
	return fmt.Sprintf("the node's Lease %s s ahead; no taint, no eviction, same leaders; tolerationSeconds 5: evicted after %s s",
		strings.Join(ahead, " and "), strings.Join(evicted, " and "))
}

// untouched fails the test if a node has a taint, or a pod of the workload is leaving.
func (c *cluster) untouched() {
	c.Helper()
	nodes, err := c.client.CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
	c.must(err)
	for _, n := range nodes.Items {
		if !nodeReady(&n) || n.Name != c.nodes[0].name && len(n.Spec.Taints) > 0 {
			c.Fatalf("%s: ready %v, taints %v", n.Name, nodeReady(&n), n.Spec.Taints)
		}
	}
	for _, pod := range c.pods("failing") {
		if pod.DeletionTimestamp != nil {
			c.Fatalf("%s leaves", pod.Name)
		}
	}
}

// tolerating is a pod that tolerates a taint for five seconds.
const tolerating = `
apiVersion: v1
kind: Pod
metadata: {name: tolerating, labels: {scenario: tolerating}}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {kubernetes.io/hostname: node-3}
  tolerations: [{key: maintenance, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]
  containers:
  - {name: c, image: "busybox:1", command: [sleep, "100000"]}
`

// tolerateFive returns after how many seconds the pod is evicted. The workload leaves its node.
func (c *cluster) tolerateFive() float64 {
	c.Helper()
	c.apply(tolerating)
	pod := c.awaitRunning("tolerating", 1)
	began := time.Now()
	c.kubectl("taint", "node", "node-3", "maintenance=now:NoExecute")
	evicted := c.awaitEvicted(pod, began)
	c.kubectl("taint", "node", "node-3", "maintenance-")
	c.gone("tolerating")
	return evicted
}

// berthLeaders returns the holders of Berth's Leases.
func (c *cluster) berthLeaders() string {
	c.Helper()
	return c.kubectl("get", "leases", "-n", "berth-system", "-o", "jsonpath={.items[*].spec.holderIdentity}") + " " +
		c.kubectl("get", "leases", "-n", "kube-system", "kube-scheduler", "-o", "jsonpath={.spec.holderIdentity}")
}
