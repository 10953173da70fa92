package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fakeclient "k8s.io/client-go/kubernetes/fake"

	"github.com/berth-k8s/berth/internal/node/agent/csi"
	"github.com/berth-k8s/berth/internal/node/agent/csi/fake"
	"github.com/berth-k8s/berth/internal/node/agent/registry"
)

const driverName = "folders.example.com"

// withDriver is a world whose manager has a CSI driver, which wants to be asked again, and an API
// with these objects.
func withDriver(t *testing.T, objects ...runtime.Object) (*world, *fake.Driver) {
	t.Helper()
	needsRoot(t)
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	no, yes, policy := false, true, storagev1.FileFSGroupPolicy
	api := fakeclient.NewClientset(append(objects, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: &no, FSGroupPolicy: &policy, RequiresRepublish: &yes, TokenRequests: []storagev1.TokenRequest{{ExpirationSeconds: new(int64(3600))}},
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}})...)
	d := &fake.Driver{
		Name: driverName, Dir: dir, Registry: dir, Info: &spec.NodeGetInfoResponse{NodeId: "here"},
		Can: []spec.NodeServiceCapability_RPC_Type{spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS},
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Stop(); _ = os.RemoveAll(dir) })
	w := newWorld(t)
	w.csi = func(m *Manager) {
		drivers := csi.NewDrivers(api, func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}} })
		if err := drivers.Register(t.Context(), registry.Plugin{Name: driverName, Endpoint: filepath.Join(dir, "csi.sock"), Versions: []string{"1.0.0"}}); err != nil {
			t.Fatal(err)
		}
		m.options.Client = api
		m.options.CSI, err = csi.NewPublisher(csi.Options{
			Dir: m.options.Dir, Drivers: drivers, Client: api, Node: "node-1", Claimed: func() {},
			Token: func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
				return m.Token(ctx, namespace, account, r)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.csi(w.Manager)
	return w, d
}

// bound are a claim and the volume that it is bound to.
func bound(name string, mode v1.PersistentVolumeMode, source v1.PersistentVolumeSource) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
	claim.Spec.VolumeName, claim.Status.Phase = "pv-"+name, v1.ClaimBound
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
	volume.Spec.PersistentVolumeSource, volume.Spec.VolumeMode = source, &mode
	volume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: name, UID: claim.UID}
	return claim, volume
}

func ofFolders(handle string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: handle}}
}

// A claim is where its volume is: a driver's, also after a restart of the agent, or a folder of the
// host.
func TestClaims(t *testing.T) {
	data, dataVolume := bound("data", v1.PersistentVolumeFilesystem, ofFolders("h"))
	folder := t.TempDir()
	host, hostVolume := bound("host", v1.PersistentVolumeFilesystem, v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: folder}})
	w, d := withDriver(t, data, dataVolume, host, hostVolume)
	p := pod(t, `[{name: d, persistentVolumeClaim: {claimName: data, readOnly: true}}, {name: h, persistentVolumeClaim: {claimName: host}}]`)
	w.mustMount(p)
	target := filepath.Join(w.PodDir(p.UID), "volumes", "kubernetes.io~csi", "pv-data", "mount")
	if got := w.dir(p, "d"); got != target {
		t.Errorf("the driver's volume is at %s", got)
	}
	mounts, err := w.Mounts(p, &p.Spec.Containers[0], View{})
	if err != nil || len(mounts) < 2 || !mounts[0].ReadOnly || mounts[1].ReadOnly || mounts[1].HostPath != folder {
		t.Errorf("mounts: %+v, %v", mounts, err)
	}
	usages, err := w.Usage(t.Context(), p)
	if err != nil || len(usages) != 1 || usages[0].Claim != "data" || usages[0].Own == nil || usages[0].Own.Bytes.Total != 1000 || usages[0].Own.Inodes.Available != 6 {
		t.Errorf("usage: %+v, %v", usages, err)
	}
	calls := len(d.Asked("NodePublishVolume"))
	w.refresh(t.Context(), p.UID)
	if got := len(d.Asked("NodePublishVolume")); got != calls {
		t.Error("asked again at once")
	}
	w.changePlace(p.UID, func(at *place) { at.asked = at.asked.Add(-2 * time.Minute) })
	w.refresh(t.Context(), p.UID)
	if got := len(d.Asked("NodePublishVolume")); got != calls+1 {
		t.Errorf("asked %d times, not again after two minutes", got-calls)
	}
	next := w.restarted()
	w.csi(next)
	next.Update(p)
	next.refresh(t.Context(), p.UID)
	if got := len(d.Asked("NodePublishVolume")); got != calls+2 || next.volumeDir(p.UID, p.Spec.Volumes[0]) != target {
		t.Errorf("after a restart: asked %d times, the volume is at %q", got-calls, next.volumeDir(p.UID, p.Spec.Volumes[0]))
	}
	if err := next.Unmount(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	if len(d.Asked("NodeUnpublishVolume")) != 1 || len(d.Asked("NodeUnstageVolume")) != 1 {
		t.Errorf("asked back: %q", d.Asked("NodeUnpublishVolume", "NodeUnstageVolume"))
	}
	if _, err := os.Stat(folder); err != nil {
		t.Error(err)
	}
}

