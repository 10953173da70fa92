package e2eagent

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// registry serves one image, team/app:1, to whoever shows the right name and password: Docker's
// registry API, as far as a pull needs it.
type registry struct {
	host     string // localhost:PORT
	manifest []byte
	blobs    map[string][]byte // by digest
}

const (
	manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	configType   = "application/vnd.docker.container.image.v1+json"
	layerType    = "application/vnd.docker.image.rootfs.diff.tar"
)

func startRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{blobs: map[string][]byte{}}
	layer := r.add(busyboxLayer(t))
	config := r.add(fmt.Appendf(nil, `{"architecture":%q,"os":"linux","config":{"Cmd":["/sleep","10000"]},"rootfs":{"type":"layers","diff_ids":[%q]}}`,
		runtime.GOARCH, layer))
	describe := func(kind, digest string) map[string]any {
		return map[string]any{"mediaType": kind, "digest": digest, "size": len(r.blobs[digest])}
	}
	var err error
	if r.manifest, err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": describe(configType, config), "layers": []any{describe(layerType, layer)},
	}); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.host = strings.Replace(server.Listener.Addr().String(), "127.0.0.1", "localhost", 1)
	return r
}

func (r *registry) add(blob []byte) (digest string) {
	digest = digestOf(blob)
	r.blobs[digest] = blob
	return digest
}

func digestOf(blob []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(blob)) }

// busyboxLayer has the machine's busybox as /sleep, which is what it is then.
func busyboxLayer(t *testing.T) []byte {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: "sleep", Mode: 0o755, Size: int64(len(busybox))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(busybox); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func (r *registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if name, password, _ := request.BasicAuth(); name != "right" || password != "pass:word" {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return
	}
	what := request.URL.Path[strings.LastIndex(request.URL.Path, "/")+1:]
	body, kind := r.blobs[what], "application/octet-stream"
	if strings.Contains(request.URL.Path, "/manifests/") {
		body, kind = r.manifest, manifestType
	}
	if body == nil {
		http.NotFound(w, request)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", digestOf(body))
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	_, _ = w.Write(body)
}

// A private registry, with what people write into secrets: pods that show the right name and
// password run, and no others do.
func TestPrivateRegistry(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	r := startRegistry(t)
	secret := func(name, server, user, password string) {
		n.do(t, "-n", ns, "create", "secret", "docker-registry", name, "--docker-server="+server, "--docker-username="+user, "--docker-password="+password)
	}
	secret("right", r.host, "right", "pass:word")
	secret("url", "http://"+r.host+"/v1/", "right", "pass:word")
	secret("wrong", r.host, "wrong", "x")
	secret("elsewhere", "registry.example.com", "right", "pass:word")
	// The node's own configuration is for one of the registry's repositories only, so that no other
	// pod here is helped by it.
	config := fmt.Sprintf(`{"auths":{%q:{"username":"right","password":"pass:word"}}}`, r.host+"/node")
	if err := os.WriteFile(filepath.Join(n.dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	pods := []struct {
		name, image string
		secrets     []string
		pulled      bool
	}{
		{"without", "team/app", nil, false}, {"wrong", "team/app", []string{"wrong"}, false},
		{"elsewhere", "team/app", []string{"elsewhere"}, false}, {"right", "team/app", []string{"right"}, true},
		{"url", "team/app", []string{"url"}, true}, {"second", "team/app", []string{"wrong", "right"}, true},
		{"node", "node/app", nil, true}, {"both", "node/app", []string{"wrong"}, true},
	}
	for _, p := range pods {
		var refs []string
		for _, s := range p.secrets {
			refs = append(refs, "{name: "+s+"}")
		}
		n.apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 0
  imagePullSecrets: [%s]
  containers: [{name: c, image: "%s/%s:1", imagePullPolicy: Always}]
`, p.name, strings.Join(refs, ", "), r.host, p.image))
	}
	for _, p := range pods {
		if p.pulled {
			n.awaitPod(t, ns, p.name, "ready", ready)
		} else {
			n.awaitPod(t, ns, p.name, "ImagePullBackOff", waits("ImagePullBackOff"))
		}
	}
}
