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

	"github.com/berth-k8s/berth/test/inplace/patch"
)

const upstream = "k8s.io/kubernetes/test/integration/"

// run is one run of all packages.
type run struct {
	packages  []string
	tests     string // a pattern; empty: all
	bin, logs string
	both      bool
	times     int
	out       io.Writer

	modules string // go.mod with the copy in it
	copied  string // the copy of k8s.io/kubernetes
	known   known
}

// all builds and runs the packages one after the other, and prints a table.
func (r *run) all(ctx context.Context) error {
	work, err := os.MkdirTemp("", "berth-integration-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := r.prepare(ctx, work); err != nil {
		return err
	}
	var rows []row
	for range r.times {
		for _, name := range r.packages {
			row, err := r.one(ctx, work, name)
			if err != nil {
				return err
			}
			rows = append(rows, row)
			fmt.Fprintln(os.Stderr, row.progress())
		}
	}
	return printTable(r.out, rows, r.both)
}

func (r *run) prepare(ctx context.Context, work string) (err error) {
	if r.known, err = readKnown(knownFailures); err != nil {
		return err
	}
	if r.bin == "" {
		r.bin = work
		if err := command(ctx, "", nil, io.Discard, "go", "build", "-o", filepath.Join(work, "etcd"), "./cmd/benchlive/etcd"); err != nil {
			return fmt.Errorf("build etcd: %w", err)
		}
	}
	if r.bin, err = filepath.Abs(r.bin); err != nil {
		return err
	}
	var module bytes.Buffer
	if err := command(ctx, "", nil, &module, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"); err != nil {
		return err
	}
	// Always the same folder, so that what was compiled of it is found again.
	r.copied = filepath.Join(os.TempDir(), "berth-integration", "kubernetes")
	if err := os.RemoveAll(r.copied); err != nil {
		return err
	}
	if err := patch.Copy(strings.TrimSpace(module.String()), r.copied); err != nil {
		return err
	}
	r.modules = filepath.Join(work, "go.mod")
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if name == "go.mod" {
			text = fmt.Appendf(text, "\nreplace k8s.io/kubernetes => %s\n", r.copied)
		}
		if err := os.WriteFile(filepath.Join(work, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// one builds a package's tests and runs them.
func (r *run) one(ctx context.Context, work, name string) (row, error) {
	made := row{name: name}
	file := filepath.Join(work, strings.ReplaceAll(name, "/", "_")+".test")
	if err := command(ctx, "", nil, io.Discard, "go", "test", "-modfile", r.modules, "-vet=off", "-c", "-o", file, upstream+name); err != nil {
		return made, fmt.Errorf("build the tests of %s: %w", name, err)
	}
	defer os.Remove(file)
	folder := filepath.Join(r.copied, "test/integration", name)
	var err error
	if made.berth, err = r.results(ctx, file, folder, name, ""); err != nil {
		return made, err
	}
	made.judge(r.known)
	if r.both {
		made.upstream, err = r.results(ctx, file, folder, name, "no")
	}
	return made, err
}

// results runs the tests of a package and reads what became of them.
func (r *run) results(ctx context.Context, file, folder, name, inPlace string) (results, error) {
	var out bytes.Buffer
	arguments := []string{"-test.v=test2json", "-test.timeout=40m"}
	if r.tests != "" {
		arguments = append(arguments, "-test.run="+r.tests)
	}
	env := []string{"PATH=" + r.bin + string(filepath.ListSeparator) + os.Getenv("PATH"), "BERTH_INPLACE=" + inPlace}
	err := command(ctx, folder, env, &out, file, arguments...)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	if r.logs != "" {
		side := "berth"
		if inPlace == "no" {
			side = "upstream"
		}
		log := filepath.Join(r.logs, strings.ReplaceAll(name, "/", "_")+"."+side+".log")
		if err := os.WriteFile(log, out.Bytes(), 0o600); err != nil {
			return nil, err
		}
	}
	found := readResults(&out)
	if len(found) == 0 && r.tests == "" {
		return nil, fmt.Errorf("no tests of %s were run: %w", name, err)
	}
	return found, nil
}

func command(ctx context.Context, folder string, env []string, out io.Writer, name string, arguments ...string) error {
	cmd := exec.CommandContext(ctx, name, arguments...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, out, &said
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, tail(said.String()))
	}
	return nil
}

// tail is the end of what a command said.
func tail(text string) string {
	const most = 4000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return text
}
