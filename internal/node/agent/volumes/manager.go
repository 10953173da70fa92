package volumes

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/csi"
)

// Objects provides the cluster's ConfigMaps and Secrets. The error for a missing one satisfies
// IsNotFound.
type Objects interface {
	ConfigMap(namespace, name string) (*v1.ConfigMap, error)
	Secret(namespace, name string) (*v1.Secret, error)
}

// Options are what a Manager works with.
type Options struct {
	// Dir is the agent's own folder. Pods are below pods/<uid> in it.
	Dir     string
	Objects Objects
	// Tokens requests a token of a service account from the API.
	Tokens func(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	// Allocatable is what the node has for pods: the maximum of a volume in memory, and the
	// replacement for a limit that is not set.
	Allocatable func() v1.ResourceList
	// Client reads claims and persistent volumes, and CSI has drivers make them.
	Client kubernetes.Interface
	CSI    *csi.Publisher
}

// Manager manages the volumes of all pods of the node.
type Manager struct {
	options Options
	root    string // Dir/pods, without a symbolic link in it
	tokens  tokens
	stale   chan struct{} // there is something in changed

	mu      sync.Mutex
	pods    map[types.UID]*podVolumes
	changed map[types.UID]bool // to be refreshed by Run
}

// podVolumes are those of one pod. Who works on them holds work: see Manager.lock.
type podVolumes struct {
	work chan struct{}   // has room for the holder
	gone bool            // unmounted, and no longer in Manager.pods; guarded by work
	done map[string]bool // by name, the volumes that were set up once; guarded by work

	pod *v1.Pod // as it was seen last; guarded by Manager.mu
	// ending: it is being unmounted, perhaps in vain so far, and not refreshed; guarded by
	// Manager.mu.
	ending bool
	// interrupt ends a refresh that is under way; nil: none is. Guarded by Manager.mu.
	interrupt context.CancelFunc
	// places are those of volumes from elsewhere that are set up, by name; guarded by Manager.mu.
	places map[string]place
}

// New returns a Manager for the pods below a folder, which it creates if there is none.
func New(options Options) (*Manager, error) {
	root := filepath.Join(options.Dir, "pods")
	if err := os.MkdirAll(root, 0o750); err != nil {
		return nil, fmt.Errorf("folder for pods: %w", err)
	}
	root, err := filepath.EvalSymlinks(root)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, fmt.Errorf("folder for pods: %w", err)
	}
	return &Manager{
		options: options, root: root,
		tokens: tokens{request: options.Tokens, cache: map[string]*authenticationv1.TokenRequest{}},
		stale:  make(chan struct{}, 1),
		pods:   map[types.UID]*podVolumes{}, changed: map[types.UID]bool{},
	}, nil
}

// Mount sets up the pod's volumes, or updates them. It changes only what has to change, and never
// what a container has written. Its error is a *SetUpErrors, or that the pod's folder cannot be
// created.
func (m *Manager) Mount(ctx context.Context, pod *v1.Pod) error {
	if err := validName("pod UID", string(pod.UID)); err != nil {
		return err
	}
	volumes, err := m.lock(ctx, pod.UID)
	if err != nil {
		return err
	}
	defer volumes.unlock()
	m.mu.Lock()
	volumes.pod, volumes.ending = pod, false
	m.mu.Unlock()
	return m.mount(ctx, volumes, pod, false)
}

// Update records the newest state of a pod that may have been mounted, by this Manager or a
// previous agent's: Run then updates its existing volumes. It does not wait for that.
func (m *Manager) Update(pod *v1.Pod) {
	m.mu.Lock()
	m.entry(pod.UID).pod = pod
	m.mu.Unlock()
	m.Changed(pod.UID)
}

// mount sets up all volumes or, to refresh them, updates those that are set up.
func (m *Manager) mount(ctx context.Context, volumes *podVolumes, pod *v1.Pod, refresh bool) error {
	if err := os.MkdirAll(filepath.Join(m.PodDir(pod.UID), "volumes"), 0o750); err != nil {
		return fmt.Errorf("folder of pod %s: %w", klog.KObj(pod), err)
	}
	used := usedVolumes(pod)
	var failed []*SetUpError
	for _, volume := range pod.Spec.Volumes {
		done := volumes.done[volume.Name]
		if !used[volume.Name] || !m.due(volumes, pod.UID, volume, refresh) {
			continue
		}
		if err := m.setUp(ctx, pod, volume); err != nil {
			failed = append(failed, &SetUpError{Volume: volume.Name, Err: err, Stale: done || m.hasFiles(pod.UID, volume)})
			continue
		}
		volumes.done[volume.Name] = true
	}
	if len(failed) > 0 {
		return &SetUpErrors{failed}
	}
	return nil
}

// due reports whether a volume is to be set up, or updated. A host path is checked only once.
func (m *Manager) due(volumes *podVolumes, uid types.UID, volume v1.Volume, refresh bool) bool {
	switch kindOf(volume) {
	case hostPath:
		return !volumes.done[volume.Name]
	case inline, claimed:
		return m.dueElsewhere(volumes, uid, volume, refresh)
	}
	return true
}

