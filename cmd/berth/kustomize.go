package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/owned"
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

const fetchFlag = "fetch"

// addFetch adds the flag that lets -k fetch.
func addFetch(flags *pflag.FlagSet) {
	flags.Bool(fetchFlag, false, "with -k, fetch what the kustomization refers to elsewhere, over HTTP and with git, "+
		"from hosts that the folder names")
}

// newKustomizer returns what makes the manifests of a folder, as kubectl kustomize does: in the
// same order, and without plugins, which would be programs of whoever wrote the folder. Unless
// fetch, it reaches no host, either: to look at a folder of somebody's must not tell them, or
// anybody.
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

// goOffline keeps the kustomize library, which has no option for it, from requests and from git
// until the function that it returns is called. A command reads its files before it does anything
// else.
func goOffline() (end func()) {
	path, transport := os.Getenv("PATH"), http.DefaultTransport
	http.DefaultTransport = refusing{}
	_ = os.Setenv("PATH", "") // where git is looked for
	return func() {
		http.DefaultTransport = transport
		_ = os.Setenv("PATH", path)
	}
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errOffline }

// regular reads regular files only; see [owned.Open].
type regular struct{ filesys.FileSystem }

func (regular) ReadFile(path string) ([]byte, error) { return owned.ReadFile(path) }

func kustomizeFolder(folder string) ([]byte, error) {
	if !pathExists(folder) {
		return nil, fmt.Errorf("-k %s: there is no such folder", folder)
	}
	names := konfig.RecognizedKustomizationFileNames()
	if !slices.ContainsFunc(names, func(name string) bool { return pathExists(filepath.Join(folder, name)) }) {
		return nil, fmt.Errorf("-k %s: the folder has no %s", folder, strings.Join(names, " or "))
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified // the order of kubectl kustomize
	made, err := krusty.MakeKustomizer(options).Run(regular{filesys.MakeFsOnDisk()}, folder)
	if err != nil {
		return nil, fmt.Errorf("-k %s: %w", folder, err)
	}
	return made.AsYaml()
}
