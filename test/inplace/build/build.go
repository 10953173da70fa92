// Package build compiles upstream's integration tests with Berth in them. It has to be used within
// this module's folder, as "go run" is.
package build

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-k8s/berth/test/inplace/patch"
)

// Builder compiles tests from a patched copy of k8s.io/kubernetes.
type Builder struct {
	work    string // where programs go
	modules string // a go.mod with the copy in it; the go command may complete it
	copied  string
	sources string // the folder that paths in what is compiled begin in
}

// New makes the copy, and etcd, which the tests start.
func New(ctx context.Context, work string) (*Builder, error) {
	b := &Builder{work: work, modules: filepath.Join(work, "go.mod"), copied: filepath.Join(work, "kubernetes")}
	if err := Command(ctx, "", nil, io.Discard, "go", "build", "-o", filepath.Join(work, "etcd"), "./cmd/benchlive/etcd"); err != nil {
		return nil, fmt.Errorf("build etcd: %w", err)
	}
	var module bytes.Buffer
	if err := Command(ctx, "", nil, &module, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"); err != nil {
		return nil, err
	}
	// Those of the module are "k8s.io/kubernetes@VERSION/...".
	b.sources = filepath.Dir(filepath.Dir(strings.TrimSpace(module.String())))
	if err := patch.Copy(strings.TrimSpace(module.String()), b.copied); err != nil {
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

// requirements are those of a go.mod that another one does not have. Some of upstream's integration
// tests use its end-to-end framework, and only the module of the end-to-end specs needs what that
// needs.
func requirements(more, than string) (lines []byte) {
	for line := range strings.Lines(more) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) > 1 && strings.HasPrefix(fields[1], "v") && !strings.Contains(line, "=>") && !strings.Contains(than, fields[0]+" v") {
			lines = fmt.Appendf(lines, "require %s %s\n", fields[0], fields[1])
		}
	}
	return lines
}

// Tests compiles the tests of a package below test/integration; folder is where they are to be run.
// Without paths of this machine in it, what is compiled of unpatched packages is what others use.
func (b *Builder) Tests(ctx context.Context, name string) (file, folder string, err error) {
	file, folder = filepath.Join(b.work, strings.ReplaceAll(name, "/", "_")+".test"), filepath.Join(b.copied, "test/integration", name)
	err = Command(ctx, "", nil, io.Discard, "go", "test", "-mod=mod", "-trimpath", "-modfile", b.modules, "-vet=off", "-c", "-o", file, "k8s.io/kubernetes/test/integration/"+name)
	if err != nil {
		err = fmt.Errorf("build the tests of %s: %w", name, err)
	}
	return file, folder, err
}

// Environment is that of the tests; inPlace "no" leaves upstream's scheduler and controllers where
// they are. TEST_SRCDIR and TEST_WORKSPACE tell upstream's tests where paths begin.
func (b *Builder) Environment(inPlace string) []string {
	return []string{"PATH=" + b.work + string(filepath.ListSeparator) + os.Getenv("PATH"), "BERTH_INPLACE=" + inPlace,
		"TEST_SRCDIR=" + b.sources, "TEST_WORKSPACE=."}
}

// Command runs a command to its end. Its error has the end of what the command said.
func Command(ctx context.Context, folder string, env []string, out io.Writer, name string, arguments ...string) error {
	cmd := exec.CommandContext(ctx, name, arguments...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, out, &said
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, tail(said.String()))
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
