// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/scheduler"
)

func newScheduler() *cobra.Command {
	cmd := scheduler.NewCommand()
	cmd.GroupID = groupParts
	return cmd
}
