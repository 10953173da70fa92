// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/usage"
)

// Kind is a kind of object referenced as TYPE/NAME.
type Kind struct {
	Name       string
	apiVersion string
	Words      []string // kubectl's names: singular, plural, short names
	Global     bool     // cluster-scoped
}

func kindOf(name, apiVersion, words string) Kind {
	return Kind{Name: name, apiVersion: apiVersion, Words: strings.Fields(words), Global: name == "Node" || name == "Namespace"}
}

// These kinds are accepted individually.
var (
	Namespace = kindOf("Namespace", "v1", "namespace namespaces")
	Node      = kindOf("Node", "v1", "node nodes no")
	Pod       = kindOf("Pod", "v1", "pod pods po")
	PodGroup  = kindOf("PodGroup", "scheduling.k8s.io/v1beta1", "podgroup podgroups")
)

// These lists are the alternatives for a single argument.
var (
	Scalable = []Kind{
		kindOf("Deployment", "apps/v1", "deployment deployments deploy"),
		kindOf("StatefulSet", "apps/v1", "statefulset statefulsets sts"),
		kindOf("ReplicaSet", "apps/v1", "replicaset replicasets rs"),
		kindOf("ReplicationController", "v1", "replicationcontroller replicationcontrollers rc"),
	}
	PodsAndWorkloads = slices.Concat([]Kind{Pod}, Scalable, []Kind{
		kindOf("DaemonSet", "apps/v1", "daemonset daemonsets ds"),
		kindOf("Job", "batch/v1", "job jobs"),
	})
	Explainable = append(slices.Clone(PodsAndWorkloads), PodGroup)
)

// Resource returns the kind's API resource.
func (k Kind) Resource() schema.GroupVersionResource {
	return schema.FromAPIVersionAndKind(k.apiVersion, k.Name).GroupVersion().WithResource(k.Words[1])
}

// IsWord reports whether a word names the kind.
func (k Kind) IsWord(word string) bool { return slices.Contains(k.Words, strings.ToLower(word)) }

// OfKind reports whether TYPE/NAME is of the kind.
func (k Kind) OfKind(arg string) bool {
	kind, name, typed := strings.Cut(arg, "/")
	return typed && name != "" && !strings.Contains(name, "/") && k.IsWord(kind)
}

// NameOf returns the name in TYPE/NAME; a bare name is taken as a name of the kind.
func (k Kind) NameOf(arg string) (string, error) {
	_, name, typed := strings.Cut(arg, "/")
	switch {
	case !typed && arg != "":
		return arg, nil
	case !k.OfKind(arg):
		return "", usage.Errorf("%q: must be %s/NAME", arg, k.Words[0])
	}
	return name, nil
}

// NamesOf returns the distinct names in arguments of the forms n1, node/n1 and node n1.
func (k Kind) NamesOf(args []string) (names []string, err error) {
	if len(args) > 1 && k.IsWord(args[0]) {
		args = args[1:]
	}
	for _, arg := range args {
		name, err := k.NameOf(arg)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// AddFiles adds -f and kubectl's -k. In kubectl they exclude each other; here both append to the
// same list, in command-line order, so that nodes and pods may have different sources.
func AddFiles(flags *pflag.FlagSet, files *[]string, file, folder string) {
	flags.VarP(&source{files, nil, func(path string) string { return path }}, "filename", "f", file)
	flags.VarP(&source{files, nil, manifest.Kustomization}, "kustomize", "k", folder)
}

// source is a flag that names manifests.
type source struct {
	all    *[]string // files of all such flags, in the form of [manifest.Read]
	given  []string  // files given with this flag
	pathOf func(string) string
}

func (s *source) String() string { return strings.Join(s.given, ",") }
func (s *source) Type() string   { return "stringArray" }

// Set implements [pflag.Value].
func (s *source) Set(path string) error {
	s.given = append(s.given, path)
	*s.all = append(*s.all, s.pathOf(path))
	return nil
}
