package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/node/agent/csi"
	"github.com/berth-k8s/berth/internal/node/agent/csi/fake"
	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
	"github.com/berth-k8s/berth/internal/node/agent/registry"
)

// newNodeForCSI is a node whose API has the CSI driver folders.example.com, of inline volumes. dir
// is a folder for the driver. What is mounted is unmounted at the end.
func newNodeForCSI(t *testing.T) (n *node, ctx context.Context, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	no, policy := false, storagev1.FileFSGroupPolicy
	n, ctx = newNode(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "folders.example.com"}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: &no, FSGroupPolicy: &policy, VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
	}})
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		points, _ := mountinfo.Below(n.Agent.config.RootDir)
		for i := len(points) - 1; i >= 0; i-- {
			_ = unix.Unmount(points[i], unix.MNT_DETACH)
		}
		_ = os.RemoveAll(dir)
	})
	return n, ctx, dir
}

// A driver that hangs while it is to take back what a pod left does not keep other pods' leftovers
// on the node.
func TestSweepBesideADriverThatHangs(t *testing.T) {
	n, ctx, dir := newNodeForCSI(t)
	d := &fake.Driver{Name: "folders.example.com", Dir: dir, Registry: dir, Info: &spec.NodeGetInfoResponse{NodeId: "here"}}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	if err := n.drivers.Register(ctx, registry.Plugin{Name: d.Name, Endpoint: filepath.Join(dir, "csi.sock"), Versions: []string{"1.0.0"}}); err != nil {
		t.Fatal(err)
	}
	pods, pod := filepath.Join(n.Agent.config.RootDir, "pods"), boundPod("a")
	v := csi.Inline(pod, &v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: d.Name}}})
	if _, err := n.publisher.Publish(ctx, pod, v, csi.Folder(filepath.Join(pods, string(pod.UID), "volumes"), v)); err != nil {
		t.Fatal(err)
	}
	if err := d.Obey("NodeUnpublishVolume", codes.OK, true); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := os.MkdirAll(filepath.Join(pods, fmt.Sprint("left-", i), "volumes"), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	defer cancel()
	sweeping.Go(func() { n.sweep(ctx) })
	await(t, "what the other pods left is gone", func() bool {
		left, err := os.ReadDir(pods)
		return err == nil && len(left) == 1 && len(d.Asked("NodeUnpublishVolume")) == 1
	})
}

// A pod with a volume of a CSI driver waits for the driver, is given the volume, and leaves nothing
// when it is deleted; the driver is found by its socket.
func TestPodWithCSIVolume(t *testing.T) {
	n, ctx, dir := newNodeForCSI(t)
	n.listed.Store(true)
	n.pods.running.Go(func() { n.watchPlugins(ctx) })
	n.pods.running.Go(func() { n.drivers.Run(ctx) })
	pod := boundPod("p")
	pod.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "folders.example.com"}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	n.create(t, ctx, pod)
	await(t, "an event says what the pod waits for", func() bool {
		for {
			select {
			case e := <-n.events:
				if e.Reason == "FailedMount" && e.Message == `MountVolume.SetUp failed for volume "scratch" : kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name folders.example.com not found in the list of registered CSI drivers` {
					return true
				}
			default:
				return false
			}
		}
	})
	registry := filepath.Join(n.Agent.config.RootDir, "plugins_registry")
	if err := os.MkdirAll(registry, 0o755); err != nil {
		t.Fatal(err)
	}
	d := &fake.Driver{Name: "folders.example.com", Dir: dir, Registry: registry, Info: &spec.NodeGetInfoResponse{NodeId: "here"}}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	n.awaitStatus(t, "p", "runs", func(s v1.PodStatus) bool { return s.Phase == v1.PodRunning })
	n.runtime.mu.Lock()
	mounted := false
	for _, c := range n.runtime.configs {
		for _, m := range c.GetMounts() {
			mounted = mounted || m.ContainerPath == "/scratch" && m.HostPath == filepath.Join(n.Agent.config.RootDir, "pods", "uid-p", "volumes", "kubernetes.io~csi", "scratch", "mount")
		}
	}
	n.runtime.mu.Unlock()
	if !mounted {
		t.Error("the container does not mount the volume")
	}
	n.podGone(pod)
	await(t, "the volume is taken back", func() bool {
		_, err := os.Lstat(filepath.Join(n.Agent.config.RootDir, "pods", "uid-p"))
		return os.IsNotExist(err)
	})
	if calls := d.Asked("NodePublishVolume", "NodeUnpublishVolume", "NodeStageVolume"); len(calls) != 2 {
		t.Errorf("asked: %q", calls)
	}
}
