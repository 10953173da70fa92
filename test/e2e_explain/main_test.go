// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/test/internal/binaries"
	"github.com/berth-k8s/berth/test/internal/output"
)

var (
	operations = flag.Int("operations", 6, "how many random operations are forecast and done")
	troubled   = flag.Bool("trouble", false, "have nodes fall silent, drains and deletions go on while forecasts are made")
	seed       = flag.Uint64("seed", 1, "of the random operations")
	misses     = flag.String("misses", "", "folder to which each operation is written that was not as forecast: the cluster before and after, and the forecast")
)

// The cluster shared by all tests: `berth up` with a few simulated nodes.
var (
	bin    string // folder of the binaries
	data   string // data directory of the cluster
	config *rest.Config
	client kubernetes.Interface
	said   = &output.Buffer{} // output of berth up
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := setUp(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// shortBackoff is a scheduler configuration with a back-off of at most a second. With longer
// back-offs, it would be unpredictable which of two pods is in back-off when room becomes
// available.
const shortBackoff = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
`

func setUp(m *testing.M) (int, error) {
	work, err := os.MkdirTemp("", "berth-e2e-explain-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	if bin, err = binaries.BuildIn(work, "../.."); err != nil {
		return 0, err
	}
	os.Unsetenv("KUBECONFIG")
	os.Setenv("HOME", work)
	data = filepath.Join(work, "cluster")
	os.Setenv("BERTH_DATA_DIR", data)
	configuration := filepath.Join(work, "scheduler.yaml")
	if err := os.WriteFile(configuration, []byte(shortBackoff), 0o600); err != nil {
		return 0, err
	}
	stop, err := up("--nodes", "6", "--zones", "3", "--config", configuration, "--feature-gates", "GenericWorkload=true,TopologyAwareWorkloadScheduling=true")
	if err != nil {
		return 0, err
	}
	defer stop()
	if config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig")); err != nil {
		return 0, err
	}
	config.QPS = -1
	if client, err = kubernetes.NewForConfig(config); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// up starts the cluster, and returns a function that ends it.
func up(flags ...string) (stop func(), err error) {
	cmd := exec.Command(filepath.Join(bin, "berth"), append([]string{"up", "--data-dir", data}, flags...)...)
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
		}
	}
	for deadline := time.Now().Add(5 * time.Minute); !strings.Contains(said.String(), "Berth is up"); {
		select {
		case <-ended:
			return nil, fmt.Errorf("berth up ended:\n%s", said)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("berth up is not up:\n%s", said)
		}
	}
	return stop, nil
}

// berth runs a berth command, optionally with another kubeconfig.
func berth(t testing.TB, kubeconfig string, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, "berth"), args...)
	if kubeconfig != "" {
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

func must(t testing.TB, kubeconfig string, args ...string) string {
	t.Helper()
	out, err := berth(t, kubeconfig, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// within waits until is returns true, and fails the test after the limit.
func within(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !is(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(50 * time.Millisecond)
	}
}
