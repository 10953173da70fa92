package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	config "k8s.io/kubelet/config/v1beta1"
)

// ensure makes sure that a container's image is present, according to its pull policy.
func (i *images) ensure(ctx context.Context, pod *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig) (*runtimeapi.Image, error) {
	name, err := withTag(c.Image)
	if err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", c.Image, err)
		return nil, &refusal{reason: "InvalidImageName", message: message, event: "InspectFailed", said: message}
	}
	spec := &runtimeapi.ImageSpec{Image: name, Annotations: pod.Annotations}
	if c.ImagePullPolicy != v1.PullAlways {
		image, err := i.present(ctx, spec)
		if err != nil {
			message := fmt.Sprintf("Failed to inspect image %q: %v", c.Image, err)
			return nil, &refusal{reason: "ImageInspectError", message: message, event: "InspectFailed", said: message}
		}
		if image != nil {
			may, err := i.pulls.MayUse(name, image.Id, func() ([]config.ImagePullSecret, error) { return i.podSecrets(pod, name) })
			if err != nil {
				return nil, &refusal{reason: "ErrImagePull", message: err.Error(), pull: err.Error()}
			}
			if may {
				i.options.event(pod, c.Name, v1.EventTypeNormal, "Pulled",
					fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", c.Image))
				return image, nil
			}
		}
		if c.ImagePullPolicy == v1.PullNever {
			message := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image)
			return nil, &refusal{reason: "ErrImageNeverPull", message: message, event: "ErrImageNeverPull", said: message}
		}
	}
	return i.pull(ctx, pod, c, spec, sandbox)
}

func (i *images) present(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	response, err := i.options.runtime.ImageStatus(ctx, spec, false)
	if err != nil {
		return nil, err
	}
	return response.GetImage(), nil
}

func (i *images) pull(ctx context.Context, pod *v1.Pod, c *v1.Container, spec *runtimeapi.ImageSpec, sandbox *runtimeapi.PodSandboxConfig) (*runtimeapi.Image, error) {
	i.options.event(pod, c.Name, v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	began := time.Now()
	if err := i.pulls.Begin(spec.Image); err != nil {
		return nil, &refusal{reason: "ErrImagePull", message: err.Error(), pull: err.Error()}
	}
	secret, err := i.tryPull(ctx, pod, spec, sandbox)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, errUnanswered) {
			i.pulls.Unknown(spec.Image)
		} else {
			i.pulls.Failed(spec.Image)
		}
		return nil, &refusal{
			reason: "ErrImagePull", message: err.Error(), event: "Failed", said: fmt.Sprintf("Failed to pull image %q: %v", c.Image, err),
			pull: fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %v", c.Image, err),
		}
	}
	image, err := i.present(ctx, spec)
	if err != nil || image == nil {
		i.pulls.Unknown(spec.Image) // it is not preloaded, whatever hides it now
		return nil, &refusal{reason: "ImageInspectError", message: fmt.Sprintf("image %q is not there after it was pulled: %v", c.Image, err)}
	}
	i.pulls.Done(spec.Image, image.Id, secret)
	i.options.pulled(time.Since(began), image.Size)
	i.options.event(pod, c.Name, v1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v. Image size: %d bytes.",
		c.Image, time.Since(began).Truncate(time.Millisecond), image.Size))
	return image, nil
}

// tryPull tries one set of credentials after the other until one is accepted, and returns the
// secret that it came from.
func (i *images) tryPull(ctx context.Context, pod *v1.Pod, spec *runtimeapi.ImageSpec, sandbox *runtimeapi.PodSandboxConfig) (*config.ImagePullSecret, error) {
	credentials, err := i.credentials(pod, spec.Image)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, one := range credentials {
		_, err := i.options.runtime.PullImage(ctx, spec, one.auth, sandbox)
		if err == nil {
			return one.secret, nil
		}
		said := errors.New(status.Convert(err).Message())
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			said = &unanswered{said}
		}
		failed = append(failed, said)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, utilerrors.NewAggregate(failed)
}

// errUnanswered is the error of a pull that the runtime may have completed: its answer is missing.
var errUnanswered = errors.New("no answer")

type unanswered struct{ error }

func (*unanswered) Is(target error) bool { return target == errUnanswered }

// withTag adds the tag latest to an image that names neither tag nor digest.
func withTag(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	if !reference.IsNameOnly(named) || strings.Contains(image, "@") {
		return image, nil
	}
	return image + ":latest", nil
}
