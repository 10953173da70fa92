package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// node is a world in which the driver has registered, with a publisher.
type node struct {
	*world
	*Publisher
	claimed atomic.Int32 // how often it was told
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	n := &node{world: newWorld(t)}
	t.Cleanup(func() {
		points, _ := mountinfo.Below(n.dir)
		for i := len(points) - 1; i >= 0; i-- {
			_ = unix.Unmount(points[i], unix.MNT_DETACH)
		}
	})
	n.cluster(t, func(*storagev1.CSIDriverSpec) {})
	n.restart(t)
	return n
}

// restart has another publisher take over, as after a kill of the agent.
func (n *node) restart(t *testing.T) {
	t.Helper()
	n.Drivers = NewDrivers(n.api, n.Drivers.node)
	if err := n.Register(t.Context(), n.plugin()); err != nil {
		t.Fatal(err)
	}
	var err error
	n.Publisher, err = NewPublisher(Options{
		Dir: n.dir, Drivers: n.Drivers, Client: n.api, Node: "node-1", Claimed: func() { n.claimed.Add(1) },
		Token: func(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			r.Status.Token = fmt.Sprintf("token of %s/%s for %s", namespace, account, strings.Join(r.Spec.Audiences, ","))
			return r, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// cluster says what the cluster knows of the driver: both modes, no attaching, and more.
func (n *node) cluster(t *testing.T, more func(*storagev1.CSIDriverSpec)) {
	t.Helper()
	no, policy := false, storagev1.FileFSGroupPolicy
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: &no, FSGroupPolicy: &policy, VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}}
	more(&object.Spec)
	_ = n.api.Tracker().Delete(storagev1.SchemeGroupVersion.WithResource("csidrivers"), "", driverName)
	if err := n.api.Tracker().Add(object); err != nil {
		t.Fatal(err)
	}
}

func (n *node) folder(pod *v1.Pod, v Volume) string {
	return Folder(filepath.Join(n.pods, string(pod.UID), "volumes"), v)
}

func persistent(handle string, mode v1.PersistentVolumeAccessMode) Volume {
	return Persistent(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + handle}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{mode}, MountOptions: []string{"noatime"},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: driverName, VolumeHandle: handle, FSType: "ext4", VolumeAttributes: map[string]string{"a": "b"},
			NodeStageSecretRef: &v1.SecretReference{Namespace: "default", Name: "stage"}, NodePublishSecretRef: &v1.SecretReference{Namespace: "default", Name: "publish"},
		}},
	}}, false)
}

func (n *node) secrets(t *testing.T) {
	t.Helper()
	for _, name := range []string{"stage", "publish"} {
		if err := n.api.Tracker().Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{"key": []byte("of " + name)}}); err != nil {
			t.Fatal(err)
		}
	}
}

func inline(pod *v1.Pod) Volume {
	readOnly := true
	return Inline(pod, &v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: driverName, ReadOnly: &readOnly, VolumeAttributes: map[string]string{"size": "1"},
	}}})
}

// asked is the request of the last call of a name.
func asked[T any](t *testing.T, n *node, name string) (request T) {
	t.Helper()
	calls := n.driver.Asked(name)
	if len(calls) == 0 {
		t.Fatalf("there was no %s", name)
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(calls[len(calls)-1], name+" ")), &request); err != nil {
		t.Fatal(err)
	}
	return request
}

func (n *node) counts() string {
	return fmt.Sprintf("stage %d publish %d unpublish %d unstage %d", len(n.driver.Asked("NodeStageVolume")), len(n.driver.Asked("NodePublishVolume")),
		len(n.driver.Asked("NodeUnpublishVolume")), len(n.driver.Asked("NodeUnstageVolume")))
}

type call struct {
	VolumeID, TargetPath, StagingTargetPath string
	Readonly                                bool
	VolumeContext, Secrets                  map[string]string
	VolumeCapability                        struct {
		AccessMode struct{ Mode string }
		Mount      struct {
			FsType, VolumeMountGroup string
			MountFlags               []string
		}
	}
}

// tear leaves a file of a volume as a crash in the middle of a write can.
func tear(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, dataFile), []byte(`{"specVo`), 0o600); err != nil {
		t.Fatal(err)
	}
}

// content writes a file into a volume, and returns a check that the volume still has it.
func (n *node) content(t *testing.T, target, handle string) (check func()) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(target, "precious"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if text, err := os.ReadFile(filepath.Join(n.driver.Volume(handle), "precious")); err != nil || string(text) != "content" {
			t.Errorf("the volume has %q, %v", text, err)
		}
	}
}

// mounts are what is mounted below the node's folder.
func (n *node) mounts(t *testing.T) []string {
	t.Helper()
	points, err := mountinfo.Below(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	return points
}
