// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-k8s/berth/test/inplace/build"
)

// run is one run of all packages.
type run struct {
	packages []string
	tests    string // pattern of test names; empty means all
	logs     string
	both     bool
	times    int
	out      io.Writer

	builder *build.Builder
	known   known
}

// runAll builds and runs the packages one after the other, and prints a table.
func (r *run) runAll(ctx context.Context) error {
	work, err := os.MkdirTemp("", "berth-integration-")
	if err != nil {
		return err
	}

	defer os.RemoveAll(work)
	if err := r.prepareBuild(ctx, work); err != nil {
		return err
	}

	var rows []row
	for range r.times {
		for _, name := range r.packages {
			row, err := r.runPackage(ctx, name)
			if err != nil {
				return err
			}
			rows = append(rows, row)
			fmt.Fprintln(os.Stderr, row.progressText())
		}
	}

	if r.tests == "" {
		for _, pattern := range r.known.unneededPatterns(r.packages) {
			fmt.Fprintln(os.Stderr, "known.txt: no test fails that this line is for:", pattern)
		}
	}
	return printTable(r.out, rows, r.both)
}

func (r *run) prepareBuild(ctx context.Context, work string) (err error) {
	if r.known, err = readKnown(knownFailures); err != nil {
		return err
	}
	r.builder, err = build.New(ctx, work)
	return err
}

// runPackage builds a package's tests and runs them.
func (r *run) runPackage(ctx context.Context, name string) (row, error) {
	made := row{name: name}
	file, folder, err := r.builder.Tests(ctx, name)
	if err != nil {
		return made, err
	}
	defer os.Remove(file)
	if made.berth, err = r.readResults(ctx, file, folder, name, ""); err != nil {
		return made, err
	}
	made.judgeFailures(r.known)
	if r.both {
		made.upstream, err = r.readResults(ctx, file, folder, name, "no")
	}
	return made, err
}

// readResults runs the tests of a package and reads the results.
func (r *run) readResults(ctx context.Context, file, folder, name, inPlace string) (results, error) {
	var out bytes.Buffer
	arguments := []string{"-test.v=test2json", "-test.timeout=40m"}
	if r.tests != "" {
		arguments = append(arguments, "-test.run="+r.tests)
	}

	defer r.builder.EndStrays()
	err := build.Command(ctx, folder, r.builder.Environment(inPlace), &out, file, arguments...)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return nil, err
	}

	if r.logs != "" {
		side := "berth"
		if inPlace == "no" {
			side = "upstream"
		}
		log := filepath.Join(r.logs, strings.ReplaceAll(name, "/", "_")+"."+side+".log")
		if err := appendTo(log, out.Bytes()); err != nil {
			return nil, err
		}
	}

	found := readResults(&out)
	if len(found) == 0 && r.tests == "" {
		return nil, fmt.Errorf("no tests of %s were run: %w", name, err)
	}
	return found, nil
}

// appendTo appends a run's output to a log.
func appendTo(log string, printed []byte) error {
	if err := os.MkdirAll(filepath.Dir(log), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(printed)
	return errors.Join(err, f.Close())
}
