package agent

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestImageWithoutTagIsLatest(t *testing.T) {
	const digest = "busybox@sha256:a64a4aa5558966fe5fe129d14a29ee4193e3adfffd5992ce9ec8ff0ad1c82258"
	for image, want := range map[string]string{
		"busybox": "busybox:latest", "localhost:5000/a/b": "localhost:5000/a/b:latest", "a/b:1": "a/b:1", digest: digest, "No/Such": "", "": "",
	} {
		got, err := withTag(image)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q (%v), want %q", image, got, err, want)
		}
	}
}

// pullSecret as `kubectl create secret docker-registry` makes it.
func pullSecret(name, registry, user, password string) *v1.Secret {
	return &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, registry,
			base64.StdEncoding.EncodeToString([]byte(user+":"+password)))},
	}
}

// guarded is a runtime whose registry at localhost:5055 lets in whoever is right. Like containerd,
// it parses a server address as a URL, and shows nothing to a host that it does not find there.
func guarded(tried *[]string) func(*runtimeapi.ImageSpec, *runtimeapi.AuthConfig) error {
	return func(spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig) error {
		shown := auth.GetUsername() + ":" + auth.GetPassword()
		if address := auth.GetServerAddress(); address != "" {
			if u, err := url.Parse(address); err != nil || u.Host != "localhost:5055" {
				shown = ":"
			}
		}
		*tried = append(*tried, shown)
		if shown != "right:pass:word" {
			return status.Error(codes.Unknown, "pull access denied")
		}
		return nil
	}
}

func TestPullsWithThePodsCredentials(t *testing.T) {
	right, wrong := pullSecret("right", "localhost:5055", "right", "pass:word"), pullSecret("wrong", "localhost:5055", "wrong", "x")
	other := pullSecret("other", "registry.example.com", "right", "pass:word")
	for _, c := range []struct {
		name    string
		secrets []*v1.Secret
		missing string
		tried   string
		pulled  bool
	}{
		{name: "none", tried: ":"},
		{name: "right", secrets: []*v1.Secret{right}, tried: "right:pass:word", pulled: true},
		{name: "wrong", secrets: []*v1.Secret{wrong}, tried: "wrong:x"},
		{name: "wrong, then right", secrets: []*v1.Secret{wrong, right}, tried: "wrong:x right:pass:word", pulled: true},
		{name: "of another registry", secrets: []*v1.Secret{other}, tried: ":"},
		{name: "one missing", secrets: []*v1.Secret{right}, missing: "nothere", tried: "right:pass:word", pulled: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			pod := boundPod("p")
			pod.Spec.Containers[0].Image = "localhost:5055/team/app:1"
			objects := []runtime.Object{pod}
			for _, secret := range c.secrets {
				pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: secret.Name})
				objects = append(objects, secret)
			}
			if c.missing != "" {
				pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: c.missing})
			}
			n, _ := newNode(t, objects...)
			var tried []string
			n.images.images, n.images.pull = map[string]bool{}, guarded(&tried)
			n.objects.Use(pod)
			_, err := n.Agent.images.ensure(t.Context(), pod, &pod.Spec.Containers[0], nil)
			if got := strings.Join(tried, " "); got != c.tried || (err == nil) != c.pulled {
				t.Errorf("tried %q, %v; want %q", got, err, c.tried)
			}
			var refused *refusal
			if !c.pulled && (!errors.As(err, &refused) || refused.reason != "ErrImagePull" || refused.message != "pull access denied") {
				t.Errorf("refused with %v", err)
			}
			if told := strings.Contains(allEvents(n), "FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (nothere);"); told != (c.missing != "") {
				t.Errorf("an event of a missing secret: %t", told)
			}
		})
	}
}

// The node's own docker configuration is for pods that bring none, and comes after those of pods
// that do.
func TestPullsWithTheNodesCredentials(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	pod := boundPod("p")
	pod.Spec.Containers[0].Image = "localhost:5055/team/app:1"
	pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "wrong"}}
	n, _ := newNode(t, pod, pullSecret("wrong", "localhost:5055", "wrong", "x"))
	if err := os.WriteFile(filepath.Join(n.config.RootDir, "config.json"), pullSecret("", "localhost:5055/team", "right", "pass:word").Data[v1.DockerConfigJsonKey], 0o600); err != nil {
		t.Fatal(err)
	}
	var tried []string
	n.images.images, n.images.pull = map[string]bool{}, guarded(&tried)
	n.objects.Use(pod)
	if _, err := n.Agent.images.ensure(t.Context(), pod, &pod.Spec.Containers[0], nil); err != nil || strings.Join(tried, " ") != "wrong:x right:pass:word" {
		t.Errorf("tried %v, %v", tried, err)
	}
}

