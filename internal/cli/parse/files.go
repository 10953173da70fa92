package parse

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// AddFiles adds -f, and kubectl's -k beside it. In kubectl one excludes the other; here both add to
// the same list, in the order of the command line: nodes may come from one and pods from the other.
func AddFiles(flags *pflag.FlagSet, files *[]string, file, folder string) {
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
