// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package build compiles upstream's integration tests so that they run Berth. The working folder
// must be this module's folder.
package build

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-k8s/berth/test/inplace/patch"
)

// Builder compiles tests from patched copies of k8s.io/kubernetes and of
// sigs.k8s.io/scheduler-plugins.
type Builder struct {
	work    string // folder for compiled programs
	modules string // go.mod file that refers to the copies; the go command may extend it
	copied  string
	plugins string // folder of the copy of scheduler-plugins; empty if not created yet
	sources string // folder to which the source paths in the compiled code are relative
}

// New copies and patches Kubernetes, and builds etcd, which the tests start.
func New(ctx context.Context, work string) (*Builder, error) {
	b := &Builder{work: work, modules: filepath.Join(work, "go.mod"), copied: filepath.Join(work, "kubernetes")}
	if err := Command(ctx, "", nil, io.Discard, "go", "build", "-o", filepath.Join(work, "etcd"), "./cmd/benchlive/etcd"); err != nil {
		return nil, fmt.Errorf("build etcd: %w", err)
	}
	var module bytes.Buffer
	if err := Command(ctx, "", nil, &module, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"); err != nil {
		return nil, err
	}
	// Paths in the module are "k8s.io/kubernetes@VERSION/...".
	b.sources = filepath.Dir(filepath.Dir(strings.TrimSpace(module.String())))
	if err := patch.Kubernetes.Copy(strings.TrimSpace(module.String()), b.copied); err != nil {
		return nil, err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		more, err := os.ReadFile(filepath.Join("specs", name))
		if err != nil {
			return nil, err
		}
		if name == "go.mod" {
			text = fmt.Appendf(text, "\nreplace k8s.io/kubernetes => %s\n", b.copied)
			more = requirements(string(more), string(text))
		}
		if err := os.WriteFile(filepath.Join(work, name), append(text, more...), 0o600); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// requirements returns the requirements of one go.mod file, more, that another go.mod file, than,
// lacks. They are needed because some of upstream's integration tests use its end-to-end framework,
// whose dependencies are only in the module of the end-to-end specs.
func requirements(more, than string) (lines []byte) {
	for line := range strings.Lines(more) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) > 1 && strings.HasPrefix(fields[1], "v") && !strings.Contains(line, "=>") &&
			!strings.Contains(than, fields[0]+" v") {
			lines = fmt.Appendf(lines, "require %s %s\n", fields[0], fields[1])
		}
	}
	return lines
}

// PluginTests is the prefix of the names of test packages in scheduler-plugins.
const PluginTests = "scheduler-plugins/"

// Tests compiles the tests of a package below test/integration. It returns the test binary and the
// folder to run it in.
func (b *Builder) Tests(ctx context.Context, name string) (file, folder string, err error) {
	file = filepath.Join(b.work, strings.ReplaceAll(name, "/", "_")+".test")
	module, below := "k8s.io/kubernetes", name
	folder = b.copied
	if plugin, ok := strings.CutPrefix(name, PluginTests); ok {
		if err := b.addPlugins(ctx); err != nil {
			return "", "", fmt.Errorf("copy scheduler-plugins: %w", err)
		}
		module, folder, below = pluginsModule, b.plugins, plugin
	}
	if err = b.compile(ctx, "test", "-vet=off", "-c", "-o", file, module+"/test/integration/"+below); err != nil {
		err = fmt.Errorf("build the tests of %s: %w", name, err)
	}
	return file, filepath.Join(folder, "test/integration", below), err
}

// compile runs the go command with the copies. It trims this machine's paths, so that unpatched
// packages are compiled only once.
func (b *Builder) compile(ctx context.Context, verb string, arguments ...string) error {
	return Command(ctx, "", nil, io.Discard, "go", append([]string{verb, "-mod=mod", "-trimpath", "-modfile", b.modules}, arguments...)...)
}

const pluginsModule = "sigs.k8s.io/scheduler-plugins"

// addPlugins copies scheduler-plugins and builds the API server that its tests start as a process.
// It downloads the module and its dependencies from the module proxy, because go.mod does not
// require them.
func (b *Builder) addPlugins(ctx context.Context) error {
	if b.plugins != "" {
		return nil
	}
	var told bytes.Buffer
	if err := Command(ctx, "", nil, &told, "go", "mod", "download", "-modfile", b.modules, "-json", pluginsModule+"@"+
		patch.PluginsVersion); err != nil {
		return err
	}

	var module struct{ Dir string }
	if err := json.Unmarshal(told.Bytes(), &module); err != nil {
		return err
	}

	copied := filepath.Join(b.work, "scheduler-plugins")
	if err := patch.Plugins.Copy(module.Dir, copied); err != nil {
		return err
	}
	if err := b.compile(ctx, "build", "-o", filepath.Join(b.work, "kube-apiserver"), "k8s.io/kubernetes/cmd/kube-apiserver"); err != nil {
		return err
	}

	err := Command(ctx, "", nil, io.Discard, "go", "mod", "edit", "-require", pluginsModule+"@"+patch.PluginsVersion,
		"-replace", pluginsModule+"="+copied, b.modules)
	if err == nil {
		b.plugins = copied
	}
	return err
}

// Environment returns the environment of the tests. If inPlace is "no", they run upstream's
// scheduler and controllers. TEST_SRCDIR and TEST_WORKSPACE set the folder to which paths in
// upstream's tests are relative. The KUBEBUILDER variables set the folder of etcd and the API
// server and a timeout for the tests of scheduler-plugins.
func (b *Builder) Environment(inPlace string) []string {
	return []string{"PATH=" + b.work + string(filepath.ListSeparator) + os.Getenv("PATH"), "BERTH_INPLACE=" + inPlace,
		"TEST_SRCDIR=" + b.sources, "TEST_WORKSPACE=.", "KUBEBUILDER_ASSETS=" + b.work, "KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=2m"}
}

// EndStrays kills programs that tests left running: after a panic, the tests of scheduler-plugins
// do not stop etcd and the API server. It finds such programs only on Linux.
func (b *Builder) EndStrays() {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		program, err := os.Readlink(link)
		if err != nil || filepath.Dir(program) != b.work {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Command runs a command to its end. Its error contains the end of the command's output.
func Command(ctx context.Context, folder string, env []string, out io.Writer, name string, arguments ...string) error {
	cmd := exec.CommandContext(ctx, name, arguments...)
	var buf bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, out, &buf
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, tail(buf.String()))
	}
	return nil
}

func tail(text string) string {
	const most = 4000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return text
}
