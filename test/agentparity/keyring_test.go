package agentparity

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/kubernetes/pkg/credentialprovider/secrets"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/node/agent/keyring"
)

var (
	schemes = rapid.SampledFrom([]string{"", "", "http://", "https://"})
	hosts   = rapid.SampledFrom([]string{"r.io", "a.r.io", "localhost", "docker.io", "index.docker.io", "127.0.0.1", "[::1]"})
	globs   = rapid.SampledFrom([]string{"*.io", "*.r.io", "*.*.io", "r.*", "[a-c].r.io", "*", "r.i?", "docker.*"})
	ports   = rapid.SampledFrom([]string{"", "", ":5000", ":443"})
	paths   = rapid.SampledFrom([]string{"", "", "/", "/v1/", "/v2/", "/v1", "/team", "/team/", "/team/app", "/v2/team", "/library"})
)

// entries of a docker configuration.
func auths(t *rapid.T) map[string]map[string]string {
	out := map[string]map[string]string{}
	for range rapid.IntRange(0, 3).Draw(t, "entries") {
		host := rapid.OneOf(hosts, globs).Draw(t, "host")
		registry := schemes.Draw(t, "scheme") + host + ports.Draw(t, "port") + paths.Draw(t, "path")
		text := word("ab:", 4).Draw(t, "login")
		switch rapid.IntRange(0, 2).Draw(t, "form") {
		case 0:
			out[registry] = map[string]string{"username": text, "password": "x"}
		case 1:
			out[registry] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(text))}
		default:
			out[registry] = map[string]string{"username": "over", "auth": base64.RawStdEncoding.EncodeToString([]byte(text))}
		}
	}
	return out
}

// ambiguous: two entries of one file are for the same registry. The kubelet tries them in the order
// of a Go map.
func ambiguous(all map[string]map[string]string) bool {
	seen := map[string]bool{}
	for registry := range all {
		_, rest, found := strings.Cut(registry, "://")
		if !found {
			rest = registry
		}
		host, path, _ := strings.Cut(rest, "/")
		for _, version := range []string{"v1/", "v2/"} {
			path = strings.TrimPrefix(path, version)
		}
		if seen[host+"/"+path] {
			return true
		}
		seen[host+"/"+path] = true
	}
	return false
}

// Whatever the secrets say, the same logins are tried for an image, in the same order.
func TestKeyring(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pointers []*v1.Secret
		var values []v1.Secret
		for i := range rapid.IntRange(0, 3).Draw(t, "secrets") {
			all := auths(t)
			if ambiguous(all) {
				t.Skip("the kubelet's order is by chance")
			}
			secret := v1.Secret{Type: rapid.SampledFrom([]v1.SecretType{
				v1.SecretTypeDockerConfigJson, v1.SecretTypeDockercfg, v1.SecretTypeOpaque}).Draw(t, "type")}
			secret.Name = fmt.Sprint("s", i)
			wrapped, _ := json.Marshal(map[string]any{"auths": all})
			plain, _ := json.Marshal(all)
			secret.Data = map[string][]byte{v1.DockerConfigJsonKey: wrapped, v1.DockerConfigKey: plain}
			values, pointers = append(values, secret), append(pointers, &secret)
		}
		repository := hosts.Draw(t, "image's host") + ports.Draw(t, "image's port") +
			rapid.SampledFrom([]string{"/team", "/team/app", "/teamwork/a", "/library/busybox", "/v2/team"}).Draw(t, "image")
		theirs, wantErr := secrets.MakeDockerKeyring(values, &credentialprovider.BasicDockerKeyring{})
		ours, err := keyring.FromSecrets(pointers)
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("error %v, the kubelet's is %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if strings.HasPrefix(repository, "localhost/") {
			// The kubelet takes any host without a dot or a port for Docker Hub, localhost among
			// them, and would show it Docker Hub's login. Runtimes pull from the host localhost.
			t.Skip("the kubelet takes localhost for Docker Hub")
		}
		var got, want []string
		for _, l := range ours.For(repository) {
			got = append(got, l.Username+"/"+l.Password)
		}
		found, _ := theirs.Lookup(repository)
		for _, c := range found {
			want = append(want, c.Username+"/"+c.Password)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s: %s", repository, diff)
		}
	})
}
