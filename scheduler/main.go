// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/usage"
)

// Main is the main function of a scheduler program, with or without compiled-in plugins. It returns
// the exit code: 0 after a requested shutdown, 1 for a failure, 2 for wrong usage. Errors are one
// line on standard error.
func Main(opts ...Option) int {
	cmd := NewCommand(opts...)
	cmd.Use = filepath.Base(os.Args[0])
	cmd.Example = strings.ReplaceAll(cmd.Example, "berth scheduler", cmd.Use)
	return executeCommand(cmd, os.Args[1:], os.Stdout, os.Stderr)
}

func executeCommand(cmd *cobra.Command, args []string, stdout, stderr io.Writer) int {
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SilenceErrors = true
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage.Errorf("%w (see %s --help)", err, c.CommandPath())
	})
	err := cmd.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %s\n", cmd.Name(), strings.Join(strings.Fields(err.Error()), " "))
	if usage.IsError(err) {
		return usage.ExitCode
	}
	return 1
}
