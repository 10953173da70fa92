// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/usage"
)

// command has a flag of each kind and two subcommands.
func command(run func()) *cobra.Command {
	root := &cobra.Command{Use: "berth", SilenceErrors: true, SilenceUsage: true, Args: Subcommand, RunE: func(*cobra.Command, []string) error { return nil }}
	look := &cobra.Command{Use: "look", Args: None, Run: func(*cobra.Command, []string) { run() }}
	look.Flags().Bool("all", false, "")
	look.Flags().IntP("number", "n", 0, "")
	look.Flags().Uint64("seed", 0, "")
	look.Flags().Float64("share", 0, "")
	look.Flags().Duration("every", time.Second, "")
	AddRemoved(look.Flags(), "old", "use --every")
	name := &cobra.Command{Use: "name", Args: Some("say what"), Run: func(*cobra.Command, []string) { run() }}
	root.AddCommand(look, name)
	AsUsage(root)
	return root
}

// TestWrongFlagsAreUsage verifies that flag errors name the flag, use the terms of the command
// line, and point to the help.
func TestWrongFlagsAreUsage(t *testing.T) {
	for words, want := range map[string]string{
		"look --nope":                  "unknown flag: --nope (see berth look --help)",
		"look --number":                "flag needs an argument: --number (see berth look --help)",
		"look --all=perhaps":           `invalid argument "perhaps" for "--all" flag: must be true or false (see berth look --help)`,
		"look -n x":                    `invalid argument "x" for "-n, --number" flag: must be a whole number (see`,
		"look -n 1.5":                  `"-n, --number" flag: must be a whole number (see`,
		"look -n 99999999999999999999": `"-n, --number" flag: the number is too large (see`,
		"look --seed -1":               `"--seed" flag: must be a whole number, not negative (see`,
		"look --share much":            `"--share" flag: must be a number (see`,
		"look --every soon":            `"--every" flag: must be a duration, such as 30s, 5m or 1h30m, of 290 years at most (see`,
		"look --every 5":               `"--every" flag: must be a duration`,
		"look --every 9999999h":        `"--every" flag: must be a duration`,
		"look --old x":                 `"--old" flag: has been removed: use --every (see`,
		"look there":                   `"there": no argument is expected (see berth look --help)`,
		"name":                         "say what (see berth name --help)",
		"lok":                          `unknown command "lok"; did you mean look?`,
		"somethingelse":                `unknown command "somethingelse" (see berth --help)`,
		"look --every=a\x20flag:\x20b": `invalid argument "a flag: b" for "--every" flag: must be a duration`,
	} {
		args := strings.Split(words, " ")
		if i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--every=a") }); i > 0 {
			args = append(args[:i], strings.Join(args[i:], " "))
		}
		ran := false
		cmd := command(func() { ran = true })
		cmd.SetArgs(args)
		err := cmd.Execute()
		refuses(t, words, err, want)
		if ran || err != nil && strings.Contains(err.Error(), "strconv") {
			t.Errorf("%s: ran: %t: %v", words, ran, err)
		}
	}
}

func TestRightFlagsAreTaken(t *testing.T) {
	for _, words := range []string{"look", "look --all -n 3 --seed 7 --share 0.5 --every 1h30m", "name this", "look --help"} {
		cmd := command(func() {})
		cmd.SetOut(&strings.Builder{})
		cmd.SetArgs(strings.Fields(words))
		if err := cmd.Execute(); err != nil {
			t.Errorf("%s: %v", words, err)
		}
	}
	if err := wrongFlag(pflag.ErrHelp, "berth"); !errors.Is(err, pflag.ErrHelp) || usage.IsError(err) {
		t.Errorf("asked for help: %v", err)
	}
	if hidden := command(nil).Commands()[0].Flags().Lookup("old").Hidden; !hidden {
		t.Error("the help has a flag that is no more")
	}
}

// TestFilesThatAreArgumentsAreExplained verifies that a command with -f points to it when files are
// given as arguments.
func TestFilesThatAreArgumentsAreExplained(t *testing.T) {
	cmd := &cobra.Command{Use: "ask"}
	AddFiles(cmd.Flags(), new([]string), "", "")
	if err := None(cmd, []string{"a.yaml"}); err == nil || !strings.Contains(err.Error(), "files are named with -f") {
		t.Error(err)
	}
}

// TestFilesKeepTheirOrder verifies that -f and -k append to one list in command-line order, while
// each flag shows its own values.
func TestFilesKeepTheirOrder(t *testing.T) {
	var files []string
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	AddFiles(flags, &files, "", "")
	if err := flags.Parse([]string{"-f", "a,b.yaml", "-k", "base", "--filename=-", "--kustomize", "over"}); err != nil {
		t.Fatal(err)
	}
	if len(files) != 4 || files[0] != "a,b.yaml" || !strings.Contains(files[1], "base") || files[2] != "-" || !strings.Contains(files[3], "over") {
		t.Errorf("%q", files)
	}
	if f, k := flags.Lookup("filename").Value.String(), flags.Lookup("kustomize").Value.String(); f != "a,b.yaml,-" || k != "base,over" {
		t.Errorf("-f %s, -k %s", f, k)
	}
}

func TestAFlagAwaitsItsValue(t *testing.T) {
	flags := command(nil).Commands()[0].Flags()
	for word, want := range map[string]string{
		"--number": "number", "-n": "number", "--every": "every", "--number=3": "", "--all": "", "--nope": "", "-x": "", "-nn": "", "number": "", "": "", "--": "",
	} {
		if got := AwaitsValue(flags, word); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

func TestLastWord(t *testing.T) {
	if Last(nil) != "" || Last([]string{"a", "b"}) != "b" {
		t.Error("the last word is another one")
	}
}
