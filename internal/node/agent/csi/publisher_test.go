package csi

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// A pod's own volume: the driver hears of the pod, and of its account; it is gone with the pod,
// also if the agent was killed meanwhile.
func TestInlineVolume(t *testing.T) {
	n := newNode(t)
	n.cluster(t, func(s *storagev1.CSIDriverSpec) {
		yes := true
		s.PodInfoOnMount, s.RequiresRepublish, s.TokenRequests = &yes, &yes, []storagev1.TokenRequest{{Audience: "vault"}, {}}
	})
	pod := podOn("p")
	v := inline(pod)
	dir := n.folder(pod, v)
	published, err := n.Publish(t.Context(), pod, v, dir)
	if err != nil || !published.Again || published.Group {
		t.Fatalf("%+v, %v", published, err)
	}
	c := asked[call](t, n, "NodePublishVolume")
	if !c.Readonly || c.TargetPath != filepath.Join(dir, "mount") || c.StagingTargetPath != "" || c.VolumeCapability.AccessMode.Mode != "SINGLE_NODE_WRITER" {
		t.Errorf("%+v", c)
	}
	for key, want := range map[string]string{
		"size": "1", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.uid": "uid-p", "csi.storage.k8s.io/pod.namespace": "default",
		"csi.storage.k8s.io/serviceAccount.name": "account", "csi.storage.k8s.io/ephemeral": "true",
		"csi.storage.k8s.io/serviceAccount.tokens": `{"":{"token":"token of default/account for ","expirationTimestamp":null},"vault":{"token":"token of default/account for vault","expirationTimestamp":null}}`,
	} {
		if c.VolumeContext[key] != want {
			t.Errorf("%s: %q, not %q", key, c.VolumeContext[key], want)
		}
	}
	if mounted, err := mountinfo.On(Target(dir)); err != nil || !mounted {
		t.Fatalf("mounted: %t, %v", mounted, err)
	}
	if used := n.InUse(); len(used) > 0 {
		t.Errorf("in use: %v", used)
	}
	n.restart(t)
	if err := n.Unpublish(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
	if err := n.Unpublish(t.Context(), dir); err != nil || n.counts() != "stage 0 publish 1 unpublish 1 unstage 0" {
		t.Errorf("%s, %v", n.counts(), err)
	}
}

// A persistent volume is staged once for all pods of the node, and unstaged with the last of them,
// whoever is killed in between.
func TestPersistentVolume(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	v := persistent("handle-1", v1.ReadWriteMany)
	a, b := podOn("a"), podOn("b")
	for _, pod := range []*v1.Pod{a, b} {
		if _, err := n.Publish(t.Context(), pod, v, n.folder(pod, v)); err != nil {
			t.Fatal(err)
		}
	}
	staged, published := asked[call](t, n, "NodeStageVolume"), asked[call](t, n, "NodePublishVolume")
	if staged.Secrets["key"] != "of stage" || published.Secrets["key"] != "of publish" || published.StagingTargetPath != staged.StagingTargetPath ||
		published.VolumeCapability.AccessMode.Mode != "MULTI_NODE_MULTI_WRITER" || staged.VolumeCapability.Mount.FsType != "ext4" ||
		strings.Join(staged.VolumeCapability.Mount.MountFlags, " ") != "noatime" || published.VolumeContext["a"] != "b" || len(published.VolumeContext) != 1 {
		t.Errorf("staged %+v\npublished %+v", staged, published)
	}
	if used := n.InUse(); len(used) != 1 || used[0] != "kubernetes.io/csi/folders.example.com^handle-1" || n.claimed.Load() == 0 {
		t.Errorf("in use: %v, told %d times", used, n.claimed.Load())
	}
	if n.counts() != "stage 1 publish 2 unpublish 0 unstage 0" {
		t.Error(n.counts())
	}
	if err := n.Unpublish(t.Context(), n.folder(a, v)); err != nil || n.counts() != "stage 1 publish 2 unpublish 1 unstage 0" {
		t.Errorf("%s, %v", n.counts(), err)
	}
	n.restart(t)
	n.Sweep(t.Context())
	if n.counts() != "stage 1 publish 2 unpublish 1 unstage 0" {
		t.Errorf("unstaged while a pod has it: %s", n.counts())
	}
	// The driver cannot, and later it can.
	if err := n.driver.Obey("NodeUnstageVolume", codes.Internal, false); err != nil {
		t.Fatal(err)
	}
	if err := n.Unpublish(t.Context(), n.folder(b, v)); err != nil {
		t.Fatal(err)
	}
	if err := n.driver.Obey("NodeUnstageVolume", codes.OK, false); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	n.Sweep(t.Context())
	n.Sweep(t.Context())
	if n.counts() != "stage 1 publish 2 unpublish 2 unstage 2" || len(n.InUse()) > 0 {
		t.Errorf("%s, in use %v", n.counts(), n.InUse())
	}
	if points, _ := mountinfo.Below(n.dir); len(points) > 0 {
		t.Errorf("mounted: %v", points)
	}
	if _, err := os.Lstat(n.stagingPath(driverName, "handle-1")); !os.IsNotExist(err) {
		t.Errorf("the staging folder is left: %v", err)
	}
}

// What a driver has refused is not asked back; what it may still make is.
func TestFailures(t *testing.T) {
	n := newNode(t)
	pod := podOn("p")
	v := inline(pod)
	dir := n.folder(pod, v)
	for _, one := range []struct {
		code codes.Code
		left bool
	}{{codes.InvalidArgument, false}, {codes.Unavailable, true}} {
		if err := n.driver.Obey("NodePublishVolume", one.code, false); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Publish(t.Context(), pod, v, dir); err == nil || !strings.Contains(err.Error(), "as ordered") {
			t.Errorf("%s: %v", one.code, err)
		}
		if n.Has(dir) != one.left {
			t.Errorf("%s: claimed %t", one.code, n.Has(dir))
		}
	}
	if err := n.Unpublish(t.Context(), dir); err != nil || len(n.driver.Asked("NodeUnpublishVolume")) != 1 {
		t.Errorf("%v, %s", err, n.counts())
	}
	other := v
	other.Driver = "other.example.com"
	if _, err := n.Publish(t.Context(), pod, other, dir); err == nil || err.Error() != "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name other.example.com not found in the list of registered CSI drivers" {
		t.Errorf("%v", err)
	}
	n.cluster(t, func(s *storagev1.CSIDriverSpec) { s.VolumeLifecycleModes = s.VolumeLifecycleModes[:1] })
	if _, err := n.Publish(t.Context(), pod, v, dir); err == nil || !strings.Contains(err.Error(), `volume mode "Ephemeral" not supported by driver folders.example.com (only supports ["Persistent"])`) {
		t.Errorf("%v", err)
	}
	if n.Has(dir) {
		t.Error("claimed without a call")
	}
}

// A driver that hangs is given up when the pod ends, and keeps nobody else waiting.
func TestHangingDriver(t *testing.T) {
	n := newNode(t)
	if err := n.driver.Obey("NodePublishVolume", codes.OK, true); err != nil {
		t.Fatal(err)
	}
	a, b := podOn("a"), podOn("b")
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	defer done.Wait()
	done.Go(func() {
		if _, err := n.Publish(ctx, a, inline(a), n.folder(a, inline(a))); err == nil {
			t.Error("published")
		}
	})
	await(t, "it hangs", func() bool { return len(n.driver.Asked("NodePublishVolume")) == 1 })
	if err := n.driver.Obey("NodePublishVolume", codes.OK, false); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Publish(t.Context(), b, inline(b), n.folder(b, inline(b))); err != nil {
		t.Error(err)
	}
	began := time.Now()
	cancel()
	done.Wait()
	if took := time.Since(began); took > 10*time.Second || !n.Has(n.folder(a, inline(a))) {
		t.Errorf("given up after %s, claimed %t", took, n.Has(n.folder(a, inline(a))))
	}
}

// A volume that has to be attached is waited for, and reported as in use before.
func TestAttachment(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	n.cluster(t, func(s *storagev1.CSIDriverSpec) { s.AttachRequired = nil })
	pod, v := podOn("p"), persistent("disk", v1.ReadWriteOnce)
	refused := func(want string) {
		t.Helper()
		if _, err := n.Publish(t.Context(), pod, v, n.folder(pod, v)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
	refused("the node's status does not have volume pv-disk among those in use yet")
	n.world.mu.Lock()
	n.world.node = n.world.node.DeepCopy()
	n.world.node.Status.VolumesInUse = n.InUse()
	n.world.mu.Unlock()
	refused("not found")
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachment(v, "node-1")}}
	if err := n.api.Tracker().Add(va); err != nil {
		t.Fatal(err)
	}
	refused("volume pv-disk is not attached to the node yet")
	va.Status.AttachError = &storagev1.VolumeError{Message: "no more slots"}
	if err := n.api.Tracker().Update(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), va, ""); err != nil {
		t.Fatal(err)
	}
	refused("no more slots")
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "vdb"}}
	if err := n.api.Tracker().Update(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), va, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Publish(t.Context(), pod, v, n.folder(pod, v)); err != nil {
		t.Fatal(err)
	}
	if c := asked[struct{ PublishContext map[string]string }](t, n, "NodeStageVolume"); c.PublishContext["device"] != "vdb" {
		t.Errorf("%+v", c)
	}
}

