// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	helm "helm.sh/helm/v4/pkg/registry"
	"sigs.k8s.io/yaml"
)

// sample is a small program, built from modules, that replaces Berth's programs in these releases.
var sample = sync.OnceValues(func() ([]byte, error) {
	folder, err := os.MkdirTemp("", "berth-pack-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -buildid=", "-o", filepath.Join(folder, "program"), "./cmd/image")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(filepath.Join(folder, "program"))
})

// released builds a release of that program.
func released(t *testing.T, key string) (folder string) {
	t.Helper()
	content, err := sample()
	if err != nil {
		t.Fatal(err)
	}
	p, work := Platform{"linux", runtime.GOARCH}, t.TempDir()
	for _, name := range ProgramsOf(p) {
		if err := os.WriteFile(filepath.Join(work, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := &Release{
		Root: "../..", Version: "v1.2.3", Revision: "abc", Created: time.Unix(1_700_000_000, 0), Repository: "registry.example.org/team/berth",
		Programs: map[Platform]string{p: work}, Key: key,
	}
	folder = filepath.Join(t.TempDir(), "dist")
	if err := r.Write(folder); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(folder); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a release over another: %v", err)
	}
	return folder
}

func contentsOf(t *testing.T, folder string) map[string]string {
	t.Helper()
	names, err := filesOf(folder)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	return all
}

func TestAReleaseIsTheSameBytesTwice(t *testing.T) {
	first, second := contentsOf(t, released(t, "")), contentsOf(t, released(t, ""))
	want := []string{
		"NOTES.md", "SHA256SUMS", "berth-chart-v1.2.3.oci.tar", "berth-chart-v1.2.3.tgz", "berth-image-v1.2.3.tar", "berth-krew-v1.2.3.yaml", "berth-kustomize-v1.2.3.tar.gz",
		"berth-v1.2.3-linux-" + runtime.GOARCH + ".tar.gz", "berth-v1.2.3.intoto.json", "berth-v1.2.3.spdx.json", "berth.rb",
	}
	var names []string
	for name, text := range first {
		names = append(names, name)
		if text != second[name] {
			t.Errorf("%s is another one the second time", name)
		}
	}
	slices.Sort(names)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(first["NOTES.md"], "`controlplane/v1.2.3`") {
		t.Errorf("the notes lack the tag of the module controlplane:\n%s", first["NOTES.md"])
	}
	for name := range first {
		if name != sumsFile && !strings.Contains(first[sumsFile], "  "+name+"\n") {
			t.Errorf("%s has no checksum", name)
		}
	}
}

// TestTheBillIsComplete verifies that the bill lists exactly the modules recorded in the programs.
func TestTheBillIsComplete(t *testing.T) {
	folder := released(t, "")
	content, err := sample()
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.Open(filepath.Join(folder, "berth-v1.2.3.spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	bill, err := spdxjson.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(bill); err != nil {
		t.Error(err)
	}
	want := map[string]string{"github.com/berth-k8s/berth": "v1.2.3", "std": strings.TrimPrefix(info.GoVersion, "go")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		want[m.Path] = m.Version
	}
	got := map[string]string{}
	for _, p := range bill.Packages {
		got[p.PackageName] = p.PackageVersion
		if p.PackageName == "github.com/google/go-containerregistry" && len(p.PackageChecksums) != 1 {
			t.Errorf("%s has no checksum", p.PackageName)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 4 {
		t.Error(diff)
	}
	if len(bill.Relationships) != len(bill.Packages) {
		t.Errorf("%d relationships of %d packages", len(bill.Relationships), len(bill.Packages))
	}
}

// TestWhatIsInstalledIsWhatWasReleased verifies that the released chart loads, with the version of
// the release and its image, and that the kustomization names the image by its digest.
func TestWhatIsInstalledIsWhatWasReleased(t *testing.T) {
	folder := released(t, "")
	loaded, err := loader.LoadFile(filepath.Join(folder, "berth-chart-v1.2.3.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Metadata.Version != "1.2.3" || loaded.Metadata.AppVersion != "v1.2.3" {
		t.Errorf("the chart is %s of %s", loaded.Metadata.Version, loaded.Metadata.AppVersion)
	}
	if image := loaded.Values["image"].(map[string]any)["repository"]; image != "registry.example.org/team/berth" {
		t.Errorf("its image is %s", image)
	}
	files := unzipped(t, filepath.Join(folder, "berth-kustomize-v1.2.3.tar.gz"))
	images := 0
	for name, text := range files {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "image: ") {
				images++
				if !strings.Contains(line, "image: registry.example.org/team/berth@sha256:") {
					t.Errorf("%s: %s", name, line)
				}
			}
		}
	}
	if images < 5 {
		t.Errorf("%d images in the kustomization", images)
	}
	programs := unzipped(t, filepath.Join(folder, "berth-v1.2.3-linux-"+runtime.GOARCH+".tar.gz"))
	if len(programs) != 4 || programs[kubelet] == "" || len(programs["berth"]) < 1<<20 || programs["LICENSE"] == "" {
		t.Errorf("%d files in the archive of programs", len(programs))
	}
}

// TestHelmPullsTheChart verifies that Helm pulls the packed chart from a registry after the OCI
// layout was pushed unchanged.
func TestHelmPullsTheChart(t *testing.T) {
	folder := released(t, "")
	laidOut := t.TempDir()
	content, err := os.ReadFile(filepath.Join(folder, "berth-chart-v1.2.3.oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range untarred(t, bytes.NewReader(content)) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(laidOut, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(laidOut, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	index, err := layout.ImageIndexFromPath(laidOut)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%d manifests in the layout (%v)", len(manifest.Manifests), err)
	}
	chart, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	where, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/charts/berth:" +
		manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(where, chart); err != nil {
		t.Fatal(err)
	}

	client, err := helm.NewClient(helm.ClientOptPlainHTTP())
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := client.Pull(where.Name())
	if err != nil {
		t.Fatal(err)
	}
	packed, err := os.ReadFile(filepath.Join(folder, "berth-chart-v1.2.3.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(pulled.Chart.Data, packed) || pulled.Chart.Meta.Name != "berth" || pulled.Chart.Meta.AppVersion != "v1.2.3" {
		t.Errorf("pulled is %d bytes of %+v, packed are %d", len(pulled.Chart.Data), pulled.Chart.Meta, len(packed))
	}
}

// TestInstallersNameTheArchives verifies that krew and Homebrew have the URL and checksum of every
// archive.
func TestInstallersNameTheArchives(t *testing.T) {
	files := contentsOf(t, released(t, ""))
	archive := "berth-v1.2.3-linux-" + runtime.GOARCH + ".tar.gz"
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(files[archive])))
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				Selector    struct{ MatchLabels map[string]string }
				URI, SHA256 string
			}
		}
	}
	if err := yaml.UnmarshalStrict([]byte(files["berth-krew-v1.2.3.yaml"]), &map[string]any{}); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(files["berth-krew-v1.2.3.yaml"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest.Spec.Platforms) != 1 || manifest.Spec.Version != "v1.2.3" {
		t.Fatalf("krew is told %+v", manifest)
	}
	p := manifest.Spec.Platforms[0]
	if p.SHA256 != sum || !strings.HasSuffix(p.URI, "/v1.2.3/"+archive) || p.Selector.MatchLabels["os"] != "linux" ||
		p.Selector.MatchLabels["arch"] != runtime.GOARCH {
		t.Errorf("krew is told %+v", p)
	}
	for _, want := range []string{"  version \"1.2.3\"\n", "  on_linux do\n", "/v1.2.3/" + archive + "\"\n", "      sha256 \"" + sum + "\"\n"} {
		if !strings.Contains(files["berth.rb"], want) {
			t.Errorf("no %q in the formula:\n%s", want, files["berth.rb"])
		}
	}
}

func unzipped(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return untarred(t, unpacked)
}

func untarred(t *testing.T, packed io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	archive := tar.NewReader(packed)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			files[header.Name] = string(content)
		}
	}
}

// TestChecksumsAreSigned verifies a signature with the public half of the key.
func TestChecksumsAreSigned(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	files := contentsOf(t, released(t, key))
	signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(files[sumsFile+".sig"]))
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256([]byte(files[sumsFile]))
	if !ecdsa.VerifyASN1(&private.PublicKey, digest[:], signature) {
		t.Error("the signature is not of this key")
	}
	if _, err := signingKey([]byte("nonsense")); err == nil {
		t.Error("nonsense is taken for a key")
	}
}

func TestOnlyVersionsAreReleased(t *testing.T) {
	for version, good := range map[string]bool{"v1.2.3": true, "v0.1.0-rc.1": true, "1.2.3": false, "v1.2": false, "": false, "v1.2.3 ": false, "v01.2.3": false} {
		if err := (&Release{Version: version}).Check(); (err == nil) != good {
			t.Errorf("%q: %v", version, err)
		}
	}
}
