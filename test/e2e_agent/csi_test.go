package e2eagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/node/agent/csi/fake"
	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// csiDriver is the variable that makes of this program a CSI driver of a node: its folder, the
// agent's, and the node's name.
const csiDriver = "BERTH_TEST_CSI_DRIVER"

// runDriver is a process of its own, so that it can be killed.
func runDriver(described string) {
	if err := driverOf(described).Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("driver is up")
	select {}
}

func driverOf(described string) *fake.Driver {
	fields := strings.Split(described, "|")
	return &fake.Driver{
		Name: fields[2] + ".csi.example.com", Dir: fields[0], Registry: filepath.Join(fields[1], "plugins_registry"),
		Info: &spec.NodeGetInfoResponse{
			NodeId: "id-of-" + fields[2], MaxVolumesPerNode: 9, AccessibleTopology: &spec.Topology{Segments: map[string]string{"topology.csi.example.com/node": fields[2]}},
		},
		Can: []spec.NodeServiceCapability_RPC_Type{spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS},
	}
}

// startDriver starts a CSI driver on the node. Killed and started, it is the same again.
func (n *node) startDriver(t *testing.T) (*fake.Driver, *process) {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-csi-")
	if err != nil {
		t.Fatal(err)
	}
	described := dir + "|" + n.dir + "|" + n.name
	p := newProcess(os.Args[0], "as a driver")
	p.env = []string{csiDriver + "=" + described}
	if err := p.start("driver is up"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kill(); _ = os.RemoveAll(dir) })
	return driverOf(described), p
}

// A driver by upstream's protocol. A pod's own volume and a persistent one, which two pods share;
// agent and driver are killed at every step, and nothing is lost, made twice or left behind.
func TestCSIDriver(t *testing.T) {
	t.Parallel()
	n := newNode(t, "csi")
	ns := n.namespace(t)
	d, driver := n.startDriver(t)
	ctx := context.Background()
	n.apply(t, ns, fmt.Sprintf(csiObjects, d.Name, ns))
	t.Cleanup(func() {
		_, _ = n.kubectl("delete", "csidriver,pv", "-l", "test=csi", "--ignore-not-found", "--wait=false")
	})
	eventually(t, "the node's CSINode", func() error {
		node, err := n.client.StorageV1().CSINodes().Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(node.Spec.Drivers) != 1 || node.Spec.Drivers[0].NodeID != "id-of-csi" || node.Spec.Drivers[0].Allocatable == nil || *node.Spec.Drivers[0].Allocatable.Count != 9 {
			return fmt.Errorf("%+v", node.Spec)
		}
		return nil
	})
	labels, err := n.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil || labels.Labels["topology.csi.example.com/node"] != n.name {
		t.Errorf("labels: %v, %v", labels.Labels, err)
	}

	n.apply(t, ns, fmt.Sprintf(csiPod, "one", d.Name))
	one := n.awaitPod(t, ns, "one", "ready", ready)
	if got := strings.TrimSpace(n.do(t, "-n", ns, "exec", "one", "--", "sh", "-c", "echo kept > /shared/file; echo own > /own/file; cat /shared/file; stat -c %g /shared")); got != "kept\n4321" {
		t.Errorf("in the volumes: %q", got)
	}
	published := d.Asked("NodePublishVolume")
	if len(published) != 2 || !strings.Contains(strings.Join(published, "\n"), `"csi.storage.k8s.io/pod.name":"one"`) || !strings.Contains(strings.Join(published, "\n"), "serviceAccount.tokens") {
		t.Errorf("asked: %q", published)
	}
	if !strings.Contains(strings.Join(d.Asked("NodeStageVolume"), "\n"), `"password":"swordfish"`) {
		t.Errorf("asked: %q", d.Asked("NodeStageVolume"))
	}

	n.checkVolumeStats(t)

	// Everything is killed; what runs goes on, and another pod gets the same volume.
	n.agent.kill()
	driver.kill()
	if err := n.agent.start("ready node " + n.name); err != nil {
		t.Fatal(err)
	}
	if err := driver.start("driver is up"); err != nil {
		t.Fatal(err)
	}
	n.apply(t, ns, fmt.Sprintf(csiPod, "two", d.Name))
	n.awaitPod(t, ns, "two", "ready", ready)
	if got := strings.TrimSpace(n.do(t, "-n", ns, "exec", "two", "--", "sh", "-c", "cat /shared/file; ls /own")); got != "kept" {
		t.Errorf("in the volumes of two: %q", got)
	}
	now := n.pod(t, ns, "one")
	if cs := now.Status.ContainerStatuses[0]; cs.RestartCount != 0 || cs.ContainerID != one.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("one, after the kill: %+v", cs)
	}

	// A pod is deleted while neither agent nor driver runs.
	n.agent.kill()
	driver.kill()
	n.do(t, "-n", ns, "delete", "pod", "one", "--force", "--grace-period=0")
	if err := n.agent.start("ready node " + n.name); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // not a wait for anything: the agent tries without the driver
	if err := driver.start("driver is up"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what one had is gone", func() error { return n.nothingOf(string(one.UID)) })
	if got := strings.TrimSpace(n.do(t, "-n", ns, "exec", "two", "--", "cat", "/shared/file")); got != "kept" {
		t.Errorf("two has %q after one is gone", got)
	}
	if got := d.Asked("NodeUnstageVolume"); len(got) > 0 {
		t.Errorf("unstaged while two has it: %q", got)
	}

	two := n.pod(t, ns, "two")
	n.do(t, "-n", ns, "delete", "pod", "two")
	eventually(t, "what two had is gone", func() error { return n.nothingOf(string(two.UID)) })
	eventually(t, "nothing is mounted", func() error {
		if points, err := mountinfo.Below(n.dir); err != nil || len(points) > 0 {
			return fmt.Errorf("mounted: %v, %v", points, err)
		}
		return nil
	})
	if got := d.Asked("NodeUnstageVolume"); len(got) == 0 {
		t.Error("not unstaged")
	}
	if text, err := os.ReadFile(filepath.Join(d.Volume("shared"), "file")); string(text) != "kept\n" {
		t.Errorf("the volume's content: %q, %v", text, err)
	}
	if own, err := filepath.Glob(filepath.Join(d.Volume("csi-*"))); err != nil || len(own) > 0 {
		t.Errorf("volumes of pods are left: %v, %v", own, err)
	}
}