// Who owns a volume: the driver sees to it if it can, else the node by the driver's policy.
func TestGroup(t *testing.T) {
	group := int64(1234)
	pod := podOn("p")
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	n := newNode(t)
	n.secrets(t)
	v := persistent("h", v1.ReadWriteOnce)
	for _, one := range []struct {
		policy storagev1.FSGroupPolicy
		change func(*Volume)
		want   bool
	}{
		{storagev1.FileFSGroupPolicy, func(*Volume) {}, true},
		{storagev1.FileFSGroupPolicy, func(v *Volume) { v.ReadOnly = true }, false},
		{storagev1.NoneFSGroupPolicy, func(*Volume) {}, false},
		{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, func(*Volume) {}, true},
		{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, func(v *Volume) { v.FSType = "" }, false},
		{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, func(v *Volume) { v.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany} }, false},
	} {
		n.cluster(t, func(s *storagev1.CSIDriverSpec) { s.FSGroupPolicy = &one.policy })
		v := v
		one.change(&v)
		if published, err := n.Publish(t.Context(), pod, v, n.folder(pod, v)); err != nil || published.Group != one.want {
			t.Errorf("%s %+v: %t, %v", one.policy, v, published.Group, err)
		}
	}
	n.driver.Can = append(n.driver.Can, spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	if published, err := n.Publish(t.Context(), pod, v, n.folder(pod, v)); err != nil || published.Group {
		t.Errorf("%+v, %v", published, err)
	}
	if c := asked[call](t, n, "NodePublishVolume"); c.VolumeCapability.Mount.VolumeMountGroup != "1234" {
		t.Errorf("%+v", c)
	}
}