// A secret that cannot be read fails the pull, and says which it is.
func TestUnreadablePullSecretIsNamed(t *testing.T) {
	secret := pullSecret("broken", "r.io", "a", "b")
	secret.Data[v1.DockerConfigJsonKey] = []byte("s3cret")
	pod := boundPod("p")
	pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "broken"}}
	n, _ := newNode(t, pod, secret)
	n.images.images = map[string]bool{}
	n.objects.Use(pod)
	_, err := n.Agent.images.ensure(t.Context(), pod, &pod.Spec.Containers[0], nil)
	var refused *refusal
	if !errors.As(err, &refused) || refused.reason != "ErrImagePull" ||
		refused.message != "image pull secret default/broken, .dockerconfigjson: not a docker configuration in JSON" {
		t.Errorf("refused with %v", err)
	}
}

// An image that one pod has pulled with its secret is not for another that has none: not by
// IfNotPresent, and not by Never.
func TestPulledImageIsNotForAll(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	owner, thief := boundPod("owner"), boundPod("thief")
	for _, pod := range []*v1.Pod{owner, thief} {
		pod.Spec.Containers[0].Image = "localhost:5055/team/app:1"
	}
	owner.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "right"}}
	n, _ := newNode(t, owner, thief, pullSecret("right", "localhost:5055", "right", "pass:word"))
	var tried []string
	n.images.images, n.images.pull = map[string]bool{}, guarded(&tried)
	n.objects.Use(owner)
	for range 2 {
		if _, err := n.Agent.images.ensure(t.Context(), owner, &owner.Spec.Containers[0], nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(tried) != 1 {
		t.Errorf("the owner pulled %d times: %v", len(tried), tried)
	}
	for policy, reason := range map[v1.PullPolicy]string{v1.PullIfNotPresent: "ErrImagePull", v1.PullNever: "ErrImageNeverPull"} {
		thief.Spec.Containers[0].ImagePullPolicy = policy
		_, err := n.Agent.images.ensure(t.Context(), thief, &thief.Spec.Containers[0], nil)
		var refused *refusal
		if !errors.As(err, &refused) || refused.reason != reason {
			t.Errorf("%s: %v, want %s", policy, err, reason)
		}
	}
}

// The runtime pulls an image and does not show it right then, or is not waited for: what it has
// pulled is not for pods without the secret, either.
func TestImageThatIsHiddenAfterItsPullIsNotForAll(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for what, hide := range map[string]func(n *node, stop func()) error{
		"hidden":         func(n *node, _ func()) error { n.images.images = map[string]bool{}; return nil },
		"no answer":      func(*node, func()) error { return status.Error(codes.Unavailable, "transport is closing") },
		"not waited for": func(n *node, stop func()) error { stop(); return context.Canceled },
	} {
		t.Run(what, func(t *testing.T) {
			owner, thief := boundPod("owner"), boundPod("thief")
			owner.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "right"}}
			n, ctx := newNode(t, owner, thief, pullSecret("right", "example.com", "right", "pass:word"))
			n.objects.Use(owner)
			pulling, stop := context.WithCancel(ctx)
			defer stop()
			there := map[string]bool{"example.com/c:1": true}
			n.images.images = map[string]bool{}
			n.images.pulled = func() error { return hide(n, stop) }
			if _, err := n.Agent.images.ensure(pulling, owner, &owner.Spec.Containers[0], nil); err == nil {
				t.Fatal("the owner has it")
			}
			n.images.images = there
			thief.Spec.Containers[0].ImagePullPolicy = v1.PullNever
			var refused *refusal
			if _, err := n.Agent.images.ensure(ctx, thief, &thief.Spec.Containers[0], nil); !errors.As(err, &refused) || refused.reason != "ErrImageNeverPull" {
				t.Errorf("a pod without a secret: %v", err)
			}
		})
	}
}
