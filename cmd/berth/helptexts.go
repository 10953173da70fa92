// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"embed"
	"strings"

	"github.com/spf13/cobra"
)

// helpTexts has a file for each command with more help than a line, named after the command.
//
//go:embed help/*.txt
var helpTexts embed.FS

// readHelp sets the description and the examples of a command and its subcommands from their files.
func readHelp(cmd *cobra.Command) {
	// Commands of libraries have no file and keep their own help.
	if text, err := helpTexts.ReadFile("help/" + strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".txt"); err == nil {
		long, examples, _ := strings.Cut(strings.TrimSpace(string(text)), "\n\nExamples:\n\n")
		cmd.Long, cmd.Example = long, examples
	}
	for _, sub := range cmd.Commands() {
		readHelp(sub)
	}
}
