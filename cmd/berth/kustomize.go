package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// addFiles adds -f, and kubectl's -k beside it. In kubectl one excludes the other; here both add to
// the same list, in the order of the command line: nodes may come from one and pods from the other.
func addFiles(flags *pflag.FlagSet, files *[]string, file, folder string) {
	flags.VarP(&source{files, nil, func(path string) string { return path }}, "filename", "f", file)
	flags.VarP(&source{files, nil, manifest.Kustomization}, "kustomize", "k", folder)
}

// source is a flag that names manifests.
type source struct {
	all  *[]string // of all such flags, as [manifest.Read] takes them
	said []string  // with this flag
	as   func(string) string
}

func (s *source) String() string { return strings.Join(s.said, ",") }
func (s *source) Type() string   { return "stringArray" }

// Set implements [pflag.Value].
func (s *source) Set(path string) error {
	s.said = append(s.said, path)
	*s.all = append(*s.all, s.as(path))
	return nil
}

// kustomize makes the manifests of a folder, as kubectl kustomize does: in the same order, and
// without plugins, which would be programs of whoever wrote the folder.
func kustomize(folder string) ([]byte, error) {
	if !exists(folder) {
		return nil, fmt.Errorf("-k %s: there is no such folder", folder)
	}
	names := konfig.RecognizedKustomizationFileNames()
	if !slices.ContainsFunc(names, func(name string) bool { return exists(filepath.Join(folder, name)) }) {
		return nil, fmt.Errorf("-k %s: the folder has no %s", folder, strings.Join(names, " or "))
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified // the order of kubectl kustomize
	made, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, fmt.Errorf("-k %s: %w", folder, err)
	}
	return made.AsYaml()
}
