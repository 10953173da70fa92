// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/test/internal/binaries"
)

// shared is the cluster of most tests.
var shared *cluster

// bin is the folder of the binaries under test.
var bin string

func TestMain(m *testing.M) {
	code, err := setUp(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setUp(m *testing.M) (int, error) {
	work, err := os.MkdirTemp("", "berth-e2e-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	// Tests with separate clusters run in parallel, after the tests on the shared cluster.
	if err := flag.Set("test.parallel", "4"); err != nil {
		return 0, err
	}
	if bin, err = binaries.BuildIn(work, "../.."); err != nil {
		return 0, err
	}
	// The tests must not use the user's cluster or cache.
	os.Unsetenv("KUBECONFIG")
	os.Unsetenv("BERTH_DATA_DIR")
	os.Setenv("HOME", work)
	if shared, err = launch(filepath.Join(work, "shared"), "--nodes", "3"); err != nil {
		return 0, err
	}
	defer shared.stop()
	if shared.objects, err = objectsOf(shared.dir, shared.client); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// client returns a client for the cluster of a data directory.
func client(dataDir string) (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return kubernetes.NewForConfig(cfg)
}

func background() context.Context { return context.Background() }
