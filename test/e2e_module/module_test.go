// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2emodule

import (
	"archive/zip"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var build = flag.Bool("build", false, "also compile and run the external module's test: minutes, because Berth is compiled once more")

const (
	root   = "../.."
	module = "github.com/berth-k8s/berth"
)

// TestExternalModule verifies that a module outside of this tree builds and runs a control plane
// and the scheduler from the tagged modules, without `replace`.
func TestExternalModule(t *testing.T) {
	work := t.TempDir()
	version := requiredVersion(t)
	proxy := filepath.Join(work, "proxy")
	nested := publish(t, proxy, module, ".", version)
	if !nested["controlplane"] {
		t.Fatalf("nested modules: %v", nested)
	}
	publish(t, proxy, module+"/controlplane", "controlplane", version)

	outside := filepath.Join(work, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/outside/outside_test.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(outside, "outside_test.go"), text)
	write(t, filepath.Join(outside, "go.mod"), fmt.Appendf(nil, "module example.com/outside\n\ngo 1.26.0\n\nrequire %s/controlplane %s\n", module, version))

	// Modules that this machine has downloaded are not downloaded again. The own cache keeps this
	// tree's content of the version out of the user's cache.
	sources := []string{"file://" + proxy, "file://" + filepath.Join(goEnv(t, "GOMODCACHE"), "cache", "download"), goEnv(t, "GOPROXY")}
	environment := append(os.Environ(), "GOPROXY="+strings.Join(sources, ","), "GOMODCACHE="+filepath.Join(work, "modules"),
		"GONOSUMDB="+module+"*", "GOWORK=off", "GOFLAGS="+withoutMod(os.Getenv("GOFLAGS"))+" -modcacherw")
	run := func(arguments ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", arguments...)
		cmd.Dir, cmd.Env = outside, environment
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(arguments, " "), err, lastLines(string(out), 40))
		}
		return string(out)
	}
	if found := run("list", "-mod=mod", "-deps", "-test", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", "./..."); !strings.Contains(found, module+" "+version+"\n") {
		t.Errorf("%s %s is not used", module, version)
	}
	if *build {
		t.Log(lastLines(run("test", "-count=1", "-v", "./..."), 10))
	}
	got, err := os.ReadFile(filepath.Join(outside, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "replace") {
		t.Errorf("go.mod has a replacement:\n%s", got)
	}
}

// requiredVersion returns the version of the root module that the module controlplane requires.
// Dependents use it, because `replace` has no effect in them.
func requiredVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "controlplane", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\t` + module + ` (v\S+)`).FindSubmatch(text)
	if found == nil || string(found[1]) == "v0.0.0" {
		t.Fatalf("controlplane/go.mod requires no version of %s: %q", module, found)
	}
	return string(found[1])
}

// publish writes a version of a module into the folder of a module proxy, with the tracked files of
// a folder of the tree. It returns the nested modules, which it leaves out.
func publish(t *testing.T, proxy, path, folder, version string) (nested map[string]bool) {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = filepath.Join(root, folder)
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	nested = map[string]bool{}
	for _, file := range files {
		if dir := filepath.Dir(file); filepath.Base(file) == "go.mod" && dir != "." {
			nested[dir] = true
		}
	}
	at := filepath.Join(proxy, path, "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	archive, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(archive)
	for _, file := range files {
		if !within(nested, file) {
			add(t, w, path+"@"+version+"/"+file, filepath.Join(root, folder, file))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, folder, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(at, version+".mod"), text)
	write(t, filepath.Join(at, version+".info"), fmt.Appendf(nil, `{"Version":%q}`, version))
	write(t, filepath.Join(at, "list"), []byte(version+"\n"))
	return nested
}

// within reports whether the file is in one of the folders.
func within(folders map[string]bool, file string) bool {
	for dir := filepath.Dir(file); dir != "."; dir = filepath.Dir(dir) {
		if folders[dir] {
			return true
		}
	}
	return false
}

// add adds a regular file. As the go command does, it leaves out symbolic links, and files that no
// longer exist in the working tree.
func add(t *testing.T, w *zip.Writer, name, path string) {
	t.Helper()
	info, err := os.Lstat(path)
	if os.IsNotExist(err) || err == nil && !info.Mode().IsRegular() {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	into, err := w.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(into, file); err != nil {
		t.Fatal(err)
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatalf("go env %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

// withoutMod removes -mod=readonly: the external module gets its go.sum file in this test. All
// other flags stay, so that Go's build cache has what this tree has compiled.
func withoutMod(flags string) string { return strings.ReplaceAll(flags, "-mod=readonly", "") }

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
