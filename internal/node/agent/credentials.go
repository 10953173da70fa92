package agent

import (
	"fmt"
	"os"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/keyring"
)

// credentials to try for an image, in this order: the pod's, then the node's; nil alone if none is for its registry.
func (a *Agent) credentials(pod *v1.Pod, image string) ([]*runtimeapi.AuthConfig, error) {
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
	var out []*runtimeapi.AuthConfig
	for _, k := range []*keyring.Keyring{ofPod, keyring.Node(a.config.RootDir, home)} {
		for _, login := range k.For(named.Name()) {
			// Without a server address the runtime uses it for the registry that it pulls from. Containerd would parse one as a URL, and
			// finds no host in "localhost:5000".
			out = append(out, &runtimeapi.AuthConfig{Username: login.Username, Password: login.Password, IdentityToken: login.IdentityToken})
		}
	}
	if len(out) == 0 {
		return []*runtimeapi.AuthConfig{nil}, nil
	}
	return out, nil
}

// pullSecrets of the pod that there are. Of those that are missing an event tells; the image may be had without them.
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
