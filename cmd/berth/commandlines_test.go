// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/docs"
	"github.com/berth-k8s/berth/scheduler"
)

// TestCommandLinesOnPagesExist verifies that every command line of berth in README.md and docs/ can
// be parsed.
func TestCommandLinesOnPagesExist(t *testing.T) {
	neutral(t)
	pages, err := docs.Pages(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, page := range pages {
		for _, block := range page.Blocks {
			for _, line := range commandLines(block) {
				known, err := understood(line.words)
				if err != nil {
					t.Errorf("%s:%d: %s: %v", page.Path, line.line, strings.Join(line.words, " "), err)
				}
				if known {
					read++
				}
			}
		}
	}
	if read < 30 {
		t.Errorf("only %d command lines were found", read)
	}
}

// TestExamplesOfHelpExist verifies that the examples in the commands' own help can be parsed. Two
// spaces precede an explanation.
func TestExamplesOfHelpExist(t *testing.T) {
	neutral(t)
	read := 0
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		lines := strings.Split(cmd.Example, "\n")
		for i, line := range lines {
			lines[i], _, _ = strings.Cut(strings.TrimSpace(line), "  ")
		}
		for _, line := range commandLines(docs.Block{Language: "sh", Lines: lines}) {
			known, err := understood(line.words)
			if err != nil {
				t.Errorf("%s: %s: %v", cmd.CommandPath(), strings.Join(line.words, " "), err)
			}
			if known {
				read++
			}
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot("berth"))
	if read < 30 {
		t.Errorf("only %d examples were found", read)
	}
}

func TestWrongCommandLinesAreFound(t *testing.T) {
	for _, row := range []struct{ line, want string }{
		{"berth up --nodes 5 --fresh", ""},
		{"berth nope", `unknown command "nope"`},
		{"berth up --node 5", "unknown flag: --node"},
		{"berth up now", `"now": no argument is expected`},
		{"berth up --nodes many", "invalid argument"},
		{"berth nodes fail --zone z1 --for 2m", ""},
		{"berth nodes fial", `unknown command "fial"`},
		{"berth explain", "specify what to explain"},
		{"bin/berth what-if drain node/a --ignore-daemonset", "unknown flag: --ignore-daemonset"},
		{"berth what-if", "no operation"},
		{"berth kubectl anything --at=all", ""},
		{"berth-scheduler --config x --bindrs 3", "unknown flag: --bindrs"},
		{"kubectl berth explain pod/web --nodes x", "unknown flag: --nodes"},
	} {
		lines := commandLines(docs.Block{Language: "sh", Lines: []string{row.line}})
		if len(lines) != 1 {
			t.Errorf("%s: %d commands", row.line, len(lines))
			continue
		}
		known, err := understood(lines[0].words)
		if !known || (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.line, err, row.want)
		}
	}
}

// understood parses the arguments of a command without running it. known is false for commands
// other than Berth's.
func understood(words []string) (known bool, err error) {
	for len(words) > 0 && (slices.Contains([]string{"sudo", "exec", "nohup", "kubectl"}, words[0]) && len(words) > 1 && path.Base(words[1]) == "berth") {
		words = words[1:]
	}
	if len(words) == 0 {
		return false, nil
	}
	switch path.Base(words[0]) {
	case "berth-scheduler":
		return true, parsed(scheduler.NewCommand(), words[1:])
	case "berth":
	default:
		return false, nil
	}
	root := newRoot("berth")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(words[1:])
	if err != nil {
		return true, err
	}
	switch cmd.Name() {
	case "kubectl":
		return true, nil
	case "what-if":
		_, steps, err := (&forecast{}).parse(rest, cmd.CommandPath())
		if errors.Is(err, pflag.ErrHelp) {
			return true, nil
		}
		if err == nil && len(steps) == 0 {
			err = errors.New("no operation specified")
		}
		return true, err
	}
	return true, parsed(cmd, rest)
}

func parsed(cmd *cobra.Command, args []string) error {
	if err := cmd.ParseFlags(args); err != nil {
		return err
	}
	if help, err := cmd.Flags().GetBool("help"); err == nil && help {
		return nil
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
