package agent

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// machine is what does not change while the machine is up.
type machine struct {
	hostname, arch string
	cpus           int
	memory         int64
	// appArmor: the kernel enforces profiles.
	appArmor bool
	// oomScore is the file of the agent's own oom_score_adj.
	oomScore string
	info     v1.NodeSystemInfo
}

func lookAtMachine() (machine, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return machine{}, fmt.Errorf("hostname: %w", err)
	}
	memory, err := memTotal("/proc/meminfo")
	if err != nil {
		return machine{}, err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return machine{}, fmt.Errorf("uname: %w", err)
	}
	firstLine := func(path string) string {
		text, _ := os.ReadFile(path)
		return strings.TrimSpace(string(text))
	}
	return machine{
		hostname: strings.ToLower(hostname), arch: runtime.GOARCH, cpus: runtime.NumCPU(), memory: memory,
		appArmor: strings.HasPrefix(firstLine("/sys/module/apparmor/parameters/enabled"), "Y"), oomScore: "/proc/self/oom_score_adj",
		info: v1.NodeSystemInfo{
			MachineID:       firstLine("/etc/machine-id"),
			SystemUUID:      firstLine("/sys/class/dmi/id/product_uuid"),
			BootID:          firstLine("/proc/sys/kernel/random/boot_id"),
			KernelVersion:   unix.ByteSliceToString(uts.Release[:]),
			OSImage:         osImage("/etc/os-release"),
			OperatingSystem: "linux",
			Architecture:    runtime.GOARCH,
		},
	}, nil
}

func memTotal(path string) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s: no MemTotal", path)
}

func osImage(path string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	return "Linux"
}

// address is the machine's: that of the interface with the default route, or of any that is up.
func address() (net.IP, error) {
	if ip, err := utilnet.ChooseHostInterface(); err == nil && ip != nil {
		return ip, nil
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP, nil
		}
	}
	return nil, fmt.Errorf("this machine has no address that others could reach: give one with --node-ip")
}

// memory is the configured amount, or the machine's, or that of the pods' cgroup if it is less.
func (a *Agent) memory() int64 {
	if a.config.Memory > 0 {
		return a.config.Memory
	}
	if a.cgroups != nil {
		if memory, _, err := a.cgroups.tree.Capacity(); err == nil && memory > 0 {
			return min(memory, a.machine.memory)
		}
	}
	return a.machine.memory
}

// capacity is that of the machine.
func (a *Agent) capacity() v1.ResourceList {
	out := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(a.machine.cpus), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(a.memory(), resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(int64(a.config.MaxPods), resource.DecimalSI),
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(a.config.RootDir, &disk); err == nil {
		out[v1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(disk.Blocks)*disk.Bsize, resource.BinarySI)
	}
	pools, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	for _, pool := range pools {
		kib, err1 := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(pool), "hugepages-"), "kB"), 10, 64)
		text, err2 := os.ReadFile(filepath.Join(pool, "nr_hugepages"))
		count, err3 := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err1 != nil || err2 != nil || err3 != nil {
			continue
		}
		size := resource.NewQuantity(kib<<10, resource.BinarySI)
		out[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(count*kib<<10, resource.BinarySI)
	}
	return out
}

// take subtracts an amount from a list, down to zero.
func take(from v1.ResourceList, name v1.ResourceName, amount resource.Quantity) {
	left, ok := from[name]
	if !ok {
		return
	}
	left.Sub(amount)
	if left.Sign() < 0 {
		left.Set(0)
	}
	from[name] = left
}

// unreserved is what all pods together may use.
func (a *Agent) unreserved(capacity v1.ResourceList) v1.ResourceList {
	out := capacity.DeepCopy()
	for _, reserved := range []v1.ResourceList{a.config.KubeReserved, a.config.SystemReserved} {
		for name, amount := range reserved {
			take(out, name, amount)
		}
	}
	return out
}

// enforceReservations limits all pods together to what is not reserved, processes included. Those
// are no resource of the node's status.
func (a *Agent) enforceReservations() error {
	capacity := a.capacity()
	if _, tasks, err := a.cgroups.tree.Capacity(); err == nil && tasks > 0 {
		capacity["pid"] = *resource.NewQuantity(tasks, resource.DecimalSI)
	}
	left := a.unreserved(capacity)
	for name, has := range capacity {
		both := a.config.KubeReserved[name].DeepCopy()
		both.Add(a.config.SystemReserved[name])
		if amount := left[name]; !both.IsZero() && amount.IsZero() {
			return fmt.Errorf("--kube-reserved and --system-reserved: %s=%s leaves nothing for pods: the node has %s; reserve less", name, both.String(), has.String())
		}
	}
	return a.cgroups.tree.Enforce(left)
}

// allocatable is what pods can request: unreserved without what hard eviction thresholds keep free.
func (a *Agent) allocatable(capacity v1.ResourceList) v1.ResourceList {
	out := a.unreserved(capacity)
	for name, signal := range map[v1.ResourceName]string{v1.ResourceMemory: "memory.available", v1.ResourceEphemeralStorage: "nodefs.available"} {
		take(out, name, threshold(a.config.Eviction.Hard[signal], capacity[name]))
	}
	for name, amount := range capacity {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			take(out, v1.ResourceMemory, amount)
		}
	}
	return out
}

// threshold parses a quantity, or a percentage of the capacity; anything else is zero.
func threshold(text string, of resource.Quantity) resource.Quantity {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		if n, err := strconv.ParseFloat(percent, 64); err == nil {
			return *resource.NewQuantity(int64(n/100*float64(of.Value())), resource.BinarySI)
		}
	}
	if q, err := resource.ParseQuantity(text); err == nil {
		return q
	}
	return resource.Quantity{}
}
