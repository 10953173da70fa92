// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// program writes the header of a Linux program; with interpreter, it is dynamically linked.
func program(t *testing.T, path string, machine elf.Machine, interpreter bool) {
	t.Helper()
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Phoff: 64, Phentsize: 56, Shentsize: 64,
	}
	var out bytes.Buffer
	if interpreter {
		header.Phnum = 1
	}
	_ = binary.Write(&out, binary.LittleEndian, header)
	_ = binary.Write(&out, binary.LittleEndian, elf.Prog64{Type: uint32(elf.PT_INTERP)})
	if err := os.WriteFile(path, out.Bytes(), 0o700); err != nil {
		t.Fatal(err)
	}
}

func example(t *testing.T) *Image {
	t.Helper()
	image := &Image{
		Reference: "registry.example.com/berth:v1.2.3", Version: "v1.2.3", Revision: "abc", Created: time.Unix(1760000000, 0),
		License: []byte("free"), Binaries: map[string]string{},
	}
	for architecture, machine := range machines {
		folder := t.TempDir()
		for _, name := range ImagePrograms(true, true) {
			program(t, filepath.Join(folder, name), machine, false)
		}
		image.Binaries[architecture] = folder
	}
	return image
}

func write(t *testing.T, image *Image) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := image.Write(file); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("beside the image there is %v (%v)", left, err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestSameBytes verifies that the same commit and binaries give the same image, whenever and
// wherever it is built.
func TestSameBytes(t *testing.T) {
	first := write(t, example(t))
	if !bytes.Equal(first, write(t, example(t))) {
		t.Error("two images of the same differ")
	}
	other := example(t)
	other.Revision = "def"
	if bytes.Equal(first, write(t, other)) {
		t.Error("images of two commits are the same")
	}
}

// unpack extracts the tar into a folder and opens it as an OCI layout.
func unpack(t *testing.T, content []byte) v1.ImageIndex {
	t.Helper()
	folder := t.TempDir()
	archive := tar.NewReader(bytes.NewReader(content))
	for {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, header.Name)
		if header.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		blob, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, blob, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path, err := layout.FromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	return index
}

// TestWhatIsInTheImage verifies that the image for clusters lacks the kubelet and the integrations,
// which are only in images that are made with them.
func TestWhatIsInTheImage(t *testing.T) {
	node, other := example(t), example(t)
	node.Node, other.Integrations = true, true
	for image, more := range map[*Image]string{
		example(t): "", node: "kubelet -rwxr-xr-x 0:0, ", other: "berth-kueue -rwxr-xr-x 0:0, berth-expander -rwxr-xr-x 0:0, ",
	} {
		checkImage(t, image, "berth -rwxr-xr-x 0:0, berth-scheduler -rwxr-xr-x 0:0, "+more+"LICENSE -rw-r--r-- 0:0")
	}
}

func checkImage(t *testing.T, packed *Image, want string) {
	t.Helper()
	layout := unpack(t, write(t, packed))
	outer, err := layout.IndexManifest()
	if err != nil || len(outer.Manifests) != 1 || outer.Manifests[0].Annotations["io.containerd.image.name"] != "registry.example.com/berth:v1.2.3" {
		t.Fatalf("the layout has %+v (%v)", outer, err)
	}
	index, err := layout.ImageIndex(outer.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := index.IndexManifest()
	if err != nil || len(manifests.Manifests) != 2 {
		t.Fatalf("%+v (%v), want amd64 and arm64", manifests, err)
	}
	for _, m := range manifests.Manifests {
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != m.Platform.Architecture || config.OS != "linux" || !config.Created.Equal(time.Unix(1760000000, 0)) {
			t.Errorf("%s: for %s %s, made at %v", m.Platform, config.OS, config.Architecture, config.Created)
		}
		if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/berth"}) || c.Labels["org.opencontainers.image.revision"] != "abc" {
			t.Errorf("%s: %+v", m.Platform, c)
		}
		if m, err := image.Manifest(); err != nil || m.Annotations["org.opencontainers.image.version"] != "v1.2.3" {
			t.Errorf("manifest %+v (%v)", m, err)
		}
		if got := contents(t, image); got != want {
			t.Errorf("%s: %s, want %s", m.Platform, got, want)
		}
	}
}

// contents lists the files of an image with their modes, none of them writable by its user.
func contents(t *testing.T, image v1.Image) string {
	t.Helper()
	in := mutate.Extract(image)
	defer in.Close()
	var names []string
	archive := tar.NewReader(in)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return strings.Join(names, ", ")
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name+" "+header.FileInfo().Mode().String()+" "+owner(header))
	}
}

func owner(h *tar.Header) string {
	if h.Uid == 0 && h.Gid == 0 {
		return "0:0"
	}
	return "another owner"
}

// TestPush verifies that a registry has the image by its name, with the digest of the written
// image.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	image := example(t)
	image.Reference = strings.TrimPrefix(server.URL, "http://") + "/team/berth:v1.2.3"
	if err := image.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(image.Reference)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Head(reference)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := image.Digest(); err != nil || pushed.Digest.String() != want {
		t.Errorf("pushed %s, want %s (%v)", pushed.Digest, want, err)
	}
}

// TestWhatWouldNotStartIsRefused verifies that programs for another architecture are rejected, and
// programs that need a loader, which an image lacks.
func TestWhatWouldNotStartIsRefused(t *testing.T) {
	for _, c := range []struct {
		spoil func(*Image)
		says  string
	}{
		{func(i *Image) { program(t, filepath.Join(i.Binaries["amd64"], "berth"), elf.EM_X86_64, true) }, "linked dynamically"},
		{func(i *Image) { program(t, filepath.Join(i.Binaries["amd64"], "berth"), elf.EM_AARCH64, false) }, "not for amd64"},
		{func(i *Image) { _ = os.Remove(filepath.Join(i.Binaries["arm64"], "berth-scheduler")) }, "berth-scheduler"},
		{func(i *Image) { i.Reference = "registry.example.com/berth" }, "must have a tag"},
		{func(i *Image) { i.Reference = "registry.example.com:5000/berth" }, "must have a tag"},
		{func(i *Image) { i.Reference = "registry.example.com/berth:latest" }, "not latest"},
	} {
		image := example(t)
		c.spoil(image)
		file := filepath.Join(t.TempDir(), "image.tar")
		if err := image.Write(file); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("says %v, want %q", err, c.says)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("written all the same")
		}
	}
}