// Of a pod's two volumes with one folder, a persistent one and its own of the same name, the second
// waits: what the first driver made would never be taken back.
func TestTwoVolumesOfOneFolder(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	pod, v := podOn("p"), persistent("handle-1", v1.ReadWriteOnce)
	own := inline(pod)
	own.Name = v.Name
	dir := n.folder(pod, v)
	if _, err := n.Publish(t.Context(), pod, v, dir); err != nil || dir != n.folder(pod, own) {
		t.Fatal(err)
	}
	if _, err := n.Publish(t.Context(), pod, own, dir); err == nil || !strings.Contains(err.Error(), "two volumes of the pod have one folder") {
		t.Errorf("published: %v", err)
	}
	if err := n.Unpublish(t.Context(), dir); err != nil || n.counts() != "stage 1 publish 1 unpublish 1 unstage 1" {
		t.Errorf("%s, %v", n.counts(), err)
	}
}

// A volume for one pod alone is given to no other pod of the node, whoever let that one through.
func TestReadWriteOncePod(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	v := persistent("handle-1", v1.ReadWriteOncePod)
	a, b := podOn("a"), podOn("b")
	if _, err := n.Publish(t.Context(), a, v, n.folder(a, v)); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	for range 2 {
		if _, err := n.Publish(t.Context(), b, v, n.folder(b, v)); err == nil || err.Error() != "volume uses the ReadWriteOncePod access mode and is already in use by another pod" {
			t.Fatalf("published: %v", err)
		}
		if _, err := n.Publish(t.Context(), a, v, n.folder(a, v)); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Unpublish(t.Context(), n.folder(a, v)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Publish(t.Context(), b, v, n.folder(b, v)); err != nil {
		t.Error(err)
	}
}

// A driver that takes too long to unstage a volume is asked for no other one in this sweep.
func TestSweepOfADriverThatHangs(t *testing.T) {
	n := newNode(t)
	n.secrets(t)
	if err := n.driver.Obey("NodeUnstageVolume", codes.DeadlineExceeded, false); err != nil {
		t.Fatal(err)
	}
	pod := podOn("p")
	for _, handle := range []string{"one", "two", "three"} {
		v := persistent(handle, v1.ReadWriteOnce)
		if _, err := n.Publish(t.Context(), pod, v, n.folder(pod, v)); err != nil {
			t.Fatal(err)
		}
		if err := n.Unpublish(t.Context(), n.folder(pod, v)); err != nil {
			t.Fatal(err)
		}
	}
	n.Sweep(t.Context())
	if n.counts() != "stage 3 publish 3 unpublish 3 unstage 4" {
		t.Error(n.counts())
	}
	if err := n.driver.Obey("NodeUnstageVolume", codes.OK, false); err != nil {
		t.Fatal(err)
	}
	n.Sweep(t.Context())
	if n.counts() != "stage 3 publish 3 unpublish 3 unstage 7" {
		t.Error(n.counts())
	}
}
