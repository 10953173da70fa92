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

// work is the folder of all files of the tests, except the files of containerd.
var work string

// bin is the folder of the binaries under test.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	// These tests wait more than they compute, so several run in parallel.
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
		// The tests must not use the user's cluster or cache.
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

// mustRunContainers skips the test if containers cannot run on this machine. Otherwise it builds
// the programs under test.
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

// patience limits each wait. It is generous, because the machine may be busy with other tests.
const patience = 2 * time.Minute

// eventually calls f until f returns nil, and fails the test after a timeout.
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
