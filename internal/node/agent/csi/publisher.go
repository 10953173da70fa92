package csi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/mountinfo"
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
	locks         locks  // by driver and handle

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
	dirs, err := filepath.Glob(filepath.Join(p.pods, "*", "volumes", escaped, "*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		switch d, err := readData(dir); {
		case err == nil:
			p.claims[dir] = d
		case !errors.Is(err, fs.ErrNotExist):
			klog.ErrorS(err, "Cannot read which CSI volume a pod has")
		}
	}
	return p, nil
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

// Published is what is left to do for a volume.
type Published struct {
	// Group: the node gives it to the pod's group.
	Group bool
	// Again: the driver wants to be asked again from time to time, with fresh tokens.
	Again bool
}

// Has reports whether a driver may have made a volume in a folder.
func (p *Publisher) Has(dir string) bool {
	_, there := p.claim(dir)
	return there
}

// Publish has the driver make a volume for a pod in a folder, or make it again. What it made is
// there until Unpublish, which is due also after an error.
func (p *Publisher) Publish(ctx context.Context, pod *v1.Pod, v Volume, dir string) (Published, error) {
	if err := errors.Join(validName(v.Driver), validName(v.Name)); err != nil {
		return Published{}, err
	}
	leave, err := p.locks.enter(ctx, v.Driver+"^"+v.Handle)
	if err != nil {
		return Published{}, err
	}
	defer leave()
	ctx, driver, err := p.options.Drivers.open(ctx, v.Driver)
	if err != nil {
		return Published{}, fmt.Errorf("%s: mounter.SetUpAt failed to get CSI client: %w", Name, err)
	}
	defer driver.close()
	object, err := p.object(ctx, v)
	if err != nil {
		return Published{}, err
	}
	was, before := p.claim(dir)
	if before && (was.Driver != v.Driver || was.Handle != v.Handle) {
		return Published{}, fmt.Errorf("%s: volume %s is of driver %s and has to be taken back before: two volumes of the pod have one folder", Name, was.Handle, was.Driver)
	}
	if v.singlePod() && p.isElsewhere(v, dir) {
		return Published{}, errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	}
	claim := data{Volume: v.Name, Handle: v.Handle, Driver: v.Driver, Node: p.options.Node, Mode: v.Mode, Attachment: attachment(v, p.options.Node)}
	if err := claim.write(dir); err != nil {
		return Published{}, err
	}
	p.setClaim(dir, &claim)
	group := groupOf(pod)
	if !driver.can[spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		group = nil
	}
	request, err := p.request(ctx, pod, v, object, Target(dir), driver, group)
	if err != nil {
		return Published{}, err
	}
	if request.StagingTargetPath != "" {
		if err := p.stage(ctx, driver, v, request.PublishContext, group); err != nil {
			return Published{}, &StageError{v.Name, err}
		}
	}
	if _, err := driver.NodePublishVolume(ctx, request); err != nil {
		if !before && isOver(err) {
			return Published{}, errors.Join(err, p.drop(dir))
		}
		return Published{}, err
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if object != nil && object.Spec.FSGroupPolicy != nil {
		policy = *object.Spec.FSGroupPolicy
	}
	return Published{
		Group: group == nil && v.ownedByNode(policy),
		Again: object != nil && object.Spec.RequiresRepublish != nil && *object.Spec.RequiresRepublish,
	}, nil
}

// StageError is why a volume could not be staged.
type StageError struct {
	Volume string
	Err    error
}

func (e *StageError) Error() string { return e.Err.Error() }
func (e *StageError) Unwrap() error { return e.Err }

// isOver reports whether a call has failed for good: the driver has made nothing, and does nothing
// any more.
func isOver(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// object is what the cluster says of the driver; nil: nothing, which is fine for persistent
// volumes.
func (p *Publisher) object(ctx context.Context, v Volume) (*storagev1.CSIDriver, error) {
	object, err := p.options.Client.StorageV1().CSIDrivers().Get(ctx, v.Driver, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && v.Mode == storagev1.VolumeLifecyclePersistent:
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s: mounter.SetupAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (no CSIDriver object)", Name, v.Mode, v.Driver)
	case err != nil:
		return nil, err
	case !slices.Contains(object.Spec.VolumeLifecycleModes, v.Mode):
		return nil, fmt.Errorf("%s: mounter.SetupAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (only supports %q)",
			Name, v.Mode, v.Driver, object.Spec.VolumeLifecycleModes)
	}
	return object, nil
}

// request is what the driver is asked for, with all that it wants to know.
func (p *Publisher) request(ctx context.Context, pod *v1.Pod, v Volume, object *storagev1.CSIDriver, target string, driver *session, group *int64) (*spec.NodePublishVolumeRequest, error) {
	request := &spec.NodePublishVolumeRequest{
		VolumeId: v.Handle, TargetPath: target, Readonly: v.ReadOnly, VolumeContext: v.Attributes, VolumeCapability: v.capability(driver, group),
	}
	var err error
	if v.Mode == storagev1.VolumeLifecyclePersistent {
		if request.PublishContext, err = p.attached(ctx, v, object); err != nil {
			return nil, err
		}
		if driver.can[spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
			request.StagingTargetPath = p.stagingPath(v.Driver, v.Handle)
		}
	}
	if request.Secrets, err = p.secret(ctx, "NodePublishSecretRef", v.PublishSecret); err != nil || object == nil {
		return request, err
	}
	if object.Spec.PodInfoOnMount != nil && *object.Spec.PodInfoOnMount {
		request.VolumeContext = merged(request.VolumeContext, podInfo(pod, v.Mode))
	}
	tokens, err := p.tokens(ctx, pod, object.Spec.TokenRequests)
	if object.Spec.ServiceAccountTokenInSecrets != nil && *object.Spec.ServiceAccountTokenInSecrets {
		request.Secrets = merged(request.Secrets, tokens)
	} else {
		request.VolumeContext = merged(request.VolumeContext, tokens)
	}
	return request, err
}

// tokens are those of the pod's service account that the driver asks for, as one attribute.
func (p *Publisher) tokens(ctx context.Context, pod *v1.Pod, wanted []storagev1.TokenRequest) (map[string]string, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	all := map[string]authenticationv1.TokenRequestStatus{}
	for _, w := range wanted {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: w.ExpirationSeconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		}}
		if w.Audience != "" {
			request.Spec.Audiences = []string{w.Audience}
		}
		token, err := p.options.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName, request)
		if err != nil {
			return nil, fmt.Errorf("%s: mounter.SetUpAt failed to get service account token attributes: %w", Name, err)
		}
		all[w.Audience] = token.Status
	}
	text, err := json.Marshal(all)
	return map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": string(text)}, err
}

