// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	yamldocument "github.com/berth-k8s/berth/internal/engine/config/document"
	"github.com/berth-k8s/berth/internal/owned"
)

// fetchFlag is the flag that lets -k fetch.
const fetchFlag = "fetch"

// newKustomizer returns a function that builds a folder's manifests like kubectl kustomize: in the
// same order, and without plugins, which would execute the folder author's programs. Unless fetch
// is set, it does not contact any host either: inspecting a received folder must not be observable.
func newKustomizer(fetch bool) func(folder string) ([]byte, error) {
	if fetch {
		return kustomizeFolder
	}
	return func(folder string) ([]byte, error) {
		defer goOffline()()
		text, err := kustomizeFolder(folder)
		if err != nil && (errors.Is(err, errOffline) || strings.Contains(err.Error(), errOffline.Error()) ||
			strings.Contains(err.Error(), "no 'git' program")) {
			err = fmt.Errorf("%w: nothing is fetched without --%s", err, fetchFlag)
		}
		return text, err
	}
}

var errOffline = errors.New("the kustomization refers to another host")

// goOffline keeps the kustomize library, which lacks such an option, from making requests and from
// running git until the returned function is called. The change is global, which is safe because a
// command reads its files before it does anything else.
func goOffline() (end func()) {
	path, transport := os.Getenv("PATH"), http.DefaultTransport
	http.DefaultTransport = refusing{}
	_ = os.Setenv("PATH", "") // prevents git from being found
	return func() {
		http.DefaultTransport = transport
		_ = os.Setenv("PATH", path)
	}
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errOffline }

// regular reads regular files only (see [owned.Open]), and rejects files with memory-exhausting
// aliases: the kustomize library expands them without a limit.
type regular struct{ filesys.FileSystem }

func (regular) ReadFile(path string) ([]byte, error) {
	text, err := owned.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if most := 1_000_000 + 10*len(text); yamldocument.Expanded(string(text)) > most {
		return nil, fmt.Errorf("%s: its aliases stand for more than %d values", path, most)
	}
	return text, nil
}

func kustomizeFolder(folder string) ([]byte, error) {
	if !pathExists(folder) {
		return nil, fmt.Errorf("-k %s: there is no such folder", folder)
	}
	names := konfig.RecognizedKustomizationFileNames()
	if !slices.ContainsFunc(names, func(name string) bool { return pathExists(filepath.Join(folder, name)) }) {
		return nil, fmt.Errorf("-k %s: the folder has no %s", folder, strings.Join(names, " or "))
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified // keeps the order of kubectl kustomize
	made, err := krusty.MakeKustomizer(options).Run(regular{filesys.MakeFsOnDisk()}, folder)
	if err != nil {
		return nil, fmt.Errorf("-k %s: %w", folder, err)
	}
	return made.AsYaml()
}

func pathExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
