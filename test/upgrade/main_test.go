// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/test/internal/binaries"
)

var old = flag.String("old", "", "the other version: a revision of this repository, which is built, or a folder of programs")

// versions holds the folders of the two versions' programs.
type versions struct{ old, new string }

func both(t *testing.T) versions {
	t.Helper()
	if *old == "" {
		t.Skip("no other version was named: see -old")
	}
	var v versions
	var err error
	if v.old, err = binaries.Of(*old, "../.."); err != nil {
		t.Fatal(err)
	}
	if v.new, err = binaries.BuildIn(t.TempDir(), "../.."); err != nil {
		t.Fatal(err)
	}
	return v
}

// run runs the berth in a folder and returns its standard output. An error fails the test.
func run(t *testing.T, folder string, args ...string) string {
	t.Helper()
	out, err := try(t, folder, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

type failed struct {
	error
	said string
}

func (f failed) Error() string { return f.error.Error() + ": " + f.said }

func try(t *testing.T, folder string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(folder, "berth"), args...)
	// The command must not reach the user's cluster or data.
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "BERTH_DATA_DIR=", "HOME="+t.TempDir())
	var out, buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &buf
	if err := cmd.Run(); err != nil {
		return out.String(), failed{err, strings.TrimSpace(buf.String())}
	}
	return out.String(), nil
}