// nothingOf is an error while the agent's folder has something of a pod.
func (n *node) nothingOf(uid string) error {
	if _, err := os.Lstat(filepath.Join(n.dir, "pods", uid)); !os.IsNotExist(err) {
		return fmt.Errorf("its folder: %v", err)
	}
	return nil
}

// checkVolumeStats: what the driver says of a volume is in the stats API.
func (n *node) checkVolumeStats(t *testing.T) {
	t.Helper()
	eventually(t, "stats of the volume", func() error {
		out, err := n.kubectl("get", "--raw", "/api/v1/nodes/"+n.name+"/proxy/stats/summary")
		if err != nil {
			return err
		}
		if !strings.Contains(strings.Join(strings.Fields(out), ""), `"capacityBytes":1000,"usedBytes":400`) || !strings.Contains(out, `"shared"`) {
			return errNotYet
		}
		return nil
	})
}

const csiObjects = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: %[1]s, labels: {test: csi}}
spec:
  attachRequired: false
  podInfoOnMount: true
  fsGroupPolicy: File
  volumeLifecycleModes: [Persistent, Ephemeral]
  tokenRequests: [{audience: vault}]
---
apiVersion: v1
kind: Secret
metadata: {name: stage}
stringData: {password: swordfish}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared-csi, labels: {test: csi}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: none
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: %[1]s, volumeHandle: shared, nodeStageSecretRef: {name: stage, namespace: %[2]s}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: none
  volumeName: shared-csi
  resources: {requests: {storage: 1Gi}}
`

const csiPod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4321}
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sleep, "10000"]
    volumeMounts: [{name: shared, mountPath: /shared}, {name: own, mountPath: /own}]
  volumes:
  - name: shared
    persistentVolumeClaim: {claimName: shared}
  - name: own
    csi: {driver: %[2]s}
`
