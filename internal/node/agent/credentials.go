package agent

import (
	"fmt"
	"os"
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
func (i *images) credentials(pod *v1.Pod, image string) ([]credential, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, err
	}
	ofPod, err := keyring.FromSecrets(i.pullSecrets(pod))
	if err != nil {
		return nil, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	var out []credential
	for _, k := range []*keyring.Keyring{ofPod, keyring.Node(i.options.dir, home)} {
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
func (i *images) podSecrets(pod *v1.Pod, image string) (out []config.ImagePullSecret, err error) {
	all, err := i.credentials(pod, image)
	for _, one := range all {
		if one.secret != nil {
			out = append(out, *one.secret)
		}
	}
	return out, err
}

// pullSecrets returns the pod's pull secrets that exist. An event reports the missing ones; the
// image may be available without them.
func (i *images) pullSecrets(pod *v1.Pod) (secrets []*v1.Secret) {
	var missing []string
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := i.options.secret(pod.Namespace, ref.Name)
		if err != nil {
			klog.InfoS("Cannot read an image pull secret", "pod", klog.KObj(pod), "secret", ref.Name, "err", err)
			missing = append(missing, ref.Name)
			continue
		}
		secrets = append(secrets, secret)
	}
	if len(missing) > 0 {
		i.options.event(pod, "", v1.EventTypeWarning, "FailedToRetrieveImagePullSecret", fmt.Sprintf(
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	return secrets
}
