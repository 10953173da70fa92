// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/usage"
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
		causes = nil
		for _, cause := range list {
			causes = append(causes, cause)
		}
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
