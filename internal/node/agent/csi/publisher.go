package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// Options are what a Publisher works with.
type Options struct {
	// Dir is the agent's own folder: staged volumes are below plugins/kubernetes.io/csi in it,
	// those of pods below pods.
	Dir     string
	Drivers *Drivers
	Client  kubernetes.Interface
	// Node is the node's name.
	Node string
	// Token requests a token of a pod's service account, or returns one that is still fresh.
	Token func(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	// Claimed is called when the node uses another volume, or one less. It must not block.
	Claimed func()
}

// Publisher has drivers make volumes for pods, and take them back. Its methods may be called
// concurrently, though not for the same folder. Use NewPublisher.
type Publisher struct {
	options       Options
	staging, pods string // without symbolic links in them
	locks         locks  // by staging path, whether the volume is staged or not

	mu sync.Mutex
	// claims are the folders of pods with a volume that a driver may have made, by path.
	claims map[string]data
	// staged are the volumes that this agent has had staged.
	staged map[string]bool
}

// NewPublisher returns a Publisher that knows what earlier agents had drivers make.
func NewPublisher(options Options) (*Publisher, error) {
	p := &Publisher{options: options, claims: map[string]data{}, staged: map[string]bool{}}
	for _, folder := range []struct {
		path *string
		name string
	}{{&p.staging, "plugins/" + Name}, {&p.pods, "pods"}} {
		path := filepath.Join(options.Dir, folder.name)
		if err := os.MkdirAll(path, 0o750); err != nil {
			return nil, fmt.Errorf("folder of CSI volumes: %w", err)
		}
		path, err := filepath.EvalSymlinks(path)
		if err == nil {
			*folder.path, err = filepath.Abs(path)
		}
		if err != nil {
			return nil, fmt.Errorf("folder of CSI volumes: %w", err)
		}
	}
	for _, dir := range below(p.pods, "*/volumes/"+escaped+"/*") {
		switch d, err := readData(dir); {
		case err == nil:
			p.claims[dir] = d
		case !errors.Is(err, fs.ErrNotExist):
			klog.ErrorS(err, "Cannot read which CSI volume a pod has; it is asked for again if the pod is still to run")
			p.claims[dir] = data{Volume: filepath.Base(dir)}
		}
	}
	return p, nil
}

// below are the paths that match a pattern below a folder, of which the name may be any.
func below(dir, pattern string) []string {
	names, _ := fs.Glob(os.DirFS(dir), pattern) // fails only if the pattern is malformed
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names
}

// escaped is Name as the name of a folder.
const escaped = "kubernetes.io~csi"

// Folder is the one of a volume among a pod's volumes.
func Folder(volumes string, v Volume) string { return filepath.Join(volumes, escaped, v.Name) }

// Folders are those of all CSI volumes of a pod, given the folder of its volumes.
func Folders(volumes string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(volumes, escaped))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, entry := range entries {
		if entry.IsDir() {
			out = append(out, filepath.Join(volumes, escaped, entry.Name()))
		}
	}
	return out, err
}

// Target is where the driver makes the volume, in its folder.
func Target(dir string) string { return filepath.Join(dir, "mount") }

// Has reports whether a driver may have made a volume in a folder.
func (p *Publisher) Has(dir string) bool {
	_, there := p.claim(dir)
	return there
}

func (p *Publisher) claim(dir string) (data, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, there := p.claims[dir]
	return d, there
}

// setClaim records that a driver may have made a volume in a folder; nil: it has not.
func (p *Publisher) setClaim(dir string, claim *data) {
	p.mu.Lock()
	before := p.claims[dir]
	if claim == nil {
		delete(p.claims, dir)
	} else {
		p.claims[dir] = *claim
	}
	changed := before != p.claims[dir]
	p.mu.Unlock()
	if changed {
		p.options.Claimed()
	}
}

// InUse are the persistent volumes that pods have, as the node's status reports them. While the
// volume of a pod is unknown, none leaves the status: it could be detached.
func (p *Publisher) InUse() []v1.UniqueVolumeName {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []v1.UniqueVolumeName
	for _, claim := range p.claims {
		switch {
		case claim.unknown():
			out = append(out, p.options.Drivers.node().Status.VolumesInUse...)
		case claim.Mode != storagev1.VolumeLifecycleEphemeral:
			out = append(out, uniqueName(claim.Driver, claim.Handle))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isClaimed reports whether a pod has the persistent volume that is staged at a path, or may have
// it.
func (p *Publisher) isClaimed(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, claim := range p.claims {
		if claim.unknown() || claim.Mode != storagev1.VolumeLifecycleEphemeral && p.stagingPath(claim.Driver, claim.Handle) == path {
			return true
		}
	}
	return false
}

// isElsewhere reports whether a persistent volume is another pod's, too.
func (p *Publisher) isElsewhere(v Volume, dir string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for other, claim := range p.claims {
		same := claim.Driver == v.Driver && claim.Handle == v.Handle && claim.Mode != storagev1.VolumeLifecycleEphemeral
		if other != dir && (same || claim.unknown() && claim.Volume == v.Name) {
			return true
		}
	}
	return false
}
