// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2enode

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/containerd"
	"github.com/berth-k8s/berth/test/internal/binaries"
)

// work is the folder of all of the tests' files, except for containerds.
var work string

// bin is the folder of the binaries under test.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests here wait more than they compute, and each has a cluster.
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	code := func() int {
		var err error
		if work, err = os.MkdirTemp("", "berth-e2e-node-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(work)
		// Keep the tests away from the user's cluster and cache.
		os.Unsetenv("KUBECONFIG")
		os.Unsetenv("BERTH_DATA_DIR")
		os.Setenv("HOME", work)
		return m.Run()
	}()
	os.Exit(code)
}

var build = sync.OnceValue(func() (err error) {
	bin, err = binaries.WithKubelet(work, "../..")
	return err
})

// mustRunContainers skips a test if containers cannot be run.
func mustRunContainers(t *testing.T) {
	t.Helper()
	if reason := containerd.Impossible(); reason != "" {
		t.Skip("no containers can be run here: " + reason)
	}
	if err := containerd.Install(t.Context()); err != nil {
		t.Skip("what runs containers cannot be installed here: " + err.Error())
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
}

// patience bounds all waits: the machine may be busy with other tests.
const patience = 2 * time.Minute

// eventually retries until the function returns nil.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: not within %s: %v", what, patience, err)
}

var errNotYet = errors.New("not yet")
