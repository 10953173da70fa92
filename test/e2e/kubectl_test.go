// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// result is the result of a command.
type result struct {
	stdout, stderr string
	code           int
}

func execute(t *testing.T, env []string, stdin string, name string, args ...string) result {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// berth runs berth for the shared cluster.
func berth(t *testing.T, args ...string) result {
	t.Helper()
	return execute(t, []string{"BERTH_DATA_DIR=" + shared.dir}, "", filepath.Join(bin, "berth"), args...)
}

// wants fails the test unless the command had this exit code and its output contains the words.
func (r result) wants(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.stdout, r.stderr)
	}
	for _, word := range words {
		if !strings.Contains(r.stdout+r.stderr, word) {
			t.Fatalf("no %q in\nstdout: %s\nstderr: %s", word, r.stdout, r.stderr)
		}
	}
}

// oneLine verifies that the error output is exactly one line.
func (r result) oneLine(t *testing.T) {
	t.Helper()
	if text := strings.TrimSpace(r.stderr); text == "" || strings.Contains(text, "\n") {
		t.Errorf("an error is one line, this is: %q", r.stderr)
	}
}

// kubectl runs `berth kubectl` and requires it to succeed.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	r := berth(t, append([]string{"kubectl"}, args...)...)
	if r.code != 0 {
		t.Fatalf("berth kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// apply applies a manifest.
func apply(t *testing.T, manifest string) {
	t.Helper()
	r := execute(t, []string{"BERTH_DATA_DIR=" + shared.dir}, manifest, filepath.Join(bin, "berth"), "kubectl", "apply", "-f", "-")
	if r.code != 0 {
		t.Fatalf("apply: %s%s\n%s", r.stdout, r.stderr, manifest)
	}
}

// kubectls returns the available variants of kubectl: the built-in kubectl, and the system's if
// installed.
func kubectls(t *testing.T) map[string]func(args ...string) result {
	ways := map[string]func(args ...string) result{
		"built in": func(args ...string) result { return berth(t, append([]string{"kubectl"}, args...)...) },
	}
	if path, err := exec.LookPath("kubectl"); err == nil {
		env := []string{"KUBECONFIG=" + filepath.Join(shared.dir, "kubeconfig")}
		ways["system"] = func(args ...string) result { return execute(t, env, "", path, args...) }
	}
	return ways
}

// pod returns a manifest of a pod, bound to a node if node is not empty. Each of more begins with
// its kind: annotation, spec or container.
func pod(name, node string, more ...string) string {
	var annotations, spec, container, owner []string
	for _, m := range more {
		switch key, value, _ := strings.Cut(m, " "); key {
		case "annotation":
			annotations = append(annotations, value)
		case "spec":
			spec = append(spec, value)
		case "container":
			container = append(container, value)
		}
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}, annotations: {%s}%s}
spec: {nodeName: %s, containers: [{name: c, image: nginx%s}]%s}
`, name, strings.Split(name, "-")[0], strings.Join(annotations, ", "), strings.Join(owner, ""), node,
		comma(container), comma(spec))
}

func comma(parts []string) string {
	if len(parts) == 0 {
		return ""
	}
	return ", " + strings.Join(parts, ", ")
}

// awaits waits until a field of an object has the wanted value.
func awaits(t *testing.T, within time.Duration, object, jsonpath, want string) {
	t.Helper()
	eventually(t, within, func() error {
		if got := get(t, object, jsonpath); got != want {
			return fmt.Errorf("%s %s is %q, want %q", object, jsonpath, got, want)
		}
		return nil
	})
}

func awaitGone(t *testing.T, within time.Duration, object string) {
	t.Helper()
	eventually(t, within, func() error {
		found, err := shared.objects.get(object)
		if err == nil && found != nil {
			err = fmt.Errorf("%s is still there", object)
		}
		return err
	})
}
