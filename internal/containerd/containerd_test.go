package containerd

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestPodRunsAndIsReachable(t *testing.T) {
	c := Start(t)
	client := dial(t, c)
	pod := runPod(t, c, client, "web", "httpd", "-f", "-p", "8080", "-h", "/etc")

	status, err := client.PodSandboxStatus(context.Background(), &cri.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	ip := status.Status.Network.Ip
	eventually(t, "the pod serves at "+ip, func() error {
		return exec.Command("/bin/busybox", "wget", "-q", "-O", "/dev/null", "http://"+ip+":8080/passwd").Run()
	})
	if _, err := os.Stat("/sys/fs/cgroup/memory" + c.CgroupRoot + "/web"); err != nil {
		if _, err := os.Stat("/sys/fs/cgroup" + c.CgroupRoot + "/web"); err != nil {
			t.Errorf("the pod is not in the cgroup that was asked for: %v", err)
		}
	}
}

func TestKilledContainerdComesBackWithItsContainers(t *testing.T) {
	c := Start(t)
	pod := runPod(t, c, dial(t, c), "web", "sleep", "600")
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Revive(); err != nil {
		t.Fatal(err)
	}
	var list *cri.ListContainersResponse
	client := dial(t, c)
	eventually(t, "CRI answers", func() (err error) {
		list, err = client.ListContainers(context.Background(), &cri.ListContainersRequest{})
		return err
	})
	if len(list.Containers) != 1 || list.Containers[0].PodSandboxId != pod || list.Containers[0].State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("containers after the restart: %v, want the one of sandbox %s, running", list.Containers, pod)
	}
}

// A test process that is killed cannot clean up. What it started must see to that itself.
func TestNothingIsLeftOfAKilledOwner(t *testing.T) {
	if os.Getenv("BERTH_TEST_OWNER") != "" {
		c := Start(t)
		runPod(t, c, dial(t, c), "web", "sleep", "600")
		// An orphan of the test in the cgroup, and a mount below the folder, as an agent leaves
		// them.
		volume := filepath.Join(c.Dir, "agent", "volume with space")
		if err := os.MkdirAll(volume, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", volume, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		fmt.Println("ready", c.Dir, c.CgroupRoot)
		select {}
	}
	if reason := Impossible(); reason != "" {
		t.Skipf("no containers here: %s", reason)
	}
	owner := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	owner.Env = append(os.Environ(), "BERTH_TEST_OWNER=1")
	// It goes with this test, too; the kernel means the thread by which it was started, which must
	// therefore stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	owner.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var dir, cgroup string
	lines := bufio.NewScanner(out)
	for dir == "" && lines.Scan() {
		if words := strings.Fields(lines.Text()); len(words) == 3 && words[0] == "ready" {
			dir, cgroup = words[1], words[2]
		} else if strings.Contains(lines.Text(), "SKIP") {
			t.Skipf("the test that was to be killed ran no containers: %s", lines.Text())
		}
	}
	if dir == "" {
		t.Fatal("the owner did not get its containerd")
	}
	if left := leftovers(t, dir, cgroup); len(left) < 4 {
		t.Fatalf("while it runs, there are only %v: the test would see nothing", left)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	eventually(t, "nothing is left", func() error {
		if left := leftovers(t, dir, cgroup); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
}

// leftovers finds processes, mounts, cgroups, the bridge, rules of host ports and the folder
// itself.
func leftovers(t *testing.T, dir, cgroup string) (left []string) {
	t.Helper()
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range processes {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), dir) {
			left = append(left, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			left = append(left, line)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup" + cgroup, "/sys/fs/cgroup/*" + cgroup, "/sys/class/net" + cgroup, "/var/lib/cni/results" + cgroup + "-*", dir} {
		found, _ := filepath.Glob(pattern)
		left = append(left, found...)
	}
	for rule := range strings.Lines(natRules()) {
		if strings.Contains(rule, strings.TrimPrefix(cgroup, "/")) {
			left = append(left, rule)
		}
	}
	// The chain that leads to all host ports is of use only as long as there are any.
	if rules := natRules(); strings.Contains(rules, "\n:CNI-HOSTPORT-DNAT ") && !strings.Contains(rules, "\n-A CNI-HOSTPORT-DNAT ") {
		left = append(left, "an empty chain CNI-HOSTPORT-DNAT")
	}
	return left
}

func dial(t *testing.T, c *Containerd) cri.RuntimeServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(c.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return cri.NewRuntimeServiceClient(conn)
}

// runPod runs one container in a sandbox below the cgroup root, and returns the sandbox.
func runPod(t *testing.T, c *Containerd, client cri.RuntimeServiceClient, name string, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		LogDirectory: t.TempDir(),
		Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: c.CgroupRoot + "/" + name},
	}
	if natRules() != "" {
		config.PortMappings = []*cri.PortMapping{{ContainerPort: 8080, HostPort: freePort(t)}}
	}
	sandbox, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: Handler})
	if err != nil {
		t.Fatal(err)
	}
	container, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name},
			Image:    &cri.ImageSpec{Image: Busybox},
			Command:  command,
			LogPath:  name + ".log",
			Linux:    &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{CpuShares: 2}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: container.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return sandbox.PodSandboxId
}

func freePort(t *testing.T) int32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// natRules are those of the machine; empty where it has none and can have none.
func natRules() string {
	out, _ := exec.Command("iptables-save", "-t", "nat").Output()
	return string(out)
}

func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("not in time: %s: %v", what, err)
}
