// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

const (
	manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	configType   = "application/vnd.docker.container.image.v1+json"
	layerType    = "application/vnd.docker.image.rootfs.diff.tar"
)

// runConfig is an image's runtime configuration.
type runConfig struct {
	User       string            `json:",omitempty"`
	Env        []string          `json:",omitempty"`
	Entrypoint []string          `json:",omitempty"`
	Cmd        []string          `json:",omitempty"`
	Labels     map[string]string `json:",omitempty"`
}

type image struct {
	config runConfig
	layers []layer
}

// build returns the manifest and its blobs: the configuration, followed by the layers. Images with
// different references get different digests.
func (i image) build(reference string) (manifest []byte, blobs [][]byte, err error) {
	i.config.Labels = map[string]string{"reference": reference}
	digests := make([]string, 0, len(i.layers))
	for _, layer := range i.layers {
		digests = append(digests, digestOf(layer))
	}
	described, err := json.Marshal(map[string]any{
		"architecture": architecture, "os": "linux", "config": i.config, "rootfs": map[string]any{"type": "layers", "diff_ids": digests},
	})
	if err != nil {
		return nil, nil, err
	}
	blobs = append(blobs, described)
	descriptors := []map[string]any{}
	for _, layer := range i.layers {
		blobs = append(blobs, layer)
		descriptors = append(descriptors, descriptor(layerType, layer))
	}
	manifest, err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": descriptor(configType, described), "layers": descriptors,
	})
	return manifest, blobs, err
}

func descriptor(kind string, blob []byte) map[string]any {
	return map[string]any{"mediaType": kind, "digest": digestOf(blob), "size": len(blob)}
}

func digestOf(blob []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(blob)) }

// registry serves images with the subset of Docker's registry API needed for a pull.
type registry struct {
	blobs map[string][]byte // blobs and manifests by digest
	tags  map[string]string // digest of the manifest by REPOSITORY:TAG
}

// add adds an image under a reference, HOST/REPOSITORY:TAG.
func (r *registry) add(reference string, i image) error {
	manifest, blobs, err := i.build(reference)
	if err != nil {
		return fmt.Errorf("image %s: %w", reference, err)
	}
	for _, blob := range append(blobs, manifest) {
		r.blobs[digestOf(blob)] = blob
	}
	_, name, _ := strings.Cut(reference, "/")
	r.tags[name] = digestOf(manifest)
	return nil
}

func (r *registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	path := strings.TrimPrefix(request.URL.Path, "/v2/")
	digest, kind := path[strings.LastIndexByte(path, '/')+1:], "application/octet-stream"
	if repository, reference, ok := strings.Cut(path, "/manifests/"); ok {
		kind = manifestType
		if tagged, ok := r.tags[repository+":"+reference]; ok {
			digest = tagged
		}
	}
	blob, ok := r.blobs[digest]
	if !ok {
		http.NotFound(w, request)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Length", strconv.Itoa(len(blob)))
	_, _ = w.Write(blob)
}
