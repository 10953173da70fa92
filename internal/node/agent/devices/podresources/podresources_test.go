package podresources

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berth-k8s/berth/internal/node/agent/devices"
	"github.com/berth-k8s/berth/internal/node/agent/memory"
)

func pod(name string) *v1.Pod {
	always := v1.ContainerRestartPolicyAlways
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "first"}, {Name: "side", RestartPolicy: &always}}, Containers: []v1.Container{{Name: "main"}},
	}}
}

// What an exporter reads: active pods, the containers that stay, and a device with its node of
// memory, over the kubelet's socket. Who asks too often is told so.
func TestWhoHasWhat(t *testing.T) {
	dir, err := os.MkdirTemp("", "resources-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "kubelet.sock")}) // by an agent that was killed
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	one, over := pod("one"), pod("over")
	s := &Server{
		Pods: func() []*v1.Pod { return []*v1.Pod{one, over} }, Active: func() []*v1.Pod { return []*v1.Pod{one} },
		Held: func(uid types.UID, container string) map[string][]devices.Device {
			if uid != "one" || container == "side" {
				return nil
			}
			return map[string][]devices.Device{"x/nic": {{ID: "n"}}, "x/gpu": {{ID: "a", NUMA: []int64{0, 1}}}}
		},
		Allocatable: func() map[string][]devices.Device {
			return map[string][]devices.Device{"x/gpu": {{ID: "a"}, {ID: "b"}}}
		},
		CPUs: func(uid types.UID, container string) []int {
			if uid != "one" || container == "side" {
				return nil
			}
			return []int{2, 3}
		},
		AllCPUs: func() []int { return []int{1, 2, 3} },
		Memory: func(uid types.UID, container string) []memory.Block {
			if uid != "one" || container == "side" {
				return nil
			}
			return []memory.Block{{NUMAAffinity: []int{0, 1}, Type: "memory", Size: 100}}
		},
		AllMemory: func() []memory.Block { return []memory.Block{{NUMAAffinity: []int{1}, Type: "hugepages-2Mi", Size: 7}} },
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx, dir); close(ended) }()
	defer func() { cancel(); <-ended }()
	conn, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "kubelet.sock"))
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := api.NewPodResourcesListerClient(conn)
	asking, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	list, err := client.List(asking, &api.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil || len(list.PodResources) != 1 {
		t.Fatalf("list: %v (%v)", list, err)
	}
	if got := describe(list.PodResources[0]); got != "default/one side: [] main: [x/gpu [a] at 0, x/gpu [a] at 1, x/nic [n]] CPUs [2 3] 100 of memory at 0 at 1" {
		t.Errorf("one: %s", got)
	}
	got, err := client.Get(asking, &api.GetPodResourcesRequest{PodNamespace: "default", PodName: "over"})
	if err != nil || describe(got.PodResources) != "default/over side: [] main: []" {
		t.Errorf("over: %v (%v)", got, err)
	}
	if _, err := client.Get(asking, &api.GetPodResourcesRequest{PodNamespace: "other", PodName: "one"}); err == nil ||
		status.Convert(err).Message() != "pod one in namespace other not found" {
		t.Errorf("a pod that is not there: %v", err)
	}
	all, err := client.GetAllocatableResources(asking, &api.AllocatableResourcesRequest{})
	if err != nil || fmt.Sprintf("%v %v %s", ids(all.Devices), all.CpuIds, amounts(all.Memory)) != "[x/gpu [a] x/gpu [b]] [1 2 3] 7 of hugepages-2Mi at 1" {
		t.Errorf("allocatable: %v (%v)", all, err)
	}
	for range 10 * burst { // far more than are let through, however slow the machine is
		if _, err = client.List(asking, &api.ListPodResourcesRequest{}); err != nil {
			break
		}
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("asked too often: %v", err)
	}
}

func ids(list []*api.ContainerDevices) (out []string) {
	for _, d := range list {
		text := fmt.Sprint(d.ResourceName, " ", d.DeviceIds)
		for _, node := range d.GetTopology().GetNodes() {
			text += fmt.Sprintf(" at %d", node.ID)
		}
		out = append(out, text)
	}
	return out
}

func amounts(list []*api.ContainerMemory) (out string) {
	for _, m := range list {
		out += fmt.Sprint(m.Size, " of ", m.MemoryType)
		for _, node := range m.GetTopology().GetNodes() {
			out += fmt.Sprintf(" at %d", node.ID)
		}
	}
	return out
}

func describe(p *api.PodResources) string {
	out := p.Namespace + "/" + p.Name
	for _, c := range p.Containers {
		out += fmt.Sprintf(" %s: [%s]", c.Name, strings.Join(ids(c.Devices), ", "))
		if len(c.CpuIds) > 0 {
			out += fmt.Sprint(" CPUs ", c.CpuIds)
		}
		if len(c.Memory) > 0 {
			out += " " + amounts(c.Memory)
		}
	}
	return out
}