// secret reads one that a volume refers to.
func (p *Publisher) secret(ctx context.Context, field string, ref *v1.SecretReference) (map[string]string, error) {
	out := map[string]string{}
	if ref == nil {
		return out, nil
	}
	secret, err := p.options.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s failed: %w", field, ref.Namespace, ref.Name, err)
	}
	for key, value := range secret.Data {
		out[key] = string(value)
	}
	return out, nil
}

// attached returns what the driver's controller said when it attached a volume to the node; an
// error while it has to be attached, and is not.
func (p *Publisher) attached(ctx context.Context, v Volume, object *storagev1.CSIDriver) (map[string]string, error) {
	if object != nil && object.Spec.AttachRequired != nil && !*object.Spec.AttachRequired {
		return nil, nil
	}
	if !slices.Contains(p.options.Drivers.node().Status.VolumesInUse, uniqueName(v.Driver, v.Handle)) {
		return nil, fmt.Errorf("the node's status does not have volume %s among those in use yet", v.Name) // it could be detached
	}
	found, err := p.options.Client.StorageV1().VolumeAttachments().Get(ctx, attachment(v, p.options.Node), metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("volume %s is not attached to the node: %w", v.Name, err)
	case found.DeletionTimestamp != nil:
		return nil, fmt.Errorf("volume %s is not attached to the node: volume attachment is being deleted", v.Name)
	case found.Status.Attached:
		return found.Status.AttachmentMetadata, nil
	case found.Status.AttachError != nil:
		return nil, fmt.Errorf("volume %s is not attached to the node: %s", v.Name, found.Status.AttachError.Message)
	}
	return nil, fmt.Errorf("volume %s is not attached to the node yet", v.Name)
}

// stagingPath is where a volume is staged, once for all pods of the node.
func (p *Publisher) stagingPath(driver, handle string) string {
	return filepath.Join(p.staging, driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))), "globalmount")
}

// stage has the driver stage a volume, unless it has. The caller holds the volume's lock.
func (p *Publisher) stage(ctx context.Context, driver *session, v Volume, attached map[string]string, group *int64) error {
	path := p.stagingPath(v.Driver, v.Handle)
	p.mu.Lock()
	done := p.staged[path]
	p.mu.Unlock()
	if done {
		return nil
	}
	secrets, err := p.secret(ctx, "NodeStageSecretRef", v.StageSecret)
	if err != nil {
		return err
	}
	if err := (data{Handle: v.Handle, Driver: v.Driver}).write(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if _, err := driver.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{
		VolumeId: v.Handle, PublishContext: attached, StagingTargetPath: path, VolumeCapability: v.capability(driver, group), Secrets: secrets, VolumeContext: v.Attributes,
	}); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.staged[path] = true
	return nil
}

