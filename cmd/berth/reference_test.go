// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/admission/webhook"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/scheduler"
)

var update = flag.Bool("update", false, "write docs/reference/flags.md anew")

const preface = `# Commands and flags

Every command of ` + "`berth`" + ` with what its ` + "`--help`" + ` says. This page is made from the code: ` + "`go test ./cmd/berth -update`" + ` writes it, and a
test fails when it is out of date.

` + "`-h`, `--help`" + ` is a flag of every command. Exit codes: 0 done, or asked to end; 1 it could not be done; 2 wrong usage; 3 what ` + "`--fail-on`" + ` names
came true. Errors are one line on standard error. An empty default is none, or named in the text. Flags of kube-scheduler that
` + "`berth scheduler`" + ` takes without effect are in [flags without effect](ignored-flags.md).
`

// neutral removes machine-specific values from the defaults.
func neutral(t *testing.T) {
	t.Helper()
	t.Setenv(connect.EnvDataDir, "")
	t.Setenv("KUBECONFIG", "")
}

func TestFlagsPageIsCurrent(t *testing.T) {
	neutral(t)
	root := newRoot("berth")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	webhookCommand, _, err := root.Find([]string{"webhook"})
	if err != nil {
		t.Fatal(err)
	}
	webhookCommand.Flag("namespace").DefValue = webhook.DefaultOptions().Namespace // inside a pod the default is the pod's namespace
	var page bytes.Buffer
	page.WriteString(preface)
	for _, cmd := range root.Commands() {
		writeCommand(&page, cmd, 2)
	}
	writeScheduler(t, &page)

	file := filepath.Join("..", "..", "docs", "reference", "flags.md")
	if *update {
		if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(written, page.Bytes()) {
		t.Error("docs/reference/flags.md is out of date: go test ./cmd/berth -update")
	}
}

func writeCommand(page *bytes.Buffer, cmd *cobra.Command, depth int) {
	if cmd.Hidden {
		return
	}
	fmt.Fprintf(page, "\n%s %s\n\n", strings.Repeat("#", depth), cmd.CommandPath())
	long := cmd.Long
	if long == "" {
		long = cmd.Short
	}
	fmt.Fprintf(page, "```text\n%s\n\n%s\n", strings.TrimRight(cmd.UseLine(), " "), strings.TrimSpace(long))
	if cmd.Example != "" {
		fmt.Fprintf(page, "\nExamples:\n%s\n", cmd.Example)
	}
	fmt.Fprintf(page, "```\n")
	writeFlags(page, "", cmd.LocalNonPersistentFlags())
	writeFlags(page, "Also for its subcommands:\n\n", cmd.PersistentFlags())
	if cmd.HasInheritedFlags() {
		fmt.Fprintf(page, "\nAnd those of `%s`: %s.\n", cmd.Parent().CommandPath(), strings.Join(flagNames(cmd.InheritedFlags()), ", "))
	}
	switch cmd.Name() {
	case "completion":
		writeShells(page, cmd)
		return
	case "kubectl":
		fmt.Fprintf(page, "\nAll other flags are kubectl's.\n")
	case "scheduler":
		fmt.Fprintf(page, "\nAnd those of every Kubernetes component, for logs and metrics: %s.\n", strings.Join(flagNames(ofEveryComponent), ", "))
	case "what-if":
		writeOperations(page)
	}
	for _, sub := range cmd.Commands() {
		writeCommand(page, sub, depth+1)
	}
}

// ofEveryComponent holds the flags added by Kubernetes' own libraries.
var ofEveryComponent = func() *pflag.FlagSet {
	set := pflag.NewFlagSet("every component", pflag.ContinueOnError)
	logsapi.AddFlags(logs.NewOptions(), set)
	metrics.NewOptions().AddFlags(set)
	set.Lookup("v").Hidden = true // klog's flag, shared by other commands
	return set
}()

// writeShells writes cobra's completion help for each shell.
func writeShells(page *bytes.Buffer, cmd *cobra.Command) {
	var shells []string
	flags := pflag.NewFlagSet("completion", pflag.ContinueOnError)
	for _, sub := range cmd.Commands() {
		shells = append(shells, "`"+sub.Name()+"`")
		flags.AddFlagSet(sub.LocalNonPersistentFlags())
	}
	fmt.Fprintf(page, "\nShells: %s.\n", strings.Join(shells, ", "))
	writeFlags(page, "", flags)
}

// writeFlags writes a table of the visible flags.
func writeFlags(page *bytes.Buffer, title string, flags *pflag.FlagSet) {
	var rows strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		shared := ofEveryComponent.Lookup(f.Name)
		if f.Hidden || f.Name == "help" || shared != nil && !shared.Hidden && shared.Usage == f.Usage {
			return
		}
		fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", flagName(f), typeOf(f), code(initial(f)), cell(f.Usage))
	})
	if rows.Len() > 0 {
		fmt.Fprintf(page, "\n%s| flag | type | default | |\n| --- | --- | --- | --- |\n%s", title, rows.String())
	}
}

