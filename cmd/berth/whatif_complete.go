package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// completeArgs completes the arguments of berth what-if: operations and, after one, its flags and
// what it names. Cobra leaves the flags to it, because it cannot tell those of several operations
// apart.
func (f *forecast) completeArgs(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	first := slices.IndexFunc(args, isOperation)
	if first < 0 {
		first = len(args)
	}
	word := ""
	for _, arg := range args {
		if isOperation(arg) {
			word = arg
		}
	}
	before := lastArg(args)
	flags := f.flagsOf(word)
	awaits := awaitsValue(flags, before)
	if awaits != "" && first == len(args) {
		first--
	}
	if _, err := f.parseSteps(args[:first]); err != nil { // for --filename, --kubeconfig and their like
		return nil, cobra.ShellCompDirectiveError
	}
	namespace := f.namespaceOr(f.namespace)
	switch {
	case awaits == "fail-on":
		return withPrefix(whatif.Conditions, toComplete), cobra.ShellCompDirectiveNoFileComp
	case awaits == "like" && word == "add-nodes":
		return f.completeRef(cmd, []subject{nodeSubject}, "", toComplete, namespace)
	case awaits == "like":
		return f.completeRef(cmd, podsAndWorkloads, "", toComplete, namespace)
	case awaits != "":
		words, known := f.flagValues(cmd, awaits, toComplete, namespace)
		if !known {
			return nil, cobra.ShellCompDirectiveDefault // a file, or any other text
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	case strings.HasPrefix(toComplete, "-"):
		var names []string // those of all operations cobra adds
		own := pflag.NewFlagSet(word, pflag.ContinueOnError)
		(&parts{}).addFlags(word, own)
		own.VisitAll(func(flag *pflag.Flag) {
			if strings.HasPrefix("--"+flag.Name, toComplete) {
				names = append(names, "--"+flag.Name)
			}
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	next := withPrefix(operations, toComplete)
	var names []string
	directive := cobra.ShellCompDirectiveNoFileComp
	switch {
	case word == "":
	case ofNodes(word):
		if strings.Contains(toComplete, "/") {
			return f.completeRef(cmd, []subject{nodeSubject}, before, toComplete, namespace)
		}
		names = withPrefix(f.namesOf(cmd, nodeSubject, ""), toComplete)
	case word == "scale":
		names, directive = f.completeRef(cmd, scalable, before, toComplete, namespace)
	case word == "use", word == "evict":
		names, directive = f.completeRef(cmd, podsAndWorkloads[:1], before, toComplete, namespace)
	case word == "rebalance":
		names = withPrefix(goalWords, toComplete)
	case word == "delete":
		names, directive = f.completeRef(cmd, podsAndWorkloads, before, toComplete, namespace)
	}
	return append(names, next...), directive
}

// flagsOf returns the flags that may follow an operation, or precede the first.
func (f *forecast) flagsOf(word string) *pflag.FlagSet {
	flags := pflag.NewFlagSet(word, pflag.ContinueOnError)
	(&parts{}).addFlags(word, flags)
	now := *f
	general := pflag.NewFlagSet(word, pflag.ContinueOnError)
	f.addFlags(general)
	*f = now
	flags.AddFlagSet(general)
	return flags
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
