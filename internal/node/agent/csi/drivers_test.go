package csi

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
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fakeclient "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-k8s/berth/internal/node/agent/csi/fake"
	"github.com/berth-k8s/berth/internal/node/agent/registry"
)

const driverName = "folders.example.com"

// world is a node with an API, its drivers, and one that is not registered yet.
type world struct {
	*Drivers
	api    *fakeclient.Clientset
	driver *fake.Driver
	dir    string

	mu   sync.Mutex
	node *v1.Node
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{dir: dir, node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-1", Labels: map[string]string{"here": "already"}}}}
	w.api = fakeclient.NewClientset(append(objects, w.node)...)
	w.Drivers = NewDrivers(w.api, func() *v1.Node {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.node
	})
	w.driver = &fake.Driver{
		Name: driverName, Dir: filepath.Join(dir, "driver"), Registry: dir,
		Info: &spec.NodeGetInfoResponse{NodeId: "id-of-node-1", MaxVolumesPerNode: 7, AccessibleTopology: &spec.Topology{Segments: map[string]string{"topology.example.com/rack": "r1"}}},
		Can: []spec.NodeServiceCapability_RPC_Type{
			spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		},
	}
	if err := w.driver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.driver.Stop(); _ = os.RemoveAll(dir) })
	return w
}

func (w *world) plugin() registry.Plugin {
	return registry.Plugin{Name: driverName, Endpoint: filepath.Join(w.driver.Dir, "csi.sock"), Versions: []string{"1.0.0"}}
}

// run has changes reported until the test ends.
func (w *world) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { w.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func (w *world) csiNode(t *testing.T) *storagev1.CSINode {
	t.Helper()
	node, err := w.api.StorageV1().CSINodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return node
}

// What a driver says of the node is in the API, and goes with the driver; another node of the name
// starts anew.
func TestNodeInfo(t *testing.T) {
	w := newWorld(t, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: "node-1", UID: "another"}}},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "of-another", NodeID: "x"}}},
	})
	w.run(t)
	if err := w.Register(t.Context(), w.plugin()); err != nil {
		t.Fatal(err)
	}
	count := int32(7)
	want := []storagev1.CSINodeDriver{{Name: driverName, NodeID: "id-of-node-1", TopologyKeys: []string{"topology.example.com/rack"}, Allocatable: &storagev1.VolumeNodeResources{Count: &count}}}
	if diff := cmp.Diff(want, w.csiNode(t).Spec.Drivers); diff != "" {
		t.Error(diff)
	}
	node, err := w.api.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil || node.Labels["topology.example.com/rack"] != "r1" || node.Labels["here"] != "already" || node.Annotations[annotation] != `{"folders.example.com":"id-of-node-1"}` {
		t.Errorf("labels %v, annotations %v, %v", node.Labels, node.Annotations, err)
	}
	if owner := w.csiNode(t).OwnerReferences; len(owner) != 1 || owner[0].UID != "uid-1" {
		t.Errorf("owner: %+v", owner)
	}

	w.driver.Info.MaxVolumesPerNode = 0
	if err := w.Register(t.Context(), w.plugin()); err != nil {
		t.Fatal(err)
	}
	want[0].Allocatable = nil
	if diff := cmp.Diff(want, w.csiNode(t).Spec.Drivers); diff != "" {
		t.Errorf("after a change: %s", diff)
	}

	again := node.DeepCopy()
	again.UID, again.Labels, again.Annotations = "uid-2", nil, nil
	if err := w.api.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), again, ""); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.node = again
	w.mu.Unlock()
	w.Registered()
	await(t, "the new node is labelled, and owns its CSINode", func() bool {
		node, err := w.api.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
		has := w.csiNode(t)
		return err == nil && node.Labels["topology.example.com/rack"] == "r1" && has != nil && has.OwnerReferences[0].UID == "uid-2" && len(has.Spec.Drivers) == 1
	})

	w.Deregister(w.plugin())
	await(t, "the driver is gone", func() bool {
		node, err := w.api.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
		return err == nil && node.Annotations[annotation] == "" && len(w.csiNode(t).Spec.Drivers) == 0
	})
}

// A driver that says what cannot be is refused; one that registers while the API is away is not.
func TestWhichDriversAreTaken(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*registry.Plugin){
		"none of the versions specified":                  func(p *registry.Plugin) { p.Versions = []string{"2.0.0"} },
		`invalid name of a CSI driver or volume "../etc"`: func(p *registry.Plugin) { p.Name = "../etc" },
		"driverNodeID must not be empty":                  func(*registry.Plugin) { w.driver.Info.NodeId = "" },
		`topology value collision: driver reported "here":"there"`: func(*registry.Plugin) {
			w.driver.Info.NodeId, w.driver.Info.AccessibleTopology = "id", &spec.Topology{Segments: map[string]string{"here": "there"}}
		},
	} {
		p := w.plugin()
		info := w.driver.Info
		w.driver.Info = &spec.NodeGetInfoResponse{NodeId: "id"}
		change(&p)
		if err := w.Register(t.Context(), p); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, not %q", err, name)
		}
		w.driver.Info = info
	}
	if got := w.Names(); len(got) > 0 {
		t.Errorf("taken: %v", got)
	}
	var mu sync.Mutex
	away := true
	w.api.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		return away, nil, errors.New("connection refused")
	})
	w.run(t)
	if err := w.Register(t.Context(), w.plugin()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	away = false
	mu.Unlock()
	await(t, "it is reported later", func() bool { has := w.csiNode(t); return has != nil && len(has.Spec.Drivers) == 1 })
}

// A driver whose label an administrator has changed keeps no other one from being reported.
func TestCollisionOfAnotherDriver(t *testing.T) {
	w := newWorld(t)
	if err := w.Register(t.Context(), w.plugin()); err != nil {
		t.Fatal(err)
	}
	node, err := w.api.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Labels["topology.example.com/rack"] = "r2"
	if err := w.api.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), node, ""); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.node = node
	w.mu.Unlock()
	other := w.plugin()
	other.Name, w.driver.Info = "other.example.com", &spec.NodeGetInfoResponse{NodeId: "other"}
	if err := w.Register(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if got := w.csiNode(t).Spec.Drivers; len(got) != 2 || got[1].NodeID != "other" {
		t.Errorf("reported: %+v", got)
	}
	if node, err = w.api.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{}); err != nil || node.Labels["topology.example.com/rack"] != "r2" ||
		node.Annotations[annotation] != `{"folders.example.com":"id-of-node-1","other.example.com":"other"}` {
		t.Errorf("%v, %v, %v", node.Labels, node.Annotations, err)
	}
}

// A driver that is there before the node is registered is reported when it is.
func TestDriverBeforeNode(t *testing.T) {
	w := newWorld(t)
	w.run(t)
	registered := w.node
	w.mu.Lock()
	w.node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	w.mu.Unlock()
	if err := w.Register(t.Context(), w.plugin()); err != nil {
		t.Fatal(err)
	}
	if w.csiNode(t) != nil {
		t.Error("reported without a node")
	}
	w.mu.Lock()
	w.node = registered
	w.mu.Unlock()
	w.Registered()
	await(t, "it is reported", func() bool { has := w.csiNode(t); return has != nil && len(has.Spec.Drivers) == 1 })
}

func podOn(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}, Spec: v1.PodSpec{ServiceAccountName: "account"}}
}
