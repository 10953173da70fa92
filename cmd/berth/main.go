// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/usage"
	"github.com/berth-k8s/berth/scheduler"
)

const (
	exitFailed = 1
	exitUsage  = usage.ExitCode
)

// usagef returns a usage error: exit code 2.
func usagef(format string, args ...any) error { return usage.Errorf(format, args...) }

func main() {
	os.Exit(runCommand(context.Background(), os.Args, os.Stdout, os.Stderr))
}

func runCommand(ctx context.Context, argv []string, stdout, stderr io.Writer) int {
	name := displayName(argv[0])
	root := newRoot(name)
	root.SetArgs(argv[1:])
	root.SetOut(stdout)
	root.SetErr(stderr)
	help := noteHelp(root)
	err := cmp.Or(root.ExecuteContext(ctx), help())
	if err == nil {
		return 0
	}

	causes := []error{err}
	if list, ok := err.(manifest.Errors); ok { // one line per error
		causes = answer.Mapped(list, func(e *manifest.Error) error { return e })
	}
	for _, cause := range causes {
		text := strings.ReplaceAll(print.OneLine(cause), "`berth ", "`"+name+" ")
		fmt.Fprintf(stderr, "%s: %s\n", name, answer.Visible(text))
	}
	if usage.IsError(err) {
		return exitUsage
	}

	if print.IsHeld(err) {
		return print.ExitHeld
	}
	return exitFailed
}

// displayName returns the program name typed by the user: kubectl finds plugins by the file name
// kubectl-berth, and help should repeat the typed form.
func displayName(argv0 string) string {
	if base := strings.TrimSuffix(filepath.Base(argv0), ".exe"); base == "kubectl-berth" {
		return "kubectl berth"
	}
	return "berth"
}

const (
	groupTry    = "try"
	groupParts  = "parts"
	groupAsk    = "ask"
	groupOthers = "others"
)

func newRoot(name string) *cobra.Command {
	root := &cobra.Command{
		Use:           "berth",
		Short:         "Scheduling, preemption and eviction for Kubernetes",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          parse.Subcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			if !keepsLog(cmd) {
				muteLibraries()
			}
		},
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: name},
		Version:     currentVersion().Version, // for --version; "berth version" prints more
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
		newServeCommand(),
		newMCPCommand(),
		newSimulateCommand(),
		newExplainCommand(),
		newPendingCommand(),
		newEvictionsCommand(),
		newCapacityCommand(),
		newParent("survey", "Free but unusable resources: fragmentation", newFragmentationCommand()),
		newWhatIfCommand(),
		newRebalanceCommand(),
		newDrainCommand(),
		newUncordonCommand(),
		newRecordCommand(),
		newReplayCommand(),
		newCheckCommand(),
		newParent("shadow", "What Berth would do instead of kube-scheduler and kube-controller-manager", newShadowReport()),
		newUICommand(),
		newVersion(),
	)
	root.SetHelpCommandGroupID(groupOthers)
	root.SetCompletionCommandGroupID(groupOthers)
	readHelp(root)
	checkHelpTopics(root)
	wrapFlags(root)
	parse.AsUsage(root)
	query.CompleteContexts(root)
	calledAs(root, name)
	return root
}

// newParent returns a command that only has a subcommand, and prints its help without one.
func newParent(use, short string, sub *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, GroupID: groupAsk, Short: short, Args: parse.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(sub)
	return cmd
}

// checkHelpTopics makes help reject unknown commands, as if they were called. The arguments of a
// command that parses them itself, such as kubectl, are not subcommands of this program.
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
		return parse.Subcommand(topic, rest)
	}
}

// keepsLog reports whether a command runs until it is stopped, and writes a log.
func keepsLog(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.GroupID == groupParts || cmd.GroupID == groupTry || cmd.Name() == "ui" {
			return true
		}
	}
	return false
}

// muteLibraries discards the logs of client-go and other libraries, which do not concern the user
// of a command.
func muteLibraries() {
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	_ = flags.Set("stderrthreshold", "FATAL") // by default errors are also written to standard error
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
}

// wrapFlags wraps the help of flags at the width of the terminal, or at 100 columns. (pflag's own
// wrapping gives up at the first long word.)
func wrapFlags(root *cobra.Command) {
	cobra.AddTemplateFunc("wrap", func(c *cobra.Command, flags *pflag.FlagSet) (string, error) {
		screen := answer.TerminalOf(c.Root().OutOrStdout()) // c writes to a buffer at this point
		var rows [][]string
		for line := range strings.SplitSeq(strings.TrimSpace(flags.FlagUsages()), "\n") {
			if name, usage, _ := strings.Cut(strings.TrimSpace(line), "   "); strings.HasPrefix(name, "--") {
				rows = append(rows, []string{"    " + name, strings.TrimSpace(usage)})
			} else if strings.HasPrefix(name, "-") {
				rows = append(rows, []string{name, strings.TrimSpace(usage)})
			} else { // continuation line of the same flag
				rows[len(rows)-1][1] += " " + name
			}
		}

		var text strings.Builder
		page := answer.NewPage(answer.Terminal{Writer: &text, Width: cmp.Or(screen.Width, 100)})
		page.Rows("  ", rows)
		err := page.Flush()
		return text.String(), err
	})
	root.SetUsageTemplate(strings.NewReplacer(".LocalFlags.FlagUsages", "wrap . .LocalFlags",
		".InheritedFlags.FlagUsages", "wrap . .InheritedFlags").Replace(root.UsageTemplate()))
}

// noteHelp records a failure to write help, which cobra treats as success. Call the returned
// function after the command has run.
func noteHelp(root *cobra.Command) (failed func() error) {
	var out print.Noticed
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		out.Writer = c.OutOrStdout()
		errs := c.ErrOrStderr()
		c.SetOut(&out)
		c.SetErr(io.Discard) // cobra reports the failure here
		help(c, args)
		c.SetOut(out.Writer)
		c.SetErr(errs)
	})
	return func() error { return out.Err }
}

// calledAs makes the help of all commands use the program's invocation name: kubectl berth, if it
// runs as kubectl's plugin.
func calledAs(root *cobra.Command, name string) {
	if name == root.Name() {
		return
	}
	words := answer.Mapped(root.Commands(), (*cobra.Command).Name)
	own := regexp.MustCompile(`\b` + root.Name() + ` (` + strings.Join(words, "|") + `)\b`)
	as := func(text string) string { return own.ReplaceAllString(text, name+" $1") }
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Short, cmd.Long, cmd.Example = as(cmd.Short), as(cmd.Long), as(cmd.Example)
		rename := func(f *pflag.Flag) { f.Usage = as(f.Usage) }
		cmd.Flags().VisitAll(rename)
		cmd.PersistentFlags().VisitAll(rename)
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}

	visit(root)
}

func newScheduler() *cobra.Command {
	cmd := scheduler.NewCommand()
	cmd.GroupID = groupParts
	return cmd
}
