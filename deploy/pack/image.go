// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// User is the UID of the processes. Distroless images use the same UID for nonroot, and machines
// assign it to no account.
const User = "65532"

// Image holds the inputs of an image.
type Image struct {
	// Reference is its name, with a tag: registry.example.com/berth:v1.0.0.
	Reference string
	Version   string
	// Revision is the commit. Created is the time of the commit, not of the build, so that the same
	// commit gives the same bytes.
	Revision string
	Created  time.Time
	// License is the text of /LICENSE in the image.
	License []byte
	// Binaries maps architectures (amd64, arm64) to folders with the binaries for /berth and
	// /berth-scheduler.
	Binaries map[string]string
	// Node adds the kubelet, to be copied to a machine. The kubelet cannot run in a container of
	// this image, which runs without root and lacks the mount command.
	Node bool
	// Integrations adds /berth-kueue and /berth-expander.
	Integrations bool
}

// programs lists the programs of every image, beginning with the entrypoint.
var programs = []string{"berth", "berth-scheduler"}

// integrations lists the programs that connect Berth to other projects.
var integrations = []string{"berth-kueue", "berth-expander"}

// ImagePrograms returns the programs of an image.
func ImagePrograms(withNode, withIntegrations bool) []string {
	all := slices.Clone(programs)
	if withNode {
		all = append(all, kubelet)
	}
	if withIntegrations {
		all = append(all, integrations...)
	}
	return all
}

// Write writes the image as an OCI layout in a tar file: an index of one image for each
// architecture.
func (i *Image) Write(file string) error {
	index, err := i.buildIndex()
	if err != nil {
		return err
	}
	return writeLayout(file, i.Created, func(path layout.Path) error {
		return path.AppendIndex(index, layout.WithAnnotations(map[string]string{
			"org.opencontainers.image.ref.name": i.imageTag(),
			"io.containerd.image.name":          i.Reference,
		}))
	})
}

// Push pushes the image to the registry that its Reference names, with the credentials of `docker
// login`. Registries at loopback and private addresses are reached over HTTP.
func (i *Image) Push(ctx context.Context) error {
	reference, err := name.ParseReference(i.Reference)
	if err != nil {
		return err
	}
	index, err := i.buildIndex()
	if err != nil {
		return err
	}
	return remote.WriteIndex(reference, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
}

// Digest returns the index's digest, for immutable references to the image.
func (i *Image) Digest() (string, error) {
	index, err := i.buildIndex()
	if err != nil {
		return "", err
	}
	digest, err := index.Digest()
	return digest.String(), err
}

func (i *Image) imageTag() string { return i.Reference[strings.LastIndexByte(i.Reference, ':')+1:] }

func (i *Image) buildIndex() (v1.ImageIndex, error) {
	if name, tag, ok := strings.Cut(filepath.Base(i.Reference), ":"); !ok || name == "" || tag == "" || tag == "latest" {
		return nil, fmt.Errorf("image %q: must have a tag, and not latest, as registry.example.com/berth:v1.0.0", i.Reference)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range slices.Sorted(maps.Keys(i.Binaries)) {
		image, err := i.buildImage(architecture)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", architecture, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	return mutate.Annotations(index, i.imageLabels()).(v1.ImageIndex), nil
}

// imageLabels returns the labels of the image, its manifest and the index.
func (i *Image) imageLabels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":         "berth",
		"org.opencontainers.image.description":   "Scheduling, preemption and eviction for Kubernetes",
		"org.opencontainers.image.source":        "https://github.com/berth-k8s/berth",
		"org.opencontainers.image.documentation": "https://github.com/berth-k8s/berth/blob/main/docs/tasks/install.md",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.version":       i.Version,
		"org.opencontainers.image.revision":      i.Revision,
		"org.opencontainers.image.created":       i.Created.UTC().Format(time.RFC3339),
	}
}

func (i *Image) buildImage(architecture string) (v1.Image, error) {
	content, err := i.packFiles(architecture)
	if err != nil {
		return nil, err
	}

	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}

	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: i.Created.UTC()}, CreatedBy: "make image"},
	})
	if err != nil {
		return nil, err
	}

	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}

	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", architecture, v1.Time{Time: i.Created.UTC()}
	config.Config = v1.Config{
		User: User + ":" + User, Entrypoint: []string{"/" + programs[0]}, WorkingDir: "/", Env: []string{"PATH=/"}, Labels: i.imageLabels(),
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, i.imageLabels()).(v1.Image), nil
}

// packFiles returns the only layer, as a tar.
func (i *Image) packFiles(architecture string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, mode int64, content []byte) error {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), ModTime: i.Created.UTC(),
			Format: tar.FormatPAX})
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	}

	for _, program := range ImagePrograms(i.Node, i.Integrations) {
		path := filepath.Join(i.Binaries[architecture], program)
		if err := checkStatic(path, architecture); err != nil {
			return nil, err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := add(program, 0o755, content); err != nil {
			return nil, err
		}
	}

	if err := add("LICENSE", 0o644, i.License); err != nil {
		return nil, err
	}
	return out.Bytes(), w.Close()
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkStatic rejects programs that would not start in an otherwise empty image.
func checkStatic(path, architecture string) error {
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s: must be a Linux binary: %w", path, err)
	}
	defer file.Close()
	if machine, known := machines[architecture]; !known || file.Machine != machine {
		return fmt.Errorf("%s: is for %v, not for %s", path, file.Machine, architecture)
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return fmt.Errorf("%s: is linked dynamically; build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}