// Unpublish has the driver take back what it made in a pod's folder, and the staged volume with the
// last pod that has it.
func (p *Publisher) Unpublish(ctx context.Context, dir string) error {
	claim, there := p.claim(dir)
	if !there {
		return nil // no driver was asked for anything
	}
	leave, err := p.locks.enter(ctx, claim.Driver+"^"+claim.Handle)
	if err != nil {
		return err
	}
	defer leave()
	called, driver, err := p.options.Drivers.open(ctx, claim.Driver)
	if err != nil {
		return fmt.Errorf("%s: Unmounter.TearDownAt failed to get CSI client: %w", Name, err)
	}
	defer driver.close()
	if _, err := driver.NodeUnpublishVolume(called, &spec.NodeUnpublishVolumeRequest{VolumeId: claim.Handle, TargetPath: Target(dir)}); err != nil {
		return fmt.Errorf("%s: Unmounter.TearDownAt failed: %w", Name, err)
	}
	if err := p.drop(dir); err != nil {
		return err
	}
	if claim.Mode == storagev1.VolumeLifecycleEphemeral {
		return nil
	}
	// The pod itself has nothing of the volume any more; what fails here is tried again by Sweep.
	if err := p.unstage(called, driver, claim.Driver, claim.Handle); err != nil {
		klog.ErrorS(err, "Cannot unstage a CSI volume; it is tried again", "driver", claim.Driver, "volume", claim.Handle)
	}
	return nil
}

// drop removes what the driver left of a pod's volume, unless it is still mounted.
func (p *Publisher) drop(dir string) error {
	if err := removeTarget(Target(dir)); err != nil {
		return err
	}
	p.setClaim(dir, nil)
	return nil
}

// removeTarget removes where a driver made a volume, with the file beside it. A driver should have
// removed the first itself. What is still mounted is left alone.
func removeTarget(target string) error {
	mounted, err := mountinfo.On(target)
	if err == nil && mounted {
		err = fmt.Errorf("%s is still mounted", target)
	}
	if err != nil {
		return err
	}
	dir := filepath.Dir(target)
	for _, path := range []string{target, filepath.Join(dir, dataFile), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// unstage has the driver take back a staged volume that no pod has. The caller holds its lock.
func (p *Publisher) unstage(ctx context.Context, driver *session, name, handle string) error {
	path := p.stagingPath(name, handle)
	if _, err := os.Lstat(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) || p.isClaimed(name, handle) {
		return nil
	}
	if driver.can[spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		if _, err := driver.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: handle, StagingTargetPath: path}); err != nil {
			return fmt.Errorf("%s: attacher.UnmountDevice failed: %w", Name, err)
		}
	}
	p.mu.Lock()
	delete(p.staged, path)
	p.mu.Unlock()
	return removeTarget(path)
}

// Sweep has staged volumes taken back that no pod has: an agent was killed in between, or a driver
// could not.
func (p *Publisher) Sweep(ctx context.Context) {
	files, err := filepath.Glob(filepath.Join(p.staging, "*", "*", dataFile))
	if err != nil {
		return
	}
	hangs := map[string]bool{} // drivers that took too long, and would for each of their volumes
	for _, file := range files {
		staged, err := readData(filepath.Dir(file))
		if err != nil || hangs[staged.Driver] || filepath.Dir(p.stagingPath(staged.Driver, staged.Handle)) != filepath.Dir(file) || p.isClaimed(staged.Driver, staged.Handle) {
			continue
		}
		if err := p.sweep(ctx, staged); err != nil {
			hangs[staged.Driver] = status.Code(err) == codes.DeadlineExceeded
			klog.V(2).InfoS("Cannot unstage a CSI volume; it is tried again", "driver", staged.Driver, "volume", staged.Handle, "err", err)
		}
	}
}

func (p *Publisher) sweep(ctx context.Context, staged data) error {
	leave, err := p.locks.enter(ctx, staged.Driver+"^"+staged.Handle)
	if err != nil {
		return err
	}
	defer leave()
	ctx, driver, err := p.options.Drivers.open(ctx, staged.Driver)
	if err != nil {
		return err
	}
	defer driver.close()
	return p.unstage(ctx, driver, staged.Driver, staged.Handle)
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

// InUse are the persistent volumes that pods have, as the node's status reports them.
func (p *Publisher) InUse() []v1.UniqueVolumeName {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []v1.UniqueVolumeName
	for _, claim := range p.claims {
		if claim.Mode != storagev1.VolumeLifecycleEphemeral {
			out = append(out, uniqueName(claim.Driver, claim.Handle))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isClaimed reports whether a pod has a persistent volume.
func (p *Publisher) isClaimed(driver, handle string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, claim := range p.claims {
		if claim.Driver == driver && claim.Handle == handle && claim.Mode != storagev1.VolumeLifecycleEphemeral {
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
		if other != dir && claim.Driver == v.Driver && claim.Handle == v.Handle && claim.Mode != storagev1.VolumeLifecycleEphemeral {
			return true
		}
	}
	return false
}

// groupOf is the fsGroup of the pod, if it has one.
func groupOf(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
