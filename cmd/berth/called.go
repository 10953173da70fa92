// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// calledAs makes the help of all commands use the program's invocation name: kubectl berth, if it
// runs as kubectl's plugin.
func calledAs(root *cobra.Command, name string) {
	if name == root.Name() {
		return
	}
	var words []string
	for _, cmd := range root.Commands() {
		words = append(words, cmd.Name())
	}

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
