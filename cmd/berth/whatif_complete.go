package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/cli/ask"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// completeArgs completes the arguments of berth what-if: operations and, after one, its flags and
// what it names. Cobra leaves the flags to it, because it cannot tell those of several operations
// apart.
func (f *forecast) completeArgs(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	const noFile = cobra.ShellCompDirectiveNoFileComp
	first, word := parse.FirstOperation(args), ""
	for rest := args[first:]; len(rest) > 0; rest = rest[parse.FirstOperation(rest):] {
		word, rest = rest[0], rest[1:]
	}
	before, own := parse.Last(args), parse.OperationFlags(word)
	awaits := awaitsValue(own, before)
	if awaits == "" {
		awaits = awaitsValue(cmd.Flags(), before)
	}
	if awaits != "" && first == len(args) {
		first--
	}
	if _, _, err := f.parse(args[:first], ""); err != nil { // for --filename, --kubeconfig and their like
		return nil, cobra.ShellCompDirectiveError
	}

	namespace := f.NamespaceOr(f.namespace)
	kinds, bare := parse.NamedBy(word)
	switch {
	case awaits == "fail-on":
		return ask.WithPrefix(whatif.Conditions, toComplete), noFile
	case awaits == "like" && word == "add-nodes":
		return f.Reference(cmd, []parse.Kind{parse.Node}, "", toComplete, namespace)
	case awaits != "":
		return f.FlagValues(cmd, awaits, toComplete, namespace)
	case strings.HasPrefix(toComplete, "-"):
		var names []string // those of all operations cobra adds
		own.VisitAll(func(flag *pflag.Flag) { names = append(names, "--"+flag.Name) })
		return ask.WithPrefix(names, toComplete), noFile
	}

	next := ask.WithPrefix(parse.OperationWords(), toComplete)
	switch {
	case bare && strings.Contains(toComplete, "/"):
		return f.Nodes(cmd, args, toComplete)
	case bare:
		names, directive := f.Nodes(cmd, args, toComplete)
		return append(names, next...), directive
	case word == "rebalance":
		return append(ask.WithPrefix(goalWords, toComplete), next...), noFile
	case kinds != nil:
		names, directive := f.Reference(cmd, kinds, before, toComplete, namespace)
		return append(names, next...), directive
	}
	return next, noFile
}

// awaitsValue returns the flag whose value follows the word, or "".
func awaitsValue(flags *pflag.FlagSet, word string) string {
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
