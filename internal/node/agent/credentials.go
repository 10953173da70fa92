package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	config "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-k8s/berth/internal/node/agent/keyring"
	"github.com/berth-k8s/berth/internal/node/agent/pulls"
)

// credential is a login at a registry, with the secret that it comes from.
type credential struct {
	auth   *runtimeapi.AuthConfig
	secret *config.ImagePullSecret
}

// credentials returns the ones to try for an image, in this order: the pod's, then the node's; an
// empty one if there are none for its registry.
func (a *Agent) credentials(pod *v1.Pod, image string) ([]credential, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, err
	}
	ofPod, err := keyring.FromSecrets(a.pullSecrets(pod))
	if err != nil {
		return nil, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	var out []credential
	for _, k := range []*keyring.Keyring{ofPod, keyring.Node(a.config.RootDir, home)} {
		for _, login := range k.For(named.Name()) {
			// Without a server address the runtime uses it for the registry that it pulls from.
			// Containerd would parse one as a URL, and finds no host in "localhost:5000".
			one := credential{auth: &runtimeapi.AuthConfig{Username: login.Username, Password: login.Password, IdentityToken: login.IdentityToken}}
			if s := login.Secret; s != nil {
				secret := pulls.Secret(string(s.UID), s.Namespace, s.Name, login)
				one.secret = &secret
			}
			out = append(out, one)
		}
	}
	if len(out) == 0 {
		return []credential{{}}, nil
	}
	return out, nil
}

// podSecrets returns those of the pod's secrets that are for an image's registry.
func (a *Agent) podSecrets(pod *v1.Pod, image string) (out []config.ImagePullSecret, err error) {
	all, err := a.credentials(pod, image)
	for _, one := range all {
		if one.secret != nil {
			out = append(out, *one.secret)
		}
	}
	return out, err
}

// openPulls reads the image pull records, once the runtime can list its images.
func (a *Agent) openPulls(ctx context.Context) (err error) {
	present := map[string]string{}
	images, err := a.runtime.Images.ListImages(ctx, nil)
	if err != nil {
		klog.InfoS("Cannot list the images in the container runtime; pulls that were cut off stay recorded as such", "err", err)
	}
	for _, image := range images {
		for _, name := range append(slices.Clone(image.RepoTags), image.RepoDigests...) {
			present[name] = image.Id
		}
	}
	a.pulls, err = pulls.Open(a.config.RootDir, a.config.ImagePulls, present)
	return err
}

// pullSecrets returns the pod's pull secrets that exist. An event reports the missing ones; the
// image may be available without them.
func (a *Agent) pullSecrets(pod *v1.Pod) (secrets []*v1.Secret) {
	var missing []string
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := a.objects.Secret(pod.Namespace, ref.Name)
		if err != nil {
			klog.InfoS("Cannot read an image pull secret", "pod", klog.KObj(pod), "secret", ref.Name, "err", err)
			missing = append(missing, ref.Name)
			continue
		}
		secrets = append(secrets, secret)
	}
	if len(missing) > 0 {
		a.event(pod, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret", fmt.Sprintf(
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	return secrets
}
