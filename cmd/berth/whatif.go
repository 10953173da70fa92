// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// nodeClaims is the format that writes the nodes to buy as Karpenter's NodeClaims.
const nodeClaims = "nodeclaims"

// planFormats are valid only for plans of nodes; svg draws them.
var planFormats = []string{nodeClaims, "svg"}

// forecast holds the flags of berth what-if.
type forecast struct {
	query.Question
	namespace string
	time      time.Duration
	failOn    []string
	help      bool
}

func (f *forecast) addFlags(flags *pflag.FlagSet) {
	f.AddFlags(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", "",
		"the namespace of pods and workloads (default: the context's, or default)")
	flags.DurationVar(&f.time, "for", 0,
		"how far to look ahead (default: until nothing more happens, at most a day, or an hour while node health taints nodes)")
	flags.StringSliceVar(&f.failOn, "fail-on", nil,
		"exit with code 3 if the operations leave a pod pending, evict a pod or are held back by a disruption budget, if kubectl would "+
			"refuse a drain, or if new nodes cost more than an amount per month (cost=1000): "+strings.Join(whatif.Conditions, ","))
	flags.BoolVarP(&f.help, "help", "h", false, "help for what-if")
}

// parse reads operations and flags, which may appear anywhere.
func (f *forecast) parse(args []string, path string) (*parse.Steps, []whatif.Step, error) {
	s := &parse.Steps{General: pflag.NewFlagSet("what-if", pflag.ContinueOnError), Path: path}
	f.addFlags(s.General)
	steps, err := s.Read(args)
	if f.help {
		err = pflag.ErrHelp
	}
	return s, steps, err
}

func newWhatIfCommand() *cobra.Command {
	f := forecast{Question: query.Question{UserAgent: "berth-what-if"}}
	cmd := &cobra.Command{
		Use:     "what-if OPERATION [OPERATION...]",
		GroupID: groupAsk,
		Short:   "Forecast taints, drains, new nodes and more, before you do them",
		// The position of a flag determines its operation, which cobra does not support.
		DisableFlagParsing: true,
		ValidArgsFunction:  f.completeArgs,
		RunE:               func(cmd *cobra.Command, args []string) error { return f.runWhatIf(cmd, args) },
	}
	f.addFlags(cmd.Flags())
	return cmd
}

func (f *forecast) runWhatIf(cmd *cobra.Command, args []string) error {
	said, steps, err := f.parse(args, cmd.CommandPath())
	if err == pflag.ErrHelp {
		return cmd.Help()
	}
	if err != nil {
		return err
	}
	if err := print.CheckFormat(f.Output, append(slices.Clone(print.Formats), planFormats...)); err != nil {
		return err
	}
	for _, condition := range f.failOn {
		if _, err := whatif.CostOf(condition); err != nil && !slices.Contains(whatif.Conditions, condition) {
			return usagef("--fail-on %q: must be one of %s, or cost=MOST", condition, strings.Join(whatif.Conditions, ", "))
		}
	}
	if f.time < 0 {
		return usagef("--for %s: must not be negative", f.time)
	}
	if err := said.CheckProvision(steps); err != nil {
		return err
	}
	provisions := len(steps) > 0 && steps[len(steps)-1].Catalog != nil
	switch {
	case slices.Contains(planFormats, f.Output) && !provisions:
		return usagef("-o %s: is for what-if provision", f.Output)
	case len(steps) == 0:
		return usagef("no operation specified, such as drain node/NAME (see %s --help)", cmd.CommandPath())
	}
	f.Applied = f.NamespaceOr(f.namespace)
	said.Within(f.Applied)

	readCatalog := func() (*provision.Catalog, error) { return nil, nil }
	if provisions {
		readCatalog = provision.ReadAside(said.Catalog, cmd.InOrStdin())
	}
	f.Unseen, f.ForPlans = true, provisions
	w, source, err := f.ReadWorld(cmd)
	catalog, failed := readCatalog()
	if err := cmp.Or(failed, err); err != nil {
		return err
	}
	if provisions {
		*steps[len(steps)-1].Catalog = *catalog
	}
	for i := range steps {
		drain := steps[i].Drain
		if steps[i].Operation != nil {
			drain = cmp.Or(drain, steps[i].Operation.Drain)
		}
		if drain != nil && drain.GuardEvictions == nil {
			drain.GuardEvictions = new(f.GuardsEvictions(cmd.Context()))
		}
	}
	f.Meter.Begin(cmd.ErrOrStderr(), "forecasting")
	answer, err := whatif.Run(w, steps, whatif.Options{For: f.time, Source: source,
		Progress: func(elapsed, until time.Duration, without bool) { f.Meter.Words(progressText(elapsed, until, without)) },
		Planning: func(words string) { f.Meter.Words("planning nodes: " + words) },
	})
	f.Meter.End()
	if err != nil {
		return err
	}
	if err := f.Write(cmd, written{answer}); err != nil {
		return err
	}

	// "refused" is an implicit condition: a refused drain changes nothing, so no other condition
	// would hold.
	conditions := f.failOn
	if len(conditions) > 0 && !slices.Contains(conditions, "refused") {
		conditions = append(slices.Clone(conditions), "refused")
	}
	return print.Held(conditions, answer.Holds)
}

