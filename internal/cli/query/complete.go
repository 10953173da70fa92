// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/connect"
)

// A completion blocks the user's shell, so it reads only names from a live cluster, within these
// limits.
const (
	CompletesWithin = 3 * time.Second
	mostCompleted   = 500
)

// Words completes words without falling back to file names.
type Words = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

const (
	noFile  = cobra.ShellCompDirectiveNoFileComp
	noSpace = cobra.ShellCompDirectiveNoSpace
)

// NamesOf lists the names of a kind in the queried cluster or files. Unreadable sources yield an
// empty list.
func (q *Question) NamesOf(cmd *cobra.Command, kind parse.Kind, namespace string) []string {
	if kind.Global {
		namespace = ""
	}
	if len(q.Files) > 0 {
		return q.namesInFiles(kind, namespace)
	}
	cfg, err := q.Cluster.Config(q.UserAgent)
	if err != nil {
		return nil
	}

	client, err := metadata.NewForConfig(snapshot.ReadOnly(cfg))
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), CompletesWithin)
	defer cancel()
	list, err := client.Resource(kind.Resource()).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: mostCompleted})
	if err != nil {
		return nil
	}
	return answer.Mapped(list.Items, func(o metav1.PartialObjectMetadata) string { return o.Name })
}

func (q *Question) namesInFiles(kind parse.Kind, namespace string) (names []string) {
	if slices.Contains(q.Files, "-") {
		return nil // standard input is the terminal
	}
	slices.Sort(q.Files)
	q.Files = slices.Compact(q.Files) // cobra reads the flags twice
	set, err := manifest.Read(q.Files, nil, manifest.Options{Recursive: q.recursive, Lenient: true})
	if err != nil {
		return nil
	}
	set.Expand(int64(q.seed))
	for _, o := range set.OfKind(kind.Name) {
		if kind.Global || o.GetNamespace() == namespace {
			names = append(names, o.GetName())
		}
	}
	slices.Sort(names)
	return names
}

// Nodes completes node names, as NAME or node/NAME.
func (q *Question) Nodes(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	if strings.Contains(toComplete, "/") {
		return q.Reference(cmd, []parse.Kind{parse.Node}, parse.Last(args), toComplete, "")
	}
	return WithPrefix(q.NamesOf(cmd, parse.Node, ""), toComplete), noFile
}

// Reference completes TYPE/NAME, or a name after a separate type.
func (q *Question) Reference(cmd *cobra.Command, of []parse.Kind, before, toComplete, namespace string) ([]string,
	cobra.ShellCompDirective) {
	kind, _, slashed := strings.Cut(toComplete, "/")
	var kinds []string
	for _, k := range of {
		switch {
		case slashed && k.IsWord(kind):
			names := answer.Mapped(q.NamesOf(cmd, k, namespace), func(name string) string { return kind + "/" + name })
			return WithPrefix(names, toComplete), noFile
		case !slashed && k.IsWord(before):
			return WithPrefix(q.NamesOf(cmd, k, namespace), toComplete), noFile
		}
		kinds = append(kinds, k.Words[0]+"/")
	}
	if slashed {
		return nil, noFile
	}
	return WithPrefix(kinds, toComplete), noFile | noSpace
}

// WithPrefix returns the words with the prefix.
func WithPrefix(words []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(word string) bool { return !strings.HasPrefix(word, prefix) })
}

// completed lists the flags whose values mean the same in all queries.
var completed = []string{"namespace", "node", "output", "like"}

// FlagValues completes the value of a flag with the same meaning in all queries. Values of other
// flags are files or free text.
func (q *Question) FlagValues(cmd *cobra.Command, flag, toComplete, namespace string) ([]string, cobra.ShellCompDirective) {
	var words []string
	switch flag {
	case "namespace":
		words = q.NamesOf(cmd, parse.Namespace, "")
	case "context":
		words = q.Cluster.Contexts()
	case "node":
		words = q.NamesOf(cmd, parse.Node, "")
	case "output":
		words = slices.Clone(print.Formats)
		words[slices.Index(words, answer.JSONPath)] += "="
	case "like":
		return q.Reference(cmd, parse.PodsAndWorkloads, "", toComplete, namespace)
	default:
		return nil, cobra.ShellCompDirectiveDefault
	}
	return WithPrefix(words, toComplete), noFile
}

// CompleteFlags makes cobra complete the values of flags.
func (q *Question) CompleteFlags(cmd *cobra.Command, namespace *string) {
	for _, name := range completed {
		if cmd.Flags().Lookup(name) == nil {
			continue
		}
		Complete(cmd, name, func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			space := ""
			if namespace != nil {
				space = q.NamespaceOr(*namespace)
			}
			return q.FlagValues(cmd, name, toComplete, space)
		})
	}
}

// CompleteContexts completes --context of a command and its subcommands.
func CompleteContexts(cmd *cobra.Command) {
	if cmd.LocalFlags().Lookup("context") != nil {
		Complete(cmd, "context", func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			to := connect.Flags{Kubeconfig: cmd.Flag("kubeconfig").Value.String()}
			return WithPrefix(to.Contexts(), toComplete), noFile
		})
	}
	for _, sub := range cmd.Commands() {
		CompleteContexts(sub)
	}
}

// CompleteChoices completes a flag with a fixed set of values.
func CompleteChoices(cmd *cobra.Command, flag string, words ...string) {
	Complete(cmd, flag, func(_ *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		return WithPrefix(words, toComplete), noFile
	})
}

// Complete completes a flag. It fails only on a mistake in the command's own definition.
func Complete(cmd *cobra.Command, flag string, words Words) {
	if err := cmd.RegisterFlagCompletionFunc(flag, words); err != nil {
		panic(err)
	}
}
