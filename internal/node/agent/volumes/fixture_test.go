package volumes

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
)

// world is a Manager and the API that it sees.
type world struct {
	*Manager
	t   *testing.T
	csi func(*Manager) // gives a manager a CSI driver; nil: there is none

	mu         sync.Mutex
	configMaps map[string]*v1.ConfigMap
	secrets    map[string]*v1.Secret
	requests   []*authenticationv1.TokenRequest
	refuse     error         // what the API says to requests for tokens
	slow       chan struct{} // if set, the ConfigMap "slow" is answered, as it was asked for, when this is closed
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, configMaps: map[string]*v1.ConfigMap{}, secrets: map[string]*v1.Secret{}}
	w.Manager = w.manager(t.TempDir())
	return w
}

// manager is one that works in a folder, perhaps after another one.
func (w *world) manager(dir string) *Manager {
	w.t.Helper()
	m, err := New(Options{
		Dir: dir, Objects: w, Tokens: w.token,
		Allocatable: func() v1.ResourceList {
			return v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("1Gi")}
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		points, _ := mountinfo.Below(m.root)
		for i := len(points) - 1; i >= 0; i-- {
			_ = unix.Unmount(points[i], unix.MNT_DETACH)
		}
	})
	return m
}

// restarted is the world after the agent has been killed and started again.
func (w *world) restarted() *Manager {
	return w.manager(filepath.Dir(w.root))
}

func (w *world) ConfigMap(_, name string) (*v1.ConfigMap, error) {
	w.mu.Lock()
	object := w.configMaps[name]
	w.mu.Unlock()
	if name == "slow" && w.slow != nil {
		<-w.slow
	}
	if object == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
	}
	return object, nil
}

func (w *world) Secret(_, name string) (*v1.Secret, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if object := w.secrets[name]; object != nil {
		return object, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
}

func (w *world) setConfigMap(name string, data map[string]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.configMaps[name] = &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}

func (w *world) setSecret(name string, data map[string][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.secrets[name] = &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}

// token gives out token-1, token-2 and so on.
func (w *world) token(_ context.Context, _, _ string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return nil, w.refuse
	}
	w.requests = append(w.requests, request)
	given := request.DeepCopy()
	given.Status.Token = "token-" + string(rune('0'+len(w.requests)))
	given.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(*request.Spec.ExpirationSeconds) * time.Second))
	return given, nil
}

func (w *world) refuseTokens(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = err
}

// pod is one whose only container mounts all its volumes, at /v/<name>.
func pod(t *testing.T, volumes string) *v1.Pod {
	t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "0b5c8a2e", Labels: map[string]string{"b": "two", "a": "one"}}}
	p.Spec.ServiceAccountName = "robot"
	if err := yaml.UnmarshalStrict([]byte(volumes), &p.Spec.Volumes); err != nil {
		t.Fatal(err)
	}
	main := v1.Container{Name: "main"}
	for _, volume := range p.Spec.Volumes {
		main.VolumeMounts = append(main.VolumeMounts, v1.VolumeMount{Name: volume.Name, MountPath: "/v/" + volume.Name})
	}
	p.Spec.Containers = []v1.Container{main}
	return p
}

func (w *world) mustMount(p *v1.Pod) {
	w.t.Helper()
	if err := w.Mount(context.Background(), p); err != nil {
		w.t.Fatal(err)
	}
}

// dir is where the pod's volume lies.
func (w *world) dir(p *v1.Pod, name string) string {
	w.t.Helper()
	volume, ok := volumeNamed(p, name)
	if !ok {
		w.t.Fatalf("no volume %s", name)
	}
	return w.volumeDir(p.UID, volume)
}

func (w *world) read(p *v1.Pod, volume, path string) string {
	w.t.Helper()
	content, err := os.ReadFile(filepath.Join(w.dir(p, volume), path))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(content)
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || err.Error() != text {
		t.Errorf("got error %v\nwant      %s", err, text)
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

func owner(t *testing.T, path string) (uid, gid int) {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return int(stat.Uid), int(stat.Gid)
}

// names lists what there is in a folder, without what is for the swap.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "..") {
			all = append(all, entry.Name())
		}
	}
	return all
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func ptr[T any](value T) *T { return &value }
