package agent

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// credentials to try for an image, from the pod's imagePullSecrets; without any that fits, none.
func (a *Agent) credentials(pod *v1.Pod, image string) []*runtimeapi.AuthConfig {
	var out []*runtimeapi.AuthConfig
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, err := a.objects.Secret(pod.Namespace, ref.Name)
		if err != nil {
			a.event(pod, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret", "Unable to retrieve some image pull secrets ("+ref.Name+
				"); attempting to pull the image may not succeed.")
			continue
		}
		fitting, err := loginsFor(secret, image)
		if err != nil {
			klog.ErrorS(err, "Cannot read an image pull secret", "pod", klog.KObj(pod), "secret", ref.Name)
		}
		out = append(out, fitting...)
	}
	if len(out) == 0 {
		return []*runtimeapi.AuthConfig{nil}
	}
	return out
}

// login of a registry, as Docker's configuration files have it.
type login struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

// loginsFor an image in a secret of one of the two kinds.
func loginsFor(secret *v1.Secret, image string) ([]*runtimeapi.AuthConfig, error) {
	logins := map[string]login{}
	switch secret.Type {
	case v1.SecretTypeDockerConfigJson:
		var config struct {
			Auths map[string]login `json:"auths"`
		}
		if err := json.Unmarshal(secret.Data[v1.DockerConfigJsonKey], &config); err != nil {
			return nil, err
		}
		logins = config.Auths
	case v1.SecretTypeDockercfg:
		if err := json.Unmarshal(secret.Data[v1.DockerConfigKey], &logins); err != nil {
			return nil, err
		}
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, err
	}
	var out []*runtimeapi.AuthConfig
	for registry, l := range logins {
		if !isRegistryOf(registry, named) {
			continue
		}
		if text, err := base64.StdEncoding.DecodeString(l.Auth); err == nil && l.Username == "" {
			l.Username, l.Password, _ = strings.Cut(string(text), ":")
		}
		out = append(out, &runtimeapi.AuthConfig{
			Username: l.Username, Password: l.Password, IdentityToken: l.IdentityToken, ServerAddress: registry,
		})
	}
	return out, nil
}

// isRegistryOf an image: a host, perhaps with the beginning of a path, as people write it.
func isRegistryOf(registry string, image reference.Named) bool {
	registry = strings.TrimPrefix(strings.TrimPrefix(registry, "https://"), "http://")
	for _, ending := range []string{"/", "/v1", "/v2"} {
		registry = strings.TrimSuffix(registry, ending)
	}
	if registry == "index.docker.io" {
		registry = "docker.io"
	}
	return image.Name() == registry || strings.HasPrefix(image.Name(), registry+"/")
}
