package agent

import (
	"encoding/base64"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
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

func TestPullSecretsAreForTheirRegistries(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte("me:pass:word"))
	secret := &v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{
		v1.DockerConfigJsonKey: []byte(fmt.Sprintf(`{"auths":{"https://index.docker.io/v1/":{"auth":%q},"reg.example:5000/team":{"username":"u","password":"p"}}}`, auth)),
	}}
	for image, want := range map[string]string{
		"busybox": "me pass:word", "reg.example:5000/team/app:1": "u p", "reg.example:5000/teammate/app": "", "other.example/app": "",
	} {
		logins, err := loginsFor(secret, image)
		got := ""
		if len(logins) == 1 {
			got = logins[0].Username + " " + logins[0].Password
		}
		if err != nil || got != want {
			t.Errorf("%s: %q (%v), want %q", image, got, err, want)
		}
	}
}