// setUp creates or updates one volume.
func (m *Manager) setUp(ctx context.Context, pod *v1.Pod, volume v1.Volume) error {
	if err := validName("volume name", volume.Name); err != nil {
		return err
	}
	dir := m.volumeDir(pod.UID, volume)
	switch kind := kindOf(volume); kind {
	case inline, claimed:
		return m.setUpElsewhere(ctx, pod, volume)
	case emptyDir:
		return m.setUpEmptyDir(pod, volume, dir)
	case hostPath:
		return checkHostPath(volume.HostPath)
	case unsupported:
		return fmt.Errorf("this node's agent has no volumes of this type (%s)", typeName(volume))
	default:
		files, err := m.filesOf(ctx, pod, volume)
		if err != nil {
			return err
		}
		if err := m.folderForFiles(pod, dir, kind); err != nil {
			return err
		}
		if err := nestedMountPoints(pod, volume.Name, dir); err != nil {
			return err
		}
		return writeAtomically(dir, files, func() error { return giveToGroup(dir, groupOf(pod), true) })
	}
}

// hasFiles reports whether a volume of files was written at least once, perhaps by a previous
// agent.
func (m *Manager) hasFiles(uid types.UID, volume v1.Volume) bool {
	switch kindOf(volume) {
	case hostPath, emptyDir, inline, claimed:
		return false
	}
	_, err := os.Lstat(filepath.Join(m.volumeDir(uid, volume), dataLink))
	return err == nil
}

// PodDir is the folder with everything of the pod, and nothing else.
func (m *Manager) PodDir(uid types.UID) string { return filepath.Join(m.root, string(uid)) }

// OnDisk lists the pods that have a folder, mounted by this Manager or left by a previous one.
func (m *Manager) OnDisk() ([]types.UID, error) {
	entries, err := os.ReadDir(m.root)
	if err != nil {
		return nil, fmt.Errorf("folder for pods: %w", err)
	}
	var uids []types.UID
	for _, entry := range entries {
		if entry.IsDir() {
			uids = append(uids, types.UID(entry.Name()))
		}
	}
	return uids, nil
}

// Changed has Run refresh the volumes of the pod at once, because something that they show has
// changed.
func (m *Manager) Changed(uid types.UID) {
	m.mu.Lock()
	m.changed[uid] = true
	m.mu.Unlock()
	select {
	case m.stale <- struct{}{}:
	default: // Run will look anyway, and find this one, too
	}
}

// refreshEvery is well below the two minutes that are left of the shortest token (10 min) when it
// is due for replacement.
const refreshEvery = 30 * time.Second

// Run keeps the volumes of mounted pods up to date until the context ends: at once after Changed,
// and periodically for expiring tokens. Each pod is refreshed on its own, so that one whose volumes
// take long, as while a token is requested in vain, does not delay the others.
func (m *Manager) Run(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	done := make(chan types.UID)
	again := map[types.UID]bool{} // the pods that are being refreshed, and whether one has changed since
	refresh := func(uid types.UID) {
		again[uid] = false
		running.Go(func() {
			m.refresh(ctx, uid)
			select {
			case done <- uid:
			case <-ctx.Done():
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return
		case uid := <-done:
			changed := again[uid]
			delete(again, uid)
			if changed {
				refresh(uid)
			}
		case <-m.stale:
			for _, uid := range m.takeChanged() {
				if _, busy := again[uid]; busy {
					again[uid] = true
				} else {
					refresh(uid)
				}
			}
		case <-tick.C:
			for _, uid := range m.mounted() {
				if _, busy := again[uid]; !busy {
					refresh(uid)
				}
			}
		}
	}
}

// takeChanged returns the pods to be refreshed, and forgets them.
func (m *Manager) takeChanged() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	uids := slices.Collect(maps.Keys(m.changed))
	clear(m.changed)
	return uids
}

func (m *Manager) mounted() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.pods))
}

// refresh updates the volumes of a pod, if it has any: what was never mounted, or no longer is,
// stays so.
func (m *Manager) refresh(ctx context.Context, uid types.UID) {
	m.mu.Lock()
	known := m.pods[uid] != nil
	m.mu.Unlock()
	if !known || ctx.Err() != nil || validName("pod UID", string(uid)) != nil {
		return
	}
	volumes, err := m.lock(ctx, uid)
	if err != nil {
		return
	}
	defer volumes.unlock()
	ctx, interrupt := context.WithCancel(ctx)
	defer interrupt()
	m.mu.Lock()
	pod := volumes.pod
	if volumes.ending {
		pod = nil
	}
	volumes.interrupt = interrupt
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		volumes.interrupt = nil
	}()
	if _, err := os.Lstat(m.PodDir(uid)); err != nil || pod == nil {
		return
	}
	if err := m.mount(ctx, volumes, pod, true); err != nil {
		klog.FromContext(ctx).V(2).Info("Volumes could not be refreshed; the next try is in a moment", "pod", klog.KObj(pod), "err", err)
	}
}

// lock returns the pod's volumes, locked for work. It fails if the context ends first: who holds
// them may wait for a CSI driver.
func (m *Manager) lock(ctx context.Context, uid types.UID) (*podVolumes, error) {
	for {
		m.mu.Lock()
		volumes := m.entry(uid)
		m.mu.Unlock()
		select {
		case volumes.work <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !volumes.gone {
			return volumes, nil
		}
		volumes.unlock() // unmounted in the meantime
	}
}

func (v *podVolumes) unlock() { <-v.work }

// end has the pod not refreshed any more, and ends a refresh that is under way.
func (m *Manager) end(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.entry(uid)
	volumes.ending = true
	if volumes.interrupt != nil {
		volumes.interrupt()
	}
}

// entry returns the pod's entry, and adds one if there is none; m.mu is held.
func (m *Manager) entry(uid types.UID) *podVolumes {
	if m.pods[uid] == nil {
		m.pods[uid] = &podVolumes{work: make(chan struct{}, 1), done: map[string]bool{}, places: map[string]place{}}
	}
	return m.pods[uid]
}