// written is a forecast in all formats of what-if.
type written struct{ *whatif.Forecast }

func (w written) Write(out io.Writer, format string) error {
	switch format {
	case nodeClaims:
		return w.Provision.WriteNodeClaims(out)
	case "svg":
		return w.Provision.WriteSVG(out)
	}
	return w.Forecast.Write(out, format)
}

// progressText describes the progress of a forecast.
func progressText(elapsed, until time.Duration, without bool) string {
	switch passed := answer.Duration(elapsed); {
	case without:
		return fmt.Sprintf("forecasting the same time without the operations: %s of %s", passed, answer.Duration(until))
	case until == 0:
		return fmt.Sprintf("forecasting until nothing more happens: %s so far", passed)
	default:
		return fmt.Sprintf("forecasting: %s of %s", passed, answer.Duration(until))
	}
}

// completeArgs completes the arguments of berth what-if: operations and, after one, its flags and
// the names of its objects. Cobra leaves flags to completeArgs because it cannot attribute them to
// one of several operations.
func (f *forecast) completeArgs(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	const noFile = cobra.ShellCompDirectiveNoFileComp
	first, word := parse.FirstOperation(args), ""
	for rest := args[first:]; len(rest) > 0; rest = rest[parse.FirstOperation(rest):] {
		word, rest = rest[0], rest[1:]
	}
	before, own := parse.Last(args), parse.OperationFlags(word)
	awaits := cmp.Or(parse.AwaitsValue(own, before), parse.AwaitsValue(cmd.Flags(), before))
	if awaits != "" && first == len(args) {
		first--
	}
	if _, _, err := f.parse(args[:first], ""); err != nil { // sets --filename, --kubeconfig and similar flags
		return nil, cobra.ShellCompDirectiveError
	}

	namespace := f.NamespaceOr(f.namespace)
	kinds, bare := parse.NamedBy(word)
	switch {
	case awaits == "fail-on":
		return query.WithPrefix(whatif.Conditions, toComplete), noFile
	case awaits == "like" && word == "add-nodes":
		return f.Reference(cmd, []parse.Kind{parse.Node}, "", toComplete, namespace)
	case awaits != "":
		return f.FlagValues(cmd, awaits, toComplete, namespace)
	case strings.HasPrefix(toComplete, "-"):
		var names []string // cobra adds the flags common to all operations
		own.VisitAll(func(flag *pflag.Flag) { names = append(names, "--"+flag.Name) })
		return query.WithPrefix(names, toComplete), noFile
	}

	next := query.WithPrefix(parse.OperationWords(), toComplete)
	switch {
	case bare && strings.Contains(toComplete, "/"):
		return f.Nodes(cmd, args, toComplete)
	case bare:
		names, directive := f.Nodes(cmd, args, toComplete)
		return append(names, next...), directive
	case word == "rebalance":
		return append(query.WithPrefix(goalWords, toComplete), next...), noFile
	case kinds != nil:
		names, directive := f.Reference(cmd, kinds, before, toComplete, namespace)
		return append(names, next...), directive
	}
	return next, noFile
}
