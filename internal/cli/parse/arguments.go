// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
	"github.com/berth-k8s/berth/internal/usage"
)

// AsUsage turns every flag or argument error found by cobra into a usage error that points to the
// command's help.
func AsUsage(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return wrongFlag(err, c.CommandPath()) })
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usage.Errorf("%w (see %s --help)", err, c.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		AsUsage(sub)
	}
}

func wrongFlag(err error, path string) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return usage.Errorf("%s (see %s --help)", plainFault(err), path)
}

// plainFault returns pflag's message about a flag's value without the names of Go functions.
func plainFault(err error) string {
	text := err.Error()
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return text
	}

	cause := invalid.Unwrap().Error()
	flag := strings.TrimSuffix(text, cause)
	for _, plain := range []struct{ begins, ends, says string }{
		{"time: ", "", "must be a duration, such as 30s, 5m or 1h30m, of 290 years at most"},
		{"strconv.", "value out of range", "the number is too large"},
		{"strconv.ParseBool", "", "must be true or false"},
		{"strconv.ParseUint", "", "must be a whole number, not negative"},
		{"strconv.ParseInt", "", "must be a whole number"},
		{"strconv.", "", "must be a number"},
	} {
		if strings.HasPrefix(cause, plain.begins) && strings.HasSuffix(cause, plain.ends) {
			return flag + plain.says
		}
	}
	return text
}

// None is the argument check of a command without arguments.
func None(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.Flags().Lookup("filename") != nil:
		return fmt.Errorf("%q: no argument is expected; files are named with -f", args[0])
	}
	return fmt.Errorf("%q: no argument is expected", args[0])
}

// Some is the argument check of a command that describes its required arguments.
func Some(need string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New(need)
		}
		return nil
	}
}

// Subcommand is the argument check of a command with only subcommands: any argument is a mistyped
// one.
func Subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %s?", args[0], strings.Join(similar, " or "))
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// Last returns the word before the completed one.
func Last(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[len(args)-1]
}

// AwaitsValue returns the name of the flag in word if its value is the next word, or "".
func AwaitsValue(flags *pflag.FlagSet, word string) string {
	var flag *pflag.Flag
	switch name, long := strings.CutPrefix(word, "--"); {
	case long && !strings.Contains(name, "="):
		flag = flags.Lookup(name)
	case len(word) == 2 && word[0] == '-':
		flag = flags.ShorthandLookup(word[1:])
	}
	if flag == nil || flag.NoOptDefVal != "" {
		return ""
	}
	return flag.Name
}

// removed is the value of a removed flag. Setting it is an error that suggests the replacement.
type removed string

func (removed) String() string     { return "" }
func (removed) Type() string       { return "string" }
func (r removed) Set(string) error { return errors.New("has been removed: " + string(r)) }

// AddRemoved adds a hidden flag of earlier versions that suggests its replacement.
func AddRemoved(flags *pflag.FlagSet, name, remedy string) {
	flags.Var(removed(remedy), name, "")
	flags.Lookup(name).Hidden = true
}

// NodesAndConditions separates node names from conditions, given as TYPE=STATUS or TYPE-. TYPE-, or
// the status of a healthy node, reverts a condition.
func NodesAndConditions(args []string) ([]string, simkubelet.Conditions, error) {
	var nodes []string
	change := simkubelet.Conditions{}
	for _, arg := range args {
		text, remove := strings.CutSuffix(arg, "-")
		switch {
		case remove:
			text += "=False"
		case !strings.Contains(arg, "="):
			nodes = append(nodes, arg)
			continue
		}
		one, err := simkubelet.ParseConditions(text)
		if err != nil {
			return nil, nil, usage.Errorf("%w", err)
		}
		for kind, status := range one {
			healthy := v1.ConditionFalse
			if kind == v1.NodeReady {
				healthy = v1.ConditionTrue
			}
			if remove || status == healthy {
				status = ""
			}
			change[kind] = status
		}
	}

	if len(change) == 0 {
		return nil, nil, usage.Errorf("name a condition, such as MemoryPressure=True")
	}
	return nodes, change, nil
}

// Kind is a kind of object referenced as TYPE/NAME.
type Kind struct {
	Name, apiVersion string
	Words            []string // kubectl's names: singular, plural, short names
	Global           bool     // cluster-scoped
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
