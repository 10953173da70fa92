package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/scheduler"
)

func newScheduler() *cobra.Command {
	cmd := scheduler.NewCommand()
	cmd.GroupID = groupParts
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if wrong := (scheduler.UsageError{}); errors.As(err, &wrong) {
			return usageError{err}
		}
		return err
	}
	return cmd
}