// changePlace changes that of a pod's volume d.
func (w *world) changePlace(uid types.UID, change func(*place)) {
	w.Manager.mu.Lock()
	defer w.Manager.mu.Unlock()
	at := w.pods[uid].places["d"]
	change(&at)
	w.pods[uid].places["d"] = at
}

func TestClaimsThatCannotBe(t *testing.T) {
	waiting, _ := bound("waiting", "", v1.PersistentVolumeSource{})
	waiting.Status.Phase, waiting.Spec.VolumeName = v1.ClaimPending, ""
	lost, _ := bound("lost", "", v1.PersistentVolumeSource{})
	stolen, stolenVolume := bound("stolen", v1.PersistentVolumeFilesystem, ofFolders("s"))
	stolenVolume.Spec.ClaimRef.UID = "another"
	remote, remoteVolume := bound("remote", v1.PersistentVolumeFilesystem, v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}})
	device, deviceVolume := bound("device", v1.PersistentVolumeBlock, ofFolders("b"))
	going, goingVolume := bound("going", v1.PersistentVolumeFilesystem, ofFolders("g"))
	going.DeletionTimestamp, going.Finalizers = new(metav1.Now()), []string{"x"}
	others, othersVolume := bound("web-x", v1.PersistentVolumeFilesystem, ofFolders("o"))
	w, d := withDriver(t, waiting, lost, stolen, stolenVolume, remote, remoteVolume, device, deviceVolume, going, goingVolume, others, othersVolume)
	for claim, want := range map[string]string{
		"absent": `failed to fetch PVC from API server: persistentvolumeclaims "absent" not found`, "waiting": "PVC is not bound",
		"lost": "failed to fetch PV pv-lost from API server", "stolen": "PV pv-stolen is not bound to PVC shop/stolen", "remote": "no persistent volumes of the type of PV pv-remote",
		"device": "volume x has volumeMode Block, but is specified in volumeMounts", "going": "PVC is being deleted",
	} {
		err := w.Mount(t.Context(), pod(t, `[{name: x, persistentVolumeClaim: {claimName: `+claim+`}}]`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %q", claim, err, want)
		}
	}
	err := w.Mount(t.Context(), pod(t, `[{name: x, ephemeral: {volumeClaimTemplate: {spec: {}}}}]`))
	if err == nil || !strings.Contains(err.Error(), "PVC shop/web-x was not created for pod shop/web (pod is not owner)") {
		t.Errorf("another's claim: %v", err)
	}
	if calls := d.Asked("NodePublishVolume", "NodeStageVolume"); len(calls) > 0 {
		t.Errorf("asked: %q", calls)
	}
}

// A pod is being unmounted, in vain: what a driver has taken back already is not made again for it,
// not by the next agent either.
func TestNothingIsRefreshedWhileAPodIsUnmounted(t *testing.T) {
	claim, volume := bound("data", v1.PersistentVolumeFilesystem, ofFolders("h"))
	w, d := withDriver(t, claim, volume)
	p := pod(t, `[{name: d, csi: {driver: folders.example.com}}, {name: x, persistentVolumeClaim: {claimName: data}}]`)
	w.mustMount(p)
	busy := w.dir(p, "x")
	if err := unix.Mount(t.TempDir(), busy, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	calls := d.Asked("NodePublishVolume")
	if err := w.Unmount(t.Context(), p.UID); err == nil || len(d.Asked("NodeUnpublishVolume")) != 2 {
		t.Fatalf("%v, asked: %q", err, d.Asked("NodeUnpublishVolume"))
	}
	w.changePlace(p.UID, func(at *place) { at.asked = at.asked.Add(-2 * time.Minute) })
	w.Update(p)
	w.refresh(t.Context(), p.UID)
	if got := d.Asked("NodePublishVolume"); len(got) != len(calls) {
		t.Errorf("made again: %q", got[len(calls):])
	}
	next := w.restarted()
	w.csi(next)
	next.Update(p)
	next.refresh(t.Context(), p.UID)
	for _, call := range d.Asked("NodePublishVolume")[len(calls):] {
		if strings.Contains(call, `"csi-`) {
			t.Errorf("made again by the next agent: %q", call)
		}
	}
	for end := time.Now().Add(5 * time.Second); next.Unmount(t.Context(), p.UID) != nil; {
		if time.Now().After(end) {
			t.Fatal("it cannot be unmounted")
		}
	}
	w.mustMount(p)
}

// A driver that hangs while a pod's volume is made again does not hold up the pod's end, nor
// whoever waits for it beyond the end of its context.
func TestEndOfAPodWhileADriverHangs(t *testing.T) {
	w, d := withDriver(t)
	p := pod(t, `[{name: d, csi: {driver: folders.example.com}}]`)
	w.mustMount(p)
	if err := d.Obey("NodePublishVolume", codes.OK, true); err != nil {
		t.Fatal(err)
	}
	w.changePlace(p.UID, func(at *place) { at.asked = at.asked.Add(-2 * time.Minute) })
	var refreshing sync.WaitGroup
	defer refreshing.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refreshing.Go(func() { w.refresh(ctx, p.UID) })
	for end := time.Now().Add(30 * time.Second); len(d.Asked("NodePublishVolume")) < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not hang")
		}
	}
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	began := time.Now()
	if err := w.Mount(short, p); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	if err := w.Unmount(t.Context(), p.UID); err != nil || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
