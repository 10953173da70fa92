package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Published is what is left to do for a volume.
type Published struct {
	// Group: the node gives it to the pod's group.
	Group bool
	// Again: the driver wants to be asked again from time to time, with fresh tokens.
	Again bool
}

// Publish has the driver make a volume for a pod in a folder, or make it again. What it made is
// there until Unpublish, which is due also after an error.
func (p *Publisher) Publish(ctx context.Context, pod *v1.Pod, v Volume, dir string) (Published, error) {
	if err := errors.Join(validName(v.Driver), validName(v.Name)); err != nil {
		return Published{}, err
	}
	leave, err := p.locks.enter(ctx, p.stagingPath(v.Driver, v.Handle))
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
	if before && !was.unknown() && (was.Driver != v.Driver || was.Handle != v.Handle) {
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

// groupOf is the fsGroup of the pod, if it has one.
func groupOf(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
