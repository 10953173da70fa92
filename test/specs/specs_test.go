// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"bufio"
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/component-base/logs"
	_ "k8s.io/kubernetes/test/e2e" // provides the setup and cleanup of the suite
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	fixtures "k8s.io/kubernetes/test/fixtures"

	_ "k8s.io/kubernetes/test/e2e/apimachinery"
	_ "k8s.io/kubernetes/test/e2e/apps"
	_ "k8s.io/kubernetes/test/e2e/common/network"
	_ "k8s.io/kubernetes/test/e2e/common/node"
	_ "k8s.io/kubernetes/test/e2e/common/storage"
	_ "k8s.io/kubernetes/test/e2e/node"
	_ "k8s.io/kubernetes/test/e2e/scheduling"

	_ "k8s.io/kubernetes/test/e2e/feature"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/utils/ktesting/format"
)

var (
	binaries = flag.String("berth-bin", os.Getenv("BERTH_BIN"), "folder with berth and berth-controlplane, for a cluster of the run's own")
	nodes    = flag.Int("berth-nodes", 3, "simulated nodes of that cluster")
	onAgent  = flag.Bool("berth-agent", false, "run the specs of node.txt, not specs.txt; a cluster of the run's own has no simulated nodes but that of berth up --agent (needs root and containerd)")
	procs    = flag.Int("berth-procs", 4, "with -berth-agent: processes that share the specs of a cluster of the run's own")
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	for name, value := range map[string]string{"provider": "local", "dump-logs-on-failure": "false", "ginkgo.timeout": "4h"} {
		if err := flag.Set(name, value); err != nil {
			return fail(err)
		}
	}
	// Do not use the cluster of $KUBECONFIG, only a cluster named by a flag: specs taint and fill
	// nodes.
	framework.TestContext.KubeConfig = ""
	flag.Parse()
	if framework.TestContext.KubeConfig == "" && !dryRun() {
		if *onAgent {
			return runOnAgent(*binaries, *procs)
		}
		c, err := up(*binaries, `^Berth is up`, "--nodes", strconv.Itoa(*nodes))
		if err != nil {
			return fail(err)
		}
		defer c.stop()
		framework.TestContext.KubeConfig = c.kubeconfig
	}
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	testfiles.AddFileSource(fixtures.GetTestFixturesFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	return m.Run()
}

func dryRun() bool {
	suite, _ := ginkgo.GinkgoConfiguration()
	return suite.DryRun
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "specs:", err)
	return 1
}

// TestSpecs runs the specs selected by specs.txt, or by --ginkgo.focus and --ginkgo.skip.
func TestSpecs(t *testing.T) {
	logs.InitLogs()
	defer logs.FlushLogs()
	gomega.RegisterFailHandler(framework.Fail)
	file := "specs.txt"
	if *onAgent {
		file = "node.txt"
	}
	choice, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.RandomizeAllSpecs = true
	if len(suite.FocusStrings) == 0 {
		suite.FocusStrings, suite.SkipStrings = choice.run, append(choice.leave, suite.SkipStrings...)
	}
	ginkgo.RunSpecs(t, "upstream's specs on Berth", suite, reporter)
}

//go:embed specs.txt node.txt
var chosen embed.FS

// choice is the content of specs.txt or node.txt: regular expressions for the full names of specs.
type choice struct{ run, leave []string }

func read(file string) (c choice, err error) {
	text, err := chosen.ReadFile(file)
	if err != nil {
		return c, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "run":
			c.run = append(c.run, strings.TrimSpace(rest))
		case "leave":
			expression, reason, found := strings.Cut(rest, " # ")
			if !found || strings.TrimSpace(reason) == "" {
				return c, fmt.Errorf("%s:%d: no reason: must be leave EXPRESSION # REASON", file, i+1)
			}
			c.leave = append(c.leave, strings.TrimSpace(expression))
		case "", "#":
		default:
			return c, fmt.Errorf("%s:%d: %q: must be run or leave", file, i+1, word)
		}
	}
	return c, nil
}

// upLimit limits the time until berth up reports that the cluster is ready.
const upLimit = 2 * time.Minute

// cluster is a cluster started by this run.
type cluster struct {
	dir        string // folder of the kubeconfig
	kubeconfig string
	said       []string // the line of output that matched, and its groups
	stop       func()
}

// up starts a cluster with `berth up`, and waits until a line of the output matches ready.
func up(binaries, ready string, args ...string) (*cluster, error) {
	if binaries == "" {
		return nil, fmt.Errorf("-berth-bin or $BERTH_BIN must name the folder with berth and berth-controlplane, or --kubeconfig a cluster that may be taken apart")
	}
	dir, err := os.MkdirTemp("", "berth-specs-")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "berth"), append([]string{"up", "--data-dir", dir}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stderr = os.Stderr
	c := &cluster{dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig"), stop: func() {
		cancel()
		_ = cmd.Wait() // the error only reports the requested end
		_ = os.RemoveAll(dir)
	}}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	if c.said, err = said(out, regexp.MustCompile(ready)); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// said waits until a line matches, and continues to read afterwards, so that the writer never
// blocks.
func said(r io.Reader, pattern *regexp.Regexp) ([]string, error) {
	found := make(chan []string, 1)
	go func() {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if match := pattern.FindStringSubmatch(lines.Text()); match != nil {
				select {
				case found <- match:
				default: // only the first match counts
				}
			}
		}
	}()
	select {
	case match := <-found:
		return match, nil
	case <-time.After(upLimit):
		return nil, fmt.Errorf("berth up did not say %q within %v", pattern, upLimit)
	}
}
