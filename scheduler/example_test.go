// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/scheduler"
)

// This is the main of a program running Berth's scheduler with a compiled-in plugin. Configuration
// files enable the plugin by its name.
func ExampleMain() {
	os.Exit(scheduler.Main(scheduler.WithPlugin("Crowding", newCrowding)))
}

// The scheduler can also be a command of another program.
func ExampleNewCommand() {
	root := &cobra.Command{Use: "platform", SilenceErrors: true}
	root.AddCommand(scheduler.NewCommand(scheduler.WithPlugin("Crowding", newCrowding)))

	root.SetArgs([]string{"scheduler", "--binders=0"})
	err := root.Execute()
	var usage scheduler.UsageError
	if errors.As(err, &usage) {
		fmt.Println("wrong usage:", err)
	}
	// Output: wrong usage: --binders 0: must be 1 or more
}

// A plugin cannot take the name of a built-in one.
func ExampleWithPlugin() {
	cmd := scheduler.NewCommand(scheduler.WithPlugin("TaintToleration", newCrowding))
	cmd.SilenceErrors = true
	cmd.SetArgs([]string{})
	fmt.Println(cmd.Execute())
	// Output: a plugin named TaintToleration already exists: it is one of Berth's own
}
