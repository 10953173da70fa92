package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

const (
	groupTry    = "try"
	groupParts  = "parts"
	groupAsk    = "ask"
	groupOthers = "others"
)

func newRoot(name string) *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "Scheduling, preemption and eviction for Kubernetes",
		Long: `Berth decides which node a pod runs on, which pods are preempted for it, and which
have to leave: scheduling, preemption and eviction for Kubernetes.

explain, pending, evictions, capacity, survey, what-if, rebalance, record and ui
work on any cluster: they only read it, and install nothing.

  berth up         start a cluster on this machine, in seconds
  berth kubectl    kubectl for that cluster, built in`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noUnknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name},
		Version:       currentVersion().Version, // for --version; "berth version" says more
	}
	root.SetVersionTemplate("Berth {{.Version}}\n")
	root.AddGroup(
		&cobra.Group{ID: groupTry, Title: "Try Berth:"},
		&cobra.Group{ID: groupParts, Title: "Run in a cluster:"},
		&cobra.Group{ID: groupAsk, Title: "Ask:"},
		&cobra.Group{ID: groupOthers, Title: "Other:"},
	)
	root.AddCommand(
		newUp(),
		newKubectl(),
		newNodes(),
		newScheduler(),
		newControllerCommand(),
		newWebhookCommand(),
		newAgentCommand(),
		newSimulateCommand(),
		newExplainCommand(),
		newPendingCommand(),
		newEvictionsCommand(),
		newCapacityCommand(),
		newSurveyCommand(),
		newWhatIfCommand(),
		newRebalanceCommand(),
		newDrainCommand(),
		newUncordonCommand(),
		newRecordCommand(),
		newReplayCommand(),
		newCheckCommand(),
		newShadowCommand(),
		newUICommand(),
		newVersion(),
	)
	root.SetHelpCommandGroupID(groupOthers)
	root.SetCompletionCommandGroupID(groupOthers)
	checkHelpTopics(root)
	asUsage(root)
	completeContexts(root)
	calledAs(root, name)
	return root
}

// asUsage makes every error that cobra itself finds, in flags and arguments, a
// wrong usage with a pointer to the command's help.
func asUsage(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%s (see %s --help)", plainFault(err), c.CommandPath())
	})
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usagef("%w (see %s --help)", err, c.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		asUsage(sub)
	}
}

// checkHelpTopics makes help refuse what is no command, as if it were called. What follows a
// command that reads its own arguments, as kubectl, is none of this program's commands.
func checkHelpTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		return
	}
	help.Args = func(_ *cobra.Command, args []string) error {
		topic, rest, _ := root.Find(args)
		if topic.DisableFlagParsing {
			return nil
		}
		return noUnknownCommand(topic, rest)
	}
}

// noteHelp has help note that it could not be written; cobra takes it for a success all the same.
// What it returns is to be asked when the command has run.
func noteHelp(root *cobra.Command) (failed func() error) {
	var out noticed
	print := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		out.Writer = c.OutOrStdout()
		errs := c.ErrOrStderr()
		c.SetOut(&out)
		c.SetErr(io.Discard) // where cobra tells of it
		print(c, args)
		c.SetOut(out.Writer)
		c.SetErr(errs)
	})
	return func() error { return out.err }
}

// plainFault is what pflag says of a flag's value, without the names of Go's functions.
func plainFault(err error) string {
	text := err.Error()
	flag, cause, found := strings.Cut(text, " flag: ")
	switch {
	case !found:
		return text
	case strings.HasPrefix(cause, "time: "):
		return flag + " flag: must be a duration, as 30s, 5m or 1h30m, of 290 years at most"
	case strings.HasPrefix(cause, "strconv.") && strings.HasSuffix(cause, "value out of range"):
		return flag + " flag: the number is too large"
	case strings.HasPrefix(cause, "strconv.ParseBool"):
		return flag + " flag: must be true or false"
	case strings.HasPrefix(cause, "strconv.ParseUint"):
		return flag + " flag: must be a whole number, not negative"
	case strings.HasPrefix(cause, "strconv.ParseInt"):
		return flag + " flag: must be a whole number"
	case strings.HasPrefix(cause, "strconv."):
		return flag + " flag: must be a number"
	}

	return text
}

// noArguments is the argument check of a command that takes none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.Flags().Lookup("filename") != nil {
		return fmt.Errorf("%q: no argument is expected; files are named with -f", args[0])
	}
	return fmt.Errorf("%q: no argument is expected", args[0])
}

// someArguments is the argument check of a command that says what it needs.
func someArguments(need string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New(need)
		}
		return nil
	}
}

// noUnknownCommand is the argument check of a command that only has
// subcommands: any argument is a mistyped one.
func noUnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %s?", args[0], strings.Join(similar, " or "))
	}
	return fmt.Errorf("unknown command %q", args[0])
}