// initial returns a flag's default if it is informative. A zero value is uninformative if the usage
// text states the default.
func initial(f *pflag.Flag) string {
	value := strings.TrimSuffix(strings.TrimPrefix(f.DefValue, "["), "]")
	if strings.Contains(f.Usage, "(default") && (value == "0" || value == "0s") {
		return ""
	}
	return value
}

func flagName(f *pflag.Flag) string {
	name := "`--" + f.Name + "`"
	if f.Shorthand != "" {
		name = "`-" + f.Shorthand + "`, " + name
	}
	if len(f.Name) == 1 { // klog's flag -v
		name = "`-" + f.Name + "`"
	}
	return name
}

func flagNames(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			names = append(names, flagName(f))
		}
	})
	return names
}

// typeOf returns a flag's type in words that describe the value. Other types keep their names.
func typeOf(f *pflag.Flag) string {
	words := map[string]string{
		"stringArray": "string", "stringSlice": "list", "strings": "list", "stringToString": "key=value,…", "mapStringString": "key=value,…",
		"mapStringBool": "name=bool,…", "int32": "int", "int64": "int", "uint": "int", "uint64": "int", "float32": "number", "float64": "number", "Level": "int",
	}
	if word, ok := words[f.Value.Type()]; ok {
		return word
	}
	return f.Value.Type()
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
}

// cell formats text as a table cell.
func cell(text string) string {
	return strings.NewReplacer("\n", " ", "|", `\|`, "*", `\*`, "<", "&lt;").Replace(text)
}

// writeOperations writes the flags permitted after the operations of what-if.
func writeOperations(page *bytes.Buffer) {
	fmt.Fprintf(page, "\nBehind an operation there may be, besides all flags above (`-f` behind `apply` names the objects to apply):\n\n| operation | flags |\n| --- | --- |\n")
	for _, operation := range parse.OperationWords() {
		flags := parse.OperationFlags(operation)
		fmt.Fprintf(page, "| `%s` | %s |\n", operation, strings.Join(flagNames(flags), ", "))
	}
}

// writeScheduler documents the stand-alone scheduler. Its flags must equal the flags of berth
// scheduler.
func writeScheduler(t *testing.T, page *bytes.Buffer) {
	t.Helper()
	of := func(cmd *cobra.Command) map[string]string {
		all := map[string]string{}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { all[f.Name] = f.DefValue + f.Usage })
		return all
	}
	if alone, command := of(scheduler.NewCommand()), of(newScheduler()); !maps.Equal(alone, command) {
		t.Errorf("berth-scheduler has the flags %v, berth scheduler %v", slices.Sorted(maps.Keys(alone)), slices.Sorted(maps.Keys(command)))
	}
	fmt.Fprintf(page, "\n## berth-scheduler\n\n`berth scheduler` as a program of its own: the same flags, without the name of the command.\n")
}
